"""What the facts of the way to a source mean, and whether bytes come fast enough."""

from dataclasses import replace

import pytest

from forebay.doctor import remote_verdicts as remote
from forebay.doctor.findings import Finding, Verdict
from forebay_core.diagnosis import CredentialFacts, EndpointFacts, MeasurementFacts, ProbeFacts

MIB = 1 << 20
CREDENTIALS = CredentialFacts("profile 'train'", region="eu-west-1", endpoint="https://s3.eu-west-1.amazonaws.com")
ENDPOINT = EndpointFacts("https://s3", 403, 0.02, True, 0.4, "eu-west-1")
LISTED = ProbeFacts("list", "s3://b/train", 0.2, 1000, 64_000 * MIB, True)
REMOTE = MeasurementFacts("remote", "", 600 * MIB, 2.0, 0.02, 16)
WRITE = MeasurementFacts("write", "d1", 1000 * MIB, 1.0)


def only(findings: list[Finding], check: str) -> Finding:
    [found] = [finding for finding in findings if finding.check == check]
    return found


def test_credentials_are_named_by_where_they_come_from_with_their_expiry() -> None:
    found = only(
        remote.credential_findings(replace(CREDENTIALS, expires_in_seconds=1800, requester_pays=True), [LISTED]),
        "credentials",
    )
    assert found == Finding(
        "credentials", Verdict.OK, "profile 'train', renewed before they expire in 30 min, which pay for the requests"
    )


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        ("AccessDenied", Verdict.WARNING),
        ("SourceUnreachable", Verdict.WARNING),
        ("SourceNotFound", Verdict.OK),
        ("", Verdict.OK),
    ],
)
def test_credentials_with_which_nothing_could_be_asked_are_not_called_ok(error: str, verdict: Verdict) -> None:
    listed = ProbeFacts("list", "s3://b/train", error=error)
    found = only(
        remote.credential_findings(replace(CREDENTIALS, origin="this machine's role"), [listed]), "credentials"
    )
    assert found.verdict is verdict
    assert found.found.startswith("this machine's role")
    assert found.advice == ("see list" if verdict is Verdict.WARNING else "")
    anonymous = remote.credential_findings(replace(CREDENTIALS, anonymous=True), [listed])
    assert only(anonymous, "credentials").verdict is Verdict.OK


def test_an_error_is_parted_into_what_is_wrong_and_what_to_do() -> None:
    facts = CredentialFacts(error="AccessDenied", message="s3://b: no credentials: none there; set AWS_PROFILE")
    [found] = remote.credential_findings(facts, [])
    assert found == Finding("credentials", Verdict.PROBLEM, "s3://b: no credentials: none there", "set AWS_PROFILE")


@pytest.mark.parametrize(
    ("ahead", "verdict", "said"),
    [
        (0.4, Verdict.OK, "as the service's"),
        (-90, Verdict.WARNING, "90 s behind the service's"),
        (1000, Verdict.PROBLEM, "1000 s ahead of"),
    ],
)
def test_a_clock_is_compared_with_the_services(ahead: float, verdict: Verdict, said: str) -> None:
    findings = remote.endpoint_findings(
        replace(ENDPOINT, clock_ahead_seconds=ahead), region="eu-west-1", is_reached=True
    )
    found = only(findings, "clock")
    assert found.verdict is verdict
    assert said in found.found


def test_a_bucket_of_another_region_is_named_with_the_setting() -> None:
    found = only(remote.endpoint_findings(ENDPOINT, region="us-east-1", is_reached=False), "region")
    assert found.verdict is Verdict.PROBLEM
    assert found.advice == "set AWS_REGION=eu-west-1 for the daemon"
    fine = remote.endpoint_findings(ENDPOINT, region="eu-west-1", is_reached=True)
    assert [finding.check for finding in fine] == ["service", "clock"]


@pytest.mark.parametrize(("reached", "verdict"), [(True, Verdict.WARNING), (False, Verdict.PROBLEM)])
def test_a_service_that_is_silent_is_a_problem_unless_the_daemon_reads_from_it(reached: bool, verdict: Verdict) -> None:
    silent = EndpointFacts("https://s3", message="no answer within 5 s")
    [found] = remote.endpoint_findings(silent, region="", is_reached=reached)
    assert found.verdict is verdict


def test_a_slow_listing_says_what_a_million_objects_would_take() -> None:
    [found] = remote.probe_findings(replace(LISTED, seconds=3.0))
    assert found.verdict is Verdict.WARNING
    assert "50 min" in found.advice
    [fast] = remote.probe_findings(LISTED)
    assert fast.verdict is Verdict.OK
    assert "1,000 and more objects" in fast.found


@pytest.mark.parametrize(
    ("measurements", "needed", "verdict", "said"),
    [
        ([REMOTE, WRITE], 0, Verdict.OK, "300.0 MiB/s at most: the remote is the limit"),
        ([REMOTE, WRITE], 200 * MIB, Verdict.OK, "training reads 200.0 MiB/s"),
        ([REMOTE, WRITE], 400 * MIB, Verdict.WARNING, "the remote is the limit"),
        (
            [REMOTE, replace(WRITE, seconds=10.0)],
            0,
            Verdict.OK,
            "100.0 MiB/s at most: writing to the cache is the limit",
        ),
        ([REMOTE, *[replace(WRITE, seconds=5.0)] * 2], 0, Verdict.OK, "the remote is the limit"),
        ([REMOTE], 0, Verdict.OK, "the remote is the limit"),
    ],
)
def test_the_slowest_part_of_the_way_is_the_limit_over_all_disks(
    measurements: list[MeasurementFacts], needed: float, verdict: Verdict, said: str
) -> None:
    found = only(remote.rate_findings(measurements, [LISTED], needed_bytes_per_second=needed), "throughput")
    assert found.verdict is verdict
    assert said in found.found


def test_small_objects_far_away_come_as_fast_as_requests_do() -> None:
    small = replace(LISTED, bytes=1000 * 100_000)
    found = only(remote.rate_findings([replace(REMOTE, latency_seconds=0.1)], [small]), "small objects")
    assert found.verdict is Verdict.WARNING
    assert "160 a second" in found.found
    assert not [f for f in remote.rate_findings([REMOTE], [small]) if f.check == "small objects"]
    assert not [
        f for f in remote.rate_findings([replace(REMOTE, latency_seconds=0.1)], [LISTED]) if f.check == "small objects"
    ]


def test_a_measurement_that_failed_is_a_problem_and_nothing_is_made_of_it() -> None:
    broken = MeasurementFacts(
        "remote", error="SourceUnreachable", message="s3://b: the connection broke; check the network"
    )
    [found] = remote.rate_findings([broken], [LISTED])
    assert (found.verdict, found.advice) == (Verdict.PROBLEM, "check the network")
