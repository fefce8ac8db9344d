"""The limits as rules, and over a small server whose limits are within a test's reach."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from forebay_core.errors import CapacityError, ConfigurationError
from forebay_protos.v1 import daemon_pb2 as pb
from forebay_protos.v1 import daemon_pb2_grpc
from forebay_server.rpc.errors import fitting
from forebay_server.rpc.limits import ArrivingNeeds, Limits, label
from forebay_server.rpc.service import add_to
from tests.server.daemons import token_spec, write_shards
from tests.server.test_sessions import node

SMALL = Limits(sessions=3, urls=4, columns=5, pieces=6, needs=100, needs_of_all=150, stream_stall_seconds=0.2)


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[tuple[daemon_pb2_grpc.DaemonServiceStub, str]]:
    """A server with small limits on a real socket, and a dataset that is open."""
    write_shards(home / "data", shards=1)
    async with node(home) as (made, _):
        server = grpc.aio.server()
        add_to(server, made, SMALL)
        server.add_insecure_port(f"unix:{home}/s")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{home}/s") as channel:
            stub = daemon_pb2_grpc.DaemonServiceStub(channel)  # type: ignore[no-untyped-call]
            request = pb.OpenDatasetRequest(urls=[str(home / "data")], format_json=json.dumps(token_spec()))
            yield stub, (await stub.OpenDataset(request)).dataset_id
        await server.stop(None)


async def failure(call: Awaitable[object]) -> tuple[str, str]:
    """The class and the message with which a call fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error: Any = caught.value
    return dict(error.trailing_metadata())["forebay-error"], error.details()


def needs(session: str, count: int) -> pb.PublishNeedsRequest:
    return pb.PublishNeedsRequest(session_id=session, pieces=[0] * count, first=[0] * count, last=[1] * count)


async def stream(*requests: pb.PublishNeedsRequest, then: Callable[[], Awaitable[object]] | None = None):  # type: ignore[no-untyped-def]
    for request in requests:
        yield request
    if then is not None:
        await then()


def test_more_than_a_call_or_the_daemon_may_hold_is_refused_and_room_is_given_back(home: Path) -> None:
    async def run() -> None:
        async with served(home) as (stub, dataset):

            async def session() -> str:
                request = pb.OpenSessionRequest(dataset_id=dataset, label="x" * 1000 + "\x1b[31m")
                return str((await stub.OpenSession(request)).session_id)

            first, second, third = [await session() for _ in range(3)]
            name, message = await failure(session())
            assert (name, "3 sessions are open" in message) == ("CapacityError", True)
            shown = (await stub.GetStatus(pb.GetStatusRequest())).sessions[0].label
            assert len(shown) == 301
            await stub.CloseSession(pb.CloseSessionRequest(session_id=third))
            await stub.CloseSession(pb.CloseSessionRequest(session_id=await session()))

            for call, part in [
                (stub.OpenDataset(pb.OpenDatasetRequest(urls=["/x"] * 5)), "4 URLs"),
                (stub.OpenSession(pb.OpenSessionRequest(dataset_id=dataset, columns=["tokens"] * 6)), "5 columns"),
                (stub.Acquire(pb.AcquireRequest(session_id=first, pieces=[0] * 7)), "6 pieces"),
                (stub.Release(pb.ReleaseRequest(session_id=first, pieces=[0] * 7)), "6 pieces"),
                (stub.PublishNeeds(stream(needs(first, 60), needs(first, 60))), "100 needs"),
                (stub.PublishNeeds(stream(needs(first, 1), needs(second, 1))), "names two"),
                (stub.PublishNeeds(stream()), "names none"),
            ]:
                name, message = await failure(call)
                assert name == "ConfigurationError"
                assert part in message

            for _ in range(3):
                await stub.PublishNeeds(stream(needs(first, 60), needs(first, 40)))
            name, message = await failure(stub.PublishNeeds(stream(needs(second, 60))))
            assert (name, "150 needs in all" in message) == ("CapacityError", True)
            await stub.CloseSession(pb.CloseSessionRequest(session_id=first))
            await stub.PublishNeeds(stream(needs(second, 100)))

    asyncio.run(run())


def test_a_stream_that_stops_in_its_midst_ends_and_frees_what_it_had_brought(home: Path) -> None:
    async def run() -> None:
        async with served(home) as (stub, dataset):
            session = (await stub.OpenSession(pb.OpenSessionRequest(dataset_id=dataset))).session_id
            for _ in range(3):
                forever = asyncio.Event()
                silent = stub.PublishNeeds(stream(needs(session, 100), then=forever.wait))
                name, message = await failure(silent)
                assert (name, "said nothing for 0.2 s" in message) == ("ConfigurationError", True)
            await stub.PublishNeeds(stream(needs(session, 100)))

    asyncio.run(run())


def test_needs_that_are_arriving_count_as_those_that_are_held_and_go_with_their_stream() -> None:
    arriving = ArrivingNeeds(Limits(needs=100, needs_of_all=150))
    with arriving.stream(lambda: 40) as one, arriving.stream(lambda: 40) as other:
        one(100)
        other(10)
        with pytest.raises(CapacityError, match="150 needs in all"):
            other(1)
        with pytest.raises(ConfigurationError, match="100 needs"):
            one(1)
    with arriving.stream(lambda: 50) as another:
        another(100)


@pytest.mark.parametrize("text", ["short", "x" * 10_000_000, "é" * 5000, "\x00" * 5000, "\U0001f600" * 5000, "\udcff"])
def test_a_message_fits_into_a_header_and_is_text(text: str) -> None:
    from urllib.parse import quote

    said = fitting(text)
    assert len(quote(said)) <= 4000
    assert said.encode()
    assert len(text) > 100 or said in (text, "?")


def test_a_label_is_short_and_printable() -> None:
    assert label("rank 0 of 8: s3://b/train") == "rank 0 of 8: s3://b/train"
    assert label("\x1b[31mred\n").isprintable()
    assert len(label("x" * 10**6)) == 301
