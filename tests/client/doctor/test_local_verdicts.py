"""What the facts of a node mean: a good one has nothing but ok; what is wrong is judged, with what to do."""

import errno
from dataclasses import replace

import pytest

from forebay.doctor import local_verdicts as local
from forebay.doctor.facts import MountFacts, PlaceFacts, SocketFacts
from forebay.doctor.findings import Finding, Verdict
from forebay_core.diagnosis import DaemonFacts, DiskFacts
from forebay_core.machine import MachineFacts

GIB = 1 << 30
SOCKET = SocketFacts("/run/forebay/s", False, True, True, 0o660, 12, 0o750, 0)
MACHINE = MachineFacts(65536, 0, 64 * GIB, 32 * GIB, 16, GIB, "6.1.0-18", True, {})
DISK = DiskFacts("d1", "/cache", 7, "ext4", 100 * GIB, 10 * GIB, 200 * GIB, 150 * GIB, 10**7, 9 * 10**6)
MOUNT = MountFacts("d1", "/cache", 7, "ext4", True, True)
DAEMON = DaemonFacts("1.0", 5, 0, MACHINE)


def worst(findings: list[Finding]) -> Finding:
    """The finding that matters most; every other than ok has advice, and every one a text on one line."""
    for finding in findings:
        assert finding.found
        assert "\n" not in finding.found
        assert bool(finding.advice) == (finding.verdict is not Verdict.OK)
    return max(findings, key=lambda finding: list(Verdict).index(finding.verdict))


def test_a_good_node_is_ok_in_every_respect() -> None:
    findings = [
        *local.socket_findings(SOCKET),
        *local.version_findings("1.0", DAEMON),
        *local.machine_findings(MACHINE, "trainer"),
        *local.disk_findings(DISK, MOUNT),
        *local.proxy_findings({}, "https://s3.amazonaws.com", "this machine's role"),
        *local.place_findings(PlaceFacts("/cache", "ext4", 100 * GIB, 200 * GIB)),
    ]
    assert worst(findings).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        (
            {"connect_error": errno.ENOENT, "exists": False},
            Verdict.PROBLEM,
            "no daemon answers at /run/forebay/s (no such",
        ),
        ({"connect_error": errno.ECONNREFUSED}, Verdict.PROBLEM, "(connection refused)"),
        ({"connect_error": errno.EACCES}, Verdict.PROBLEM, "refuses this user"),
        ({"connect_error": errno.ENOTSOCK, "is_socket": False}, Verdict.PROBLEM, "is no socket"),
        (
            {"connect_error": errno.ENOENT, "exists": False, "is_embedded": True},
            Verdict.WARNING,
            "starts one by itself",
        ),
        ({"mode": 0o666}, Verdict.PROBLEM, "any user may use"),
        ({"directory_mode": 0o777}, Verdict.PROBLEM, "put another socket into /run/forebay"),
        ({"directory_mode": 0o1777}, Verdict.OK, "answers"),
    ],
)
def test_a_socket_is_there_and_its_groups_alone(changes: dict[str, object], verdict: Verdict, said: str) -> None:
    found = worst(local.socket_findings(replace(SOCKET, **changes)))  # type: ignore[arg-type]
    assert found.verdict is verdict
    assert said in found.found


def test_who_is_refused_is_told_the_group_and_who_finds_nobody_the_command() -> None:
    refused = local.socket_findings(replace(SOCKET, connect_error=errno.EACCES))
    assert "group 12" in worst(refused).advice
    nobody = local.socket_findings(replace(SOCKET, connect_error=errno.ENOENT, exists=False))
    assert "forebay serve --socket /run/forebay/s" in worst(nobody).advice


def test_two_versions_are_named() -> None:
    found = worst(local.version_findings("1.1", DAEMON))
    assert found.verdict is Verdict.WARNING
    assert "1.1" in found.found
    assert "1.0" in found.found


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({"open_files": 1024}, Verdict.WARNING, "at most 1024"),
        ({"open_files": 100}, Verdict.PROBLEM, "at most 100"),
        ({"open_files": 0}, Verdict.OK, ""),
        ({"available_memory_bytes": GIB // 2}, Verdict.WARNING, "512.0 MiB of 64.0 GiB"),
        ({"available_memory_bytes": GIB // 8}, Verdict.PROBLEM, "128.0 MiB"),
        ({"cpus": 0.5}, Verdict.WARNING, "0.5 to use"),
        ({"has_memfd": False}, Verdict.PROBLEM, "no memory files"),
        ({"kernel": "5.10.0-x"}, Verdict.WARNING, "older than 5.14"),
        ({"kernel": "unheard of"}, Verdict.OK, ""),
        ({"shared_memory_bytes": 64 << 20}, Verdict.WARNING, "64.0 MiB of /dev/shm"),
    ],
)
def test_limits_of_a_process_are_judged(changes: dict[str, object], verdict: Verdict, said: str) -> None:
    found = worst(local.machine_findings(replace(MACHINE, **changes), "trainer"))  # type: ignore[arg-type]
    assert found.verdict is verdict
    assert said in found.found
    assert found.check.startswith("trainer: ")


@pytest.mark.parametrize(
    ("disk", "mount", "verdict", "said"),
    [
        (
            {},
            {"message": "the daemon's disk d1 is not visible here (looked in /cache); mount it"},
            Verdict.PROBLEM,
            "does not see it",
        ),
        ({}, {"id_inode": 8}, Verdict.PROBLEM, "is a copy of it"),
        ({}, {"is_readable": False}, Verdict.PROBLEM, "may not read /cache"),
        ({}, {"can_lock": False}, Verdict.PROBLEM, "cannot be locked"),
        ({}, {"path": "/mnt/cache"}, Verdict.OK, ""),
        ({}, {"file_system": "nfs4"}, Verdict.PROBLEM, "network file system (nfs4)"),
        ({"file_system": "tmpfs"}, {"file_system": ""}, Verdict.WARNING, "in memory"),
        ({"free_bytes": 20 * GIB}, {}, Verdict.WARNING, "cannot grow beyond 30.0 GiB"),
        ({"free_inodes": 50_000}, {}, Verdict.WARNING, "50,000 inodes left"),
        ({"free_inodes": 10}, {}, Verdict.PROBLEM, "10 inodes left"),
        ({"inodes": 0, "free_inodes": 0}, {}, Verdict.OK, ""),
        ({"state": "down", "reason": "Input/output error"}, {}, Verdict.PROBLEM, "down: Input/output error"),
        ({"state": "read-only", "reason": "Read-only"}, {"message": "unseen"}, Verdict.WARNING, "read-only"),
    ],
)
def test_a_disk_is_local_has_room_and_is_seen_by_both_sides(
    disk: dict[str, object], mount: dict[str, object], verdict: Verdict, said: str
) -> None:
    found = worst(local.disk_findings(replace(DISK, **disk), replace(MOUNT, **mount)))  # type: ignore[arg-type]
    assert found.verdict is verdict
    assert said in found.found


@pytest.mark.parametrize(
    ("proxies", "credentials", "said"),
    [
        ({"https_proxy": "http://proxy"}, "AWS_ACCESS_KEY_ID", "s3.example.com go through https_proxy"),
        ({"HTTPS_PROXY": "p", "NO_PROXY": ".example.com"}, "this machine's role", "the machine's role is asked for"),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "example.com, 169.254.169.254"}, "this machine's role", ""),
        ({"HTTPS_PROXY": "p", "no_proxy": "*"}, "this machine's role", ""),
        ({"NO_PROXY": "x"}, "this machine's role", ""),
    ],
)
def test_a_proxy_is_named_with_what_goes_through_it(proxies: dict[str, str], credentials: str, said: str) -> None:
    found = worst(local.proxy_findings(proxies, "https://s3.example.com", credentials))
    assert (found.verdict is Verdict.WARNING) == bool(said)
    assert said in found.found


def test_a_place_without_room_or_on_the_network_is_said_before_a_daemon_runs() -> None:
    assert worst(local.place_findings(PlaceFacts("/c", "nfs", 100 * GIB, 200 * GIB))).verdict is Verdict.PROBLEM
    assert worst(local.place_findings(PlaceFacts("/c", "ext4", GIB // 2, 200 * GIB))).verdict is Verdict.WARNING
