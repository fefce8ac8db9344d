"""The JSON objects of a checkpoint: what was written is read, and what others wrote is refused, whatever it is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.checkpoints.documents import (
    Decision,
    FileRecord,
    Generation,
    Item,
    RankManifest,
    State,
    digest_of,
)
from forebay_core.checkpoints.names import MOST_RANKS, Attempt
from forebay_core.errors import CheckpointDamaged, CheckpointError
from tests.core.checkpoints.attempts import attempt_of, manifest_of

A = attempt_of(1, 100)
DOCUMENTS = (RankManifest, Decision, Generation)
MANIFEST = json.loads(manifest_of(A, 0, 2).encode())
DECISION = json.loads(Decision(A, State.COMMITTED, 2, "sha256:0").encode())

attempts = st.builds(attempt_of, st.integers(0, 999_999), st.integers(0, 10**9 - 1), st.integers(0, 2**48 - 1))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
notes = st.dictionaries(st.text(), values, max_size=3)


@st.composite
def records(draw: st.DrawFn) -> tuple[FileRecord, ...]:
    names = draw(st.lists(st.integers(0, 99), unique=True, max_size=3))
    return tuple(_record(draw, f"__{number}_0.distcp") for number in names)


def _record(draw: st.DrawFn, name: str) -> FileRecord:
    sizes, items, end = draw(st.lists(st.integers(0, 2**40), max_size=3)), [], 0
    for size in sizes:
        items.append(Item(end, size, draw(st.integers(0, 2**32 - 1))))
        end += size
    return FileRecord(name, end, tuple(items))


@given(attempts, st.integers(1, MOST_RANKS), records(), notes)
def test_a_manifest_is_read_as_it_was_written(
    attempt: Attempt, world_size: int, files: tuple[FileRecord, ...], notes: dict[str, Any]
) -> None:
    manifest = RankManifest(attempt, world_size - 1, world_size, files, notes)
    again = RankManifest.decode(manifest.encode())
    assert again == manifest
    assert again.encode() == manifest.encode()
    assert again.size_bytes == sum(file.size_bytes for file in files)


@given(attempts, st.sampled_from(State), st.integers(1, MOST_RANKS), st.text(), st.text())
def test_a_decision_is_read_as_it_was_written(
    attempt: Attempt, state: State, world_size: int, manifests: str, reason: str
) -> None:
    decision = Decision(attempt, state, world_size, manifests, reason)
    assert Decision.decode(decision.encode()) == decision


@given(st.integers(0, 999_999), st.text(), st.none() | attempts, notes)
def test_a_generation_is_read_as_it_was_written(
    number: int, token: str, parent: Attempt | None, notes: dict[str, Any]
) -> None:
    generation = Generation(number, token, parent, notes)
    assert Generation.decode(generation.encode()) == generation


@pytest.mark.parametrize("document", DOCUMENTS)
@given(st.binary() | values.map(lambda value: json.dumps(value).encode()))
def test_bytes_of_others_are_damage_and_nothing_else_happens(document: Any, content: bytes) -> None:
    with pytest.raises(CheckpointError):
        document.decode(content)


@given(st.sampled_from(sorted(MANIFEST)), values)
def test_a_manifest_of_which_a_field_is_another_is_read_or_damage(name: str, value: object) -> None:
    _read_or_damaged(RankManifest, MANIFEST | {name: value})


@given(st.sampled_from(sorted(MANIFEST["files"][0])), values)
def test_a_manifest_of_which_a_file_is_another_is_read_or_damage(name: str, value: object) -> None:
    _read_or_damaged(RankManifest, MANIFEST | {"files": [MANIFEST["files"][0] | {name: value}]})


@given(st.sampled_from(sorted(DECISION)), values)
def test_a_decision_of_which_a_field_is_another_is_read_or_damage(name: str, value: object) -> None:
    _read_or_damaged(Decision, DECISION | {name: value})


def _read_or_damaged(document: Any, found: dict[str, Any]) -> None:
    try:
        document.decode(json.dumps(found).encode())
    except CheckpointError:
        return


FILE = {"name": "__0_0.distcp", "bytes": 8, "items": [[0, 8, 1]]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[" * 100_000,
        b'{"version":' + b"[" * 100_000,
        b'{"version": ' + b"9" * 10_000 + b"}",
        b'{"version": 1}',
        *(
            json.dumps(MANIFEST | change).encode()
            for change in (
                {"rank": 2},
                {"rank": -1},
                {"rank": True},
                {"rank": "0"},
                {"rank": 1.0},
                {"world_size": 0},
                {"world_size": MOST_RANKS + 1},
                {"world_size": 10**30},
                {"attempt": f"x/{A.name}"},
                {"attempt": f"{A.name}.json"},
                {"attempt": None},
                {"files": None},
                {"files": [FILE, FILE]},
                {"files": [FILE | {"name": "../__0_0.distcp"}]},
                {"files": [FILE | {"bytes": 9}]},
                {"files": [FILE | {"bytes": 2**63, "items": [[0, 2**63, 1]]}]},
                {"files": [FILE | {"items": [[0, 4, 1], [5, 4, 1]]}]},
                {"files": [FILE | {"items": [[0, 4, 1], [3, 4, 1]]}]},
                {"files": [FILE | {"items": [[4, 4, 1], [0, 4, 1]]}]},
                {"files": [FILE | {"items": [[0, 8, 2**32]]}]},
                {"files": [FILE | {"items": [[0, 8]]}]},
                {"files": [FILE | {"items": [[0, 12, 1], [12, -4, 1]]}]},
                {"notes": [1]},
            )
        ),
    ],
    ids=lambda content: repr(content[:30]),
)
def test_what_is_no_manifest_is_called_damaged(content: bytes) -> None:
    """CASES 46"""
    with pytest.raises(CheckpointDamaged, match=r"not a rank's manifest of a checkpoint"):
        RankManifest.decode(content)


@pytest.mark.parametrize(
    "change",
    [
        {"state": "done"},
        {"state": []},
        {"world_size": 0},
        {"world_size": MOST_RANKS + 1},
        {"attempt": ""},
        {"attempt": [A.name]},
    ],
    ids=str,
)
def test_what_is_no_decision_is_called_damaged(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointDamaged, match="not a decision of a checkpoint"):
        Decision.decode(json.dumps(DECISION | change).encode())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_of_a_newer_forebay_is_not_called_damaged(document: Any) -> None:
    with pytest.raises(CheckpointError, match=r"version 2, this forebay reads version 1.*newer") as caught:
        document.decode(b'{"version": 2}')
    assert not isinstance(caught.value, CheckpointDamaged)


def test_the_digest_of_manifests_depends_on_each_and_on_their_order_and_borders() -> None:
    digests = {
        digest_of(manifests)
        for manifests in ([b"a", b"b"], [b"b", b"a"], [b"ab"], [b"a", b"b", b""], [b"a\nb"], [], [b""])
    }
    assert len(digests) == 7


def test_a_decision_is_the_same_bytes_whoever_writes_it() -> None:
    assert Decision(A, State.COMMITTED, 2, "sha256:1").encode() == (
        b'{"attempt":"g000001-s000000100-000000000000","manifests":"sha256:1","reason":"","state":"committed",'
        b'"version":1,"world_size":2}'
    )
