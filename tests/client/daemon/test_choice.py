"""What a user says of the daemon, in the program or in the environment."""

import pytest

from forebay.daemon.choice import DEFAULT_WAIT_SECONDS, DaemonChoice, common
from forebay_core.errors import ConfigurationError


def test_the_program_decides_before_the_environment_and_the_environment_before_the_default() -> None:
    environment = {"FOREBAY_FALLBACK": "embedded", "FOREBAY_DAEMON_WAIT_SECONDS": "5"}
    assert DaemonChoice().completed({}) == DaemonChoice(None, "wait", DEFAULT_WAIT_SECONDS)
    assert DaemonChoice().completed(environment) == DaemonChoice(None, "embedded", 5.0)
    assert DaemonChoice("/s", "error").completed(environment) == DaemonChoice("/s", "error", 5.0)
    assert DaemonChoice(wait_seconds=0).completed(environment) == DaemonChoice(None, "embedded", 0)


@pytest.mark.parametrize("options", [{"fallback": "hope"}, {"wait_seconds": -1}, {"wait_seconds": float("nan")}])
def test_what_cannot_be_is_refused_by_its_option(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"fallback=|daemon_wait_seconds="):
        DaemonChoice(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "environment",
    [
        {"FOREBAY_FALLBACK": "hope"},
        {"FOREBAY_DAEMON_WAIT_SECONDS": "a while"},
        {"FOREBAY_DAEMON_WAIT_SECONDS": "-1"},
        {"FOREBAY_FALLBACK": "embeded", "FOREBAY_DAEMON_WAIT_SECONDS": "5"},
        {"FOREBAY_DAEMON_WAIT_SECONDS": "nan", "FOREBAY_FALLBACK": "error"},
    ],
    ids=str,
)
def test_a_wrong_variable_is_named_and_none_besides_it(environment: dict[str, str]) -> None:
    wrong, value = next(iter(environment.items()))
    with pytest.raises(ConfigurationError, match=f"^{wrong}={value!r}: give ") as refused:
        DaemonChoice().completed(environment)
    assert str(refused.value).count("FOREBAY_") == 1


def test_a_loader_may_say_what_the_dataset_has_not_said_and_repeat_what_it_has() -> None:
    theirs = DaemonChoice("/s")
    assert DaemonChoice("/s", "error").contradicts(theirs, is_settled=False) is None
    assert DaemonChoice().contradicts(theirs, is_settled=True) is None
    assert DaemonChoice("/t").contradicts(theirs, is_settled=False) == "address='/t' here, address='/s'"
    assert DaemonChoice(None, "error").contradicts(theirs, is_settled=True) == "fallback='error' here, fallback=None"


def test_several_datasets_have_in_common_what_all_say() -> None:
    choices = [DaemonChoice("/s", "wait", 1.0), DaemonChoice("/s", "error", 1.0), DaemonChoice("/s", "wait", 1.0)]
    assert common(choices) == DaemonChoice("/s", None, 1.0)
