"""Brings one sealed attempt to its destination, and sees to the decision on it.

Files first, each verified by the destination; then the manifests of their ranks, one after the other: a manifest that
is there means verified, so after a restart its rank is passed over. `.metadata` is last of the data, because plain
readers take it for completeness: the node of rank 0 waits until all other ranks' manifests are there, then puts it and
its own. Whoever then sees all of them commits. Every step may be repeated, by this daemon or its successor.

Runs on the event loop, once at a time for each attempt; the local files are read and synced in threads.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from forebay_core.checkpoints.documents import WERE_COMMITTED, Decision, FileRecord, RankManifest
from forebay_core.checkpoints.names import METADATA, rank_manifest
from forebay_core.checkpoints.protocol import Retention, collect, commit, durable_ranks, read_decision
from forebay_core.errors import CheckpointDamaged, CheckpointError, SourceUnreachable, one_line
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.counters import UploadCounters
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.inspection import sync, verify
from forebay_server.checkpoints.rules import Patience, Phase
from forebay_server.checkpoints.staged import Staged
from forebay_server.concurrency import gather_bounded, in_thread

_log = logging.getLogger(__name__)
FILES_AT_ONCE = 4


class Uploading:
    """Of all attempts of one staging area.

    boot: of the machine. jitter: draws from [0, 1), so that nodes do not all decide at once.
    gives_up: whether an attempt need not wait for other nodes any longer, after so many seconds without news of them.
    """

    def __init__(
        self,
        area: StagingArea,
        patience: Patience,
        *,
        boot: str,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        gives_up: Callable[[Staged, float], bool],
        counters: UploadCounters,
    ) -> None:
        self._area = area
        self._patience = patience
        self._boot = boot
        self._clock = clock
        self._jitter = jitter
        self._gives_up = gives_up
        self._counters = counters

    async def bring(self, staged: Staged, root: Destination) -> Decision | None:
        """Uploads what does not depend on other nodes. The decision, where there is one already.

        Raises `CheckpointDamaged` where a staged file is not what was sealed, and what the destination raises.
        """
        await self._make_durable_here(staged)
        if (decision := await drive(read_decision(staged.attempt), root)) is not None:
            return decision
        staged.become(Phase.UPLOADING, staged.error)  # of the last try, until this one is done
        there = await drive(durable_ranks(staged.attempt), root)
        staged.uploaded_bytes = sum(each.size_bytes for each in staged.manifests if each.rank in there)
        for manifest, content in zip(staged.manifests, staged.contents, strict=True):
            if manifest.rank not in there:
                await self._files(staged, root, [file for file in manifest.files if file.name != METADATA])
                if manifest.rank != 0:
                    await self._manifest(staged, root, manifest, content)
        return None

    async def complete(self, staged: Staged, root: Destination) -> Decision:
        """After `bring`: waits for the other nodes, puts what comes last, and commits, or finds the decision."""
        staged.become(Phase.UPLOADED)
        staged.heard_at = self._clock()
        if staged.has_rank_zero:
            decision = await self._others(staged, root, set(range(staged.world_size)) - {0})
            if decision is not None:
                return decision
            await self._last(staged, root)
        looks = 0
        while (decision := await self._decided(staged, root)) is None:
            await asyncio.sleep(self._patience.before_poll(looks) * (0.5 + self._jitter()))
            looks += 1
        return decision

    async def retain(self, staged: Staged, root: Destination) -> None:
        """Applies the retention that came with the seal, after the commit."""
        seal = staged.seal
        if seal is None or seal.keep_last is None or not staged.has_rank_zero:
            return
        retention = Retention(seal.keep_last, seal.keep_every_steps or 0)
        conditional = await root.probe_put_if_absent()
        for gone in await drive(collect(retention, conditional=conditional), root):
            _log.info("%s of %s is %s: %d objects deleted", gone.attempt.name, root.url, gone.state, gone.objects)

    # -- on this node ---------------------------------------------------------------------------------------------

    async def _make_durable_here(self, staged: Staged) -> None:
        """Files that a power loss could still take do not count. After one they are verified."""
        seal = staged.seal
        assert seal is not None
        if seal.is_synced:
            return
        directory, files = self._area.directory(staged.root, staged.attempt), staged.files()
        try:
            if not staged.is_trusted:
                await in_thread(verify, directory, files.values())
            await in_thread(sync, directory, [*files, *map(rank_manifest, staged.ranks)])
        except OSError as error:
            raise CheckpointDamaged(f"{staged.attempt.name} cannot be read in {directory}: {error}") from error
        staged.is_trusted = True
        staged.seal = replace(seal, is_synced=True, boot=self._boot)
        try:
            await in_thread(self._area.note, staged.seal)
        except OSError as error:
            _log.warning("a restart will sync %s again: %s", staged.attempt.name, error)

    # -- to the destination ---------------------------------------------------------------------------------------

    async def _files(self, staged: Staged, root: Destination, files: Sequence[FileRecord]) -> None:
        directory = self._area.directory(staged.root, staged.attempt)

        async def one(file: FileRecord) -> None:
            await self._file(staged, root, directory, file)

        await gather_bounded(FILES_AT_ONCE, one, files)

    async def _file(self, staged: Staged, root: Destination, directory: Path, file: FileRecord) -> None:
        sent = 0

        def progress(total: int) -> None:
            nonlocal sent
            staged.progressed(total - sent)
            self._counters.sent_bytes += max(0, total - sent)
            sent = total

        key = staged.attempt.key(file.name)
        try:
            await root.upload(directory / file.name, key, expected=file, progress=progress)
        except CheckpointDamaged as error:
            progress(0)
            await in_thread(verify, directory, [file])
            raise SourceUnreachable(f"{one_line(error)}, and the staged file is as it was written") from error
        except BaseException:
            progress(0)
            raise
        progress(file.size_bytes)

    async def _manifest(self, staged: Staged, root: Destination, manifest: RankManifest, content: bytes) -> None:
        await root.put(staged.attempt.key(rank_manifest(manifest.rank)), content)

    async def _last(self, staged: Staged, root: Destination) -> None:
        """What makes the attempt whole: `.metadata`, then rank 0's manifest."""
        if 0 in await drive(durable_ranks(staged.attempt), root):
            return
        if (metadata := staged.metadata()) is not None:
            await self._files(staged, root, [metadata])
        index = staged.ranks.index(0)
        await self._manifest(staged, root, staged.manifests[index], staged.contents[index])

    async def _others(self, staged: Staged, root: Destination, wanted: set[int]) -> Decision | None:
        """Until the manifests of these ranks are there, or there is a decision."""
        polls, seen, since = 0, frozenset[int](), self._clock()
        while True:
            if (decision := await drive(read_decision(staged.attempt), root)) is not None:
                return decision
            there = await drive(durable_ranks(staged.attempt), root)
            if wanted <= there:
                return None
            if there != seen:
                polls, seen, since = 0, there, self._clock()
                staged.heard_at = since
            if self._gives_up(staged, self._clock() - since):
                raise CheckpointError(
                    f"{staged.attempt.name} is not whole ({len(there)} of {staged.world_size} ranks are uploaded), and"
                    f" a newer checkpoint is: nobody waits for it any more"
                )
            await asyncio.sleep(self._patience.before_poll(polls) * (0.5 + self._jitter()))
            polls += 1

    async def _decided(self, staged: Staged, root: Destination) -> Decision | None:
        conditional = await root.probe_put_if_absent()
        if not (conditional or staged.has_rank_zero):  # another node decides
            return await self._others(staged, root, {staged.world_size})
        if not staged.has_rank_zero:
            decision = await self._others(staged, root, set(range(staged.world_size)))
            if decision is not None:
                return decision
            await asyncio.sleep(self._patience.before_poll(0) * self._jitter())  # rank 0's daemon is at it too
        decision = await drive(commit(staged.attempt, staged.world_size, conditional=conditional), root)
        if decision is None:
            return await self._others(staged, root, set(range(staged.world_size)))
        return decision


def checked(staged: Staged, decision: Decision) -> None:
    """Raises `CheckpointError` where the attempt has not become durable."""
    if decision.state not in WERE_COMMITTED:
        reason = f": {decision.reason}" if decision.reason else ""
        raise CheckpointError(f"{staged.attempt.name} is {decision.state}{reason}")
