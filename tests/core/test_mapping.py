"""Mapped files and the lock that lives in them."""

import contextlib
import errno
import fcntl
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay_core.errors import PieceGone
from forebay_core.mapping import MappedFile, is_mapped, remove, unmapped
from tests.support.processes import eventually

DATA = bytes(range(256)) * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "piece"
    file.write_bytes(DATA)
    return file


def test_the_view_is_the_file_and_cannot_be_written(path: Path) -> None:
    view = MappedFile.open(path).view
    assert bytes(view) == DATA
    assert view[255] == 255
    assert view.readonly


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 5000, len(DATA)])
@pytest.mark.parametrize("length", [None, 0, 1, 300])
def test_any_range_of_the_file_can_be_mapped(path: Path, offset: int, length: int | None) -> None:
    if length is not None and offset + length > len(DATA):
        length = 0
    mapped = MappedFile.open(path, offset=offset, length=length)
    assert bytes(mapped.view) == (DATA[offset:] if length is None else DATA[offset : offset + length])
    mapped.populate()


def test_no_descriptor_stays_open(path: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    views = [MappedFile.open(path).view for _ in range(50)]
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert len(views) == 50


def test_the_pages_and_the_lock_go_with_the_last_view_and_not_before(path: Path) -> None:
    mapped = MappedFile.open(path)
    array = np.frombuffer(mapped.view, np.uint8)
    arrow = pa.py_buffer(mapped.view)
    mapped.close()
    del mapped
    assert array[255] == 255
    assert is_mapped(path)
    del array
    assert is_mapped(path)
    assert arrow[0] == 0
    del arrow
    assert not is_mapped(path)


def test_closing_with_views_outside_does_not_raise(path: Path) -> None:
    with MappedFile.open(path) as mapped:
        view = mapped.view[10:20]
    assert bytes(view) == DATA[10:20]
    assert len(mapped.view) == 0


_HOLDER = """
import sys
from forebay_core.mapping import MappedFile
view = MappedFile.open(sys.argv[1]).view
print("mapped", flush=True)
for line in sys.stdin:
    view = None
    print("unmapped", flush=True)
"""


@contextlib.contextmanager
def _holder(path: Path) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mapped\n"
        try:
            yield process
        finally:
            process.kill()


def test_another_process_sees_the_lock_until_the_file_is_unmapped(path: Path) -> None:
    with _holder(path) as holder:
        assert is_mapped(path)
        with path.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "unmapped\n"
        assert not is_mapped(path)


def test_the_lock_of_a_killed_process_is_gone(path: Path) -> None:
    with _holder(path) as holder:
        assert is_mapped(path)
        holder.kill()
        holder.wait()
        assert not is_mapped(path)


def test_a_process_that_exits_with_views_exits_well(path: Path) -> None:
    code = (
        "import sys, numpy as np; from forebay_core.mapping import MappedFile\n"
        "a = np.frombuffer(MappedFile.open(sys.argv[1]).view, np.uint8)\n"
        "class Late:\n    def __del__(self): a.tobytes()\n"
        "keep = Late()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


_FORKS = """
import os, sys
from forebay_core.mapping import MappedFile
view = MappedFile.open(sys.argv[1]).view
if os.fork():
    os._exit(0)
print(view[255], flush=True)
sys.stdin.read()
"""


def test_a_forked_child_keeps_the_lock_of_what_it_sees(path: Path) -> None:
    command = [sys.executable, "-c", _FORKS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "255\n"
        assert parent.wait() == 0
        assert is_mapped(path)
        parent.stdin.close()
        eventually(lambda: not is_mapped(path), 10, "the child's end")


def test_a_file_that_is_not_the_one_leased_is_gone(path: Path) -> None:
    found = path.stat()
    MappedFile.open(path, inode=found.st_ino, size=found.st_size)
    with pytest.raises(PieceGone, match="another file"):
        MappedFile.open(path, inode=found.st_ino + 1)
    with pytest.raises(PieceGone, match="16384 bytes, leased were 5"):
        MappedFile.open(path, size=5)
    with pytest.raises(PieceGone, match=r"not all of \[16380, 16390\)"):
        MappedFile.open(path, offset=16380, length=10)
    with pytest.raises(PieceGone, match="not there any more"):
        MappedFile.open(path.with_name("other"))


def test_a_file_removed_between_the_opening_and_the_lock_is_gone(path: Path) -> None:
    with path.open("rb") as keeper:
        alias = f"/proc/self/fd/{keeper.fileno()}"
        path.unlink()
        with pytest.raises(PieceGone, match="was removed while it was opened"):
            MappedFile.open(alias, in_place=True)


def test_a_symbolic_link_is_only_followed_to_a_file_that_is_read_in_place(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(OSError, match="link") as error:
        MappedFile.open(link)
    assert error.value.errno == errno.ELOOP
    assert bytes(MappedFile.open(link, in_place=True).view) == DATA


def test_a_file_read_in_place_is_not_locked(path: Path) -> None:
    view = MappedFile.open(path, in_place=True).view
    assert not is_mapped(path)
    assert len(view) == len(DATA)


def test_a_range_that_cannot_be_read_is_an_error_that_names_the_file(path: Path) -> None:
    mapped = MappedFile.open(path)
    mapped.populate(100, 200)
    os.truncate(path, 4096)
    mapped.populate(0, 4096)
    with pytest.raises(OSError, match="cannot read bytes") as error:
        mapped.populate(0, len(DATA))
    assert error.value.filename == str(path)


def test_a_missing_file_is_not_mapped(path: Path) -> None:
    assert not is_mapped(path)
    assert not is_mapped(path.with_name("other"))


def test_while_a_file_is_kept_from_readers_they_wait_and_find_it_gone_if_it_is_removed(path: Path) -> None:
    """CASES 29: between the question whether somebody reads a file and its removal nobody can begin to."""
    with ThreadPoolExecutor(1) as pool, unmapped(path) as is_free:
        assert is_free
        reader = pool.submit(MappedFile.open, path)
        eventually(lambda: _descriptors().count(str(path)) == 2, 20, "the reader to open the file")
        path.unlink()
    with pytest.raises(PieceGone):
        reader.result()


def _descriptors() -> list[str]:
    """What this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return found


def test_who_asks_for_a_file_that_is_mapped_keeps_nobody_from_it(path: Path) -> None:
    with MappedFile.open(path), unmapped(path) as is_free, MappedFile.open(path) as second:
        assert not is_free
        assert bytes(second.view) == DATA


def test_what_is_removed_under_a_reader_lingers_until_he_ends(path: Path) -> None:
    """CASES 30: the room of a file without a name is not free while somebody has it mapped."""
    with _holder(path) as holder:
        lingering = remove(path, path.unlink)
        assert lingering is not None
        assert not path.exists()
        assert lingering.bytes == len(DATA)
        assert not lingering.is_over()
        holder.kill()
        holder.wait()
        assert lingering.is_over()


def test_what_is_removed_unread_does_not_linger(path: Path) -> None:
    assert remove(path, path.unlink) is None
    assert remove(path, lambda: None) is None, "not there: nothing to look after"
    path.write_bytes(DATA)
    with pytest.raises(PermissionError):
        remove(path, _refuse)
    assert not [name for name in _descriptors() if name.startswith(str(path))]


def _refuse() -> None:
    raise PermissionError


def test_the_mapping_does_not_live_in_a_cycle(path: Path) -> None:
    gc.disable()
    try:
        mapped = MappedFile.open(path)
        gone = weakref.ref(mapped)
        del mapped
        assert gone() is None
        assert not is_mapped(path)
    finally:
        gc.enable()
