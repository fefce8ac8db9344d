"""The formats that forebay reads, and how one is found: by its name in a spec, or by the extensions of the keys.

A new format is one module with a `Format`, and a line in `_FORMATS`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from forebay_core.errors import ConfigurationError
from forebay_core.formats.base import Format
from forebay_core.formats.parquet import Parquet
from forebay_core.formats.tokens import Tokens

_FORMATS: dict[str, type[Format]] = {kind.name: kind for kind in (Parquet, Tokens)}
_SHOWN_KEYS = 3


def by_extension(key: str) -> type[Format] | None:
    """The format whose extension the key has, in any case of letters; None for an unknown one."""
    for kind in _FORMATS.values():
        if key.lower().endswith(kind.extensions):
            return kind
    return None


def from_spec(spec: Mapping[str, Any]) -> Format:
    """The format of a spec as `Format.spec` gives it: its name and options; the version of its cut may be left out."""
    options = dict(spec)
    kind = _FORMATS.get(str(options.pop("name", None)))
    if kind is None:
        raise ConfigurationError(f"unknown format {spec.get('name')!r}: there are {', '.join(sorted(_FORMATS))}")
    cut = options.pop("cut", None)
    try:
        made = kind(**options)
    except TypeError as error:
        raise ConfigurationError(f"format {kind.name!r} does not take these options ({error})") from error
    known = made.spec()["cut"]
    if cut not in (None, known):
        raise ConfigurationError(f"format {kind.name!r} is cut by {known!r} here, not by {cut!r}: index the data anew")
    return made


def infer(keys: Iterable[str]) -> Format:
    """The one format of these keys, with its default options.

    Raises `ConfigurationError` where the keys are of several formats or of an unknown one, or where the format has
    options without a default.
    """
    examples: dict[type[Format] | None, list[str]] = {}
    for key in keys:
        shown = examples.setdefault(by_extension(key), [])
        if len(shown) < _SHOWN_KEYS:
            shown.append(key)
    if len(examples) == 1 and (kind := next(iter(examples))) is not None:
        return _with_defaults(kind, examples[kind][0])
    found = [f"{kind.name if kind else 'unknown'}: {', '.join(map(repr, keys))}" for kind, keys in examples.items()]
    raise ConfigurationError(
        f"no one format by the extensions of the objects (found {'; '.join(found) or 'no objects'}): "
        f"give format=, or choose the objects by a glob such as '**/*.parquet'"
    )


def is_data_key(relative_key: str) -> bool:
    """False for what listings find beside data: hidden and bookkeeping names at any depth, and "directory" keys.

    `_SUCCESS`, `_delta_log/…`, `_metadata`, `.part-0.crc`, `.DS_Store`, `_forebay/…`, `dir/` are not data; what lies in
    a directory such as `year=2024` is.
    """
    segments = relative_key.split("/")
    return all(segment and segment[0] not in "._" for segment in segments) and not segments[-1].endswith(".crc")


def _with_defaults(kind: type[Format], key: str) -> Format:
    if kind is Tokens:
        raise ConfigurationError(
            f"{key!r} is a token file, which does not say how long a sample is: "
            f"give format=forebay.Tokens(sequence_length=…, dtype=…)"
        )
    return kind()


__all__ = ["Format", "Parquet", "Tokens", "by_extension", "from_spec", "infer", "is_data_key"]
