"""How the C library's allocator treats what the daemon gives back: it keeps some for the next request.

Each part of a fill is a buffer of some MiB that is made, filled and freed. By default glibc gives such memory back to
the kernel at once and gets it again page by page, zeroed, for the next part: a seventh of a fill's CPU time
(`benchmarks/bench_daemon.py`). Other C libraries are left as they are.
"""

import ctypes
from collections.abc import Mapping

#: From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: The largest threshold that glibc allows; larger buffers are still given back at once.
_LARGEST_BYTES = 32 << 20
#: Each of them keeps some; as many threads fill at a time as there are cores for it.
_ARENAS = 4


def keep_freed(keep_bytes: int, environment: Mapping[str, str]) -> bool:
    """From now on about so many bytes of freed memory stay with this process; whether that could be set.

    Called before other threads allocate. What the environment says of the allocator (`MALLOC_...`, `GLIBC_TUNABLES`)
    counts instead.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in environment):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, _LARGEST_BYTES), (_TRIM_THRESHOLD, keep_bytes), (_ARENA_MAX, _ARENAS))
    answers = [mallopt(name, value) for name, value in settings]
    return all(answers)
