"""The index: quick to load, never believed where it is damaged, never unpickled."""

import asyncio
import pickle
import sqlite3
from pathlib import Path

import pytest

from forebay_server.disk.entry import Entry
from forebay_server.disk.index import Index, IndexThread
from tests.server.scripted import key_of


def entry(number: int) -> Entry:
    return Entry(key_of(number), 100 + number, 8192, number, 7, False, "boot", 123)


def keep(directory: Path, *numbers: int) -> None:
    index = Index.open(directory, "disk")
    for number in numbers:
        index.put(entry(number))
    index.close()


def test_entries_survive(tmp_path: Path) -> None:
    keep(tmp_path, 1, 2, 3)
    index = Index.open(tmp_path, "disk")
    index.drop(key_of(2))
    index.drop(key_of(9))
    index.close()
    index = Index.open(tmp_path, "disk")
    assert index.entries == {key_of(number): entry(number) for number in (1, 3)}
    assert not index.is_new
    index.close()


@pytest.mark.parametrize("content", [b"", b"not a database" * 500])
def test_a_foreign_file_in_its_place_makes_it_anew(tmp_path: Path, content: bytes) -> None:
    keep(tmp_path, 1)
    for path in tmp_path.glob("cache.db*"):
        path.unlink()
    (tmp_path / "cache.db").write_bytes(content)
    index = Index.open(tmp_path, "disk")
    assert index.entries == {}
    index.put(entry(2))
    index.close()
    index = Index.open(tmp_path, "disk")
    assert list(index.entries) == [key_of(2)]
    index.close()


def test_a_disk_that_takes_no_index_is_done_without_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    index = Index.open(tmp_path / "file" / "index", "disk")
    index.put(entry(1))
    index.drop(key_of(1))
    index.close()
    assert index.is_new
    assert index.entries == {}


@pytest.mark.parametrize("kind", ["of another directory", "of a newer version", "without a stamp"])
def test_a_foreign_index_or_one_of_another_version_says_nothing(tmp_path: Path, kind: str) -> None:
    """Else what it does not know would be taken for free room. CASES 33."""
    index = Index.open(tmp_path, "another" if kind == "of another directory" else "disk")
    index.put(entry(1))
    assert index._cache is not None
    if kind == "of a newer version":
        index._cache.set("forebay", {"version": 99, "disk": "disk"})
    elif kind == "without a stamp":
        index._cache.delete("forebay")
    index.close()
    again = Index.open(tmp_path, "disk")
    assert again.is_new
    assert again.entries == {}
    again.put(entry(2))
    again.close()
    assert list(Index.open(tmp_path, "disk").entries) == [key_of(2)]


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_a_planted_pickle_is_not_run(tmp_path: Path) -> None:
    keep(tmp_path, 1)
    mark = tmp_path / "run"
    connection = sqlite3.connect(tmp_path / "cache.db")
    connection.execute("UPDATE Cache SET mode = 4, value = ?", (pickle.dumps(Bomb(mark)),))
    connection.execute(
        "INSERT INTO Cache (key, raw, store_time, access_time, mode, value) VALUES (?, 0, 0, 0, 4, ?)",
        (pickle.dumps(Bomb(mark)), pickle.dumps(Bomb(mark))),
    )
    connection.commit()
    connection.close()
    index = Index.open(tmp_path, "disk")
    assert index.entries == {}
    index.put(entry(1))
    index.drop(key_of(1))
    index.close()
    assert not mark.exists()


def test_rows_that_are_no_entries_are_left_out(tmp_path: Path) -> None:
    index = Index.open(tmp_path, "disk")
    assert index._cache is not None
    index._cache.set("x", {"key": "x"})
    index._cache.set("y", [1, 2])
    index.put(entry(1))
    index.close()
    index = Index.open(tmp_path, "disk")
    assert list(index.entries) == [key_of(1)]
    index.close()


def test_changes_made_through_its_thread_are_made_in_their_order_also_before_it_was_loaded(tmp_path: Path) -> None:
    keep(tmp_path, 1)

    async def run() -> None:
        thread = IndexThread(tmp_path, "disk")
        thread.put(entry(2))
        thread.drop(key_of(1))
        thread.put(entry(1))
        assert not (await thread.load()).is_new
        thread.drop(key_of(2))
        await thread.close()

    asyncio.run(run())
    index = Index.open(tmp_path, "disk")
    assert index.entries == {key_of(1): entry(1)}
    index.close()
