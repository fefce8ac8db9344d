"""Attempts of a few small objects, and putting them into a model store as uploads do."""

from forebay_core.checkpoints.documents import FileRecord, Item, RankManifest
from forebay_core.checkpoints.names import METADATA, Attempt, rank_data, rank_manifest
from forebay_core.checkpoints.protocol import commit
from tests.support.model_store import ModelStore, run


def attempt_of(generation: int, step: int, nonce: int = 0) -> Attempt:
    return Attempt(generation, step, f"{nonce:012x}")


def files_of(rank: int) -> dict[str, bytes]:
    """What a rank writes besides its manifest, by name."""
    files = {f"__{rank}_0.distcp": b"tensor of rank %d" % rank, rank_data(rank): b"{}"}
    return files | ({METADATA: b"metadata"} if rank == 0 else {})


def manifest_of(attempt: Attempt, rank: int, world_size: int) -> RankManifest:
    records = [FileRecord(name, len(body), (Item(0, len(body), 0),)) for name, body in files_of(rank).items()]
    return RankManifest(attempt, rank, world_size, tuple(records))


def upload(store: ModelStore, attempt: Attempt, ranks: list[int], world_size: int) -> None:
    for rank in ranks:
        for name, body in files_of(rank).items():
            store.put(attempt.key(name), body)
        store.put(attempt.key(rank_manifest(rank)), manifest_of(attempt, rank, world_size).encode())


def committed(store: ModelStore, generation: int, step: int, *, world_size: int = 1, nonce: int = 0) -> Attempt:
    """One that was uploaded and committed."""
    attempt = attempt_of(generation, step, nonce)
    upload(store, attempt, list(range(world_size)), world_size)
    assert run(commit(attempt, world_size), store)
    return attempt


def keys_of(store: ModelStore, attempt: Attempt) -> set[str]:
    """Its objects that are there."""
    return {key for key in store.objects if key.startswith(f"{attempt.directory}/")}
