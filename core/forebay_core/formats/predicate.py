"""A row filter: conditions on column values, in the form that pyarrow's own filters have.

`[("lang", "==", "en"), ("score", ">", 0.5)]` matches rows for which all hold; a list of such lists, rows for which all
of at least one hold. Operators: ==, !=, <, <=, >, >=, in, not in. A null matches nothing, as in SQL.

A value takes the column's type (0.1 is a float32 beside a float32), whole numbers are compared exactly whatever their
widths, and dates, times and decimals are given as text, such as "2024-01-31". Evaluated by pyarrow. Pure; any thread.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from forebay_core.arrow_arrays import dtype_of, numbers, texts
from forebay_core.errors import ConfigurationError
from forebay_core.formats.columns import is_number, plain

Value: TypeAlias = str | int | float | bool
Where: TypeAlias = Sequence[tuple[str, str, Any]] | Sequence[Sequence[tuple[str, str, Any]]]

_COMPARISONS: Mapping[str, Callable[..., pa.Array]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_SETS = ("in", "not in")
_FORM = "give [(column, op, value), …], or a list of such lists"


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison; `value` is a tuple of values for `in` and `not in`."""

    column: str
    op: str
    value: Value | tuple[Value, ...]

    def spec(self) -> list[Any]:
        return [self.column, self.op, list(self.value) if isinstance(self.value, tuple) else self.value]

    def matches(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        """Booleans [rows], some of them null, of a column whose plain type is `kind`, however it is encoded.

        Raises `ConfigurationError` where the types cannot be compared.
        """
        if types.is_dictionary(column.type):
            return self.matches(column.dictionary, kind).take(column.indices)
        try:
            return self._matches(column.cast(kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"{self} cannot be evaluated on {kind} ({error})") from error

    def _matches(self, column: pa.Array) -> pa.Array:
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        _check_comparable(column.type, values)
        if self.op in _SETS:
            found = pc.is_in(column, value_set=_array(column.type, _held(column.type, values)))
            return found if self.op == "in" else pc.and_(pc.invert(found), column.is_valid())
        op, value = self.op, values[0]
        if types.is_integer(column.type):
            op, value, is_certain = _whole(column.type, op, value)
            if is_certain is not None:
                return pc.and_(column.is_valid(), pa.scalar(is_certain))
        return _COMPARISONS[op](column, _array(column.type, [value])[0])

    def __str__(self) -> str:
        return f"where=({self.column!r}, {self.op!r}, {self.value!r})"


@dataclass(frozen=True, slots=True)
class Predicate:
    """Rows match where all conditions of at least one group hold. Made by `parse`."""

    groups: tuple[tuple[Condition, ...], ...]

    @classmethod
    def parse(cls, where: "Where | Predicate") -> "Predicate":
        """Raises `ConfigurationError` for what is no filter."""
        if isinstance(where, Predicate):
            return where
        parts = _sequence(where, where)
        groups = [parts] if all(_is_condition(part) for part in parts) else [_sequence(part, where) for part in parts]
        return cls(tuple(tuple(_condition(part, where) for part in group) for group in groups))

    @property
    def columns(self) -> tuple[str, ...]:
        """Each column once, in the order in which they are named."""
        return tuple(dict.fromkeys(condition.column for group in self.groups for condition in group))

    def spec(self) -> list[list[list[Any]]]:
        """As JSON; `parse` takes it."""
        return [[condition.spec() for condition in group] for group in self.groups]

    def check(self, schema: pa.Schema) -> None:
        """Raises `ConfigurationError` where a column, all of which are in the schema, cannot be compared."""
        for group in self.groups:
            for condition in group:
                kind = plain(schema.field(condition.column).type)
                condition.matches(pa.nulls(0, kind), kind)

    def mask(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.Array:
        """Booleans [rows] without nulls: the rows that match. `schema`: of the columns, which the batch may encode."""
        groups = (self._all(group, batch, schema) for group in self.groups)
        return pc.fill_null(reduce(pc.or_kleene, groups), False)

    def _all(self, group: Iterable[Condition], batch: pa.RecordBatch, schema: pa.Schema) -> pa.Array:
        kinds = ((condition, plain(schema.field(condition.column).type)) for condition in group)
        matches = (condition.matches(batch.column(condition.column), kind) for condition, kind in kinds)
        return reduce(pc.and_kleene, matches)

    def __str__(self) -> str:
        groups = [[tuple(condition.spec()) for condition in group] for group in self.groups]
        return f"where={groups[0] if len(groups) == 1 else groups}"


def _sequence(part: object, where: object) -> list[Any]:
    if isinstance(part, str | Mapping) or not isinstance(part, Sequence) or not part:
        raise ConfigurationError(f"where={_shown(where)} is no row filter: {_FORM}")
    return list(part)


def _is_condition(part: object) -> bool:
    return isinstance(part, Sequence) and len(part) > 0 and isinstance(part[0], str) and not isinstance(part, str)


def _condition(part: object, where: object) -> Condition:
    if not isinstance(part, tuple | list) or len(part) != 3 or not isinstance(part[0], str):
        raise ConfigurationError(f"where={_shown(where)}: {_shown(part)} is no condition: {_FORM}")
    column, op, value = part
    if op in _SETS:
        return Condition(column, op, _values(value, part))
    if not isinstance(op, str) or op not in _COMPARISONS:
        raise ConfigurationError(
            f"where=: {_shown(op)} in {_shown(part)} is no operator: there are {', '.join((*_COMPARISONS, *_SETS))}"
        )
    return Condition(column, op, _value(value, part))


def _values(values: object, part: object) -> tuple[Value, ...]:
    if isinstance(values, set | frozenset):
        values = sorted(values, key=repr)
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, tuple | list) or not values:
        raise ConfigurationError(f"where=: {_shown(part)} must have a list of at least one value")
    return tuple(_value(value, part) for value in values)


def _value(value: Any, part: object) -> Value:
    if isinstance(value, np.generic):
        value = value.item()
    if hasattr(value, "isoformat"):
        value = value.isoformat()
    if not isinstance(value, str | int | float):
        raise ConfigurationError(
            f"where=: {_shown(value)} in {_shown(part)} cannot be compared with: give a text, a number or a boolean "
            f"(nulls match nothing; dates and decimals are given as text)"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"where=: {value!r} in {part!r} is no number that can be compared with")
    return value


def _shown(part: object) -> str:
    return " ".join(repr(part).split())


def _check_comparable(kind: pa.DataType, values: Sequence[Value]) -> None:
    is_written = (
        types.is_temporal(kind) or types.is_decimal(kind) or types.is_string(kind) or types.is_large_string(kind)
    )
    for value in values:
        if types.is_boolean(kind):
            is_comparable = isinstance(value, bool)
        elif is_number(kind):
            is_comparable = not isinstance(value, str | bool)
        else:
            is_comparable = is_written and isinstance(value, str)
        if not is_comparable:
            raise TypeError(f"{value!r} cannot be compared with values of this type")


def _array(kind: pa.DataType, values: Sequence[Value]) -> pa.Array:
    """The values in that type. Raises `ArrowException` for a text that says no such value."""
    if types.is_boolean(kind):
        return numbers(np.array(values, np.uint8)).cast(kind)
    if is_number(kind):
        with np.errstate(over="ignore"):
            return numbers(np.array(values, dtype_of(kind)))
    if types.is_time(kind):
        days = texts([f"1970-01-01T{value}".encode() for value in values], pa.large_string())
        return days.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts([str(value).encode() for value in values], pa.large_string()).cast(kind)


def _held(kind: pa.DataType, values: Sequence[Value]) -> list[Value]:
    """Those that a column of the type can hold, and each zero with the other one that it equals."""
    if types.is_floating(kind):
        return [*values, *(-float(value) for value in values if value == 0)]
    if not types.is_integer(kind):
        return list(values)
    least, most = _bounds(kind)
    return [int(value) for value in values if value == math.floor(value) and least <= value <= most]  # type: ignore[arg-type]


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(dtype_of(kind))
    return int(info.min), int(info.max)


def _whole(kind: pa.DataType, op: str, value: Any) -> tuple[str, Value, bool | None]:
    """The same comparison of a column of whole numbers with a value of its type; or, last, what it is for every row."""
    least, most = _bounds(kind)
    floor = math.floor(value)
    if floor != value:
        if op in ("==", "!="):
            return op, 0, op == "!="
        op = {"<": "<=", ">=": ">"}.get(op, op)
    if least <= floor <= most:
        return op, floor, None
    is_below = floor < least
    return op, 0, op == "!=" or (is_below and op in (">", ">=")) or (not is_below and op in ("<", "<="))
