"""Which directory may be a cache, and who may read what is in it."""

import asyncio
import grp
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_core.errors import ConfigurationError
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.disk.root import prepared_root
from tests.server.daemons import client, command, daemon, read, token_spec, write_shards
from tests.server.scripted import claimed, key_of, rig
from tests.support.processes import eventually

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user or of any group")


def kinds_and_modes(root: Path) -> dict[str, str]:
    """Every mode of directories and of files that there is below, with the path that has it."""
    found = {}
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode
        found[f"{'d' if stat.S_ISDIR(mode) else 's' if stat.S_ISSOCK(mode) else 'f'}{mode & 0o7777:o}"] = str(path)
    return found


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_all_that_a_daemon_makes_is_for_its_group_alone_whoever_starts_it(home: Path, umask: int) -> None:
    home.chmod(0o755)
    write_shards(home / "data", shards=1)
    before = os.umask(umask)
    try:
        group = str(grp.getgrgid(os.getgid()).gr_name)
        flags = ("--group", group, "--read-in-place", "never", "--cache-dir", str(home / "new/cache"))
        with daemon(home, *flags, "--allow-read", str(home)) as running, client(running.socket) as caller:
            session = caller.session(caller.open([str(home / "data")], token_spec()).dataset_id)
            (home / "data/00000.bin").write_bytes(b"")
            with pytest.raises(RuntimeError, match="ObjectChanged"):
                read(home / "new/cache", caller.acquire(session, [0])[0])
            write_shards(home / "more", shards=1)
            session = caller.session(caller.open([str(home / "more")], token_spec()).dataset_id)
            read(home / "new/cache", caller.acquire(session, [1])[0])
            eventually(lambda: list((home / "new/cache/index").iterdir()), 20, "the index")
            assert kinds_and_modes(home / "new/cache").keys() == {"d2750", "f640"}
            assert kinds_and_modes(home / "d").keys() == {"d750", "f640", "s660"}
            assert (home / "new").stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(before)


@as_root
def test_a_cache_is_given_to_another_group_once_with_all_that_is_ours_and_nothing_else(tmp_path: Path) -> None:
    async def fill() -> None:
        async with rig(tmp_path / "c") as made:
            await made.fill(1)

    asyncio.run(fill())
    (tmp_path / "c/notes").write_text("mine")
    (tmp_path / "c/pieces/notes").mkdir()
    (tmp_path / "c/pieces/link").symlink_to(tmp_path / "c/notes")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c/pieces/ff").symlink_to(tmp_path / "elsewhere")
    CacheDisk.claim(tmp_path / "c", 4711).close()
    other = {path for path in (tmp_path / "c").rglob("*") if path.lstat().st_gid != 4711}
    assert {path.name for path in other} == {"notes", "link", "ff"}
    assert (tmp_path / "elsewhere").stat().st_gid != 4711
    assert (tmp_path / "c/notes").stat().st_mode & 0o777 != 0o640
    with claimed(tmp_path / "c") as disk:
        assert disk.lookup(key_of(1)) is not None


@as_root
def test_handing_over_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    with claimed(tmp_path / "c"):
        pass
    os.chown(tmp_path / "c/pieces", -1, 4711)
    CacheDisk.claim(tmp_path / "c", 4711).close()
    assert {path.stat().st_gid for path in (tmp_path / "c").rglob("*")} == {4711}


@as_root
def test_who_may_not_give_it_away_is_told_so(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, tempfile
from forebay_server.disk.cache_disk import CacheDisk
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
with tempfile.TemporaryDirectory() as home:
    try:
        CacheDisk.claim(pathlib.Path(home) / "c", 4711)
    except Exception as error:
        print(type(error).__name__, error)
    CacheDisk.claim(pathlib.Path(home) / "c").close()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith("ConfigurationError the cache directory")
    assert "cannot be given to the group 4711" in ended.stdout


def test_a_group_that_cannot_reach_the_cache_is_told_of(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "private").mkdir(mode=0o700)
    CacheDisk.claim(home / "private/c", os.getgid()).close()
    assert f"cannot reach {home}/private/c" in caplog.text


@pytest.mark.parametrize("mode", [0o777, 0o703])
def test_a_root_in_a_directory_that_others_can_write_is_refused(home: Path, mode: int) -> None:
    """CASES 32."""
    (home / "above/c").mkdir(parents=True)
    (home / "above").chmod(mode)
    with pytest.raises(ConfigurationError, match=f"others can write to {home}/above.*--cache-dir"):
        CacheDisk.claim(home / "above/c")
    assert list((home / "above/c").iterdir()) == []
    (home / "above").chmod(mode | 0o1000)
    CacheDisk.claim(home / "above/c").close()


def test_a_sticky_root_is_refused_all_the_same(home: Path) -> None:
    (home / "c").mkdir()
    (home / "c").chmod(0o1777)
    with pytest.raises(ConfigurationError, match="others can write to the cache directory"):
        CacheDisk.claim(home / "c")


def test_a_root_of_ours_that_a_group_could_write_is_closed_to_it(home: Path) -> None:
    (home / "c").mkdir()
    (home / "c").chmod(0o775)
    CacheDisk.claim(home / "c").close()
    assert (home / "c").stat().st_mode & 0o777 == 0o755


def test_a_link_of_ours_to_the_cache_is_followed(home: Path) -> None:
    (home / "link").symlink_to(home / "real")
    (home / "real").mkdir()
    with claimed(home / "link") as disk:
        assert disk.root == home / "real"
    (home / "dangling").symlink_to(home / "nowhere")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        CacheDisk.claim(home / "dangling")


@as_root
def test_a_root_or_a_link_of_another_user_is_refused(home: Path) -> None:
    """CASES 32."""
    (home / "theirs").mkdir()
    os.chown(home / "theirs", NOBODY, -1)
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        CacheDisk.claim(home / "theirs")
    (home / "real").mkdir()
    (home / "link").symlink_to("real")
    os.chown(home / "link", NOBODY, -1, follow_symlinks=False)
    with pytest.raises(ConfigurationError, match="a symbolic link of another user"):
        CacheDisk.claim(home / "link")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "cifs", "fuse.s3fs"])
@pytest.mark.parametrize("place", ["", "/index"])
def test_a_network_file_system_holds_neither_the_cache_nor_its_index(home: Path, kind: str, place: str) -> None:
    (home / "c").mkdir()
    root = (home / "c").resolve()
    mounts = f"1 1 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {root}{place} rw - {kind} server:/x rw\n"
    with pytest.raises(ConfigurationError, match=f"{root}{place} is on a network file system .{kind}"):
        prepared_root(root, mounts=mounts)
    assert list((home / "c").iterdir()) == []
    assert prepared_root(root, mounts=mounts.replace(kind, "xfs")) == root


def test_a_refused_cache_is_said_in_one_line_and_the_socket_is_free_again(home: Path) -> None:
    (home / "c").mkdir()
    (home / "c").chmod(0o777)
    flags = command("--socket", str(home / "s"), "--cache-dir", str(home / "c"))
    ended = subprocess.run(flags, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert json.loads(ended.stdout)["error"] == "ConfigurationError"
    assert sorted(path.name for path in home.iterdir() if path.name.startswith("s")) == ["state"]
