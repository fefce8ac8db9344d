"""What a process may use, as the kernel's files say: the machine's, or what its control groups leave."""

import os
from pathlib import Path

import pytest

from forebay_core.machine import look, proxies, usable_memory_bytes

MIB = 1 << 20
MEMINFO = "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\nHugePages_Total: 0\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_groups_all_of_the_machine_is_there(tmp_path: Path) -> None:
    found = look({}, proc=tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": ""}), sys=tmp_path / "sys")
    assert (found.memory_bytes, found.available_memory_bytes) == (8192 * MIB, 4096 * MIB)
    assert found.cpus == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("version", [1, 2])
def test_the_least_limit_of_all_groups_above_counts(tmp_path: Path, version: int) -> None:
    if version == 2:
        cgroup = "0::/pod/container\n"
        groups = {
            "memory.max": "max\n",
            "pod/memory.max": f"{1024 * MIB}\n",
            "pod/memory.current": f"{700 * MIB}\n",
            "pod/memory.stat": f"anon 1\ninactive_file {200 * MIB}\n",
            "pod/cpu.max": "50000 100000\n",
            "pod/container/memory.max": "max\n",
            "pod/container/cpu.max": "max 100000\n",
        }
    else:
        cgroup = "4:memory:/pod\n3:cpu,cpuacct:/pod\n"
        groups = {
            "memory/pod/memory.limit_in_bytes": f"{1024 * MIB}\n",
            "memory/pod/memory.usage_in_bytes": f"{700 * MIB}\n",
            "memory/pod/memory.stat": f"total_inactive_file {200 * MIB}\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cpu/pod/cpu.cfs_quota_us": "50000\n",
            "cpu/pod/cpu.cfs_period_us": "100000\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
        }
    proc = tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": cgroup})
    found = look({}, proc=proc, sys=tree(tmp_path / "sys", groups))
    assert found.memory_bytes == 1024 * MIB
    assert found.available_memory_bytes == (1024 - 700 + 200) * MIB
    assert found.cpus == 0.5


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 8192),
        ("0::/\n", {"memory.max": f"{4096 * MIB}\n"}, 4096),
        ("0::/pod/c\n", {"pod/c/memory.max": "max\n"}, 8192),
        ("0::/pod/c\n", {"pod/c/memory.max": f"{4096 * MIB}\n", "pod/memory.max": f"{2048 * MIB}\n"}, 2048),
        (
            "5:cpu,cpuacct:/x\n4:memory:/job\n",
            {"memory/job/memory.limit_in_bytes": f"{1024 * MIB}\n", "x/memory.max": "1\n"},
            1024,
        ),
        ("4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": f"{3072 * MIB}\n"}, 3072),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8192),
        ("nonsense\n0\n::\n", {"memory.max": "garbage"}, 8192),
    ],
)
def test_the_lowest_limit_on_the_way_up_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    proc = tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": groups})
    assert usable_memory_bytes(proc=proc, sys=tree(tmp_path / "sys", files)) == expected * MIB


def test_where_nothing_can_be_read_a_small_machine_is_assumed(tmp_path: Path) -> None:
    assert usable_memory_bytes(proc=tmp_path, sys=tmp_path) == 4096 * MIB


def test_a_group_that_is_not_visible_in_a_container_is_that_of_the_mount(tmp_path: Path) -> None:
    proc = tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/../../kubepods/x\n"})
    found = look({}, proc=proc, sys=tree(tmp_path / "sys", {"memory.max": f"{512 * MIB}"}))
    assert found.memory_bytes == 512 * MIB


def test_this_process_has_memory_files_and_a_kernel() -> None:
    found = look({})
    assert found.has_memfd
    assert found.kernel
    assert found.memory_bytes > 0


def test_proxies_are_named_in_either_spelling_without_their_passwords() -> None:
    environment = {"https_proxy": "http://user:hunter2@proxy:3128", "NO_PROXY": "localhost", "PATH": "/bin"}
    assert proxies(environment) == {"https_proxy": "http://proxy:3128", "NO_PROXY": "localhost"}
