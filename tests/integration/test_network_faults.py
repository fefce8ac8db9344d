"""Everything that a network does to requests, between a real daemon and a real store: the right samples in the end or
the right typed error, never wrong bytes in the cache, and nobody who waits for ever.

One daemon serves all of them, so that each also proves that the daemon was left well by those before.
"""

import os
import secrets
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay
from forebay_core.errors import AccessDenied, ForebayError, ObjectChanged, SourceNotFound, SourceUnreachable
from tests.server.daemons import Client, Daemon, client, daemon, read, token_spec, write_shards
from tests.support.faults import Rule, Script
from tests.support.processes import HOME_VARIABLE, end_processes_of
from tests.support.proxy import CountingProxy, Fault
from tests.support.seaweedfs import Bucket, SeaweedFS

SHARDS, SAMPLES, LENGTH, PIECE = 2, 128, 16, 4096
PIECES = SHARDS * SAMPLES * LENGTH * 4 // PIECE
TRUTH = np.arange(SHARDS * SAMPLES * LENGTH, dtype=np.int32).reshape(-1, LENGTH)
TOKENS = forebay.Tokens(sequence_length=LENGTH, dtype="int32", piece_bytes=PIECE)
STALL_SECONDS = 1
DATA = r"\.bin$"
PAGE = b"<html><body>503 backend unavailable</body></html>"


def refusal(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()


@dataclass
class Place:
    """A daemon, the proxy before its store, and the store."""

    node: Daemon
    proxy: CountingProxy
    bucket: Bucket

    def fresh(self) -> str:
        """The URL of the same data under a name that nothing is cached of."""
        prefix = secrets.token_hex(4)
        with tempfile.TemporaryDirectory() as directory:
            write_shards(Path(directory), shards=SHARDS, samples=SAMPLES)
            self.bucket.upload(Path(directory), f"{prefix}/")
        return self.bucket.uri(prefix)

    def samples(self, url: str) -> np.ndarray[Any, Any]:
        """All samples, as a loader hands them out."""
        data = forebay.StreamingDataset(url, format=TOKENS, shuffle=False, address=str(self.node.socket))
        loader = forebay.DataLoader(data, 32)
        try:
            return np.concatenate([batch["tokens"].numpy() for batch in loader])
        finally:
            loader.close()


@pytest.fixture(scope="module")
def shared(s3: SeaweedFS) -> Iterator[Place]:
    bucket = Bucket(f"test-{secrets.token_hex(6)}", s3)
    s3.create_bucket(bucket.name)
    with tempfile.TemporaryDirectory(prefix="fb-") as directory, CountingProxy(s3.endpoint) as proxy:
        home = Path(directory)
        environment = {**os.environ, **s3.environment(endpoint=proxy.endpoint), HOME_VARIABLE: str(home)}
        with daemon(home, "--stall-seconds", str(STALL_SECONDS), env=environment) as node:
            yield Place(node, proxy, bucket)
        end_processes_of(home)
    s3.delete_bucket(bucket.name)


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    yield shared
    shared.proxy.fault = lambda _: None
    shared.proxy.clear()


RIDDEN_OUT = {
    "delayed": Fault(delay_seconds=0.3),
    "dropped": Fault(drop=True),
    "cut in mid-body": Fault(cut_after_bytes=1000),
    "cut before the first byte": Fault(cut_after_bytes=0),
    "hangs before the answer": Fault(hang=True),
    "hangs in mid-body": Fault(hang_after_bytes=1000),
    "drips for longer than a stall": Fault(bytes_per_second=PIECE / (2.5 * STALL_SECONDS)),
    "500": Fault(status=500, body=refusal("InternalError")),
    "502 with a page": Fault(status=502, body=PAGE),
    "503 SlowDown": Fault(status=503, body=refusal("SlowDown"), headers={"Retry-After": "1"}),
    "503 with a page": Fault(status=503, body=PAGE),
    "503 cut short": Fault(status=503, body=PAGE, announced_bytes=1000),
    "a page as 200, of a proxy in between": Fault(status=200, body=PAGE),
    "429": Fault(status=429, body=refusal("TooManyRequests"), headers={"Retry-After": "1"}),
}


@pytest.mark.parametrize("fault", RIDDEN_OUT.values(), ids=RIDDEN_OUT.keys())
def test_what_goes_wrong_for_a_while_costs_time_and_no_sample(place: Place, fault: Fault) -> None:
    """CASES 26 and 35."""
    url = place.fresh()
    script = place.proxy.fault = Script(Rule(fault, method="GET", key=DATA, range="bytes=0-", times=2))
    assert (place.samples(url) == TRUTH).all()
    assert script.struck == 2


TYPED: dict[str, tuple[Fault, type[ForebayError], str]] = {
    "403": (Fault(status=403, body=refusal("AccessDenied")), AccessDenied, "denies access"),
    "404": (Fault(status=404, body=refusal("NoSuchKey")), SourceNotFound, "no such object"),
    "412": (Fault(status=412, body=refusal("PreconditionFailed")), ObjectChanged, "open the dataset again"),
    "416": (Fault(status=416, body=refusal("InvalidRange")), ObjectChanged, "shorter than the manifest says"),
    "a page as 200": (Fault(status=200, body=PAGE), SourceUnreachable, "does not answer as S3"),
    "a page as 200, cut short": (
        Fault(status=200, body=PAGE, announced_bytes=PIECE),
        SourceUnreachable,
        "does not answer as S3",
    ),
    "a page of the right length as 200": (
        Fault(status=200, body=PAGE.ljust(PIECE)),
        SourceUnreachable,
        "does not answer as S3",
    ),
    "a page of the right length as 206": (
        Fault(
            status=206,
            body=PAGE.ljust(PIECE),
            headers={
                "Content-Range": f"bytes 0-{PIECE - 1}/{SAMPLES * LENGTH * 4}",
                "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            },
        ),
        SourceUnreachable,
        "does not answer as S3",
    ),
}


@pytest.mark.parametrize(("fault", "error", "words"), TYPED.values(), ids=TYPED.keys())
def test_what_no_later_attempt_changes_is_one_typed_error_and_never_cached(
    place: Place, fault: Fault, error: type[ForebayError], words: str
) -> None:
    """CASES 36 and 37."""
    url = place.fresh()
    script = place.proxy.fault = Script(Rule(fault, method="GET", key=DATA, range="bytes=0-"))
    with pytest.raises(error, match=words) as caught:
        place.samples(url)
    assert script.struck >= 1
    assert "\n" not in str(caught.value)
    assert ".bin" in str(caught.value)
    place.proxy.fault = lambda _: None
    assert (place.samples(url) == TRUTH).all(), "a later try finds what is there, and nothing of the page"


def test_all_who_wait_for_a_fill_that_fails_get_its_error_and_a_later_try_works(place: Place) -> None:
    """CASES 28."""
    url, waiters = place.fresh(), 6
    failing = Rule(Fault(status=403, body=refusal("AccessDenied")), method="GET", key=DATA, range="bytes=0-")
    asked = threading.Barrier(waiters + 1)
    script = Script(failing)

    def hold(request: Any) -> Fault | None:
        fault = script(request)
        if fault is not None and failing.struck == 1:
            asked.wait(20)
        return fault

    def wait_for_it(number: int) -> str:
        with client(place.node.socket) as each:
            lease = each.acquire(open_session(each, url), [0])[0]
            asked.wait(20)
            with pytest.raises(RuntimeError) as caught:
                read(place.node.cache, lease)
        return str(caught.value)

    with client(place.node.socket) as first:
        open_session(first, url)
    place.proxy.fault = hold
    with ThreadPoolExecutor(waiters) as threads:
        errors = list(threads.map(wait_for_it, range(waiters)))
    assert all("AccessDenied" in error and url in error for error in errors)
    assert failing.struck == 1, "one fill, whose failure reached all"
    place.proxy.fault = lambda _: None
    with client(place.node.socket) as later:
        assert read(place.node.cache, later.acquire(open_session(later, url), [0])[0]) == TRUTH.tobytes()[:PIECE]


def open_session(made: Client, url: str) -> str:
    return made.session(made.open([url], token_spec(LENGTH, PIECE)).dataset_id)


def test_a_listing_that_is_throttled_goes_on(place: Place) -> None:
    """CASES 37."""
    url = place.fresh()
    script = place.proxy.fault = Script(Rule(Fault(status=503, body=refusal("SlowDown")), method="GET", times=1))
    assert (place.samples(url) == TRUTH).all()
    assert script.struck == 1
