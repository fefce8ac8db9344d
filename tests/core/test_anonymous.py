"""Files without a name, shared by the path of their owner's descriptor."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_core.anonymous import AnonymousFile, is_anonymous
from forebay_core.errors import PieceGone
from forebay_core.mapping import MappedFile


@pytest.fixture(params=["on disk", "in memory"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> AnonymousFile:
    made = AnonymousFile(tmp_path if request.param == "on disk" else None)
    made.write(b"0123456789")
    return made


def test_other_processes_read_it_and_it_has_no_name(file: AnonymousFile, tmp_path: Path) -> None:
    program = "import sys; print(open(sys.argv[1]).read())"
    assert subprocess.check_output([sys.executable, "-c", program, file.path], text=True) == "0123456789\n"
    assert list(tmp_path.iterdir()) == []


def test_it_is_mapped_and_outlives_its_descriptor_there(file: AnonymousFile) -> None:
    with MappedFile.open(file.path, inode=file.inode, size=10, offset=2, length=5) as mapped:
        file.close()
        assert bytes(mapped.view) == b"23456"
    with pytest.raises(PieceGone):
        MappedFile.open(file.path, inode=file.inode)


def test_a_number_that_was_given_to_another_file_is_noticed(file: AnonymousFile, tmp_path: Path) -> None:
    with (tmp_path / "other").open("wb") as other:
        file.close()
        os.dup2(other.fileno(), file.descriptor)
        try:
            with pytest.raises(PieceGone, match="another file"):
                MappedFile.open(file.path, inode=file.inode)
        finally:
            os.close(file.descriptor)


def test_what_is_written_anew_takes_the_place_of_what_was_there(file: AnonymousFile) -> None:
    file.empty()
    file.write(b"ab")
    assert (file.size, Path(file.path).read_bytes()) == (2, b"ab")


def test_a_descriptor_goes_with_the_last_reference_and_in_a_forked_child(file: AnonymousFile) -> None:
    if (child := os.fork()) == 0:
        os._exit(1 if file.is_open else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert file.is_open
    dropped = AnonymousFile()
    path, inode = Path(dropped.path), dropped.inode
    del dropped
    gc.collect()
    assert not path.exists() or path.stat().st_ino != inode


def test_where_no_temporary_file_can_be_made_it_is_in_memory(tmp_path: Path) -> None:
    made = AnonymousFile(tmp_path / "missing")
    assert "memfd" in str(Path(made.path).readlink())


def test_only_such_a_path_is_one() -> None:
    assert is_anonymous("/proc/12/fd/3")
    assert not is_anonymous("/proc/self/fd/3")
    assert not is_anonymous("/tmp/proc/12/fd/3")
