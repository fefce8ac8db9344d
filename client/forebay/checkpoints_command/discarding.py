"""`forebay checkpoints discard`: gives up what waits for an upload that can never succeed.

The destination is not asked: it may be gone. What there is to discard the daemon knows from its staging directory.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.checkpoints_command.asking import Checkpoints
from forebay.checkpoints_command.chosen import matching
from forebay.daemon.client import DaemonClient
from forebay.daemon.source_urls import absolute
from forebay.daemon.status import ENDED, UploadStatus
from forebay_core.checkpoints.names import Attempt, parse_attempt
from forebay_core.errors import CheckpointNotFound, ConfigurationError, DaemonUnavailable
from forebay_core.locations import root_of

_START_SECONDS = 60.0


@dataclass(frozen=True)
class Discarded:
    """size_bytes: of this node's ranks; `uploaded_bytes` of them had been uploaded."""

    root: str
    attempt: str
    size_bytes: int
    uploaded_bytes: int


def discard(client: DaemonClient, root: str, which: str, *, is_meant: bool) -> Discarded:
    """Takes this node's part of a checkpoint that is not durable away, for good.

    which: its step, or its name or the begin of it. Raises `CheckpointNotFound` where none such waits on this node, and
    `ConfigurationError` where several do, or where nobody has said that it `is_meant`.
    """
    uploads = _uploads(client)
    place = _place(root, {each.root for each in uploads})
    there = {parse_attempt(each.attempt): each for each in uploads if each.root == place}
    try:
        attempt, upload = _one(place, {known: each for known, each in there.items() if known is not None}, which)
    except CheckpointNotFound:
        _check_elsewhere(uploads, which)
        raise
    if not is_meant:
        raise ConfigurationError(f"{attempt.name} of {place} {_at_stake(upload)}: say --yes if it is meant")
    if not Checkpoints(client, place).drop(attempt):
        raise CheckpointNotFound(f"{attempt.name} does not wait for its upload any more: forebay status says why")
    return Discarded(place, attempt.name, upload.total_bytes, upload.uploaded_bytes)


def _uploads(client: DaemonClient) -> tuple[UploadStatus, ...]:
    """All that the daemon has, once it knows what a former one left."""
    deadline = time.monotonic() + _START_SECONDS
    while (staging := client.status().staging).starting:
        if time.monotonic() > deadline:
            raise DaemonUnavailable(f"the daemon still looks through its staging directory {staging.path}: try again")
        time.sleep(0.1)
    return staging.uploads


def _place(root: str, known: set[str]) -> str:
    """The URL of the root as the daemon has it. One that is named so is not looked for: its file system may hang."""
    named = absolute(root)
    as_url = (named if "://" in named else f"file://{named}").rstrip("/")
    return as_url if as_url in known else root_of(named).url


def _at_stake(upload: UploadStatus) -> str:
    if upload.uploaded_bytes >= upload.total_bytes:
        return "has all of this node's part at its destination, and only the decision on it is waited for"
    return f"would be lost for good as a whole, and with it {upload.total_bytes:,} bytes on this node"


def _check_elsewhere(uploads: Sequence[UploadStatus], which: str) -> None:
    """Raises `ConfigurationError` where the attempt that is named waits under another root."""
    for each in uploads:
        if which.startswith("g") and each.attempt == which and each.phase not in ENDED:
            raise ConfigurationError(f"{which} waits for {each.root}: give that root")


def _one(place: str, there: Mapping[Attempt, UploadStatus], which: str) -> tuple[Attempt, UploadStatus]:
    found = matching(list(there), which)
    waiting = [each for each in found if there[each].phase not in ENDED]
    if len(waiting) > 1:
        names = ", ".join(each.name for each in waiting)
        raise ConfigurationError(f"{len(waiting)} of step {which} wait for their upload, name one of them: {names}")
    if waiting:
        return waiting[0], there[waiting[0]]
    why = f": {found[-1].name} is {there[found[-1]].phase}" if found else ""
    raise CheckpointNotFound(
        f"no checkpoint {which} of {place} waits for its upload on this node{why}; forebay status lists those that do"
    )
