"""The gRPC adapter: translates messages to calls on the node and back, and errors to statuses. It decides nothing.

Runs on the event loop. A `ForebayError` reaches the client as the status of `rpc.errors` with its class name in the
trailing metadata; anything else is logged with its traceback and reaches the client as an `InternalError`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext
from typing import Protocol, TypeVar

import grpc.aio
import numpy as np
from grpc_health.v1 import health, health_pb2_grpc

from forebay_core.errors import ConfigurationError
from forebay_core.needs import Needs, Numbers
from forebay_protos.v1 import daemon_pb2 as pb
from forebay_protos.v1 import daemon_pb2_grpc
from forebay_server.disk.cache_disk import CacheDisk
from forebay_server.node import Node
from forebay_server.reading import Part
from forebay_server.rpc import admin_service, checkpoint_service
from forebay_server.rpc.disk_status import disk_status
from forebay_server.rpc.errors import Context, abort
from forebay_server.rpc.limits import DEFAULT_LIMITS, ArrivingNeeds, Limits, label, unstalled
from forebay_server.rpc.staging_status import staging_status
from forebay_server.sessions import Lease, Session, Taken
from forebay_server.sources.manifests import OpenedDataset

T = TypeVar("T")
Answer = TypeVar("Answer", pb.ReadResponse, pb.ReadManifestResponse)


class StreamContext(Context, Protocol):
    """What of the gRPC context of a stream of answers the service uses."""

    async def write(self, message: pb.ReadResponse | pb.ReadManifestResponse) -> None: ...


class DaemonService(daemon_pb2_grpc.DaemonServiceServicer):
    """The service `forebay.v1.DaemonService` over a node."""

    def __init__(self, node: Node, limits: Limits) -> None:
        self._node = node
        self._limits = limits
        self._arriving = ArrivingNeeds(limits)

    async def OpenDataset(self, request: pb.OpenDatasetRequest, context: Context) -> pb.OpenDatasetResponse:
        async def work() -> pb.OpenDatasetResponse:
            self._limits.check("URLs", request.urls, self._limits.urls)
            opened = await self._node.open_dataset(list(request.urls), request.format_json)
            manifest = _manifest_location(opened, self._node.pool.disks)
            return pb.OpenDatasetResponse(dataset_id=opened.dataset_id, manifest=manifest, disks=self._disks())

        return await self._answer(context, work)

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Context) -> pb.OpenSessionResponse:
        async def work() -> pb.OpenSessionResponse:
            self._limits.check("columns", request.columns, self._limits.columns)
            self._limits.check_sessions(self._node.sessions)
            session = self._node.open_session(
                request.dataset_id, list(request.columns), label=label(request.label), process_id=request.process_id
            )
            return pb.OpenSessionResponse(session_id=session.id, boot_id=self._node.boot_id, disks=self._disks())

        return await self._answer(context, work)

    async def PublishNeeds(
        self, request_iterator: AsyncIterator[pb.PublishNeedsRequest], context: Context
    ) -> pb.PublishNeedsResponse:
        async def work() -> pb.PublishNeedsResponse:
            session: Session | None = None
            chunks: list[list[Numbers]] = []
            with self._arriving.stream(lambda: self._node.sessions.count_needs(besides=session)) as take:
                async for request in unstalled(request_iterator, self._limits.stream_stall_seconds):
                    if session is not None and request.session_id != session.id:
                        raise ConfigurationError("a stream of needs is of one session, and this one names two")
                    session = self._node.sessions.get(request.session_id)
                    lists = (request.pieces, request.first, request.last)
                    take(max(len(values) for values in lists))
                    chunks.append([np.fromiter(values, np.int64, len(values)) for values in lists])
                if session is None:
                    raise ConfigurationError("a stream of needs is of one session, and this one names none")
                needs = await asyncio.to_thread(_needs, chunks, session.view.manifest.pieces)
                self._node.sessions.publish(session, needs)
            return pb.PublishNeedsResponse()

        return await self._answer(context, work)

    async def ReportPosition(self, request: pb.ReportPositionRequest, context: Context) -> pb.ReportPositionResponse:
        async def work() -> pb.ReportPositionResponse:
            session = self._node.sessions.get(request.session_id)
            taken = Taken(request.samples, request.waited_seconds, request.waiting_seconds)
            self._node.sessions.report(session, request.position, request.positions_per_second, taken)
            return pb.ReportPositionResponse()

        return await self._answer(context, work)

    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> pb.AcquireResponse:
        async def work() -> pb.AcquireResponse:
            self._limits.check("pieces", request.pieces, self._limits.pieces)
            session = self._node.sessions.get(request.session_id)
            unreadable = [(found.piece, found.disk_id) for found in request.unreadable]
            leases = await self._node.sessions.acquire(session, list(request.pieces), unreadable)
            return pb.AcquireResponse(
                leases=[_lease(lease) for lease in leases],
                budget_bytes=self._node.sessions.budget_bytes(),
                disks=self._disks(),
            )

        return await self._answer(context, work)

    async def Read(self, request: pb.ReadRequest, context: StreamContext) -> None:
        async def work() -> None:
            session = self._node.sessions.get(request.session_id)
            await self._send(self._node.reading.piece(session, request.piece), context, pb.ReadResponse)

        await self._answer(context, work)

    async def ReadManifest(self, request: pb.ReadManifestRequest, context: StreamContext) -> None:
        async def work() -> None:
            await self._send(self._node.reading.manifest(request.dataset_id), context, pb.ReadManifestResponse)

        await self._answer(context, work)

    async def _send(self, parts: AsyncGenerator[Part], context: StreamContext, answer: type[Answer]) -> None:
        """Hands each part over before the next is read. Raises `ConfigurationError` for who takes none for long."""
        async with aclosing(parts):
            async for part in parts:
                try:
                    async with asyncio.timeout(self._limits.stream_stall_seconds):
                        await context.write(answer(data=part.data, size_bytes=part.size))
                except TimeoutError:
                    seconds = self._limits.stream_stall_seconds
                    raise ConfigurationError(
                        f"nothing of a stream was taken for {seconds:g} s: read in one go"
                    ) from None

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        async def work() -> pb.ReleaseResponse:
            self._limits.check("pieces", request.pieces, self._limits.pieces)
            session = self._node.sessions.get(request.session_id)
            self._node.sessions.release(session, list(request.pieces))
            return pb.ReleaseResponse()

        return await self._answer(context, work)

    async def CloseSession(self, request: pb.CloseSessionRequest, context: Context) -> pb.CloseSessionResponse:
        async def work() -> pb.CloseSessionResponse:
            self._node.sessions.close(request.session_id)
            return pb.CloseSessionResponse()

        return await self._answer(context, work)

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        async def work() -> pb.GetStatusResponse:
            return _status(self._node)

        return await self._answer(context, work, is_use=False)

    def _disks(self) -> list[pb.Disk]:
        return [pb.Disk(disk_id=disk.id, path=str(disk.root)) for disk in self._node.pool.disks]

    async def _answer(self, context: Context, work: Callable[[], Awaitable[T]], *, is_use: bool = True) -> T:
        with self._node.call() if is_use else nullcontext():
            try:
                return await work()
            except Exception as error:
                failure = error
        await abort(context, failure)
        raise failure


def add_to(server: grpc.aio.Server, node: Node, limits: Limits = DEFAULT_LIMITS) -> Callable[[], Awaitable[None]]:
    """Registers all services and the standard health service; what it returns turns SERVING into NOT_SERVING."""
    daemon_pb2_grpc.add_DaemonServiceServicer_to_server(DaemonService(node, limits), server)  # type: ignore[no-untyped-call]
    admin_service.add_to(server, node)
    checkpoint_service.add_to(server, node, limits)
    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    stop_serving: Callable[[], Awaitable[None]] = servicer.enter_graceful_shutdown
    return stop_serving


def _needs(chunks: list[list[Numbers]], piece_count: int) -> Needs:
    pieces, first, last = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    return Needs.build(pieces, first, last, piece_count=piece_count)


def _lease(lease: Lease) -> pb.Lease:
    return pb.Lease(
        piece=lease.piece,
        disk_id=lease.disk_id,
        path=lease.path,
        inode=lease.inode,
        size_bytes=lease.size,
        offset_bytes=lease.offset,
        length_bytes=lease.length,
        pending=lease.is_pending,
        bypassed=lease.is_bypassed,
    )


def _manifest_location(opened: OpenedDataset, disks: Sequence[CacheDisk]) -> pb.FileLocation:
    found, path = opened.path.stat(), opened.path.resolve()
    disk = next(disk for disk in disks if path.is_relative_to(disk.root))
    relative = str(path.relative_to(disk.root))
    return pb.FileLocation(disk_id=disk.id, path=relative, inode=found.st_ino, size_bytes=found.st_size)


def _status(node: Node) -> pb.GetStatusResponse:
    pool, fills, sessions, remote = node.pool, node.fills, node.sessions, node.remote
    return pb.GetStatusResponse(
        version=node.version,
        boot_id=node.boot_id,
        process_id=node.process_id,
        uptime_seconds=node.uptime_seconds(),
        embedded=node.config.embedded,
        draining=node.is_draining,
        disks=[disk_status(pool, member) for member in pool.members],
        sessions=[
            pb.SessionStatus(
                session_id=session.id,
                label=session.label,
                process_id=session.process_id,
                source=session.view.manifest.root,
                position=session.progress.position,
                positions_per_second=session.progress.positions_per_second,
                needs=len(session.progress.needs),
                leases=len(session.leases),
                waited_seconds=session.taken.waited_seconds,
                waiting_seconds=session.taken.waiting_seconds,
            )
            for session in sessions
        ],
        counters=pb.Counters(
            hits=sessions.counters.hits + sessions.counters.in_place,
            misses=sessions.counters.misses + sessions.counters.pending,
            fills=fills.counters.fills,
            fill_failures=fills.counters.failures,
            bytes_downloaded=remote.bytes,
            evictions=pool.evictions,
            remote_requests=remote.requests,
            remote_retries=remote.retries,
            prefetches=fills.counters.prefetches,
            bypasses=node.bypass.bypasses,
        ),
        fills_running=len(fills.running),
        http_address=node.http_address,
        staging=staging_status(node),
    )
