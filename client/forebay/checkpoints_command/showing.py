"""What `show` asks for: the documents of one attempt, and the dataset that its position is in."""

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.checkpoint.bundle import RankData
from forebay.checkpoints_command.asking import Checkpoints
from forebay.checkpoints_command.contents import document, ranks_to_read
from forebay.checkpoints_command.upcoming import Upcoming, upcoming
from forebay.daemon.checkpoint_root import Checkpoint
from forebay.daemon.client import DaemonClient
from forebay.order_command.format_options import FormatOptions
from forebay.order_command.opening import open_manifest
from forebay_core.checkpoints.documents import RankManifest, State
from forebay_core.checkpoints.names import rank_data, rank_manifest
from forebay_core.errors import CheckpointError, ForebayError, one_line

Found = Mapping[int, RankManifest | CheckpointError]
Data = Mapping[int, RankData | CheckpointError]


def show_document(
    checkpoints: Checkpoints,
    chosen: Checkpoint,
    *,
    client: DaemonClient,
    sources: Sequence[str],
    options: FormatOptions,
) -> tuple[dict[str, Any], Upcoming | None, str]:
    """The document, what is read next where that was asked for, and why that cannot be said; empty where it can."""
    manifests, data = _read(checkpoints, chosen)
    generation = checkpoints.generation(chosen.attempt.generation)
    found = document(checkpoints.root, chosen, manifests=manifests, data=data, generation=generation)
    if not sources:
        return found, None, ""
    try:
        following = _following(found, client, sources, options)
    except ForebayError as error:
        return found, None, f"what is read next cannot be shown: {one_line(error)}"
    found["next"] = following.as_json()
    return found, following, ""


def _read(checkpoints: Checkpoints, chosen: Checkpoint) -> tuple[Found, Data]:
    ranks = ranks_to_read(chosen)
    if not ranks or chosen.state == State.RETIRED:
        return {}, {}
    with checkpoints.reading(chosen.attempt, ends=False) as reading:
        manifests = reading.each([rank_manifest(rank) for rank in ranks], RankManifest.decode)
        data = reading.each([rank_data(rank) for rank in ranks], RankData.decode)
    return dict(zip(ranks, manifests.values(), strict=True)), dict(zip(ranks, data.values(), strict=True))


def _following(found: dict[str, Any], client: DaemonClient, sources: Sequence[str], options: FormatOptions) -> Upcoming:
    position, world_size = found["position"], found["world_size"]
    if position is None:
        raise CheckpointError("the checkpoint has no position in the data that could be read")
    return upcoming(position, open_manifest(sources, options, client), world_size)
