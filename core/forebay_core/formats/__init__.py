"""The formats that forebay reads, and how one is found: by its name in a spec, or by the extensions of the keys.

A new format is one module with a `Format`, and a line in `_FORMATS`. Formats over another one (`derived`) are found by
their names alone; in a spec, a base that is null is the one that the objects' extensions tell.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from forebay_core.errors import ConfigurationError
from forebay_core.formats.base import Format
from forebay_core.formats.filtered import Filtered
from forebay_core.formats.packed import Packed
from forebay_core.formats.packing import Packing
from forebay_core.formats.parquet import Parquet
from forebay_core.formats.predicate import Predicate, Where
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
    if str(spec.get("name")) in _DERIVED:
        return _derived_from(spec)
    options = dict(spec)
    kind = _FORMATS.get(str(options.pop("name", None)))
    if kind is None:
        raise ConfigurationError(f"unknown format {spec.get('name')!r}: there are {', '.join(sorted(_FORMATS))}")
    cut = options.pop("cut", None)
    try:
        made = kind(**options)
    except TypeError as error:
        raise ConfigurationError(f"format {kind.name!r} does not take these options ({error})") from error
    return _of_cut(made, cut)


def compose(
    format: Format | None, *, where: "Where | Predicate | None" = None, packing: Packing | None = None
) -> Format | None:
    """The format with a row filter and sequence packing over it, those of the two that are given, in this order.

    Raises `ConfigurationError` for a filter that is none.
    """
    if where is not None:
        format = Filtered(format, Predicate.parse(where))
    if packing is not None:
        format = Packed(format, packing)
    return format


def resolve(format: Format | None, keys: Iterable[str]) -> Format:
    """The format for these keys: what is not given of it is found by their extensions, as `infer` does."""
    if format is None:
        return infer(keys)
    if isinstance(format, Filtered | Packed):
        return replace(format, base=resolve(format.base, keys))
    return format


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


def _derived_from(spec: Mapping[str, Any]) -> Format:
    options = dict(spec)
    name, base, cut = str(options.pop("name")), options.pop("base", None), options.pop("cut", None)
    made = _DERIVED[name](_base(name, base), options)
    return _of_cut(made, cut)


def _base(name: str, spec: object) -> Format | None:
    """The format of a base's spec. What may lie under what is fixed: nothing else is deeper than two."""
    if spec is None:
        return None
    if not isinstance(spec, Mapping) or spec.get("name") in _NOT_UNDER[name]:
        raise ConfigurationError(f"format {name!r} cannot lie over {str(spec)[:100]!r}")
    return from_spec(spec)


def _filtered(base: Format | None, options: Mapping[str, Any]) -> Format:
    _only(Filtered, options, "where")
    return Filtered(base, Predicate.parse(options["where"]))


def _packed(base: Format | None, options: Mapping[str, Any]) -> Format:
    _only(Packed, options, "packing")
    return Packed(base, Packing.from_spec(options["packing"]))


_DERIVED: dict[str, Callable[[Format | None, Mapping[str, Any]], Format]] = {
    Filtered.name: _filtered,
    Packed.name: _packed,
}
_NOT_UNDER = {Filtered.name: (Filtered.name, Packed.name), Packed.name: (Packed.name,)}


def _only(kind: type[Format], options: Mapping[str, Any], name: str) -> None:
    if set(options) != {name}:
        raise ConfigurationError(
            f"format {kind.name!r} takes {name!r}, not the options {', '.join(map(repr, options))}"
        )


def _of_cut(made: Format, cut: object) -> Format:
    known = made.spec()["cut"]
    if cut not in (None, known):
        raise ConfigurationError(f"format {made.name!r} is cut by {known!r} here, not by {cut!r}: index the data anew")
    return made


def _with_defaults(kind: type[Format], key: str) -> Format:
    if kind is Tokens:
        raise ConfigurationError(
            f"{key!r} is a token file, which does not say how long a sample is: "
            f"give format=forebay.Tokens(sequence_length=…, dtype=…)"
        )
    return kind()


__all__ = [
    "Filtered",
    "Format",
    "Packed",
    "Packing",
    "Parquet",
    "Tokens",
    "Where",
    "by_extension",
    "compose",
    "from_spec",
    "infer",
    "is_data_key",
    "resolve",
]
