"""Small real file systems for a test: one in memory, and one on a file, which can be made to fail for good.

Both need the right to mount; a test that has it not is skipped, and says so.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: `EXT4_IOC_SHUTDOWN` of a file system, and to do it without writing anything back.
_SHUT_DOWN, _AT_ONCE = 0x8004587D, 2


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[Path]:
    """A file system in memory at a new directory."""
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size},mode=0750", "tmpfs"):
        yield path


@contextmanager
def ext4(path: Path, size: str) -> Iterator[Path]:
    """An ext4 file system at a new directory, on a file beside it."""
    image = path.with_name(f"{path.name}.image")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4 to make a disk with")
    subprocess.run(["truncate", "--size", size, image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    with _mounted(path, "-o", "loop", str(image)):
        path.chmod(0o750)
        yield path


@contextmanager
def seen_read_only(directory: Path, at: Path) -> Iterator[Path]:
    """The directory once more, at a new place where nothing can be written."""
    with _mounted(at, "--bind", str(directory)):
        subprocess.run(["mount", "-o", "remount,ro,bind", at], check=True)
        yield at


def read_only(path: Path, *, wanted: bool = True) -> None:
    """Makes a mounted file system refuse writes, or take them again."""
    subprocess.run(["mount", "-o", f"remount,{'ro' if wanted else 'rw'}", path], check=True)


def break_down(path: Path) -> None:
    """Every access to the mounted ext4 file system is an I/O error from now on, as if its disk were gone."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SHUT_DOWN, struct.pack("I", _AT_ONCE))
    finally:
        os.close(descriptor)
    Path("/proc/sys/vm/drop_caches").write_text("1")


@contextmanager
def _mounted(path: Path, *options: str) -> Iterator[None]:
    path.mkdir()
    done = subprocess.run(["mount", *options, path], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user may not mount a small file system: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
