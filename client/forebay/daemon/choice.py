"""What a user chose of the daemon: where it is, and what becomes of a trainer while it does not answer. Pure.

``"wait"``: calls are made again for `wait_seconds`, which rides through a restart; then they raise.
``"embedded"``: the same, but then a daemon of this user's own takes its place. One that was not there to begin with is
replaced at once.
``"error"``: a daemon that does not answer is an error at once, and none is ever started.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from forebay_core.errors import ConfigurationError

Fallback = Literal["wait", "embedded", "error"]
DEFAULT_WAIT_SECONDS = 60.0
"""A restart takes a few seconds, and twenty more where fills in flight are let finish."""


@dataclass(frozen=True)
class DaemonChoice:
    """Each None: not said, so the environment or the default decides. Raises `ConfigurationError`."""

    address: str | None = None
    fallback: Fallback | None = None
    wait_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.fallback is not None and self.fallback not in get_args(Fallback):
            raise ConfigurationError(f"fallback={self.fallback!r}: give 'wait', 'embedded' or 'error'")
        seconds = self.wait_seconds
        if seconds is not None and not (_is_number(seconds) and seconds >= 0):
            raise ConfigurationError(f"daemon_wait_seconds={seconds!r}: give a number of seconds, 0 or more")

    def or_else(self, other: "DaemonChoice") -> "DaemonChoice":
        """This choice, and the other's where nothing was said."""
        return DaemonChoice(
            **{name: ours if ours is not None else theirs for name, ours, theirs in _pairs(self, other)}
        )

    def contradicts(self, other: "DaemonChoice", *, is_settled: bool) -> str | None:
        """The option that says another thing here than there; with `is_settled` also one that was not said there."""
        for name, ours, theirs in _pairs(self, other):
            if ours not in (None, theirs) and (theirs is not None or is_settled):
                option = _OPTIONS[name]
                return f"{option}={ours!r} here, {option}={theirs!r}"
        return None

    def said(self) -> list[str]:
        """The options that were given."""
        return [_OPTIONS[name] for name, ours, _ in _pairs(self, self) if ours is not None]

    def completed(self, environment: Mapping[str, str]) -> "DaemonChoice":
        """With what the environment says, and then the defaults, of all but the address."""
        fallback: Any = environment.get("FOREBAY_FALLBACK") or None
        if fallback is not None and fallback not in get_args(Fallback):
            raise ConfigurationError(f"FOREBAY_FALLBACK={fallback!r}: give 'wait', 'embedded' or 'error'")
        from_environment = DaemonChoice(None, fallback, _wait_seconds_of(environment))
        return self.or_else(from_environment).or_else(DaemonChoice(None, "wait", DEFAULT_WAIT_SECONDS))


def common(choices: Sequence[DaemonChoice]) -> DaemonChoice:
    """What all of them say alike; None where they differ."""
    first, *others = choices
    differing = {name for other in others for name, ours, theirs in _pairs(first, other) if ours != theirs}
    return replace(first, **dict.fromkeys(differing, None))


_OPTIONS = {"address": "address", "fallback": "fallback", "wait_seconds": "daemon_wait_seconds"}


def _pairs(one: DaemonChoice, other: DaemonChoice) -> list[tuple[str, Any, Any]]:
    return [(field.name, getattr(one, field.name), getattr(other, field.name)) for field in fields(DaemonChoice)]


def _wait_seconds_of(environment: Mapping[str, str]) -> float | None:
    text = environment.get("FOREBAY_DAEMON_WAIT_SECONDS")
    if not text:
        return None
    try:
        return DaemonChoice(wait_seconds=float(text)).wait_seconds
    except ValueError:
        raise ConfigurationError(f"FOREBAY_DAEMON_WAIT_SECONDS={text!r}: give a number of seconds, 0 or more") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
