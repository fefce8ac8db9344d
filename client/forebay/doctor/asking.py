"""The facts that only the daemon can find, asked of it over its socket: the mirror of AdminService's Diagnose, and a
root for checkpoints as the daemon opens it."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.daemon import channel
from forebay.daemon.checkpoint_root import CheckpointRoot
from forebay.daemon.client import DaemonClient
from forebay.doctor.checkpoint_verdicts import RootFacts
from forebay_core.diagnosis import (
    CredentialFacts,
    DaemonFacts,
    DiskFacts,
    EndpointFacts,
    Fact,
    MeasurementFacts,
    ProbeFacts,
)
from forebay_core.machine import MachineFacts
from forebay_core.node_layout import DISK_ID_FILE

if TYPE_CHECKING:
    from google.protobuf.message import Message

#: What a diagnosis may take besides its measurements: connecting, listing, and credentials that are slow to come.
_PATIENCE_SECONDS = 90.0
#: One of the remote, which may run over, and two of each of some disks.
_MEASUREMENTS = 20
KINDS: dict[str, type[Fact]] = {
    "disk": DiskFacts,
    "credentials": CredentialFacts,
    "endpoint": EndpointFacts,
    "probe": ProbeFacts,
    "measurement": MeasurementFacts,
}
T = TypeVar("T")


def ask(socket: Path, urls: Sequence[str], *, measure_seconds: float, measure_bytes: int) -> Iterator[Fact]:
    """The facts, as they come. Raises `DaemonUnavailable`, `DaemonError`, and what is wrong with the URLs."""
    from forebay_protos.v1 import admin_pb2 as pb

    request = pb.DiagnoseRequest(urls=urls, measure_seconds=measure_seconds, measure_bytes=measure_bytes)
    patience = _PATIENCE_SECONDS + _MEASUREMENTS * measure_seconds
    for reply in channel.answers(
        socket, "AdminService/Diagnose", request, pb.DiagnoseResponse, timeout_seconds=patience
    ):
        kind = reply.WhichOneof("fact")
        if kind == "daemon":
            yield _daemon(reply.daemon)
        elif kind in KINDS:
            yield _values(KINDS[kind], getattr(reply, kind))


def look_at_root(client: DaemonClient, root: str) -> RootFacts:
    """Lets the daemon try a root: something is written there, and nothing is left. Raises what is wrong with it."""
    opened = CheckpointRoot(client, root).open(only_tries=True)
    return RootFacts(
        root=opened.root,
        has_put_if_absent=opened.has_put_if_absent,
        staging_path=opened.staging.path,
        is_staging_visible=client.disks.locate(opened.staging.disk_id, DISK_ID_FILE) is not None,
        is_embedded=opened.embedded,
        is_new=opened.is_new,
    )


def _daemon(message: Any) -> DaemonFacts:
    machine = _values(MachineFacts, message.machine, proxies=dict(message.machine.proxies))
    return DaemonFacts(message.version, message.process_id, message.user_id, machine)


def _values(kind: type[T], message: "Message", **given: Any) -> T:
    """A message as the class whose fields it has."""
    names = [field.name for field in fields(kind) if field.name not in given]  # type: ignore[arg-type]
    return kind(**given, **{name: getattr(message, name) for name in names})
