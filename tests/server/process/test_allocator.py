"""What is freed stays with the process for the next buffer, unless the environment says otherwise."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is set, no other")

FAULTS = """
import resource
from forebay_server.process.allocator import keep_freed
is_set = keep_freed(64 << 20, {environment})
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [bytearray(b"x") * (8 << 20) for _ in range(6)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(is_set, faults())
"""


def faults(environment: dict[str, str]) -> tuple[bool, int]:
    """Whether the allocator was set, and page faults of 6 buffers of 8 MiB after as many that were freed."""
    program = FAULTS.format(environment=environment)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    is_set, count = ended.stdout.split()
    return is_set == "True", int(count)


def test_buffers_that_are_freed_are_there_for_the_next_ones() -> None:
    is_set, count = faults({})
    assert is_set
    assert count < 256


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_of_the_allocator_counts(name: str) -> None:
    is_set, count = faults({name: "1"})
    assert not is_set
    assert count > 3 * 2048
