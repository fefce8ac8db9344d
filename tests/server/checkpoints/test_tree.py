"""Directories as places of checkpoints: nothing leads out of them, nothing is half there, what was left is swept."""

import asyncio
import errno
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from forebay_core.checkpoints.documents import FileRecord, Item
from forebay_core.errors import AccessDenied, ConfigurationError
from forebay_server.checkpoints.destinations.tree import TEMPORARY, Tree
from tests.server.checkpoints.destinations import destinations, sealed

KEY = "attempts/g000000-s000000001-0123456789ab/__0_0.distcp"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "runs"


def test_nothing_is_written_or_deleted_through_a_symbolic_link(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "g000000-s000000001-0123456789ab").mkdir(parents=True)
    (outside / "a.json").write_bytes(b"keep")
    root.mkdir()
    (root / "attempts").symlink_to(outside)
    (root / "a.json").symlink_to(outside / "a.json")
    local = tmp_path / "local"
    record = sealed(local, b"bytes")

    async def run() -> None:
        opened, _ = destinations()
        kept = await opened.open(str(root))
        for action in (
            lambda: kept.upload(local, KEY, expected=record),
            lambda: kept.put("attempts/b.json", b"x"),
            lambda: kept.put_if_absent("attempts/b.json", b"x"),
        ):
            with pytest.raises(AccessDenied, match="is in the way"):
                await action()
        assert await kept.get("attempts/a.json") is None
        with pytest.raises(AccessDenied, match="is in the way"):
            await kept.get("a.json")
        await kept.delete(["attempts/a.json"])
        assert await kept.list("") == ()
        assert not await kept.put_if_absent("a.json", b"ours")
        await kept.put("a.json", b"ours")

    asyncio.run(run())
    assert (outside / "a.json").read_bytes() == b"keep"
    assert sorted(path.name for path in outside.iterdir()) == ["a.json", "g000000-s000000001-0123456789ab"]
    assert not (root / "a.json").is_symlink(), "the link itself was replaced"


def test_a_root_of_more_directories_than_python_recurses_into_is_made(tmp_path: Path) -> None:
    tree = Tree(tmp_path.resolve() / ("d/" * 1500))
    try:
        tree.write("a.json", [b"x"])
        assert tree.read("a.json") == b"x"
    finally:  # pytest cannot remove it
        subprocess.run(["rm", "-r", tmp_path / "d"], check=True)


def test_a_root_that_is_put_in_the_place_of_a_link_later_is_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "runs").mkdir(parents=True)

    def put_link_in_place() -> None:
        root.rename(tmp_path / "moved")
        root.symlink_to(elsewhere)

    async def run() -> None:
        opened, _ = destinations()
        kept = await opened.open(f"{root}/deep")
        await kept.put("a.json", b"x")
        await asyncio.to_thread(put_link_in_place)
        with pytest.raises(AccessDenied, match="leads elsewhere"):
            await kept.put("a.json", b"x")

    asyncio.run(run())
    assert list((elsewhere / "runs").iterdir()) == []


@pytest.mark.parametrize("key", ["", "/", "a/", "../a", "a/../b", "a//b", "./a", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(root: Path, key: str) -> None:
    for action in (Tree(root).read, Tree(root).remove, lambda key: Tree(root).write(key, [b"x"])):
        with pytest.raises(ConfigurationError, match="is no name"):
            action(key)
    assert not root.parent.joinpath("a").exists()


def test_who_only_tries_a_root_that_others_begin_to_write_takes_nothing_from_them(root: Path) -> None:
    """What is empty is removed, also where it was made by another a moment ago."""
    tree, trying = Tree(root / "deep"), Tree(root / "deep")
    missing, is_over = trying.missing(), threading.Event()
    assert missing == (root / "deep" / TEMPORARY, root / "deep", root)

    def unmake() -> None:
        while not is_over.wait(0.01):
            trying.unmake(missing)

    remover = threading.Thread(target=unmake)
    remover.start()
    try:
        for number in range(300):
            assert tree.create(f"{number}.json", [b"x"])
            assert tree.read(f"{number}.json") == b"x"
            tree.remove(f"{number}.json")
    finally:
        is_over.set()
        remover.join()
    trying.unmake(missing)
    assert not root.exists()


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(root: Path) -> None:
    tree = Tree(root)
    tree.write("commits/a.json", [b"first"])

    def fails() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    for write in (tree.write, tree.create):
        with pytest.raises(OSError, match="No space left"):
            write("commits/a.json", fails())
        with pytest.raises(OSError, match="No space left"):
            write("commits/b.json", fails())
    assert tree.read("commits/a.json") == b"first"
    assert [found.key for found in tree.list("")] == ["commits/a.json"]
    assert list((root / TEMPORARY).iterdir()) == []


def test_a_full_disk_and_a_missing_right_are_told_apart(root: Path, tmp_path: Path) -> None:
    """CASES 39."""
    (tmp_path / "file").write_bytes(b"")

    async def run() -> None:
        opened, _ = destinations()
        below_a_file = await opened.open(f"{tmp_path}/file/runs")
        with pytest.raises(ConfigurationError, match="is a file"):
            await below_a_file.put("a.json", b"x")
        device = await opened.open("/proc/forebay/runs")
        with pytest.raises(AccessDenied, match="/proc/forebay"):
            await device.put("a.json", b"x")

    asyncio.run(run())


def test_a_root_that_can_be_no_directory_is_named_as_it_was_given_and_what_is_there_is_left_alone(
    tmp_path: Path,
) -> None:
    """Nobody has asked for the probe that finds it out, and nobody is to remove a file of his own."""
    path = tmp_path.resolve() / "train.py"
    path.write_text("mine")
    expected = {
        str(path): f"file://{path} is a file: give a directory",
        f"{path}/runs": f"file://{path}/runs cannot be made, {path} is a file: give a directory",
        "/proc/foo": "file:///proc/foo: the directory cannot be made in /proc (No such file or directory); make it for"
        " the daemon's user, or give another",
    }

    async def run() -> None:
        opened, _ = destinations()
        for root, message in expected.items():
            kept = await opened.open(root)
            for action in (kept.probe_put_if_absent, lambda kept=kept: kept.put("generations/g000001.json", b"x")):
                with pytest.raises((ConfigurationError, AccessDenied)) as raised:
                    await action()
                assert str(raised.value) == message

    asyncio.run(run())
    assert path.read_text() == "mine"


def test_a_directory_that_is_emptied_while_others_write_into_it_loses_nothing(root: Path) -> None:
    tree = Tree(root)

    async def run() -> None:
        def churn(name: str) -> None:
            for number in range(40):
                tree.write(f"attempts/x/{name}", [b"%d" % number])
                assert tree.read(f"attempts/x/{name}") == b"%d" % number
                tree.remove(f"attempts/x/{name}")

        await asyncio.gather(*(asyncio.to_thread(churn, name) for name in "abcd"))

    asyncio.run(run())
    assert tree.list("") == ()
    assert not (root / "attempts").exists(), "empty directories go"


def test_what_killed_writers_left_is_swept_a_day_later_and_never_listed(root: Path) -> None:
    tree = Tree(root)
    tree.write("a.json", [b"x"])
    old, young = root / TEMPORARY / "old", root / TEMPORARY / "young"
    for left in (old, young):
        left.write_bytes(b"half")
    now = (root / "a.json").stat().st_mtime
    os.utime(old, (now - 100_000, now - 100_000))
    later = Tree(root)
    assert [found.key for found in later.list("")] == ["a.json"]
    later.write("b.json", [b"x"])
    assert not old.exists()
    assert young.exists()


def test_files_and_directories_have_the_modes_that_the_umask_gives(root: Path) -> None:
    before = os.umask(0o027)
    try:
        Tree(root).write("commits/a.json", [b"x"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "commits/a.json").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "commits").stat().st_mode) == 0o750


def test_an_upload_that_nobody_waits_for_any_more_leaves_nothing(root: Path, tmp_path: Path) -> None:
    local, zeros = tmp_path / "local", bytes(64 << 20)
    local.touch()
    os.truncate(local, 64 * len(zeros))
    items = (Item(number * len(zeros), len(zeros), google_crc32c.value(zeros)) for number in range(64))
    record = FileRecord("__0_0.distcp", 64 * len(zeros), tuple(items))

    async def run() -> None:
        opened, _ = destinations()
        kept = await opened.open(str(root))
        has_begun = asyncio.Event()
        uploading = asyncio.create_task(kept.upload(local, KEY, expected=record, progress=lambda _: has_begun.set()))
        await has_begun.wait()
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        assert await kept.head(KEY) is None
        assert list((root / TEMPORARY).iterdir()) == []

    asyncio.run(run())
