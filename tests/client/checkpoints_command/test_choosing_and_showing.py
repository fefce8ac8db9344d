"""Which checkpoint is meant, and what is shown of it; without a daemon."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from forebay.checkpoint.bundle import RankData
from forebay.checkpoints_command import tables
from forebay.checkpoints_command.asking import Removed
from forebay.checkpoints_command.chosen import choose
from forebay.checkpoints_command.contents import document, ranks_to_read, where
from forebay.checkpoints_command.upcoming import upcoming
from forebay.checkpoints_command.verifying import Fault, Verified, print_verified
from forebay.daemon.checkpoint_root import Checkpoint, Listing
from forebay.digest import SampleDigest
from forebay.order import Order, Split
from forebay.order_command import contents as steps
from forebay.progress import Identity, Progress
from forebay_core.checkpoints.documents import FileRecord, Generation, Item, RankManifest
from forebay_core.checkpoints.names import Attempt
from forebay_core.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    ConfigurationError,
    StateError,
    StateMismatch,
)
from forebay_core.formats import Parquet
from forebay_core.formats.base import Cut, ObjectCut, ObjectInfo
from forebay_core.manifest import Manifest

ROOT = "s3://bucket/runs/a"
NONCE = "0123456789ab"


def attempt(generation: int, step: int, nonce: str = NONCE) -> Attempt:
    return Attempt(generation, step, nonce)


def listing(*checkpoints: Checkpoint) -> Listing:
    return Listing(ROOT, tuple(sorted(checkpoints, key=lambda each: each.attempt, reverse=True)), 9)


COMMITTED = [Checkpoint(attempt(1, step), "committed") for step in (10, 20)]
REWOUND = Checkpoint(attempt(2, 20), "committed")
BEGUN = Checkpoint(attempt(2, 30), "", durable_ranks=(0,), world_size=2)
ALL = listing(*COMMITTED, REWOUND, BEGUN)


def printed(renderable: Any) -> str:
    console = Console(width=400, markup=False, emoji=False, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_the_newest_that_is_committed_is_meant_where_nothing_is_said() -> None:
    assert choose(ALL, None) == REWOUND
    assert choose(ALL, None, committed=True) == REWOUND
    assert choose(listing(BEGUN), None) == BEGUN


@pytest.mark.parametrize(
    ("which", "meant"),
    [("10", COMMITTED[0]), ("20", REWOUND), ("30", BEGUN), (COMMITTED[1].attempt.name, COMMITTED[1])],
)
def test_a_step_means_the_last_start_that_committed_it_and_a_name_means_itself(which: str, meant: Checkpoint) -> None:
    assert choose(ALL, which) == meant


def test_of_two_attempts_at_a_step_the_committed_one_is_meant_though_the_other_is_newer() -> None:
    failed = Checkpoint(attempt(3, 20), "abandoned")
    assert choose(listing(REWOUND, failed), "20") == REWOUND


def test_the_begin_of_a_name_is_enough_where_it_is_one_attempts_alone() -> None:
    assert choose(ALL, "g000001-s000000010") == COMMITTED[0]
    with pytest.raises(ConfigurationError, match=r"the begin of 2 attempts .*g000001-s000000020.* give more"):
        choose(ALL, "g000001")


@pytest.mark.parametrize("which", ["last", "g", "-1", "1.5", "²", ""])
def test_what_is_neither_a_step_nor_a_name_is_a_wrong_call(which: str) -> None:
    with pytest.raises(ConfigurationError, match="neither a step nor an attempt"):
        choose(ALL, which)


def test_what_is_not_there_is_said_with_what_is() -> None:
    with pytest.raises(CheckpointNotFound, match=rf"of step 15 at {ROOT}: committed are the steps 20, 10$"):
        choose(ALL, "15")
    many = listing(*(Checkpoint(attempt(1, step), "committed") for step in range(20)))
    with pytest.raises(CheckpointNotFound, match=r"19, 18, 17, 16, 15, 14, 13, 12 and 12 more$"):
        choose(many, "99")
    with pytest.raises(CheckpointNotFound, match="none is committed"):
        choose(listing(BEGUN), "31")


def test_where_a_committed_one_is_needed_another_is_refused_with_its_state() -> None:
    with pytest.raises(CheckpointNotFound, match=r"of step 30 is committed .* is undecided"):
        choose(ALL, "30", committed=True)
    gone = listing(Checkpoint(attempt(1, 5), "retired"))
    with pytest.raises(CheckpointNotFound, match=r"at all is committed .* is retired"):
        choose(gone, None, committed=True)


def test_where_a_checkpoint_is_is_said_in_words() -> None:
    assert where(REWOUND) == "durable"
    assert where(BEGUN) == "1 of 2 ranks at the destination"
    both = Checkpoint(attempt(1, 1), "committed", staged_ranks=(0,))
    assert where(both) == "durable, staged here"
    assert where(Checkpoint(attempt(1, 1), "abandoned")) == ""


def test_the_ranks_of_a_committed_one_are_known_from_its_world_size_alone() -> None:
    assert ranks_to_read(Checkpoint(attempt(1, 1), "committed", world_size=3)) == [0, 1, 2]
    assert ranks_to_read(BEGUN) == [0]
    assert ranks_to_read(Checkpoint(attempt(1, 1), "abandoned", world_size=3)) == []


# -- one checkpoint ---


def data() -> Manifest:
    """Four shards of 25 samples."""
    schema = pa.schema([("id", pa.int64())])
    entries = [
        (ObjectInfo(f"{n}.parquet", 1000, "v1"), ObjectCut([Cut(25, 0, 99, 0, 1, 200)], schema)) for n in range(4)
    ]
    return Manifest.build("s3://bucket/train", Parquet(), entries)


def order() -> Order:
    return Order(data().piece_rows, seed=3, shuffle="window", total_bytes=data().total_bytes)


def loader_state(*, fingerprint: str = "", position: int = 40) -> dict[str, Any]:
    progress = Progress()
    progress.commit(1, position, 8)
    identity = Identity(fingerprint or data().fingerprint, 100, {**order().spec(), "tail": "even"})
    return progress.encode(identity)


def manifest(rank: int, *, seconds: float = 1.5) -> RankManifest:
    file = FileRecord(f"__{rank}_0.distcp", 100, (Item(0, 100, 1),))
    return RankManifest(attempt(2, 20), rank, 2, (file,), {"host": f"node{rank}", "local_seconds": seconds, "x": [1]})


WHOLE = Checkpoint(attempt(2, 20), "committed", world_size=2, durable_ranks=(0, 1), staged_ranks=(1,))
DIGESTS = [SampleDigest((1 << 128) - 1, 20), SampleDigest(256, 20, 3)]


def bundle(rank: int, data_rank: int, digest: dict[str, Any] | None = None) -> RankData:
    digest = digest or DIGESTS[data_rank].encode()
    return RankData(20, rank, 2, data_rank, 2, loader_state(), digest, {"python": [rank, 2]})


def shown(**given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "manifests": {0: manifest(0), 1: manifest(1)},
        "data": {0: bundle(0, 0), 1: bundle(1, 1)},
        "generation": Generation(2, "t", attempt(1, 20), {"host": "node0", "world_size": 2}),
    }
    return document(ROOT, WHOLE, **(values | given))


def test_position_ranks_sizes_times_digest_and_parent_are_in_the_document() -> None:
    found = shown()
    assert found["position"]["position"] == 40
    assert found["sample_digest"]["value"] == f"{255:032x}"
    assert found["parent"] == attempt(1, 20).name
    assert found["size_bytes"] == 200
    assert [(row["rank"], row["size_bytes"], row["is_durable"], row["is_staged_here"]) for row in found["ranks"]] == [
        (0, 100, True, False),
        (1, 100, True, True),
    ]
    assert found["ranks"][1]["notes"]["host"] == "node1"
    text = printed(tables.shown(found, None, now=0.0))
    for expected in ("step 20, committed", "epoch 1, 40 of 100 samples", f"digest {255:032x} of 40", "node1", "1.500"):
        assert expected in text
    assert f"went on from {attempt(1, 20).name}" in text


def test_what_cannot_be_read_is_a_note_and_the_rest_is_shown() -> None:
    found = shown(
        manifests={0: manifest(0), 1: CheckpointDamaged("rank 1's is cut off")},
        data={rank: CheckpointError("the checkpoint's documents have version 7") for rank in (0, 1)},
        generation=None,
    )
    assert [row["rank"] for row in found["ranks"]] == [0]
    assert found["position"] is None
    text = printed(tables.shown(found, None, now=0.0))
    assert "note: rank 1: rank 1's is cut off" in text
    assert "note: the position cannot be read: the checkpoint's documents have version 7" in text


def test_a_checkpoint_without_a_loader_says_so() -> None:
    without = replace(bundle(0, 0), loader=None, digest=None)
    assert shown(data={0: without})["notes"] == ["it holds no position of a forebay loader"]


def test_ranks_that_read_the_same_samples_count_once_in_the_digest() -> None:
    found = shown(data={0: bundle(0, 0), 1: bundle(1, 0), 2: bundle(2, 1), 3: bundle(3, 1)})
    assert found["sample_digest"]["samples"] == 40


def test_a_digest_of_which_a_rank_is_missing_is_not_shown() -> None:
    found = shown(data={0: bundle(0, 0), 1: CheckpointDamaged("data/00001.json is cut off")})
    assert found["position"]["position"] == 40
    assert found["sample_digest"] is None
    assert found["notes"] == ["the sample digest is not known: rank 1: data/00001.json is cut off"]
    other = bundle(1, 1, {"algorithm": "samples-9"})
    assert "samples-9" in shown(data={0: bundle(0, 0), 1: other})["notes"][0]


def test_what_is_read_next_is_what_the_order_hands_out_at_the_position() -> None:
    found = upcoming(loader_state(), data(), 2)
    split = Split(2, 8, "even")
    step = steps.find_step(100, split, epoch=1, start=40, number=0)
    expected = steps.rank_batches(data(), order().epoch(1), step, split, range(2))
    next_rows = found.as_json()
    assert (next_rows["epoch"], next_rows["position"], next_rows["after"]) == (1, 40, 48)
    assert sum(row["samples"] for row in next_rows["shards"]) == 8
    for row in next_rows["shards"]:
        batch = expected[row["rank"]]
        rows = [
            int(r) for s, r in zip(batch.shard, batch.row, strict=True) if data().object_url(int(s)) == row["shard"]
        ]
        assert (row["first_row"], row["last_row"], row["samples"]) == (min(rows), max(rows), len(rows))
    assert "0.parquet" in printed(tables.shown(shown(), found, now=0.0))


def test_a_position_at_the_end_of_an_epoch_goes_on_in_the_next() -> None:
    assert upcoming(loader_state(position=100), data(), 2).found.epoch == 2


def test_what_is_read_next_is_not_said_of_other_data_or_of_a_mixture() -> None:
    with pytest.raises(StateMismatch, match="fingerprint"):
        upcoming(loader_state(fingerprint="sha256:other"), data(), 2)
    mixture = loader_state()
    mixture["order"] = {"algorithm": "mixture-1"}
    with pytest.raises(StateError, match="no single dataset"):
        upcoming(mixture, data(), 2)


def test_names_that_a_terminal_would_obey_are_written_out() -> None:
    found = shown(generation=Generation(2, "t", None, {"host": "\x1b[31mred"}))
    found["reason"] = "\x1b[2J"
    text = printed(tables.shown(found, None, now=0.0))
    assert "\x1b" not in text
    assert r"\x1b[31mred" in text


# -- lists ---


def test_the_list_says_state_place_size_and_age() -> None:
    large = Checkpoint(attempt(3, 40), "committed", world_size=4, size_bytes=3 << 30, decided_unix_seconds=1000.0)
    bad = Checkpoint(attempt(3, 35), "quarantined", "objects.pt: differs")
    text = printed(tables.listed(listing(large, bad, BEGUN), now=1060.0))
    assert "1 committed of 3" in text
    assert "3.0 GiB" in text
    assert "60 s" in text
    assert "quarantined: objects.pt: differs" in text
    assert "undecided" in text


def test_what_went_is_summed_up() -> None:
    console = Console(width=400, markup=False, no_color=True)
    with console.capture() as capture:
        tables.print_removed(
            console, [Removed("g1", "retired", 5, 2048), Removed("g2", "abandoned", 1, 0)], dry_run=True
        )
        tables.print_removed(console, [], dry_run=False)
    assert "would delete 6 objects, 2.0 KiB" in capture.get()
    assert "nothing had to go" in capture.get()


def test_damage_names_file_and_place_and_says_what_to_do() -> None:
    console = Console(width=400, markup=False, no_color=True)
    faults = (Fault("__0_0.distcp", "bytes 100 to 200 are not what was written"),)
    with console.capture() as capture:
        print_verified(console, ROOT, [Verified("g1", 3, 100, faults, "committed")], deep=True)
    assert "g1: __0_0.distcp: bytes 100 to 200 are not what was written" in capture.get()
    assert f"forebay checkpoints verify {ROOT} ATTEMPT --quarantine" in capture.get()
    with console.capture() as capture:
        print_verified(console, ROOT, [Verified("g1", 3, 100, (), "committed")], deep=True)
    assert capture.get().strip() == "g1: 3 files, 100 B: as written"
