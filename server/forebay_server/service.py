"""The gRPC adapter: translates messages to calls on the node and back, and errors to statuses. It decides nothing.

Runs on the event loop. A `ForebayError` reaches the client as the status of `rpc_errors` with its class name in the
trailing metadata; anything else is logged with its traceback and reaches the client as an `InternalError`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from typing import Protocol, TypeVar

import grpc.aio
import numpy as np
from grpc_health.v1 import health, health_pb2_grpc

from forebay_core.errors import ConfigurationError, ForebayError, InternalError, one_line
from forebay_protos.v1 import daemon_pb2 as pb
from forebay_protos.v1 import daemon_pb2_grpc
from forebay_server.cache.disk import CacheDisk
from forebay_server.needs import Needs, Numbers
from forebay_server.node import Node
from forebay_server.rpc_errors import status_of, trailing_metadata
from forebay_server.sessions import Lease
from forebay_server.sources.manifests import OpenedDataset

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Context(Protocol):
    """What of a gRPC context the service uses."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, str], ...] = ()
    ) -> None: ...


class DaemonService(daemon_pb2_grpc.DaemonServiceServicer):
    """The service `forebay.v1.DaemonService` over a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def OpenDataset(self, request: pb.OpenDatasetRequest, context: Context) -> pb.OpenDatasetResponse:
        async def work() -> pb.OpenDatasetResponse:
            opened = await self._node.open_dataset(list(request.urls), request.format_json)
            disk = self._node.cache.disk
            return pb.OpenDatasetResponse(
                dataset_id=opened.dataset_id, manifest=_manifest_location(opened, disk), disks=self._disks()
            )

        return await self._answer(context, work)

    async def OpenSession(self, request: pb.OpenSessionRequest, context: Context) -> pb.OpenSessionResponse:
        async def work() -> pb.OpenSessionResponse:
            session = self._node.open_session(
                request.dataset_id, list(request.columns), label=request.label, process_id=request.process_id
            )
            return pb.OpenSessionResponse(session_id=session.id, boot_id=self._node.boot_id, disks=self._disks())

        return await self._answer(context, work)

    async def PublishNeeds(
        self, request_iterator: AsyncIterator[pb.PublishNeedsRequest], context: Context
    ) -> pb.PublishNeedsResponse:
        async def work() -> pb.PublishNeedsResponse:
            session_ids: set[str] = set()
            chunks: list[list[Numbers]] = []
            async for request in request_iterator:
                session_ids.add(request.session_id)
                lists = (request.pieces, request.first, request.last)
                chunks.append([np.fromiter(values, np.int64, len(values)) for values in lists])
            if len(session_ids) != 1:
                raise ConfigurationError(f"a stream of needs is of one session, not of {len(session_ids)}")
            session = self._node.sessions.get(session_ids.pop())
            needs = await asyncio.to_thread(_needs, chunks, session.view.manifest.pieces)
            self._node.sessions.publish(session, needs)
            return pb.PublishNeedsResponse()

        return await self._answer(context, work)

    async def ReportPosition(self, request: pb.ReportPositionRequest, context: Context) -> pb.ReportPositionResponse:
        async def work() -> pb.ReportPositionResponse:
            session = self._node.sessions.get(request.session_id)
            self._node.sessions.report(session, request.position, request.positions_per_second)
            return pb.ReportPositionResponse()

        return await self._answer(context, work)

    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> pb.AcquireResponse:
        async def work() -> pb.AcquireResponse:
            session = self._node.sessions.get(request.session_id)
            leases = await self._node.sessions.acquire(session, list(request.pieces))
            return pb.AcquireResponse(
                leases=[_lease(lease) for lease in leases], budget_bytes=self._node.sessions.budget_bytes()
            )

        return await self._answer(context, work)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        async def work() -> pb.ReleaseResponse:
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
        disk = self._node.cache.disk
        return [pb.Disk(disk_id=disk.id, path=str(disk.root))]

    async def _answer(self, context: Context, work: Callable[[], Awaitable[T]], *, is_use: bool = True) -> T:
        with self._node.call() if is_use else nullcontext():
            try:
                return await work()
            except ForebayError as error:
                failure = error
            except Exception as error:
                _log.exception("a call failed")
                failure = InternalError(f"{type(error).__name__}: {one_line(error)}; the daemon's log has the details")
        await context.abort(status_of(type(failure)), one_line(failure), trailing_metadata(failure))
        raise failure


def add_to(server: grpc.aio.Server, node: Node) -> Callable[[], Awaitable[None]]:
    """Registers the service and the standard health service; what it returns turns SERVING into NOT_SERVING."""
    daemon_pb2_grpc.add_DaemonServiceServicer_to_server(DaemonService(node), server)  # type: ignore[no-untyped-call]
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
    )


def _manifest_location(opened: OpenedDataset, disk: CacheDisk) -> pb.FileLocation:
    found = opened.path.stat()
    path = opened.path.resolve().relative_to(disk.root)
    return pb.FileLocation(disk_id=disk.id, path=str(path), inode=found.st_ino, size_bytes=found.st_size)


def _status(node: Node) -> pb.GetStatusResponse:
    cache, fills, sessions, remote = node.cache, node.fills, node.sessions, node.remote
    ledger = cache.ledger
    return pb.GetStatusResponse(
        version=node.version,
        boot_id=node.boot_id,
        process_id=node.process_id,
        uptime_seconds=node.uptime_seconds(),
        embedded=node.config.embedded,
        draining=node.is_draining,
        disks=[
            pb.DiskStatus(
                disk_id=cache.disk.id,
                path=str(cache.disk.root),
                capacity_bytes=ledger.capacity_bytes,
                used_bytes=ledger.used_bytes,
                reserved_bytes=ledger.reserved_bytes,
                pieces=len(cache),
            )
        ],
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
            )
            for session in sessions
        ],
        counters=pb.Counters(
            hits=sessions.counters.hits,
            misses=sessions.counters.misses,
            fills=fills.counters.fills,
            fill_failures=fills.counters.failures,
            bytes_downloaded=remote.bytes,
            evictions=cache.evictions,
            remote_requests=remote.requests,
            remote_retries=remote.retries,
            prefetches=fills.counters.prefetches,
        ),
        fills_running=len(fills.running),
    )
