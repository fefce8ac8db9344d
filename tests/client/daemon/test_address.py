"""The decision where the daemon is: the argument, the environment, the system daemon, the user's own."""

import os
import socket
from pathlib import Path

import pytest

from forebay.daemon.address import Address, identity, resolve, runtime_directory
from forebay_core.errors import ConfigurationError
from forebay_core.node_layout import SOCKET_PATH_BYTES

ABSENT = Path("/nonexistent/forebay.sock")


def test_an_explicit_address_wins_over_everything(home: Path) -> None:
    environment = {"FOREBAY_ADDRESS": "/other/s", "XDG_RUNTIME_DIR": str(home)}
    assert resolve("unix:/run/mine", environment, system_socket=ABSENT) == Address(Path("/run/mine"), embedded=False)


@pytest.mark.parametrize("text", ["/a/s", "unix:/a/s", "unix:///a/s"])
def test_a_socket_may_be_given_as_a_path_or_as_a_url(text: str) -> None:
    assert resolve(text, {}).socket == Path("/a/s")
    assert resolve(None, {"FOREBAY_ADDRESS": text}) == Address(Path("/a/s"), embedded=False)


@pytest.mark.parametrize(
    "text", ["tcp://node:1", "localhost:5000", "relative/s", "unix:relative", "", "unix:", "http:/a"]
)
def test_what_is_no_unix_socket_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a Unix socket"):
        resolve(text, {})


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigurationError, match="FOREBAY_ADDRESS 'tcp:1'"):
        resolve(None, {"FOREBAY_ADDRESS": "tcp:1"})


def test_the_system_daemon_is_taken_only_where_its_socket_is(home: Path) -> None:
    system = home / "system.sock"
    environment = {"XDG_RUNTIME_DIR": str(home)}
    assert resolve(None, environment, system_socket=system).embedded
    system.write_text("a file is no socket")
    assert resolve(None, environment, system_socket=system).embedded
    system.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(system))
        assert resolve(None, environment, system_socket=system) == Address(system, embedded=False)


def test_the_embedded_daemon_lies_in_the_runtime_directory_or_in_tmp(home: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(home)}
    assert resolve(None, environment, system_socket=ABSENT).socket.parent == home / "forebay"
    assert runtime_directory({}, shared=[home]) == (home / f"forebay-{os.getuid()}", ())


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "GOOGLE_X", "AZURE_X", "FOREBAY_CACHE_DIR", "FOREBAY_CAPACITY"])
def test_other_credentials_and_settings_get_a_daemon_of_their_own(name: str) -> None:
    assert len({identity({}), identity({name: "a"}), identity({name: "b"})}) == 3


def test_what_is_not_the_daemons_does_not_change_its_name() -> None:
    assert identity({"PATH": "/bin", "FOREBAY_DEBUG": "1", "RANK": "3", "FOREBAY_FALLBACK": "wait"}) == identity({})


def test_names_and_values_do_not_run_into_each_other() -> None:
    assert identity({"AWS_A": "b", "AWS_C": "d"}) != identity({"AWS_A": "bAWS_Cd"})


def test_a_path_that_no_socket_can_have_is_refused_with_its_setting() -> None:
    fits = "/" + "x" * (SOCKET_PATH_BYTES - 1)
    assert resolve(fits, {}).socket == Path(fits)
    with pytest.raises(ConfigurationError, match="108 bytes"):
        resolve(fits + "y", {})


def test_a_runtime_directory_that_will_not_do_is_passed_over_and_said(home: Path) -> None:
    """CASES 32: another user's files in the way."""
    (home / "open").mkdir()
    (home / "open/forebay").mkdir()
    (home / "open/forebay").chmod(0o777)
    (home / "file").touch()
    (home / "link").mkdir()
    (home / "link/forebay").symlink_to(home / "open")
    cases = {"open": "only this user", "file": "file", "link": "only this user", "gone": "cannot be made"}
    for name, why in {**cases, "x" * 100: "too long"}.items():
        environment = {"XDG_RUNTIME_DIR": str(home / name)}
        directory, (problem,) = runtime_directory(environment, shared=[home])
        assert directory == home / f"forebay-{os.getuid()}"
        assert why in problem
        assert str(home / name) in problem


def test_somebody_elses_directory_under_our_name_is_passed_over_and_without_any_place_left_all_are_named(
    home: Path,
) -> None:
    """CASES 32: another user's files in the way."""
    for name in ("one", "two"):
        (home / name).mkdir()
    taken = home / "one" / f"forebay-{os.getuid()}"
    taken.mkdir(mode=0o777)
    taken.chmod(0o777)
    directory, problems = runtime_directory({}, shared=[home / "one", home / "two"])
    assert directory.parent == home / "two"
    assert len(problems) == 1
    with pytest.raises(ConfigurationError, match=f"{taken} is not .*; set XDG_RUNTIME_DIR"):
        runtime_directory({}, shared=[home / "one"])
