"""One checkpoint as a rank reads it: its files wherever they are, and what is in them but for the tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from forebay.checkpoint.bundle import RankData
from forebay.checkpoint.calling import Calls
from forebay.checkpoint.manifests import read_manifests
from forebay.checkpoint.objects import decoded
from forebay.checkpoint.positions import Ranks, data_of, total_digest
from forebay.checkpoint.reader import CheckpointReader
from forebay.digest import SampleDigest
from forebay_core.checkpoints.names import OBJECTS, Attempt, rank_data
from forebay_core.errors import CheckpointDamaged

#: A file that its owner has still to upload is waited for so long.
_FETCH_SECONDS = 900.0


class Files:
    """The files of an attempt on this node. Called as `fetch`: gives a local file for a name."""

    def __init__(self, calls: Calls, attempt: Attempt) -> None:
        self._calls, self.attempt = calls, attempt
        self._found: dict[str, Path] = {}
        self.are_staged = True
        """Whether all that were asked for were staged on this node."""

    def __call__(self, name: str) -> Path:
        if name not in self._found:
            self._found[name], is_staged = self._calls.fetch(self.attempt, name, wait_seconds=_FETCH_SECONDS)
            self.are_staged &= is_staged
        return self._found[name]


@dataclass(frozen=True)
class Contents:
    """data: the position that this rank takes over. digest: of all ranks, as rank 0 knows it.

    settings: what the state has beside tensors; objects: the states of the user's.
    """

    reader: CheckpointReader
    data: RankData
    digest: SampleDigest | None
    settings: Mapping[str, Any]
    objects: Mapping[str, Any]

    @classmethod
    def read(cls, files: Files, here: Ranks) -> Self:
        """Raises `CheckpointDamaged` for what is not what was written, and what fetching raises."""
        where = files.attempt.name
        manifests = read_manifests(files, where)
        if manifests[0].attempt != files.attempt:
            raise CheckpointDamaged(f"{where} has the manifests of {manifests[0].attempt.name}")
        reader = CheckpointReader(where, fetch=files, manifests=manifests)
        world_size = manifests[0].world_size

        def data(rank: int) -> RankData:
            return RankData.decode(reader.read_file(rank_data(rank)))

        everyone = map(data, range(world_size if here.rank == 0 else 0))
        digest = total_digest((each.data_rank, each.digest) for each in everyone)
        kept = decoded(reader.read_file(OBJECTS))
        return cls(reader, data_of(here, world_size, data), digest, kept["settings"], kept["objects"])
