"""What a user names as the source of a dataset, parsed; nothing here looks at the data.

URLs are taken as they are spelt: a `%20`, a space, `+`, `#` or any Unicode stays what it is, since stores compare keys
byte by byte. A source is a set of rules for keys relative to its root:

* **prefix**: one URL: all objects below it as a directory (`s3://b/train` holds `train/x`, never `training/x`), or the
  one object of just this name. Which one, only the store knows: whoever lists finds nothing below it and then asks
  `as_object`.
* **glob**: one URL with `*`, `?` or `[…]` after the bucket. It names whole keys: `*` and `?` do not cross a `/`;
  `[a-c]` is one of these characters and `[!a-c]` any other; `**` as a whole segment is any number of segments, also
  none; a pattern that ends in `/` names all below. A key that is spelt exactly like the pattern matches too.
* **list**: several URLs of one bucket, each of them any of these.
* **object**: one object, as `as_object` makes it.

Pure, except that a relative path is completed by the working directory, and symbolic links on the way to a root of
checkpoints are followed.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from forebay_core.errors import ConfigurationError, UnknownScheme
from forebay_core.redaction import redacted as without_secrets

SCHEMES = ("s3", "file")
_PLANNED = ("gs", "az", "http", "https")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_QUERY = re.compile(r"\?[\w.-]+=")
_MAGIC = re.compile(r"[*?\[]")
#: A run of stars, a question mark, a set (a `]` right at its start is a member), or any other character.
_TOKEN = re.compile(r"\*+|\?|\[(?P<set>!?.[^\]]*)\]|.", re.DOTALL)
#: Within a set: `a-c`, or one character.
_RANGE = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_SHOWN_URLS = 2
Kind = Literal["prefix", "glob", "list", "object"]


@dataclass(frozen=True, slots=True)
class Location:
    """A place: `path` is the key for s3 (no leading slash), an absolute path for file; both raw, and with the trailing
    slash that was given."""

    scheme: str
    bucket: str
    path: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}{'/' if self.bucket else ''}{self.path}"


def redacted(url: str) -> str:
    """The URL without what could be a secret in it: `user:password@`, and the values of any query."""
    return re.sub(r"([?&][^=&]+=)[^&]*", r"\1…", without_secrets(url))


def parse(url: str, *, purpose: str = "read") -> Location:
    """The place of a URL or a path. Raises `UnknownScheme` or `ConfigurationError`, without the URL's secrets.

    `purpose`: what it is wanted for, as a message says it before the URL.
    """
    if not url:
        raise ConfigurationError("the source is empty: give a URL such as s3://bucket/prefix, or a path")
    scheme = _SCHEME.match(url)
    if scheme is None:
        return _file(url, url)
    name, rest = scheme[1].lower(), url[scheme.end() :]
    if name == "s3":
        return _s3(url, rest)
    if name == "file":
        if not rest.startswith("/"):
            raise ConfigurationError(f"{redacted(url)!r} names a host: write file:///absolute/path")
        return _file(url, rest)
    known = ", ".join(f"{known}://" for known in SCHEMES)
    later = f"; this version cannot {purpose} {name}:// yet" if name in _PLANNED else ""
    raise UnknownScheme(f"{redacted(url)!r} has an unknown scheme: known are {known} and plain paths{later}")


def _s3(url: str, rest: str) -> Location:
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise ConfigurationError(f"{redacted(url)!r} names no bucket: write s3://bucket/prefix")
    if "@" in bucket or ":" in bucket:
        raise ConfigurationError(f"{redacted(url)!r} holds credentials or a port: set AWS_… for the daemon instead")
    if _QUERY.search(rest):
        raise ConfigurationError(f"{redacted(url)!r} has a query: give the plain URL, and the daemon the credentials")
    if any(segment in ("", ".", "..") for segment in key.removesuffix("/").split("/")) and key:
        raise ConfigurationError(f"{redacted(url)!r} has an empty, '.' or '..' part in its key, which cannot be read")
    return Location("s3", bucket, key)


def _file(url: str, path: str) -> Location:
    if "\0" in path:
        raise ConfigurationError(f"{url!r} has a null character in its path")
    absolute = os.path.abspath(path)  # noqa: PTH100 - resolve() would replace symbolic links
    return Location("file", "", absolute + "/" * (path.endswith("/") and absolute != "/"))


def root_of(url: str) -> Location:
    """The place of a root of checkpoints as it is compared: without a slash at its end, and without symbolic links.

    Raises as `parse` does, and for a pattern.
    """
    if "*" in url:
        raise ConfigurationError(f"{redacted(url)!r} is a pattern: the root of checkpoints is one place")
    place = parse(url, purpose="keep checkpoints in")
    path = os.path.realpath(place.path) if place.scheme == "file" else place.path.rstrip("/")
    return Location(place.scheme, place.bucket, path)


@dataclass(frozen=True)
class Source:
    """One or several URLs or paths as one dataset.

    `urls` are made absolute, so that they mean the same in another process. Raises `ConfigurationError` where there are
    none, where one is given twice, or where they are not all of one bucket.
    """

    urls: tuple[str, ...]
    #: Whether the one URL is known to be an object.
    exact: bool = False

    def __post_init__(self) -> None:
        places = [parse(url) for url in self.urls]
        if not places:
            raise ConfigurationError("the source is an empty list: give at least one URL or path")
        urls = tuple(place.url for place in places)
        if len(set(urls)) < len(urls):
            twice = next(url for url in urls if urls.count(url) > 1)
            raise ConfigurationError(f"{redacted(twice)!r} is given twice: name every URL once")
        if len({(place.scheme, place.bucket) for place in places}) > 1:
            raise ConfigurationError(f"the source {_shown(urls)} lies in several places: name URLs of one bucket only")
        object.__setattr__(self, "urls", urls)
        try:
            self._rules  # noqa: B018 - a pattern that cannot work is an error from the start
        except re.error as error:
            raise ConfigurationError(f"{_shown(urls)!r} is no pattern ({error}): correct its [set]") from None

    @property
    def kind(self) -> Kind:
        """Which of the rules above holds."""
        if len(self.urls) > 1:
            return "list"
        if _MAGIC.search(self._places[0].path) and not self.exact:
            return "glob"
        return "object" if self.exact else "prefix"

    @cached_property
    def root(self) -> str:
        """The URL of the directory that keys are relative to, without a trailing slash (but `file:///`)."""
        place = self._places[0]
        if place.scheme == "file":
            return f"file://{self._root_path or '/'}"
        return f"{place.scheme}://{place.bucket}/{self._root_path}".rstrip("/")

    @property
    def display(self) -> str:
        """The source as people read it: short, without secrets."""
        return _shown(self.urls)

    def matches(self, relative_key: str) -> bool:
        """Whether an object, by its key relative to the root, belongs to the source."""
        if self.kind == "prefix":
            return True
        names, directories, patterns = self._rules
        if relative_key in names or any(pattern.fullmatch(relative_key) for pattern in patterns):
            return True
        return any(relative_key[:end] in directories for end, letter in enumerate(relative_key) if letter == "/")

    def as_object(self) -> "Source | None":
        """The source as the one object of just this name, its root the directory around it; None where it cannot be."""
        path = self._places[0].path
        if self.kind != "prefix" or not path or path.endswith("/"):
            return None
        return Source(self.urls, exact=True)

    @property
    def bounds(self) -> list[Location]:
        """For each URL the place at or below which all lies that it names."""
        return [place if self.exact or not _MAGIC.search(place.path) else _held_by(place) for place in self._places]

    @cached_property
    def _places(self) -> list[Location]:
        return [parse(url) for url in self.urls]

    @cached_property
    def _root_path(self) -> str:
        """The root without a trailing slash; empty for a whole bucket, and for `/`."""
        if self.kind == "prefix":
            return self._places[0].path.rstrip("/")
        return "/".join(_common([_fixed_directory(place.path) for place in self._places]))

    @cached_property
    def _rules(self) -> tuple[set[str], set[str], list[re.Pattern[str]]]:
        """Whole keys, directories, and patterns, all relative to the root."""
        skipped = len(self._root_path) + bool(self._root_path or self._places[0].scheme == "file")
        names: set[str] = set()
        directories: set[str] = set()
        patterns: list[re.Pattern[str]] = []
        for relative in (place.path[skipped:] for place in self._places):
            names.add(relative)
            if _MAGIC.search(relative):
                patterns.append(re.compile(_glob(relative), re.DOTALL))
            elif not self.exact:
                directories.add(relative.removesuffix("/"))
        return names, directories, patterns


def _held_by(place: Location) -> Location:
    """The directory that holds whatever a pattern names."""
    path = "/".join(_fixed_directory(place.path))
    return Location(place.scheme, place.bucket, path or ("/" if place.scheme == "file" else ""))


def _fixed_directory(path: str) -> list[str]:
    """The segments of the directory that holds whatever a path or pattern names."""
    directories = path.split("/")[:-1]
    fixed = (index for index, segment in enumerate(directories) if _MAGIC.search(segment))
    return directories[: next(fixed, len(directories))]


def _glob(pattern: str) -> str:
    """The pattern as an expression that decides in a time that does not explode with the stars in it.

    Between two stars, what stands there is matched where it first can be, and that is never taken back (an atomic
    group): whatever follows then has the most room, so that nothing is missed.
    """
    *directories, last = pattern.split("/")
    blocks = [""]
    for segment in directories:
        if segment == "**":
            blocks.append("")
        else:
            blocks[-1] += _segment(segment) + "/"
    blocks[-1] += ".+" if last in ("", "**") else _segment(last)
    return _between("(?:[^/]+/)*", blocks)


def _segment(segment: str) -> str:
    parts = [""]
    for token in _TOKEN.finditer(segment):
        if token[0][0] == "*":
            parts.append("")
        else:
            parts[-1] += _translated(token)
    return _between("[^/]*", parts)


def _between(anything: str, parts: list[str]) -> str:
    """The parts in their order, with `anything` between each two."""
    if len(parts) == 1:
        return parts[0]
    first, *middle, last = parts
    return first + "".join(f"(?>{anything}?{part})" for part in middle) + anything + last


def _translated(token: re.Match[str]) -> str:
    text = token[0]
    if text == "?":
        return "[^/]"
    if members := token["set"]:
        negated = members[0] == "!"
        ranges = _RANGE.sub(_escaped_range, members[1:] if negated else members)
        return f"(?!/)[{'^' if negated else ''}{ranges}]"
    return re.escape(text)


def _escaped_range(match: re.Match[str]) -> str:
    return "-".join(re.escape(end) for end in match.groups() if end)


def _common(paths: list[list[str]]) -> Iterator[str]:
    """The segments with which all of the paths begin."""
    for segments in zip(*paths, strict=False):
        if len(set(segments)) > 1:
            return
        yield segments[0]


def _shown(urls: tuple[str, ...]) -> str:
    shown = ", ".join(redacted(url) for url in urls[:_SHOWN_URLS])
    return shown + (f" and {len(urls) - _SHOWN_URLS} more" if len(urls) > _SHOWN_URLS else "")
