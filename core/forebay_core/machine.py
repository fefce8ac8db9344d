"""What this process may use of its machine: limits, memory and processors, as its control groups leave them.

Facts alone; nothing is judged here. Trainer and daemon may be in different containers, so each looks for itself. What
cannot be read counts as unlimited or absent. `proc` and `sys` are the kernel's directories, or a test's.
"""

import os
import platform
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay_core.redaction import redacted

_PROC, _SYS = Path("/proc"), Path("/sys/fs/cgroup")
#: What control groups of the first version say for "no limit", and more.
_UNLIMITED = 1 << 60
#: Where nothing says how much memory there is.
_UNKNOWN_BYTES = 4 << 30
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "AWS_PROXY_URL", "AWS_PROXY_EXCLUDES")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What one process may use. Of limits, 0 is none."""

    open_files: int
    locked_memory_bytes: int
    #: Of the machine or of the control group, whichever is less.
    memory_bytes: int
    available_memory_bytes: int
    cpus: float
    #: Of /dev/shm; 0 where there is none.
    shared_memory_bytes: int
    kernel: str
    has_memfd: bool
    #: Variables that send requests through a proxy, or keep them from it; without passwords.
    proxies: Mapping[str, str]


def look(environment: Mapping[str, str], *, proc: Path = _PROC, sys: Path = _SYS) -> MachineFacts:
    """The facts of this process, now."""
    groups = list(_groups(proc, sys))
    rooms = [limit - _memory_used(group) for group in groups if 0 < (limit := _memory_limit(group)) < _UNLIMITED]
    return MachineFacts(
        open_files=_soft(resource.RLIMIT_NOFILE),
        locked_memory_bytes=_soft(resource.RLIMIT_MEMLOCK),
        memory_bytes=usable_memory_bytes(proc=proc, sys=sys),
        available_memory_bytes=max(0, min([_meminfo(proc).get("MemAvailable", 0), *rooms])),
        cpus=min([float(len(os.sched_getaffinity(0))), *(quota for group in groups if (quota := _cpus(group)))]),
        shared_memory_bytes=_size(Path("/dev/shm")),  # noqa: S108 - measured, never written
        kernel=platform.release(),
        has_memfd=_can_make_memory_files(),
        proxies=proxies(environment),
    )


def usable_memory_bytes(*, proc: Path = _PROC, sys: Path = _SYS) -> int:
    """The machine's memory, or the lowest limit of the control groups (version 2 or 1) that this process is in.

    Inside a container /proc/meminfo still tells of the whole machine; who sized itself by that would be killed.
    """
    limits = [limit for group in _groups(proc, sys) if 0 < (limit := _memory_limit(group)) < _UNLIMITED]
    return min([_meminfo(proc).get("MemTotal", _UNKNOWN_BYTES), *limits])


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that proxies are set by, in either spelling, without passwords."""
    names = [spelling for name in _PROXY_VARIABLES for spelling in (name, name.lower())]
    return {name: redacted(environment[name]) for name in names if environment.get(name)}


def _can_make_memory_files() -> bool:
    try:
        os.close(os.memfd_create("forebay-probe"))
    except OSError:
        return False
    return True


def _soft(limit: int) -> int:
    soft, _ = resource.getrlimit(limit)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _size(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _meminfo(proc: Path) -> dict[str, int]:
    """Bytes by name, of /proc/meminfo."""
    lines = (line.split() for line in _text(proc / "meminfo").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _groups(proc: Path, sys: Path) -> Iterator[Path]:
    """The directories of the control groups that this process is in, from its own up to the root of what it sees."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if number == "0":
            yield from _upwards(sys, inside)
        for controller in {"memory", "cpu"} & set(controllers.split(",")):
            yield from _upwards(sys / controller, inside)


def _upwards(root: Path, inside: str) -> Iterator[Path]:
    group = root / inside.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = root
    yield group
    while group != root:
        group = group.parent
        yield group


def _memory_limit(group: Path) -> int:
    return _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")


def _memory_used(group: Path) -> int:
    """What the group holds, less what the kernel would give back when it is needed."""
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes")
    lines = (line.split() for line in _text(group / "memory.stat").splitlines())
    stat = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
    return max(0, used - stat.get("inactive_file", stat.get("total_inactive_file", 0)))


def _cpus(group: Path) -> float:
    """Processors that the group may use; 0: no limit."""
    quota, _, period = _text(group / "cpu.max").strip().partition(" ")
    if quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    quota_us, period_us = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else 0.0


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
