"""AdminService as the commands call it: requests out, plain values back.

Nothing here starts a daemon or waits for one: an operator wants to know at once that none answers.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.daemon import channel
from forebay.daemon.client import DaemonClient

if TYPE_CHECKING:
    from google.protobuf.message import Message

#: Reading the sidecars of a large cache takes seconds, on a slow disk a minute.
_PATIENCE_SECONDS = 300.0
Reply = TypeVar("Reply", bound="Message")


@dataclass(frozen=True)
class Content:
    """What is cached of one dataset or object; `bytes` on the daemon's disks."""

    url: str
    version: str
    pieces: int
    bytes: int
    rows: int
    leased: int
    kept: int
    disks: tuple[str, ...]


@dataclass(frozen=True)
class WarmStep:
    """How far a warming is, in pieces; `bytes` of the files that it brought."""

    total: int = 0
    there: int = 0
    in_place: int = 0
    fetched: int = 0
    bytes: int = 0
    failed: int = 0
    missing: int = 0
    messages: tuple[str, ...] = ()

    @property
    def settled(self) -> int:
        """Pieces about which nothing more is to be done."""
        return self.there + self.in_place + self.fetched + self.failed + self.missing


@dataclass(frozen=True)
class Evicted:
    """What went, or would go, and what was spared: pieces, and bytes on the disks."""

    pieces: int
    bytes: int
    kept: int
    leased: int
    in_use: int


@dataclass(frozen=True)
class Pinned:
    """What is kept of one URL."""

    url: str
    pieces: int
    bytes: int
    beyond: int


class Operator:
    """One daemon, asked by an operator. Raises `DaemonUnavailable`, `DaemonError`, and what is wrong with a request."""

    def __init__(self, address: str | None) -> None:
        client = DaemonClient(address, reconnect_seconds=0.0, start=False)
        self.socket: Path = client.address.socket

    def report(self) -> dict[str, Any]:
        """The document of the status page."""
        from forebay_protos.v1 import admin_pb2 as pb

        document: dict[str, Any] = json.loads(self._call("Report", pb.ReportRequest(), pb.ReportResponse).document_json)
        return document

    def contents(self, url: str, *, objects: bool) -> Iterator[Content]:
        """What is cached at or below the URL, of datasets or of objects."""
        from forebay_protos.v1 import admin_pb2 as pb

        request = pb.ListContentsRequest(url=url, objects=objects)
        for reply in self._stream("ListContents", request, pb.ListContentsResponse):
            for row in reply.contents:
                counts = (row.pieces, row.bytes, row.rows, row.leased, row.kept)
                yield Content(row.url, row.version, *counts, tuple(row.disks))

    def warm(self, urls: Sequence[str], format_json: str, columns: Sequence[str], *, check: bool) -> Iterator[WarmStep]:
        """Steps of a warming, which ends when they are not asked for any more."""
        from forebay_protos.v1 import admin_pb2 as pb

        request = pb.WarmRequest(
            urls=urls, format_json=format_json, columns=columns, check=check, process_id=os.getpid()
        )
        for step in channel.answers(self.socket, "AdminService/Warm", request, pb.WarmResponse):
            counts = (step.total, step.there, step.in_place, step.fetched, step.bytes, step.failed, step.missing)
            yield WarmStep(*counts, tuple(step.messages))

    def evict(self, url: str, *, dry_run: bool, force: bool) -> Evicted:
        from forebay_protos.v1 import admin_pb2 as pb

        request = pb.EvictRequest(url=url, dry_run=dry_run, force=force)
        reply = self._call("Evict", request, pb.EvictResponse)
        return Evicted(reply.pieces, reply.bytes, reply.kept, reply.leased, reply.in_use)

    def pin(self, urls: Sequence[str]) -> list[Pinned]:
        """All that is pinned, with these."""
        from forebay_protos.v1 import admin_pb2 as pb

        return _pinned(self._call("Pin", pb.PinRequest(urls=urls), pb.PinResponse).pinned)

    def unpin(self, url: str) -> tuple[int, list[Pinned]]:
        """How many URLs were pinned at or below this one, and all that still are."""
        from forebay_protos.v1 import admin_pb2 as pb

        reply = self._call("Unpin", pb.UnpinRequest(url=url), pb.UnpinResponse)
        return reply.ended, _pinned(reply.pinned)

    def _call(self, method: str, request: "Message", reply: type[Reply]) -> Reply:
        return channel.call(self.socket, f"AdminService/{method}", request, reply, timeout_seconds=_PATIENCE_SECONDS)

    def _stream(self, method: str, request: "Message", reply: type[Reply]) -> Iterator[Reply]:
        return channel.answers(self.socket, f"AdminService/{method}", request, reply, timeout_seconds=_PATIENCE_SECONDS)


def _pinned(rows: Any) -> list[Pinned]:
    return [Pinned(row.url, row.pieces, row.bytes, row.beyond) for row in rows]
