"""What a diagnosis finds out of a source: against a real store, the proxy before it in the way where that is asked."""

import asyncio
from pathlib import Path
from typing import TypeVar

import pytest

from forebay_core.diagnosis import CredentialFacts, EndpointFacts, Fact, MeasurementFacts, ProbeFacts
from forebay_core.locations import Source
from forebay_server.diagnosis.disk import measure_disk
from forebay_server.diagnosis.remote import remote_facts
from forebay_server.sources.endpoint import ask_endpoint, clock_ahead
from forebay_server.sources.registry import Stores
from forebay_server.sources.remote import RemoteCounters
from forebay_server.sources.s3_settings import settings_of
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket

MIB = 1 << 20
T = TypeVar("T")


def facts_of(environment: dict[str, str], *urls: str, seconds: float = 0.0, most_bytes: int = 0) -> list[Fact]:
    async def gather() -> list[Fact]:
        stores = Stores(environment, RemoteCounters())
        return [fact async for fact in remote_facts(stores, Source(urls), seconds, most_bytes)]

    return asyncio.run(gather())


def of(kind: type[T], facts: list[Fact]) -> list[T]:
    return [fact for fact in facts if isinstance(fact, kind)]


@pytest.fixture
def environment(bucket: Bucket, counting_proxy: CountingProxy) -> dict[str, str]:
    return bucket.server.environment(endpoint=counting_proxy.endpoint)


def test_a_source_is_listed_asked_read_and_measured_within_its_bounds(
    bucket: Bucket, environment: dict[str, str], counting_proxy: CountingProxy
) -> None:
    for number in range(3):
        bucket.put(f"train/{number}.bin", bytes(MIB))
    bucket.put("train/_SUCCESS", b"x")
    facts = facts_of(environment, bucket.uri("train"), seconds=5.0, most_bytes=8 * MIB)
    [endpoint], [credentials] = of(EndpointFacts, facts), of(CredentialFacts, facts)
    assert (endpoint.status, endpoint.message) == (403, "")
    assert abs(endpoint.clock_ahead_seconds) < 30
    assert endpoint.has_date
    assert (credentials.origin, credentials.region) == ("AWS_ACCESS_KEY_ID", "us-east-1")
    listed, head, read = of(ProbeFacts, facts)
    assert (listed.action, listed.objects, listed.bytes, listed.more, listed.error) == ("list", 3, 3 * MIB, False, "")
    assert (head.action, head.error, read.action, read.error) == ("head", "", "read", "")
    [measured] = of(MeasurementFacts, facts)
    assert measured.error == ""
    assert 4 * MIB < measured.bytes <= 8 * MIB
    assert counting_proxy.bytes_sent() <= 10 * MIB
    assert measured.seconds > 0
    assert measured.latency_seconds > 0


def test_nothing_is_measured_unless_that_is_asked_for(bucket: Bucket, environment: dict[str, str]) -> None:
    bucket.put("a.bin", bytes(MIB))
    facts = facts_of(environment, bucket.uri("a.bin"))
    assert [probe.action for probe in of(ProbeFacts, facts)] == ["list", "head", "read"]
    assert not of(MeasurementFacts, facts)


def test_a_store_that_cannot_be_opened_is_a_fact_and_the_only_one(bucket: Bucket) -> None:
    facts = facts_of({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, bucket.uri())
    assert facts == [CredentialFacts(error="AccessDenied", message=of(CredentialFacts, facts)[0].message)]
    assert "no credentials" in of(CredentialFacts, facts)[0].message


@pytest.mark.parametrize("action", ["list", "head", "read"])
def test_the_first_request_that_fails_says_why_and_ends_the_rest_of_its_kind(
    bucket: Bucket, environment: dict[str, str], counting_proxy: CountingProxy, action: str
) -> None:
    bucket.put("a.bin", bytes(100))
    denied = Fault(status=403, body=b"<Error><Code>AccessDenied</Code></Error>")

    def fault(request: Request) -> Fault | None:
        """Denies an action alone: only reads name a version, and the plain HEAD of the bucket is not signed."""
        if request.key:
            is_it = action == ("read" if "if-match" in request.headers else "head")
        else:
            is_it = action == "list" and bool(request.access_key)
        return denied if is_it else None

    counting_proxy.fault = fault
    probes = of(ProbeFacts, facts_of(environment, bucket.uri(""), seconds=1.0, most_bytes=MIB))
    assert [probe.action for probe in probes if probe.error] == [action]
    assert [probe.error for probe in probes if probe.error] == ["AccessDenied"]
    assert probes[-1].action == ("list" if action == "list" else "read")


def test_a_service_that_is_not_there_is_said_with_its_reason() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://user:hunter2@127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    environment |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "hunter2-secret"}
    facts = facts_of(environment, "s3://bucket/train")
    [endpoint], [probe] = of(EndpointFacts, facts), of(ProbeFacts, facts)
    assert endpoint.message
    assert probe.error == "SourceUnreachable"
    assert "hunter2" not in repr(facts)


def test_a_local_directory_has_neither_credentials_nor_a_service(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(1000))
    facts = facts_of({}, str(tmp_path), seconds=1.0, most_bytes=MIB)
    assert [type(fact) for fact in facts] == [ProbeFacts, ProbeFacts, ProbeFacts, MeasurementFacts]
    assert not [probe.error for probe in of(ProbeFacts, facts) if probe.error]


def test_the_region_and_the_clock_of_a_service_are_in_the_headers_of_its_refusal() -> None:
    moved = b"HTTP/1.1 301 Moved\r\nx-amz-bucket-region: eu-west-1\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        assert asked.startswith(b"HEAD /bucket HTTP/1.1")
        assert b"authorization" not in asked.lower()
        writer.write(moved + b"Content-Length: 0\r\n\r\n")
        writer.close()

    async def run() -> EndpointFacts:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_SKIP_SIGNATURE": "true"}
            return await ask_endpoint(settings_of("bucket", environment))

    found = asyncio.run(run())
    assert (found.status, found.bucket_region, found.has_date, found.message) == (301, "eu-west-1", True, "")
    assert found.clock_ahead_seconds > 3600


@pytest.mark.parametrize(
    ("date", "ahead"),
    [("Thu, 01 Jan 1970 00:01:40 GMT", -0.5), ("Thu, 01 Jan 1970 00:00:00 GMT", 99.5), ("nonsense", None), ("", None)],
)
def test_a_clock_is_compared_with_an_http_date(date: str, ahead: float | None) -> None:
    assert clock_ahead(date, 100.0) == ahead


def test_a_disk_is_measured_within_its_bounds_and_left_as_it_was(tmp_path: Path) -> None:
    written, read = measure_disk("d1", tmp_path, 20.0, 20 * MIB + 1)
    assert (written.what, read.what) == ("write", "read")
    assert written.bytes == read.bytes == 20 * MIB + 1
    assert written.seconds > 0
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_is_a_measurement_with_its_reason(tmp_path: Path) -> None:
    [failed] = measure_disk("d1", tmp_path / "gone", 1.0, MIB)
    assert failed.error == "FileNotFoundError"
    assert "gone" in failed.message
