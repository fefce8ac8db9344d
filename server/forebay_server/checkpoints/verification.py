"""Whether an attempt at its destination is as it was written: each file's presence and size, and with `deep` each
item's checksum, for which every file is fetched, one after another. A retention may run beside it: what is missing is
damage only where the decision, read again, still is that it is there. Runs on the event loop.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from forebay_core.checkpoints.deciding import SWEPT_STATES
from forebay_core.checkpoints.documents import FileRecord
from forebay_core.checkpoints.names import Attempt, rank_manifest
from forebay_core.checkpoints.protocol import list_checkpoints, read_decision
from forebay_core.errors import CheckpointDamaged, CheckpointNotFound, SourceNotFound, one_line
from forebay_server.checkpoints.area import StagingArea
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive
from forebay_server.checkpoints.inspection import crc32c_faults


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """One file was looked at. `fault`: what is wrong with it, in words; empty: nothing."""

    file: str
    size_bytes: int
    fault: str
    files_done: int
    files_total: int


async def verified(
    area: StagingArea, root: Destination, attempt: Attempt, *, deep: bool
) -> AsyncGenerator[VerifyStep, None]:
    """Each file in turn. Raises `CheckpointNotFound` for an attempt that nobody keeps, or no longer."""
    found = await drive(list_checkpoints(with_manifests=True, quarantined=True), root)
    this = next((each for each in found if each.attempt == attempt), None)
    if this is None:
        raise CheckpointNotFound(f"there is no {attempt.name} at {root.url}")
    files = [file for manifest in this.manifests for file in manifest.files]
    total = len(files) + len(this.manifests)
    if this.fault or len(this.manifests) < this.world_size or not this.manifests:
        await _check_kept(root, attempt)
    if this.fault:
        yield VerifyStep(attempt.name, 0, this.fault, 0, total)
    elif not this.manifests:
        raise CheckpointNotFound(f"{attempt.name} was never committed: there is nothing to compare it with")
    done = 0
    for manifest in this.manifests:
        done += 1
        yield VerifyStep(rank_manifest(manifest.rank), len(manifest.encode()), "", done, total)
    for file in files:
        fault = await (_deep(area, root, attempt, file) if deep else _shallow(root, attempt, file))
        if fault:
            await _check_kept(root, attempt)
        done += 1
        yield VerifyStep(file.name, file.size_bytes, fault, done, total)


async def _check_kept(root: Destination, attempt: Attempt) -> None:
    decision = await drive(read_decision(attempt), root)
    if decision is not None and decision.state in SWEPT_STATES:
        raise CheckpointNotFound(
            f"{attempt.name} is {decision.state}, and its files are being deleted: list them again"
        )


async def _shallow(root: Destination, attempt: Attempt, file: FileRecord) -> str:
    found = await root.head(attempt.key(file.name))
    if found is None:
        return "is not there"
    return "" if found.size_bytes == file.size_bytes else f"has {found.size_bytes} bytes, not {file.size_bytes}"


async def _deep(area: StagingArea, root: Destination, attempt: Attempt, file: FileRecord) -> str:
    directory = await asyncio.to_thread(area.make_fetched, root.url, attempt)
    temp = directory / f".{secrets.token_hex(6)}"
    try:
        await root.download(attempt.key(file.name), temp, size_bytes=file.size_bytes)
        return await asyncio.to_thread(crc32c_faults, temp, file)
    except (CheckpointDamaged, CheckpointNotFound, SourceNotFound) as error:
        return one_line(error)
    finally:
        await asyncio.to_thread(temp.unlink, missing_ok=True)
