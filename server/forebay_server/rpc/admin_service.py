"""The gRPC adapter for operators: translates messages to calls on the node and back, as `service` does for trainers.

Facts go over the wire field by field: a message of admin.proto has the fields of its class in
`forebay_core.diagnosis`. Runs on the event loop.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc.aio

from forebay_core.diagnosis import (
    CredentialFacts,
    DaemonFacts,
    DiskFacts,
    EndpointFacts,
    Fact,
    MeasurementFacts,
    ProbeFacts,
)
from forebay_core.errors import ConfigurationError
from forebay_protos.v1 import admin_pb2 as pb
from forebay_protos.v1 import admin_pb2_grpc
from forebay_server.diagnosis.run import Limits
from forebay_server.node import Node
from forebay_server.operations.contents import Content, datasets, objects
from forebay_server.operations.evicting import evict
from forebay_server.operations.selection import Selection
from forebay_server.operations.verification import verify
from forebay_server.rpc.disk_status import disk_status
from forebay_server.rpc.errors import Context, abort
from forebay_server.web.history import History
from forebay_server.web.status import document, totals

T = TypeVar("T")
#: Of contents, in one message.
_ROWS = 500
#: The field of a DiagnoseResponse that holds each kind of fact.
_FIELDS: dict[type[Fact], str] = {
    DaemonFacts: "daemon",
    DiskFacts: "disk",
    CredentialFacts: "credentials",
    EndpointFacts: "endpoint",
    ProbeFacts: "probe",
    MeasurementFacts: "measurement",
}


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """The service `forebay.v1.AdminService` over a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def Diagnose(self, request: pb.DiagnoseRequest, context: Context) -> AsyncIterator[pb.DiagnoseResponse]:
        with self._node.call():
            try:
                limits = Limits(request.measure_seconds, request.measure_bytes)
                async for fact in self._node.diagnosis.facts(list(request.urls), limits):
                    yield _response(fact)
            except Exception as error:
                await abort(context, error)

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> AsyncIterator[pb.VerifyResponse]:
        with self._node.call():
            try:
                async for step in verify(self._node.pool.caches, repair=request.repair, clock=time.monotonic):
                    fields: dict[str, Any] = dataclasses.asdict(step)
                    yield pb.VerifyResponse(**fields)
            except Exception as error:
                await abort(context, error)

    async def DrainDisk(self, request: pb.DrainDiskRequest, context: Context) -> pb.DrainDiskResponse:
        async def work() -> pb.DrainDiskResponse:
            member = await self._node.drain_disk(request.path)
            return pb.DrainDiskResponse(disk=disk_status(self._node.pool, member))

        return await self._answer(context, work)

    async def AdmitDisk(self, request: pb.AdmitDiskRequest, context: Context) -> pb.AdmitDiskResponse:
        async def work() -> pb.AdmitDiskResponse:
            member = await self._node.admit_disk(request.path)
            return pb.AdmitDiskResponse(disk=disk_status(self._node.pool, member))

        return await self._answer(context, work)

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportResponse:
        async def work() -> pb.ReportResponse:
            history = History(self._node.uptime_seconds(), totals(self._node))
            return pb.ReportResponse(document_json=json.dumps(document(self._node, history)))

        return await self._answer(context, work, is_use=False)

    async def ListContents(
        self, request: pb.ListContentsRequest, context: Context
    ) -> AsyncIterator[pb.ListContentsResponse]:
        with self._node.call():
            try:
                node, selection = self._node, Selection.parse(request.url)
                keeps = node.keeping.keeps
                if request.objects:
                    contents = await objects(node.pool, selection, keeps)
                else:
                    contents = datasets(node.pool, selection, keeps)
                for start in range(0, len(contents), _ROWS):
                    yield pb.ListContentsResponse(contents=map(_content, contents[start : start + _ROWS]))
            except Exception as error:
                await abort(context, error)

    async def Warm(self, request: pb.WarmRequest, context: Context) -> AsyncIterator[pb.WarmResponse]:
        with self._node.call():
            try:
                steps = await self._node.warm(
                    list(request.urls),
                    request.format_json,
                    list(request.columns),
                    check=request.check,
                    process_id=request.process_id,
                )
                async with contextlib.aclosing(steps):
                    async for step in steps:
                        yield pb.WarmResponse(**dataclasses.asdict(step))
            except Exception as error:
                await abort(context, error)

    async def Evict(self, request: pb.EvictRequest, context: Context) -> pb.EvictResponse:
        async def work() -> pb.EvictResponse:
            node, selection = self._node, Selection.parse(request.url)
            found = await evict(node.pool, node.keeping, selection, dry_run=request.dry_run, force=request.force)
            return pb.EvictResponse(**dataclasses.asdict(found))

        return await self._answer(context, work)

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:
        async def work() -> pb.PinResponse:
            for selection in [_named(url) for url in request.urls]:
                await self._node.keeping.keep(selection)
            return pb.PinResponse(pinned=await self._pinned())

        return await self._answer(context, work)

    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinResponse:
        async def work() -> pb.UnpinResponse:
            ended = await self._node.keeping.release(_named(request.url))
            return pb.UnpinResponse(ended=ended, pinned=await self._pinned())

        return await self._answer(context, work)

    async def _pinned(self) -> list[pb.Pinned]:
        return [pb.Pinned(**dataclasses.asdict(row)) for row in await self._node.keeping.rows()]

    async def _answer(self, context: Context, work: Callable[[], Awaitable[T]], *, is_use: bool = True) -> T:
        with self._node.call() if is_use else contextlib.nullcontext():
            try:
                return await work()
            except Exception as error:
                return await abort(context, error)


def add_to(server: grpc.aio.Server, node: Node) -> None:
    """Registers the service."""
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(node), server)  # type: ignore[no-untyped-call]


def _response(fact: Fact) -> pb.DiagnoseResponse:
    fields: dict[str, Any] = {_FIELDS[type(fact)]: dataclasses.asdict(fact)}
    return pb.DiagnoseResponse(**fields)


def _named(url: str) -> Selection:
    if not url:
        raise ConfigurationError("name what is to be pinned or unpinned: a URL or a path")
    return Selection.parse(url)


def _content(content: Content) -> pb.Content:
    fields: dict[str, Any] = dataclasses.asdict(content) | {"disks": sorted(content.disks)}
    return pb.Content(**fields)
