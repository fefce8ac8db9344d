"""The gRPC adapter for checkpoints: translates messages to calls on the desk and back. It decides nothing.

What only reads or decides at the destination is a procedure of the commit protocol, driven here. Runs on the event
loop.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc.aio

from forebay_core.checkpoints.documents import State
from forebay_core.checkpoints.names import MOST_GENERATION, MOST_RANKS, Attempt, parse_attempt
from forebay_core.checkpoints.protocol import (
    Found,
    Procedure,
    Retention,
    Undecided,
    append,
    claim,
    collect,
    list_checkpoints,
    newest_generation,
    read_ledger,
)
from forebay_core.errors import ConfigurationError, SourceError
from forebay_core.locations import root_of
from forebay_protos.v1 import checkpoints_pb2 as pb
from forebay_protos.v1 import checkpoints_pb2_grpc, daemon_pb2
from forebay_server.checkpoints.deciding import decide
from forebay_server.checkpoints.desk import Desk
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.room import Wanted, WhenFull
from forebay_server.checkpoints.rules import Phase
from forebay_server.checkpoints.statuses import Status
from forebay_server.checkpoints.verification import verified
from forebay_server.node import Node
from forebay_server.rpc.errors import Context, abort, error_fields
from forebay_server.rpc.limits import Limits

T = TypeVar("T")
_PHASES = {
    Phase.QUEUED: pb.WatchAttemptResponse.PHASE_QUEUED,
    Phase.UPLOADING: pb.WatchAttemptResponse.PHASE_UPLOADING,
    Phase.UPLOADED: pb.WatchAttemptResponse.PHASE_UPLOADED,
    Phase.DURABLE: pb.WatchAttemptResponse.PHASE_DURABLE,
    Phase.FAILED: pb.WatchAttemptResponse.PHASE_FAILED,
}
_WHEN_FULL = {
    pb.BeginAttemptRequest.WHEN_FULL_UNSPECIFIED: WhenFull.BLOCK,
    pb.BeginAttemptRequest.WHEN_FULL_BLOCK: WhenFull.BLOCK,
    pb.BeginAttemptRequest.WHEN_FULL_SKIP: WhenFull.SKIP,
    pb.BeginAttemptRequest.WHEN_FULL_FAIL: WhenFull.FAIL,
}


class CheckpointService(checkpoints_pb2_grpc.CheckpointServiceServicer):
    """The service `forebay.v1.CheckpointService` over a node."""

    def __init__(self, node: Node, limits: Limits) -> None:
        self._node = node
        self._limits = limits

    async def OpenRoot(self, request: pb.OpenRootRequest, context: Context) -> pb.OpenRootResponse:
        async def work() -> pb.OpenRootResponse:
            desk, root = await self._root(request.root)
            is_new = request.only_tries and await root.try_out()
            return pb.OpenRootResponse(
                root=root.url,
                staging_disk=daemon_pb2.Disk(disk_id=desk.area.id, path=str(desk.area.root)),
                node_id=desk.area.id,
                has_put_if_absent=await root.probe_put_if_absent(),
                embedded=self._node.config.embedded,
                newest_generation=await drive(newest_generation(), root),
                is_new=is_new,
            )

        return await self._answer(context, work)

    async def ClaimGeneration(self, request: pb.ClaimGenerationRequest, context: Context) -> pb.ClaimGenerationResponse:
        async def work() -> pb.ClaimGenerationResponse:
            _, root = await self._root(request.root)
            parent = _attempt(request.parent) if request.parent else None
            self._limits.check("characters of notes", request.notes_json, self._limits.notes)
            self._limits.check("characters of a token", request.token, self._limits.token)
            conditional = await root.probe_put_if_absent()
            claiming = claim(_token(request.token), parent, _notes(request.notes_json), conditional=conditional)
            return pb.ClaimGenerationResponse(generation=(await drive(claiming, root)).number)

        return await self._answer(context, work)

    async def BeginAttempt(self, request: pb.BeginAttemptRequest, context: Context) -> pb.BeginAttemptResponse:
        async def work() -> pb.BeginAttemptResponse:
            desk, _ = await self._root(request.root)
            self._limits.check("ranks", request.ranks, MOST_RANKS)
            directory = await desk.begin(
                Wanted(
                    request.root,
                    _attempt(request.attempt),
                    tuple(request.ranks),
                    request.world_size,
                    request.size_bytes,
                    when_full=_WHEN_FULL.get(request.when_full, WhenFull.BLOCK),
                    wait_seconds=max(0.0, request.wait_seconds),
                    check_fenced=request.check_fenced,
                )
            )
            if directory is None:
                return pb.BeginAttemptResponse(skipped=True)
            return pb.BeginAttemptResponse(
                directory=daemon_pb2.FileLocation(
                    disk_id=desk.area.id,
                    path=str(directory.relative_to(desk.area.root)),
                    inode=directory.stat().st_ino,
                )
            )

        return await self._answer(context, work)

    async def SealAttempt(self, request: pb.SealAttemptRequest, context: Context) -> pb.SealAttemptResponse:
        async def work() -> pb.SealAttemptResponse:
            desk, root = await self._root(request.root)
            self._limits.check("ranks", request.ranks, MOST_RANKS)
            retention = _retention(request.retention) if request.HasField("retention") else None
            await desk.seal(
                root,
                _attempt(request.attempt),
                list(request.ranks),
                request.world_size,
                retention=retention,
                supersedes=request.supersedes,
            )
            return pb.SealAttemptResponse()

        return await self._answer(context, work)

    async def DropAttempt(self, request: pb.DropAttemptRequest, context: Context) -> pb.DropAttemptResponse:
        async def work() -> pb.DropAttemptResponse:
            self._limits.check("characters of a root", request.root, self._limits.root)
            desk = self._node.desk
            # One that is known as it is named is not looked for: its file system may hang.
            root = desk.known_root(request.root) or (await asyncio.to_thread(root_of, request.root)).url
            return pb.DropAttemptResponse(given_up=await desk.drop(root, _attempt(request.attempt)))

        return await self._answer(context, work)

    async def WatchAttempt(
        self, request: pb.WatchAttemptRequest, context: Context
    ) -> AsyncIterator[pb.WatchAttemptResponse]:
        with self._node.call():
            try:
                desk, root = await self._root(request.root)
                async with aclosing(desk.watch(root, _attempt(request.attempt))) as statuses:
                    async for status in statuses:
                        yield _status(status)
            except Exception as error:
                await abort(context, error)

    async def ListCheckpoints(self, request: pb.ListCheckpointsRequest, context: Context) -> pb.ListCheckpointsResponse:
        async def work() -> pb.ListCheckpointsResponse:
            desk, root = await self._root(request.root)
            found = await drive(list_checkpoints(request.with_manifests), root)
            newest = await drive(newest_generation(), root)
            by_attempt = {each.attempt: each for each in found}
            staged = desk.staged(root)
            everything = sorted({*by_attempt, *staged}, reverse=True)
            return pb.ListCheckpointsResponse(
                checkpoints=[
                    _checkpoint(by_attempt.get(attempt) or Found(attempt), *staged.get(attempt, ((), 0)))
                    for attempt in everything
                ],
                newest_generation=newest,
            )

        return await self._answer(context, work)

    async def FetchFile(self, request: pb.FetchFileRequest, context: Context) -> pb.FetchFileResponse:
        async def work() -> pb.FetchFileResponse:
            desk, root = await self._root(request.root)
            wait_seconds = max(0.0, request.wait_seconds)
            found = await desk.fetch(root, _attempt(request.attempt), request.file, wait_seconds)
            return pb.FetchFileResponse(
                file=daemon_pb2.FileLocation(
                    disk_id=desk.area.id,
                    path=str(found.path.relative_to(desk.area.root)),
                    inode=found.inode,
                    size_bytes=found.size_bytes,
                ),
                staged=found.is_staged,
            )

        return await self._answer(context, work)

    async def EndReading(self, request: pb.EndReadingRequest, context: Context) -> pb.EndReadingResponse:
        async def work() -> pb.EndReadingResponse:
            desk, root = await self._root(request.root)
            desk.end_reading(root, _attempt(request.attempt))
            return pb.EndReadingResponse()

        return await self._answer(context, work)

    async def Expedite(self, request: pb.ExpediteRequest, context: Context) -> pb.ExpediteResponse:
        async def work() -> pb.ExpediteResponse:
            desk, root = await self._root(request.root)
            desk.expedite(root, _attempt(request.attempt))
            return pb.ExpediteResponse()

        return await self._answer(context, work)

    async def Decide(self, request: pb.DecideRequest, context: Context) -> pb.DecideResponse:
        async def work() -> pb.DecideResponse:
            desk, root = await self._root(request.root)
            self._limits.check("characters of a reason", request.reason, self._limits.reason)
            decision = await decide(root, _attempt(request.attempt), _state(request.state), request.reason)
            if decision is None:
                return pb.DecideResponse()
            await desk.decided(root, decision.attempt, decision.state)
            return pb.DecideResponse(state=decision.state, reason=decision.reason)

        return await self._answer(context, work)

    async def CollectGarbage(self, request: pb.CollectGarbageRequest, context: Context) -> pb.CollectGarbageResponse:
        async def work() -> pb.CollectGarbageResponse:
            desk, root = await self._root(request.root)
            collecting = collect(
                _retention(request.retention),
                Undecided(max(0.0, request.undecided_seconds)),
                conditional=await _has_put_if_absent(root, reads_only=request.dry_run),
                dry_run=request.dry_run,
            )
            removed = await drive(collecting, root)
            if not request.dry_run:
                for each in removed:
                    await desk.decided(root, each.attempt, each.state)
            return pb.CollectGarbageResponse(
                removed=[
                    pb.CollectGarbageResponse.Removed(
                        attempt=each.attempt.name, state=each.state, objects=each.objects, size_bytes=each.size_bytes
                    )
                    for each in removed
                ]
            )

        return await self._answer(context, work)

    async def VerifyCheckpoint(
        self, request: pb.VerifyCheckpointRequest, context: Context
    ) -> AsyncIterator[pb.VerifyCheckpointResponse]:
        with self._node.call():
            try:
                desk, root = await self._root(request.root)
                steps = verified(desk.area, root, _attempt(request.attempt), deep=request.deep)
                async with aclosing(steps):
                    async for step in steps:
                        yield pb.VerifyCheckpointResponse(
                            file=step.file,
                            size_bytes=step.size_bytes,
                            fault=step.fault,
                            files_done=step.files_done,
                            files_total=step.files_total,
                        )
            except Exception as error:
                await abort(context, error)

    async def AppendLedger(self, request: pb.AppendLedgerRequest, context: Context) -> pb.AppendLedgerResponse:
        async def work() -> pb.AppendLedgerResponse:
            _, root = await self._root(request.root)
            if not 0 < request.generation <= MOST_GENERATION:
                raise ConfigurationError(f"generation {request.generation}: give one that was claimed")
            conditional = await root.probe_put_if_absent()
            appending: Procedure[None] = append(
                request.generation, request.part, request.content, conditional=conditional
            )
            await drive(appending, root)
            return pb.AppendLedgerResponse()

        return await self._answer(context, work)

    async def ReadLedger(self, request: pb.ReadLedgerRequest, context: Context) -> pb.ReadLedgerResponse:
        async def work() -> pb.ReadLedgerResponse:
            _, root = await self._root(request.root)
            found = await drive(read_ledger(with_parts=not request.without_parts), root)
            return pb.ReadLedgerResponse(
                generations=[
                    pb.LedgerOfGeneration(generation=each.generation, document=each.document, parts=list(each.parts))
                    for each in found
                ]
            )

        return await self._answer(context, work)

    async def _root(self, url: str) -> tuple[Desk, Destination]:
        """Raises `CheckpointError` where this daemon has no place for checkpoints."""
        self._limits.check("characters of a root", url, self._limits.root)
        desk = self._node.desk
        return desk, await desk.open(url)

    async def _answer(self, context: Context, work: Callable[[], Awaitable[T]]) -> T:
        with self._node.call():
            try:
                return await work()
            except Exception as error:
                return await abort(context, error)


def add_to(server: grpc.aio.Server, node: Node, limits: Limits) -> None:
    """Registers the service."""
    checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(CheckpointService(node, limits), server)  # type: ignore[no-untyped-call]


def _status(status: Status) -> pb.WatchAttemptResponse:
    return pb.WatchAttemptResponse(
        phase=_PHASES[status.phase],
        total_bytes=status.total_bytes,
        uploaded_bytes=status.uploaded_bytes,
        seconds=status.seconds,
        **error_fields(status.error),
    )


async def _has_put_if_absent(root: Destination, *, reads_only: bool) -> bool:
    """Found out by writing. Who only reads, and may not write, is told what a store that has it would do."""
    try:
        return await root.probe_put_if_absent()
    except SourceError:
        if not reads_only:
            raise
        return True


def _checkpoint(found: Found, staged_ranks: tuple[int, ...], world_size: int) -> pb.Checkpoint:
    reason = found.decision.reason if found.decision is not None else ""
    return pb.Checkpoint(
        attempt=found.attempt.name,
        state=found.state or "",
        reason=found.fault or reason,
        world_size=found.world_size or world_size,
        durable_ranks=sorted(found.durable_ranks),
        staged_ranks=staged_ranks,
        size_bytes=found.size_bytes,
        decided_unix_seconds=found.decided_unix_seconds,
    )


def _attempt(name: str) -> Attempt:
    found = parse_attempt(name[:100])
    if found is None or found.name != name:
        raise ConfigurationError(f"{name[:100]!r} is no attempt: it is named like g000007-s000001000-1a2b3c4d5e6f")
    return found


def _state(name: str) -> State:
    try:
        return State(name)
    except ValueError:
        known = ", ".join(State)
        raise ConfigurationError(f"{name[:100]!r} is no decision: known are {known}") from None


def _retention(message: pb.Retention) -> Retention:
    return Retention(message.keep_last, message.keep_every_steps)


def _token(token: str) -> str:
    if not token:
        raise ConfigurationError("a claim needs a token, drawn by the caller")
    return token


def _notes(text: str) -> dict[str, Any]:
    try:
        notes = json.loads(text or "{}")
        json.dumps(notes, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the notes of a generation are not JSON: {error}") from None
    if not isinstance(notes, dict):
        raise ConfigurationError("the notes of a generation are a JSON object")
    return notes
