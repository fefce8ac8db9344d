"""`forebay disk drain|admit PATH`: takes one of the daemon's disks out of use without ending anything, and back."""

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.command_options import AddressOption, JsonOption
from forebay.console import disk_state, print_json
from forebay.daemon.client import DaemonClient
from forebay.daemon.status import disk_status

if TYPE_CHECKING:
    from forebay_protos.v1.daemon_pb2 import DiskStatus

#: An admission looks at the disk first, which may not answer for half a minute.
_ANSWER_SECONDS = 60.0


class Change(StrEnum):
    """What becomes of the disk."""

    DRAIN = "drain"
    ADMIT = "admit"


def disk(
    change: Annotated[Change, typer.Argument(help="drain: nothing new is put on it. admit: it is used again.")],
    path: Annotated[str, typer.Argument(help="A cache directory as `forebay status` shows it, or a disk id.")],
    *,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put nothing more on a disk, while what is there is served on; or use it again, also one that was out."""
    found = disk_status(_changed(DaemonClient(address, reconnect_seconds=0.0, start=False), change, path))
    if as_json:
        print_json(asdict(found))
    else:
        print(f"{found.path}: {disk_state(found)}, {found.pieces:,} pieces")


def _changed(client: DaemonClient, change: Change, path: str) -> "DiskStatus":
    from forebay_protos.v1 import admin_pb2 as pb

    if change is Change.DRAIN:
        drain = pb.DrainDiskRequest(path=path)
        drained = client.call_once(
            "AdminService/DrainDisk", drain, pb.DrainDiskResponse, timeout_seconds=_ANSWER_SECONDS
        )
        return drained.disk
    admit = pb.AdmitDiskRequest(path=path)
    admitted = client.call_once("AdminService/AdmitDisk", admit, pb.AdmitDiskResponse, timeout_seconds=_ANSWER_SECONDS)
    return admitted.disk
