"""Checks of a format's options, made when it is built."""

from forebay_core.errors import ConfigurationError


def positive(what: str, value: object) -> None:
    """Raises `ConfigurationError` unless the value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{what} must be a whole number of at least 1, not {value!r}")
