"""Row filters: what is one, and which rows match, against Python's own comparisons."""

import datetime
import json
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_core.errors import ConfigurationError
from forebay_core.formats.predicate import Predicate

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
    "not in": lambda value, values: value not in values,
}
COLUMNS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "i8": (
        pa.int8(),
        st.sampled_from([-128, -1, 0, 1, 127]),
        st.sampled_from([-300, -128, -0.5, 0, 0.5, 1.0, 126.5, 127, 300, 1e30]),
    ),
    "u64": (
        pa.uint64(),
        st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1]),
        st.sampled_from([-1, 0, 0.5, 2**53 + 1, 2**63, 2**64 - 1, 2**64, 1e30]),
    ),
    "f64": (pa.float64(), st.sampled_from([-1.0, 0.0, 0.25, 7.5]), st.sampled_from([0, 0.25, 7, 7.5])),
    "flag": (pa.bool_(), st.booleans(), st.booleans()),
    "text": (pa.string(), st.sampled_from(["", "a", "b", "ü"]), st.sampled_from(["", "a", "ü", "zz"])),
}


def _mask(where: Any, batch: pa.RecordBatch) -> list[bool]:
    return Predicate.parse(where).mask(batch, batch.schema).to_pylist()  # type: ignore[no-any-return]


def _holds(condition: tuple[str, str, Any], row: dict[str, Any]) -> bool:
    column, op, value = condition
    return row[column] is not None and bool(OPERATORS[op](row[column], value))


@st.composite
def conditions(draw: st.DrawFn) -> tuple[str, str, Any]:
    name = draw(st.sampled_from(list(COLUMNS)))
    op = draw(st.sampled_from(list(OPERATORS)))
    value = COLUMNS[name][2]
    return name, op, draw(st.lists(value, min_size=1, max_size=4) if "in" in op else value)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 12))
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for kind, values, _ in COLUMNS.values()
    ]
    batch = pa.record_batch(arrays, names=list(COLUMNS))
    if draw(st.booleans()):
        batch = batch.set_column(4, "text", batch.column("text").dictionary_encode())
    return batch


@settings(max_examples=150)
@given(st.lists(st.lists(conditions(), min_size=1, max_size=3), min_size=1, max_size=3), batches())
def test_rows_match_as_python_compares_and_nulls_match_nothing(groups: Any, batch: pa.RecordBatch) -> None:
    expected = [any(all(_holds(one, row) for one in group) for group in groups) for row in batch.to_pylist()]
    assert _mask(groups, batch) == expected
    again = Predicate.parse(json.loads(json.dumps(Predicate.parse(groups).spec())))
    assert again == Predicate.parse(groups)
    assert again.mask(batch, batch.schema).to_pylist() == expected


@pytest.mark.parametrize("value", [-129, -128, -128.5, -0.5, 0, 0.0, 0.5, 1, 126.5, 127, 127.5, 128, -1e30, 1e30])
def test_whole_numbers_are_compared_exactly_with_any_number(value: float) -> None:
    numbers = [-128, -127, -1, 0, 1, 126, 127]
    batch = pa.record_batch({"c": pa.array(numbers, pa.int8())})
    for op in ("==", "!=", "<", "<=", ">", ">="):
        assert _mask([("c", op, value)], batch) == [OPERATORS[op](number, value) for number in numbers], op


def test_a_list_of_conditions_is_and_and_a_list_of_lists_is_or() -> None:
    batch = pa.record_batch({"a": [1, 2, 3], "b": ["x", "x", "y"]})
    assert _mask([("a", ">", 1), ("b", "==", "x")], batch) == [False, True, False]
    assert _mask([[("a", ">", 2)], [("b", "==", "x"), ("a", "<", 2)]], batch) == [True, False, True]
    assert _mask([["a", "==", 2]], batch) == [False, True, False]
    assert Predicate.parse([("a", ">", 1), ("b", "==", "x"), ("a", "<", 9)]).columns == ("a", "b")


@pytest.mark.parametrize(
    ("kind", "value", "where"),
    [
        (pa.date32(), datetime.date(2024, 1, 31), ("c", "==", "2024-01-31")),
        (pa.date32(), datetime.date(2024, 1, 31), ("c", ">=", datetime.date(2024, 1, 31))),
        (pa.timestamp("us"), datetime.datetime(2024, 1, 31, 12), ("c", ">", datetime.datetime(2024, 1, 31))),
        (pa.timestamp("ms", "UTC"), datetime.datetime(2024, 1, 31, 12), ("c", ">", "2024-01-31T11:00:00Z")),
        (pa.decimal128(10, 2), Decimal("1.25"), ("c", "in", ["1.25"])),
        (pa.time32("s"), datetime.time(5, 30), ("c", "==", datetime.time(5, 30))),
        (pa.time64("us"), datetime.time(23, 30, 0, 7), ("c", ">=", "23:30:00.000007")),
        (pa.time64("ns"), datetime.time(5, 30), ("c", "in", ["05:30", "06:30"])),
        (pa.float32(), 0.1, ("c", "==", 0.1)),
        (pa.float32(), 1.0, ("c", "<", 1e300)),
        (pa.int16(), 3, ("c", "in", np.array([3, 70_000]))),
        (pa.int16(), 3, ("c", "==", np.int64(3))),
        (pa.large_string(), "a", ("c", "in", {"b", "a"})),
    ],
)
def test_a_value_takes_the_columns_type(kind: pa.DataType, value: Any, where: Any) -> None:
    batch = pa.record_batch({"c": pa.array([value, None], kind)})
    assert _mask([where], batch) == [True, False]
    assert Predicate.parse(json.loads(json.dumps(Predicate.parse([where]).spec()))) == Predicate.parse([where])


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (pa.string(), ("c", "==", 1)),
        (pa.int64(), ("c", "==", "1")),
        (pa.int64(), ("c", "==", True)),
        (pa.bool_(), ("c", "==", 1)),
        (pa.list_(pa.int64()), ("c", "==", 1)),
        (pa.binary(), ("c", "==", "a")),
        (pa.date32(), ("c", ">", "yesterday")),
        (pa.time64("us"), ("c", ">", "25:00")),
        (pa.timestamp("us", "UTC"), ("c", ">", "2024-01-31T11:00:00")),
        (pa.int64(), ("c", "in", [1, "a"])),
    ],
)
def test_types_that_cannot_be_compared_are_refused_without_a_row(kind: pa.DataType, where: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'c'.*cannot be evaluated on"):
        Predicate.parse([where]).check(pa.schema([("c", kind)]))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([], "no row filter"),
        ([[]], "no row filter"),
        ("a == 1", "no row filter"),
        ({"a": 1}, "no row filter"),
        (("a", "==", 1), "no row filter"),
        ([("a", "==")], "no condition"),
        ([("a", "==", 1), [("b", "==", 1)]], "no condition"),
        ([(1, "==", 1)], "no condition"),
        ([("a", "=", 1)], "'=' in .* is no operator: there are ==, !="),
        ([("a", ["x"], 1)], "is no operator"),
        ([("a", "==", None)], "nulls match nothing"),
        ([("a", "==", [1])], "cannot be compared"),
        ([("a", "==", b"x")], "cannot be compared"),
        ([("a", ">", float("nan"))], "no number"),
        ([("a", "<", float("inf"))], "no number"),
        ([("a", "in", "abc")], "list of at least one"),
        ([("a", "in", [])], "list of at least one"),
        ([("a", "not in", [None])], "nulls match nothing"),
    ],
)
def test_what_is_no_filter_is_refused_when_it_is_given(where: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Predicate.parse(where)


def test_both_zeros_are_in_a_set_that_holds_one_of_them() -> None:
    for kind in (pa.float32(), pa.float64()):
        batch = pa.record_batch({"c": pa.array([0.0, -0.0, 1.0, None], kind)})
        for zero in (0, 0.0, -0.0):
            assert _mask([("c", "in", [zero, 7])], batch) == _mask([("c", "==", zero)], batch)
            assert _mask([("c", "not in", [zero, 7])], batch) == _mask([("c", "!=", zero)], batch)


def test_a_value_that_is_shown_in_several_lines_is_refused_in_one_line_with_all_that_is_said() -> None:
    given: list[Any] = [[("a", "in", np.eye(2))], [("a", "==", np.eye(2))], [np.eye(2)], np.eye(2)]
    for where in given:
        with pytest.raises(ConfigurationError, match=r"^where=") as refused:
            Predicate.parse(where)
        assert "\n" not in refused.value.args[0]
