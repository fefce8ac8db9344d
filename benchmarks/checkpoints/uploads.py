"""How fast a daemon uploads a checkpoint, beside obstore alone with the same files, part size and requests at once.

Both read files that were just written and must sync them before they count, on one S3 server of this machine. Ours is
from the moment at which the checkpoint is local until it is durable: sync, upload, verification, manifests, decision.
"""

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import torch
from torch import nn

import forebay
from benchmarks.checkpoints.job import layer, state_bytes
from benchmarks.checkpoints.saves import AT_ONCE, CHUNK_BYTES
from tests.support.seaweedfs import Bucket

#: As the daemon's defaults have it.
FILES_AT_ONCE = 2


class Uploads:
    """Of a state of so many bytes, saved by this process alone."""

    def __init__(self, bucket: Bucket, address: str, size_bytes: int) -> None:
        layers = max(1, round(3 * size_bytes / state_bytes(layer())))
        self._model = nn.Sequential(*(layer() for _ in range(layers)))
        self._size_bytes = sum(each.nbytes for each in self._model.parameters())
        self._checkpointer = forebay.Checkpointer(
            bucket.uri("uploads"), model=self._model, keep_last=2, address=address, report_to=None
        )
        self._step = 0
        self._store = obstore.store.from_url(bucket.uri("alone"), client_options={"allow_http": True})

    def ours(self, _: int) -> Mapping[str, float]:
        self._step += 1
        handle = self._checkpointer.save(self._step, force=True)
        assert handle is not None
        handle.wait("durable")
        assert handle.durable_seconds is not None
        assert handle.local_seconds is not None
        return self._cost(handle.durable_seconds - handle.local_seconds)

    def alone(self, directory: Path) -> Mapping[str, float]:
        """The same number of bytes in files as ours are split."""
        paths = [directory / f"alone-{number}" for number in range(FILES_AT_ONCE)]
        halves = torch.cat([each.detach().view(-1) for each in self._model.parameters()]).tensor_split(len(paths))
        for path, half in zip(paths, halves, strict=True):
            path.write_bytes(half.numpy().tobytes())
        began = time.perf_counter()
        with ThreadPoolExecutor(len(paths)) as pool:
            list(pool.map(self._put, paths))
        seconds = time.perf_counter() - began
        for path in paths:
            path.unlink()
        return self._cost(seconds)

    def close(self) -> None:
        self._checkpointer.close()

    def _put(self, path: Path) -> None:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        obstore.put(self._store, path.name, path, chunk_size=CHUNK_BYTES, max_concurrency=AT_ONCE // FILES_AT_ONCE)

    def _cost(self, seconds: float) -> Mapping[str, float]:
        return {"megabytes_per_second": self._size_bytes / 1e6 / seconds}
