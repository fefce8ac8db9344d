"""What kinds of values settings have, and how each is read: from the text of a flag or variable, and from TOML.

A reader says in `expected` what is right; whatever is wrong becomes one `ConfigurationError` that names the place where
the value stands. Pure, but that a path in a flag is completed by the working directory.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay_core.capacity import CacheDirectory, Capacity
from forebay_core.errors import ConfigurationError, ForebayError
from forebay_server.sources.permits import Prefix
from forebay_server.web.address import HttpAddress

_ON, _OFF = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one kind of value. Both functions raise `ValueError` for what is not of it."""

    expected: str
    text: Callable[[str], object]
    toml: Callable[[object], object]

    @classmethod
    def of(cls, expected: str, parse: Callable[[str], object], *kinds: type) -> "Reader":
        """Reads texts with `parse`, and TOML values of these types as if they were written as texts."""
        return cls(expected, parse, _typed(parse, *(kinds or (str,))))

    def from_text(self, text: str, where: str) -> object:
        """The value of a flag or variable. Raises `ConfigurationError`, which names `where`."""
        return self._read(self.text, text, where)

    def from_toml(self, value: object, where: str) -> object:
        """The value of a key in a TOML file. Raises `ConfigurationError`, which names `where`."""
        return self._read(self.toml, value, where)

    def _read(self, read: Callable[..., object], value: object, where: str) -> object:
        try:
            return read(value)
        except ForebayError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        except ValueError:
            raise ConfigurationError(f"{where} must be {self.expected}, not {value!r}") from None


def _typed(parse: Callable[[str], object], *kinds: type) -> Callable[[object], object]:
    def read(value: object) -> object:
        if type(value) not in kinds:
            raise ValueError
        return parse(str(value))

    return read


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _absolute_path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise ValueError
    return path


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _bytes(text: str) -> int:
    with suppress(ConfigurationError):
        if size := Capacity.parse(text).bytes:
            return size
    raise ValueError


def _rate(text: str) -> int:
    return 0 if text == "0" else _bytes(text)


def _switch(text: str) -> bool:
    if text.lower() not in _ON | _OFF:
        raise ValueError
    return text.lower() in _ON


def _directory(text: str) -> CacheDirectory:
    directory = CacheDirectory.parse(text)
    return CacheDirectory(_path(str(directory.path)), directory.capacity)


def _directory_of_toml(value: object) -> CacheDirectory:
    if isinstance(value, str):
        value = {"path": value}
    if not isinstance(value, dict) or not {"path"} <= value.keys() <= {"path", "capacity"}:
        raise ValueError
    if not isinstance(value["path"], str):
        raise ValueError
    capacity = value.get("capacity")
    if capacity is not None and type(capacity) not in (str, int):
        raise ValueError
    directory = CacheDirectory.parse(value["path"]) if capacity is None else CacheDirectory(Path(value["path"]))
    given = directory.capacity if capacity is None else Capacity.parse(str(capacity))
    return CacheDirectory(_absolute_path(str(directory.path)), given)


PATH = Reader("an absolute path", _path, _typed(_absolute_path, str))
NUMBER = Reader.of("a number", float, int, float)
COUNT = Reader.of("a whole number, 0 or more", _count, int)
BYTES = Reader.of("a size such as 256MiB", _bytes, str, int)
RATE = Reader.of("a size such as 16MiB, or 0 for none", _rate, str, int)
SWITCH = Reader.of("true or false", _switch, bool)
TEXT = Reader.of("a text", str)
CAPACITY = Reader.of("a size such as 10GiB or 80%", Capacity.parse, str, int)
PREFIX = Reader.of("a URL prefix such as s3://bucket/prefix, or a directory", Prefix.parse)
HTTP = Reader.of("HOST:PORT such as 127.0.0.1:9461", HttpAddress.parse, str)
DIRECTORY = Reader("an absolute path, path:capacity, or a table with path and capacity", _directory, _directory_of_toml)
