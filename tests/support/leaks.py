"""What a process holds on to, taken before and after a piece of work, and the difference in words.

Native runtimes (gRPC, Arrow, tokio) keep event descriptors for the process's life once they are used; these
`anon_inode` entries are not counted. Called on the main thread.
"""

import gc
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY_PREFIX = "forebay"
THREAD_PREFIX = "forebay-"


@dataclass(frozen=True)
class Holdings:
    """Threads, open descriptors (number and what it is) and forebay's names in /dev/shm."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[str]
    shared_memory: frozenset[str]

    def beyond(self, earlier: "Holdings") -> list[str]:
        """What is here and was not there, one line each."""
        threads = [f"thread {thread.name}" for thread in self.threads - earlier.threads]
        descriptors = [f"descriptor {entry}" for entry in self.descriptors - earlier.descriptors]
        names = [f"/dev/shm/{name}" for name in self.shared_memory - earlier.shared_memory]
        return sorted(threads + descriptors + names)


def _descriptors() -> frozenset[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if not target.startswith(("anon_inode:", "/proc/")):
            found.add(f"{entry.name} {target}")
    return frozenset(found)


def threads_beyond(before: Collection[threading.Thread]) -> list[str]:
    """The names of forebay's own threads that run and did not then. What only a cycle holds is let go of first."""

    def found() -> list[str]:
        running = [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]
        return sorted(thread.name for thread in running if thread not in before)

    if found():
        gc.collect()
    return found()


def take_stock() -> Holdings:
    """What this process holds now, after a garbage collection."""
    gc.collect()
    names = frozenset(path.name for path in Path("/dev/shm").glob(f"{SHARED_MEMORY_PREFIX}*"))
    return Holdings(frozenset(threading.enumerate()), _descriptors(), names)
