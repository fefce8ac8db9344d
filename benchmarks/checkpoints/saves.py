"""Ways to save the job's state, each in its fastest documented set-up, behind one contract.

`save` takes the state as of now; what it takes, with `wait_staged`, is the time for which training is blocked: weights
may change afterwards. `finish` waits until the bytes are in files on the local disk, or where else the way puts them.
`tidy` is not measured. Files are synced where it says so and nowhere else: ours are by the daemon, after `finish`.

- torch.save under DDP: rank 0 has all the state and writes it, the others wait. Under FSDP2: every rank its own shards.
  To the local disk with and without a sync at the end: a save that counts must do that before training goes on.
- dcp.async_save: a gloo group of its own, as torch asks for, and `sync_files=False`. Default, and with a
  `DefaultStager` that is made once and keeps its storages; shared memory is for saving in another process, pinned
  memory and non-blocking copies need CUDA.
- A plain copy: the bytes that this rank would write, into memory that is there, in one call.
"""

import io
import os
import shutil
import signal
import threading
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict

import forebay
from benchmarks.checkpoints.job import Job

CHUNK_BYTES, AT_ONCE = 8 << 20, 8


class Save(Protocol):
    """One way, on one rank."""

    def save(self, step: int) -> None: ...

    def wait_staged(self) -> None: ...

    def finish(self) -> None: ...

    def tidy(self) -> None: ...

    def close(self) -> None: ...


class Nothing:
    """No save: the load alone."""

    def save(self, step: int) -> None:
        return

    def wait_staged(self) -> None:
        return

    def finish(self) -> None:
        return

    def tidy(self) -> None:
        return

    def close(self) -> None:
        return


class Ours(Nothing):
    """A `Checkpointer`. Its daemon is stopped from when a save is local until `tidy`, which waits for the upload.

    No other way uploads, and the store is on this machine: what it does would be counted for ours. daemon_process: its
    id; None where nothing is compared.
    """

    def __init__(self, job: Job, root: str, address: str, daemon_process: int | None = None) -> None:
        self._daemon_process = daemon_process if dist.get_rank() == 0 else None
        self._is_stopped = threading.Event()
        self._checkpointer = forebay.Checkpointer(
            root, model=job.model, optimizer=job.optimizer, keep_last=2, address=address, report_to=None
        )
        self._handle: Any = None

    def save(self, step: int) -> None:
        self._handle = self._checkpointer.save(step, force=True)
        if self._daemon_process is not None:
            self._handle.local.add_done_callback(self._stop_daemon)

    def wait_staged(self) -> None:
        self._checkpointer.wait_staged()

    def finish(self) -> None:
        self._handle.wait("local")

    def tidy(self) -> None:
        if self._daemon_process is not None and self._is_stopped.wait(60):
            os.kill(self._daemon_process, signal.SIGCONT)
            self._is_stopped.clear()
        if self._handle is not None:
            self._handle.wait("durable")

    @property
    def upload_seconds(self) -> float:
        return float(self._handle.durable_seconds - self._handle.local_seconds)

    def close(self) -> None:
        self._checkpointer.close()

    def _stop_daemon(self, reached: "Future[None]") -> None:
        if reached.exception() is None and self._daemon_process is not None:
            os.kill(self._daemon_process, signal.SIGSTOP)
        self._is_stopped.set()


class TorchSave(Nothing):
    """`torch.save` to the local disk, or to the store through obstore in parts."""

    def __init__(self, job: Job, directory: Path, *, store: str | None = None, syncs: bool = False) -> None:
        self._job, self._store, self._syncs = job, store, syncs
        self._path = directory / f"torch-{dist.get_rank()}.pt"
        self._writes = job.is_sharded or dist.get_rank() == 0

    def save(self, step: int) -> None:
        if self._writes:
            state = {"model": self._job.model.state_dict(), "optimizer": self._job.optimizer.state_dict(), "step": step}
            if self._store is None:
                self._write(state)
            else:
                self._put(state, self._store)
        dist.barrier()

    def _write(self, state: dict[str, Any]) -> None:
        with self._path.open("wb") as file:
            torch.save(state, file)
            if self._syncs:
                file.flush()
                os.fsync(file.fileno())

    def _put(self, state: dict[str, Any], store: str) -> None:
        import obstore

        buffer = io.BytesIO()
        torch.save(state, buffer)
        where = obstore.store.from_url(store, client_options={"allow_http": True, "timeout": "600s"})
        obstore.put(where, self._path.name, buffer.getbuffer(), chunk_size=CHUNK_BYTES, max_concurrency=AT_ONCE)

    def tidy(self) -> None:
        self._path.unlink(missing_ok=True)


class DcpAsync(Nothing):
    """`dcp.async_save` to the local disk."""

    def __init__(self, job: Job, directory: Path, stager: DefaultStager | None = None) -> None:
        self._job, self._directory, self._stager = job, directory / f"dcp-{stager is not None}", stager
        self._group = dist.new_group(backend="gloo")
        self._response: Any = None

    def save(self, step: int) -> None:
        model, optimizer = get_state_dict(self._job.model, self._job.optimizer)
        state = {"model": model, "optimizer": optimizer}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._response = dcp.async_save(
                state,
                storage_writer=FileSystemWriter(self._directory / str(step), sync_files=False),
                process_group=self._group,
                async_stager=self._stager,
            )

    def wait_staged(self) -> None:
        if hasattr(self._response, "staging_completion"):
            self._response.staging_completion.result()

    def finish(self) -> None:
        getattr(self._response, "upload_completion", self._response).result()

    def tidy(self) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self._directory, ignore_errors=True)


class Copy(Nothing):
    """A plain copy of what this rank owns of the state."""

    def __init__(self, job: Job) -> None:
        owned = job.tensors()
        self._sources = owned if job.is_sharded else owned[dist.get_rank() :: dist.get_world_size()]
        self._places = [torch.zeros_like(each) for each in self._sources]

    def save(self, step: int) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._places, self._sources)


def kept_stager() -> DefaultStager:
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
    )
