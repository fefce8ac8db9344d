"""One save from the copy to the seal, on the thread that writes; and the watch until it is durable, on one of its own.

All ranks go through the same points together: sizes and name agreed, a directory on each node, files written, manifest
last, sealed with the node's daemon. At each point every rank learns whether all have come through; where one has not,
all give up, and each node drops what it has. After the seal nobody is needed: the daemons see to the rest.
"""

import fcntl
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch

from forebay.checkpoint.bundle import RankData
from forebay.checkpoint.calling import Calls, Keep, NoRoom, Part, WhenFull
from forebay.checkpoint.checksummed import ChecksummedFile
from forebay.checkpoint.data_files import writing_to
from forebay.checkpoint.group import Group
from forebay.checkpoint.handle import SaveHandle
from forebay.checkpoint.manifests import write_manifest
from forebay.checkpoint.metadata import record_of, write_metadata
from forebay.checkpoint.objects import size_of
from forebay.checkpoint.positions import Digest, total_digest
from forebay.checkpoint.saving import Saving, Written
from forebay.checkpoint.staging import Staged, Staging
from forebay.daemon.checkpoint_root import Place
from forebay_core.checkpoints.documents import SUPERSEDED, FileRecord
from forebay_core.checkpoints.names import METADATA, OBJECTS, Attempt, rank_data
from forebay_core.errors import CheckpointError, DaemonError, ForebayError, one_line

_log = logging.getLogger("forebay.checkpoint")
#: Headers of items, `.metadata`, positions and manifests, beside the tensors.
_OVERHEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """What a save is made of, once the trainer's thread has let go. objects: of rank 0, None elsewhere."""

    handle: SaveHandle
    staging: Staging
    data: Callable[[], RankData]
    objects: dict[str, Any] | None
    supersedes: bool

    @property
    def attempt(self) -> Attempt:
        return self.handle.attempt


@dataclass(frozen=True, slots=True)
class Policy:
    """when_full: what is done where staging has no room. keep: what of the committed ones is kept."""

    when_full: WhenFull
    keep: Keep


class Passed(Exception):
    """This checkpoint is given up as the user or the job wants it: without room, or for a newer one. Says which."""


class Writer:
    """Writes the saves of a run, one after another. `node_ranks`: of all ranks, the ranks on their node."""

    def __init__(self, calls: Calls, group: Group, saving: Saving, node_ranks: Sequence[int], policy: Policy) -> None:
        self._calls, self._group, self._saving, self._policy = calls, group, saving, policy
        self._part = Part(tuple(node_ranks), group.world_size)
        self._leads = group.rank == min(node_ranks)

    def write(self, work: Work) -> None:
        """From the copy to the seal. Raises the same on all ranks; nothing is left of the attempt then."""
        staged, sizes, is_known = self._agreed(work)
        work.handle.reach("staged")
        try:
            with self._directory(work.attempt, sizes) as directory:
                self._fill(work, staged, directory, is_known=is_known)
                self._group.together(lambda: self._seal(work))
        except BaseException:
            self._drop(work.attempt)
            raise
        work.handle.reach("local")

    def _agreed(self, work: Work) -> tuple[Staged, Sequence[int], bool]:
        """The copy, once every rank has its own, of the same attempt; the sizes of all; whether all know its layout."""

        def mine() -> tuple[str, Digest, int, bool]:
            staged = work.staging.done.result()
            data = work.data()
            size_bytes = staged.size_bytes + size_of(work.objects) + _OVERHEAD_BYTES
            return work.attempt.name, (data.data_rank, data.digest), size_bytes, self._saving.knows(staged)

        ranks = self._group.together(mine)
        for rank, (name, *_) in enumerate(ranks):
            if name != work.attempt.name:
                raise CheckpointError(
                    f"rank {self._group.rank} saves {work.attempt.name} and rank {rank} {name}: all ranks must call "
                    f"save() for the same steps"
                )
        _, digests, sizes, known = zip(*ranks, strict=True)
        work.handle.digest = total_digest(digests)
        return work.staging.done.result(), sizes, all(known)

    @contextmanager
    def _directory(self, attempt: Attempt, sizes: Sequence[int]) -> Iterator[Path]:
        """This node's directory of the attempt, held until the block ends so that the daemon knows who writes."""
        place = self._begun(attempt, sum(sizes[rank] for rank in self._part.ranks))
        with ExitStack() as holding:
            found = self._group.together(lambda: holding.enter_context(_held(self._calls.locate(place))))
            yield found[self._group.rank]

    def _begun(self, attempt: Attempt, size_bytes: int) -> Place:
        is_said = False
        while True:
            found = self._group.together(lambda: self._begin(attempt, size_bytes))
            without = [each for each in found if isinstance(each, NoRoom)]
            if any(each.is_skipped for each in without):
                raise Passed(f"no room for step {attempt.step} in the staging directory: this checkpoint is left out")
            if not without:
                break
            if not is_said and self._group.rank == 0:
                is_said = True
                _log.warning("step %d waits for room in the staging directory: %s", attempt.step, without[0].why)
        mine = found[min(self._part.ranks)]
        assert isinstance(mine, Place)
        return mine

    def _begin(self, attempt: Attempt, size_bytes: int) -> Place | NoRoom | None:
        if not self._leads:
            return None
        fences = self._group.rank == 0
        return self._calls.begin(attempt, self._part, size_bytes, when_full=self._policy.when_full, fences=fences)

    def _fill(self, work: Work, staged: Staged, directory: Path, *, is_known: bool) -> None:
        if is_known:
            self._group.together(lambda: self._finish(work, directory, self._saving.write_again(staged, directory)))
            return
        with self._group.failing_clearly():
            written = self._saving.write(staged, directory)
        self._group.together(lambda: self._finish(work, directory, written))

    def _finish(self, work: Work, directory: Path, written: Written) -> None:
        """What is beside the tensors; the manifest last."""
        files = list(written.files)
        with writing_to(directory):
            if self._leads and METADATA not in {file.name for file in files}:
                record = write_metadata(directory, written.layout.metadata)
                files += [record] if self._group.rank == 0 else []
            files.insert(0, _write_data(directory, work.data(), self._group.rank))
            if work.objects is not None:
                files.insert(0, _write_objects(directory, work.objects))
            files.sort(key=lambda record: record.name == METADATA)
            notes = {"host": platform.node(), "staged_seconds": work.handle.staged_seconds}
            write_manifest(directory, work.attempt, self._group.rank, self._group.world_size, files=files, notes=notes)

    def _seal(self, work: Work) -> None:
        if self._leads:
            keep = self._policy.keep if self._group.rank == 0 else None
            self._calls.seal(work.attempt, self._part, keep=keep, supersedes=work.supersedes)

    def _drop(self, attempt: Attempt) -> None:
        if self._leads:
            with suppress(ForebayError):
                self._calls.drop(attempt)


def watch(calls: Calls, attempt: Attempt, is_ended: threading.Event) -> bool:
    """Until it is durable; False where nobody wants to know any more. Raises why it will not be."""
    try:
        with closing(calls.watch(attempt, is_ended)) as fates:
            for fate in fates:
                if fate.error is not None:
                    raise Passed(str(fate.error)) if SUPERSEDED in str(fate.error) else fate.error
                if fate.is_durable:
                    return True
                if is_ended.is_set():
                    return False
    except DaemonError:
        if not is_ended.is_set():
            raise
    return False


@contextmanager
def _held(directory: Path) -> Iterator[Path]:
    with writing_to(directory):
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with writing_to(directory):
            fcntl.flock(held, fcntl.LOCK_SH)
        yield directory
    finally:
        os.close(held)


def _write_data(directory: Path, data: RankData, rank: int) -> FileRecord:
    name, content = rank_data(rank), data.encode()
    (directory / name).write_bytes(content)
    return record_of(name, content)


def _write_objects(directory: Path, states: dict[str, Any]) -> FileRecord:
    with (directory / OBJECTS).open("xb", buffering=0) as raw, ChecksummedFile(raw) as file:
        torch.save(states, cast("IO[bytes]", file))
        file.end_item()
        return file.record(OBJECTS)


def lost(step: int, error: BaseException) -> CheckpointError:
    """For what is no error of ours."""
    return CheckpointError(f"the checkpoint of step {step} failed ({type(error).__name__}: {one_line(error)})")
