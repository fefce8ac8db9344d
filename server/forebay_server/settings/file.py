"""The configuration file: TOML, one key for each option, nothing else.

`read` is called once at start, on the main thread, and raises a `ConfigurationError` of one line that names the file,
the key and what is right.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from forebay_core.errors import ConfigurationError
from forebay_server.settings.table import Option


def read(path: Path, options: Sequence[Option]) -> dict[str, object]:
    """The fields that the file sets."""
    given = _parsed(path)
    by_key = {option.key: option for option in options}
    if unknown := [key for key in given if key not in by_key]:
        raise ConfigurationError(_unknown(path, unknown[0], list(by_key)))
    return {by_key[key].field: _value(by_key[key], value, f"{path}: {key}") for key, value in given.items()}


def _parsed(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(
            f"the configuration file {path} cannot be read: {error.strerror}; correct it, or name another one"
            " (--config, FOREBAY_CONFIG; /dev/null for none)"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the configuration file {path} is not TOML: {error}") from error


def _unknown(path: Path, key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    right = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    return f"{path}: there is no setting {key!r}; {right}"


def _value(option: Option, value: object, where: str) -> object:
    if option.split is None:
        return option.reader.from_toml(value, where)
    values = value if isinstance(value, list) else [value]
    return tuple(option.reader.from_toml(each, where) for each in values)
