"""What others have put into a cache directory: links lead nowhere, pickles are not run, and what is not ours stays.

Every test lives through a daemon's whole work on the directory: claim, load, reconcile and sweep, hits, fills, an
error, eviction, and the end.
"""

import asyncio
import os
import pickle
import shutil
import sqlite3
from pathlib import Path

import pytest

from forebay_core.errors import ConfigurationError, ForebayError
from forebay_core.manifest import Manifest
from forebay_server.disk.index import Index
from tests.server.disk.test_index import Bomb
from tests.server.scripted import KIB, content, key_of, pieces_of_room, rig

PIECE = f"pieces/{key_of(1)[:2]}/{key_of(1)}"
OURS = ["disk-id", "lock", "pieces", "tmp", "index", "manifests", "quarantine", "digests.db", "digests.db-wal"]
OURS += ["index/cache.db", "index/cache.db-wal", "index/cache.db-shm", "index/cache.db-journal"]
OURS += [str(Path(PIECE).parent), PIECE, f"{PIECE}.json", f"{PIECE}.error", "tmp/0123456789abcdef-7"]
OURS += [f"pieces/{key_of(3)[:2]}/{key_of(3)}", f"pieces/{key_of(3)[:2]}/{key_of(3)}.json", f"quarantine/{key_of(1)}"]


async def work(root: Path) -> list[str]:
    """A daemon's life on the directory, with room for two pieces; gives the messages of what failed."""
    failures = []
    async with rig(root, capacity=pieces_of_room(2)) as made:
        made.reader.failures["5.bin"] = [OSError("broken")]
        for number in (1, 2, 3, 4, 5, 1):
            try:
                found = made.cache.find(key_of(number))
                if found is None:
                    await made.fill(number)
                    found = made.cache.find(key_of(number))
                assert found is not None
                assert made.disk.path(key_of(number)).read_bytes() == content(number, 64 * KIB)
            except (ForebayError, OSError) as error:
                failures.append(str(error))
    return failures


def lived(root: Path) -> list[str] | None:
    """What failed in a daemon's life; None where it refused the directory."""
    try:
        return asyncio.run(work(root))
    except ConfigurationError:
        return None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache that has been used, and that its daemon has left."""
    assert lived(tmp_path / "cache") is not None
    return tmp_path / "cache"


def state(directory: Path) -> dict[str, tuple[object, ...]]:
    """All that can be changed of what lies below."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (directory, *directory.rglob("*")):
        facts = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, facts.st_nlink, data)
    return found


DIRECTORIES = {"pieces", "tmp", "index", "manifests", "quarantine", str(Path(PIECE).parent)}
LEADS = [(name, "directory" if name in DIRECTORIES else "file") for name in OURS]
LEADS += [(PIECE, "piece"), ("index/cache.db", "nothing"), ("digests.db", "nothing"), ("pieces", "nothing")]
LEADS += [("pieces", "file"), ("index/cache.db", "directory"), ("lock", "nothing"), ("disk-id", "directory")]


@pytest.mark.parametrize(("name", "kind"), LEADS)
def test_a_link_in_the_place_of_anything_of_ours_leads_nowhere(
    tmp_path: Path, root: Path, name: str, kind: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "directory").mkdir(parents=True)
    (outside / "directory" / key_of(1)).write_bytes(content(1, 64 * KIB))
    (outside / "directory" / "cache.db").write_bytes(b"not a database")
    (outside / "file").write_text('{"version": 1}')
    (outside / "piece").write_bytes(content(9, 64 * KIB))
    before = state(outside)
    at = root / name
    at.parent.mkdir(exist_ok=True)
    if at.is_dir():
        shutil.rmtree(at)
    at.unlink(missing_ok=True)
    at.symlink_to(outside / kind)
    lived(root)
    assert state(outside) == before
    assert not (outside / "nothing").exists()


@pytest.mark.parametrize("name", [f"{PIECE}.json", PIECE, "disk-id", "index/cache.db"])
def test_a_pipe_in_the_place_of_a_file_of_ours_holds_nobody_up(root: Path, name: str) -> None:
    shutil.rmtree(root / "index")
    (root / name).unlink(missing_ok=True)
    (root / name).parent.mkdir(exist_ok=True)
    os.mkfifo(root / name)
    lived(root)


def test_what_is_not_ours_survives_all_that_a_daemon_does(root: Path) -> None:
    """CASES 29: a user's own files in the cache directory, of any name that is not one of the daemon's."""
    names = ["notes.txt", "tmp/notes.txt", "tmp/0123456789abcdef", "pieces/notes", "pieces/zz/notes.json"]
    names += ["index/notes.txt", "index/ab/cd/value.val", "manifests/mine.arrow", "quarantine/mine", "digests.db.bak"]
    names += [f"{Path(PIECE).parent}/notes", f"{PIECE}.bak", f"{PIECE[:-1]}", f"pieces/{'A' * 64}", "data/1.bin"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("mine")
    for path in (root / "index/cache.db", root / "digests.db"):
        path.write_bytes(b"not a database" * 500)
    assert lived(root) is not None
    assert lived(root) is not None
    assert [name for name in names if (root / name).read_text() != "mine"] == []


def rows(bomb: bytes, file: str) -> list[tuple[object, ...]]:
    """Every form in which diskcache may hold a value, as (key, raw, mode, filename, value)."""
    keys = [bomb, pickle.dumps(key_of(1)), key_of(1), 7]
    values = [bomb, None, bomb.decode("latin-1"), 7]
    return [
        (key, raw, mode, name, value)
        for key in keys
        for raw in (0, 1)
        for mode in range(6)
        for name in (None, file, "../../victim", "/nowhere")
        for value in values
    ]


@pytest.mark.parametrize(
    "which", ["keys and values", "values under our keys", "files under our keys", "settings", "tag"]
)
def test_no_pickle_that_is_planted_in_the_index_is_run_and_no_file_that_it_names_is_touched(
    tmp_path: Path, root: Path, which: str
) -> None:
    mark, victim = tmp_path / "run", tmp_path / "victim"
    victim.write_text("mine")
    bomb = pickle.dumps(Bomb(mark))
    (root / "index/bomb.val").write_bytes(bomb)
    table = sqlite3.connect(root / "index/cache.db")
    pieces = "rowid > (SELECT min(rowid) FROM Cache)"  # the first row says whose the index is
    insert = "INSERT OR REPLACE INTO Cache (key, raw, store_time, access_time, mode, filename, value)"
    if which == "keys and values":
        for row in rows(bomb, "bomb.val"):
            table.execute(f"{insert} VALUES (?, ?, 0, 0, ?, ?, ?)", row)
    elif which == "values under our keys":
        table.execute(f"UPDATE Cache SET mode = 4, value = ? WHERE {pieces}", (bomb,))
    elif which == "files under our keys":
        table.execute(f"UPDATE Cache SET filename = '../../victim' WHERE {pieces}")
    elif which == "settings":
        for name in ("set", "_sql", "disk_bomb", "disk_pickle_protocol", "sqlite_bomb", "eviction_policy", "disk"):
            table.execute("INSERT OR REPLACE INTO Settings VALUES (?, ?)", (name, bomb))
    else:
        table.execute("UPDATE Cache SET tag = ?, expire_time = 1", (bomb,))
    table.commit()
    table.close()
    assert lived(root) is not None
    assert lived(root) is not None
    assert not mark.exists()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", [f"{PIECE}.json", PIECE, f"{PIECE}.error", "disk-id", "digests.db", "index/cache.db"])
def test_no_pickle_in_the_place_of_a_file_is_run(tmp_path: Path, root: Path, name: str) -> None:
    mark = tmp_path / "run"
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_bytes(pickle.dumps(Bomb(mark)))
    lived(root)
    assert not mark.exists()


def test_no_pickle_in_a_manifest_is_run(tmp_path: Path) -> None:
    """Also not one that an Arrow schema carries as an extension type of Python's."""
    import pyarrow as pa

    mark = tmp_path / "run"
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Bomb(mark)),
    }
    schema = pa.schema([pa.field("object_key", pa.large_binary(), metadata=metadata)])
    with pa.ipc.new_file(tmp_path / "m.arrow", schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([b"x"], pa.large_binary())], schema=schema))
    for data in ((tmp_path / "m.arrow").read_bytes(), pickle.dumps(Bomb(mark))):
        (tmp_path / "m.arrow").write_bytes(data)
        with pytest.raises(ForebayError):
            Manifest.open(tmp_path / "m.arrow")
    assert not mark.exists()


def test_the_bomb_of_these_tests_goes_off(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "run")))
    assert (tmp_path / "run").exists()


def test_the_index_opens_no_link_even_where_it_is_a_good_database(tmp_path: Path, root: Path) -> None:
    shutil.move(root / "index/cache.db", tmp_path / "good.db")
    (root / "index/cache.db").symlink_to(tmp_path / "good.db")
    before = (tmp_path / "good.db").read_bytes()
    disk_id = (root / "disk-id").read_text()
    index = Index.open(root / "index", disk_id)
    assert index.is_new
    index.close()
    assert (tmp_path / "good.db").read_bytes() == before
    assert not (root / "index/cache.db").is_symlink()
