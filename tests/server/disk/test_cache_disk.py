"""The cache directory: files are the truth, and no half of a piece ever counts."""

import json
import os
import shutil
from pathlib import Path

import pytest

from forebay_core.errors import AccessDenied, AlreadyRunning, BadObject, ConfigurationError
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.entry import Entry, Origin
from forebay_server.disk.survey import survey
from tests.server.scripted import claimed, content, key_of

ORIGIN = Origin("s3://bucket", "s3://bucket/1.bin", "v1", 10, ("a", "b"), "raw-1")


def put(disk: CacheDisk, number: int, size: int = 10_000) -> Entry:
    temp = disk.create()
    temp.write(content(number, size))
    return disk.commit(temp, key_of(number), ORIGIN)


def sidecar(disk: CacheDisk, key: str) -> Path:
    return disk.path(key).with_name(f"{key}.json")


def test_what_was_committed_is_found_again_by_the_next_owner(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        entry, disk_id = put(disk, 1), disk.id
        assert disk.lookup(entry.key) == entry
        assert disk.stands(entry)
    with claimed(tmp_path) as disk:
        assert survey(disk, {}) == [entry]
        assert disk.id == disk_id


def test_a_piece_takes_blocks_not_bytes(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        entry = put(disk, 1, size=1)
        assert entry.size == 1
        assert entry.blocks >= 2 * 4096


@pytest.mark.parametrize("damage", ["no sidecar", "bad sidecar", "other size", "other key", "no data", "link", "empty"])
def test_what_is_not_whole_does_not_count_and_is_swept(tmp_path: Path, damage: str) -> None:
    with claimed(tmp_path) as disk:
        key = put(disk, 1).key
        data, facts = disk.path(key), sidecar(disk, key)
    if damage == "no sidecar":
        facts.unlink()
    elif damage == "bad sidecar":
        facts.write_text("{")
    elif damage == "other size":
        data.write_bytes(b"short")
    elif damage == "other key":
        facts.write_text(facts.read_text().replace(key, key_of(2)))
    elif damage == "no data":
        data.unlink()
    elif damage == "link":
        shutil.move(data, tmp_path / "elsewhere")
        data.symlink_to(tmp_path / "elsewhere")
    else:
        data.write_bytes(b"")
    with claimed(tmp_path) as disk:
        assert disk.lookup(key) is None
        assert survey(disk, {}) == []
        assert list(data.parent.iterdir()) == []
        assert (damage != "link") or (tmp_path / "elsewhere").exists(), "a link's target is not ours"


@pytest.mark.parametrize("is_synced", [True, False])
def test_after_another_boot_only_a_synced_piece_is_trusted(tmp_path: Path, is_synced: bool) -> None:
    with claimed(tmp_path) as disk:
        key = put(disk, 1).key
        facts = sidecar(disk, key)
        facts.write_text(json.dumps(json.loads(facts.read_text()) | {"boot": "another", "synced": is_synced}))
        entry = disk.lookup(key)
        assert entry is not None
        assert disk.trusts(entry) == is_synced


def test_a_piece_that_somebody_wrote_to_stands_no_longer_and_is_not_trusted_as_its_files_say(tmp_path: Path) -> None:
    """The size and the inode are as they were. CASES 26."""
    with claimed(tmp_path) as disk:
        entry = put(disk, 1)
        with disk.path(entry.key).open("r+b") as file:
            file.write(b"?")
        assert not disk.stands(entry)
        found = disk.lookup(entry.key)
        assert found is not None
        assert not disk.trusts(found)


def test_what_is_known_already_is_not_read_again_unless_its_file_is_another(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        entries = {entry.key: entry for entry in (put(disk, 1), put(disk, 2))}
        known, changed = key_of(1), key_of(2)
        sidecar(disk, known).write_text("not read")
        disk.path(changed).unlink()
        put(disk, 2, size=5_000)
        found = {entry.key: entry for entry in survey(disk, entries)}
        assert found[known] is entries[known]
        assert found[changed].size == 5_000


def test_sweeping_takes_what_an_earlier_owner_left_and_nothing_of_this_one(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        key = put(disk, 1).key
        disk.write_error(key_of(2), BadObject("bad"))
        disk.create().write(b"half")
    with claimed(tmp_path) as disk:
        disk.write_error(key_of(3), BadObject("bad"))
        mine = disk.create()
        survey(disk, {})
        assert [path.name for path in (tmp_path / "tmp").iterdir()] == [mine.name]
        assert not disk.path(key_of(2)).with_name(f"{key_of(2)}.error").exists()
        assert disk.path(key_of(3)).with_name(f"{key_of(3)}.error").exists()
        assert disk.lookup(key) is not None
        disk.discard(mine)
        disk.discard(mine)


def test_removing_takes_the_data_before_the_sidecar_and_may_be_repeated(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        key = put(disk, 1).key
        disk.remove(key)
        disk.remove(key)
        disk.remove(key_of(9))
        assert list(disk.path(key).parent.iterdir()) == []


def test_an_error_is_written_whole_and_cleared(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        disk.write_error(key_of(1), AccessDenied("no ü"))
        path = disk.path(key_of(1)).with_name(f"{key_of(1)}.error")
        assert json.loads(path.read_text()) == {"error": "AccessDenied", "message": "no ü"}
        disk.clear_error(key_of(1))
        disk.clear_error(key_of(1))
        assert not path.exists()


def test_nothing_below_the_root_is_reached_through_a_link(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with claimed(root) as disk:
        (root / "pieces" / key_of(1)[:2]).symlink_to(elsewhere)
        with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
            put(disk, 1)
        assert list(elsewhere.iterdir()) == []
        assert list((root / "tmp").iterdir()) == []
    shutil.rmtree(root / "tmp")
    (root / "tmp").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        CacheDisk.claim(root)


def test_files_are_for_the_owner_and_the_group_alone(tmp_path: Path) -> None:
    with claimed(tmp_path / "cache") as disk:
        key = put(disk, 1).key
        assert disk.path(key).stat().st_mode & 0o777 == 0o640
        assert sidecar(disk, key).stat().st_mode & 0o777 == 0o640
        assert disk.root.stat().st_mode & 0o777 == 0o750


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"):
        CacheDisk.claim(tmp_path)
    with claimed(tmp_path):
        pass
    assert not (tmp_path / "lock").exists()


def test_a_root_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o707)
    with pytest.raises(ConfigurationError, match="others can write"):
        CacheDisk.claim(tmp_path / "c")


@pytest.mark.parametrize(
    "name", ["notes.txt", "tmp/notes.txt", "pieces/ab/notes.txt", "lock", "data/1.bin", "index/cache.db", ".hidden"]
)
def test_a_directory_with_other_things_in_it_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match=r"^the directory .* is not a forebay cache: give an empty .*$"):
        CacheDisk.claim(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / name).read_text() == "mine"


def test_a_first_start_that_was_cut_short_may_be_repeated(tmp_path: Path) -> None:
    for name in ("lost+found", "pieces", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "lock").write_text(f"{1234:<31}\n")
    (tmp_path / "tmp" / "0123456789abcdef-0").write_text("half")
    with claimed(tmp_path) as disk:
        assert (tmp_path / "disk-id").read_text() == disk.id


def test_sweeping_takes_only_what_has_a_name_that_is_made_here(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        prefix = disk.path(put(disk, 1).key).parent
    foreign = [tmp_path / "tmp" / "notes.txt", prefix / "notes", prefix / "notes.json", prefix / f"{key_of(1)}.bak"]
    left = [tmp_path / "tmp" / "0123456789abcdef-7", prefix / "a".ljust(64, "0"), prefix / f"{'b' * 64}.error"]
    for path in (*foreign, *left):
        path.write_text("mine")
    with claimed(tmp_path) as disk:
        survey(disk, {})
        assert all(path.exists() for path in foreign)
        assert not any(path.exists() for path in left)


def test_a_directory_that_was_emptied_under_its_owner_is_used_on(tmp_path: Path) -> None:
    with claimed(tmp_path) as disk:
        put(disk, 1)
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        disk.write_error(key_of(1), BadObject("bad"))
        assert disk.path(key_of(1)).with_name(f"{key_of(1)}.error").exists()
        entry, disk_id = put(disk, 2), disk.id
        shutil.rmtree(tmp_path / "pieces")
        disk.write_error(key_of(1), BadObject("bad"))
        entry = put(disk, 2)
        assert disk.lookup(entry.key) == entry
    with claimed(tmp_path) as disk:
        assert disk.id == disk_id
        assert disk.lookup(entry.key) == entry


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    with pytest.raises(ConfigurationError, match="not a directory"):
        CacheDisk.claim(tmp_path / "c")
