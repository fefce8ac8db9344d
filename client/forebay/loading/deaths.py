"""What is said when a worker process has died, hangs or cannot be started: pure functions of what is known of it."""

import pickle
import signal
from dataclasses import fields, is_dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

from forebay.loading.chunk import Chunk
from forebay.loading.desk import NO_SAMPLE
from forebay.loading.reader import ReaderSpec
from forebay_core.errors import ConfigurationError, one_line

_BY_SIGNAL: dict[int, str] = {
    signal.SIGKILL: (
        "most often that is the out-of-memory killer of the kernel or the container: use fewer workers, a smaller "
        "prefetch_factor or smaller batches, or worker_type='thread'"
    ),
    signal.SIGBUS: (
        "memory that is a file was cut short, or the memory behind it is full, such as /dev/shm where the transform "
        "uses it: give the container more (docker run --shm-size=8g), use fewer workers, or worker_type='thread'"
    ),
    signal.SIGSEGV: "native code crashed; faulthandler.enable() in worker_init_fn= shows where",
    signal.SIGABRT: "native code gave up; what it printed says why",
}
_BEFORE_READY = (
    "it had not begun to read, and what it printed says why; a script whose workers start by forkserver or spawn must "
    "do its work under `if __name__ == '__main__':`"
)
_BY_SOMEONE = "something outside the trainer sent it"
_BY_ITSELF = "look whether the transform or collate_fn calls os._exit() or sys.exit()"


def cause_of_death(exit_code: int | None, *, is_ready: bool) -> str:
    """How a process ended, and what may be done about it. A negative exit code is the signal's number."""
    if exit_code is not None and exit_code < 0:
        number = -exit_code
        known = {int(each): each.name for each in signal.Signals}
        return f"was killed by {known.get(number, number)}: {_BY_SIGNAL.get(number, _BY_SOMEONE)}"
    ended = "has ended" if exit_code is None else f"exited with status {exit_code}"
    return f"{ended}: {_BY_ITSELF if is_ready else _BEFORE_READY}"


def place_of(spec: ReaderSpec, chunk: Chunk, sample: int) -> str:
    """What a reader is at: epoch, step, and the sample with its shard and row, or the shard of the step's first."""
    at = f"epoch {chunk.epoch}, step {chunk.ends[0].step}"
    found = (chunk.sample_id == sample).nonzero()[0] if sample != NO_SAMPLE else []
    index = int(found[0]) if len(found) else 0
    if len(chunk.sample_id) == 0:
        return at
    place = spec.place(int(chunk.piece[index]), int(chunk.row[index]))
    return f"{at}, sample {sample} ({place})" if len(found) else f"{at} (its first sample is {place})"


def unpicklable(spec: ReaderSpec, others: dict[str, Any], start_method: str, error: Exception) -> ConfigurationError:
    """Names what cannot be sent to a worker process."""
    parts = _parts(spec) | others
    culprit = next((f"{name}={part!r}" for name, part in parts.items() if not _can_be_pickled(part)), "a worker's task")
    return ConfigurationError(
        f"{culprit} cannot be pickled for worker processes that start by {start_method} ({one_line(error)}): define it "
        f"at the top level of a module, or use multiprocessing_context='fork' or worker_type='thread'"
    )


def _parts(value: Any) -> dict[str, Any]:
    """By name, what a dataclass consists of, down to what is none."""
    parts: dict[str, Any] = {}
    for field in fields(value):
        part = getattr(value, field.name)
        parts |= _parts(part) if is_dataclass(part) else {field.name: part}
    return parts


def _can_be_pickled(value: object) -> bool:
    try:
        ForkingPickler.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return False
    return True
