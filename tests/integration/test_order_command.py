"""`forebay order` beside what loaders hand out: the same samples, positions and pads, over a real daemon."""

import json
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay import cli
from tests.integration.trainers import job
from tests.server.daemons import Daemon
from tests.support.data import write_parquet, write_tokens

SHARD_ROWS = 35
SAMPLES = 3 * SHARD_ROWS
OPTIONS = {"format": forebay.Parquet(piece_bytes=1), "order": forebay.OrderOptions(lanes=4, window=12)}
SAID = ["--format", "parquet", "--piece-bytes", "1", "--seed", "11", "--lanes", "4", "--window", "12"]


@pytest.fixture(scope="module")
def source(node: Daemon) -> str:
    """Three shards of pieces of 5 rows."""
    directory = node.socket.parent.parent / "data"
    write_parquet(directory, shards=3, rows=SHARD_ROWS, row_group_rows=5)
    return str(directory)


class Shown:
    """The command, run in this process."""

    def __init__(self, source: str, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._source, self._address, self._capsys = source, address, capsys

    def plain(self, *arguments: str) -> str:
        status = cli.run(["order", self._source, "--address", self._address, *arguments])
        said = self._capsys.readouterr()
        assert status == 0, said.err
        return said.out

    def error(self, *arguments: str) -> str:
        assert cli.run(["order", self._source, "--address", self._address, *arguments]) == 2
        return self._capsys.readouterr().err

    def step(self, *arguments: str) -> dict[str, Any]:
        step: dict[str, Any] = json.loads(self.plain(*arguments, "--json"))
        return step


@pytest.fixture
def show(source: str, node: Daemon, capsys: pytest.CaptureFixture[str]) -> Shown:
    return Shown(source, str(node.socket), capsys)


def handed_out(batches: list[dict[str, Any]]) -> list[list[tuple[int, int, bool]]]:
    """(position, sample id, is pad) of each rank's batch."""
    names = (forebay.POSITION, forebay.SAMPLE_ID, forebay.IS_PAD)
    return [list(zip(*(batch[name].tolist() for name in names), strict=True)) for batch in batches]


def said(step: dict[str, Any]) -> list[list[tuple[int, int, bool]]]:
    """The same of what was printed; shard and row must be those of the sample."""
    for rank in step["ranks"]:
        for one in rank["samples"]:
            assert int(one["shard"].removesuffix(".parquet")[-5:]) * SHARD_ROWS + one["row"] == one["sample_id"]
    return [[(s["position"], s["sample_id"], s["is_pad"]) for s in rank["samples"]] for rank in step["ranks"]]


@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 8), (3, 11)])
@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
def test_every_step_shown_is_the_step_handed_out(
    world_size: int, batch_size: int, tail: str, show: Shown, source: str, node: Daemon
) -> None:
    arguments = [*SAID, "--world-size", str(world_size), "--batch-size", str(batch_size), "--tail", tail]
    dataset = {**OPTIONS, "tail": tail}
    with job(source, str(node.socket), world_size=world_size, batch_size=batch_size, dataset=dataset) as ranks:
        ranks.run(2)
        ranks.run()
        steps = len(ranks.batches) - 2
        for number in range(steps):
            step = show.step(*arguments, "--epoch", "1", "--step", str(number))
            assert said(step) == handed_out(ranks.batches[2 + number])
            assert step["steps"] == steps == len(ranks.loaders[0])
        assert step["after"] == SAMPLES
        assert step["order"] == ranks.state["order"]
        assert step["dataset"] == ranks.state["dataset"]
        assert (step["pads"] > 0) == (tail == "pad")
    message = show.error(*arguments, "--epoch", "1", "--step", str(steps))
    assert f"there is no step {steps}: epoch 1 has {steps} steps of {world_size * batch_size} samples" in message


@pytest.mark.parametrize(("shuffle", "flag"), [("global", "global"), (False, "none")])
def test_other_shuffles_are_shown_as_they_are_handed_out(
    shuffle: Any, flag: str, show: Shown, source: str, node: Daemon
) -> None:
    with job(source, str(node.socket), world_size=2, batch_size=9, dataset={"shuffle": shuffle}) as ranks:
        ranks.run(3)
        step = show.step("--shuffle", flag, "--seed", "11", "--world-size", "2", "--batch-size", "9", "--step", "2")
        assert said(step) == handed_out(ranks.batches[2])


def test_after_a_resize_in_mid_epoch_steps_are_shown_from_the_position(
    show: Shown, source: str, node: Daemon, tmp_path: Path
) -> None:
    address = str(node.socket)
    with job(source, address, world_size=2, batch_size=8, dataset=OPTIONS) as ranks:
        ranks.run(3)
        state = ranks.state
    with job(source, address, world_size=5, batch_size=3, dataset=OPTIONS, state=state) as ranks:
        assert ranks.run() == 4
        sized = ["--world-size", "5", "--batch-size", "3"]
        for number, batches in enumerate(ranks.batches):
            by_position = show.step(*SAID, *sized, "--position", "48", "--step", str(number))
            assert said(by_position) == handed_out(batches)
            assert (by_position["start"], by_position["steps"]) == (48, 4)
        assert "numbered from 0 to 3" in show.error(*SAID, *sized, "--position", "48", "--step", "4")
    saved = tmp_path / "checkpoint.json"
    saved.write_text(json.dumps({"step": 7, "data": {"loader": state}}))
    data = ["--format", "parquet", "--piece-bytes", "1", "--state", str(saved)]
    assert said(show.step(*data, *sized, "--step", "3")) == handed_out(ranks.batches[3])
    measured = show.step(*data, "--quality")
    assert (measured["order"], measured["epoch"], measured["global_batch"]) == (state["order"], 0, 16)
    assert cli.run(["order", source, "--address", address, "--state", str(saved), "--format", "parquet"]) == 1
    with job(source, address, world_size=4, batch_size=4, dataset=OPTIONS, state=state) as ranks:
        ranks.run(1)
        assert said(show.step(*data, "--world-size", "4")) == handed_out(ranks.batches[0])


def test_a_state_with_no_step_left_shows_the_next_epoch_as_the_loader_begins_it(
    show: Shown, source: str, node: Daemon, tmp_path: Path
) -> None:
    dataset = {**OPTIONS, "tail": "drop"}
    with job(source, str(node.socket), world_size=1, batch_size=25, dataset=dataset) as ranks:
        ranks.run(3)
        state = ranks.state
    assert state["position"] == 75
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(state))
    with job(source, str(node.socket), world_size=2, batch_size=20, dataset=dataset, state=state) as ranks:
        ranks.run(1)
        sized = ["--world-size", "2", "--batch-size", "20"]
        step = show.step("--format", "parquet", "--piece-bytes", "1", "--state", str(saved), *sized)
        assert said(step) == handed_out(ranks.batches[0])
        assert (step["epoch"], step["position"]) == (1, 0)


def test_a_step_is_shown_by_rank_and_shard_for_people(show: Shown, source: str) -> None:
    sized = ["--world-size", "3", "--batch-size", "10", "--shuffle", "none"]
    shown = show.plain(*sized, "--step", "1")
    assert shown.startswith("epoch 0, step 1 of 4: positions 30 to 59 over 3 ranks, then position 60\n")
    assert source in shown
    assert [
        " ".join(line.strip("│").replace("│", " ").split()) for line in shown.splitlines() if ".parquet" in line
    ] == [
        "0 shard-00000.parquet 30-34 30-34 5",
        "0 shard-00001.parquet 0-4 35-39 5",
        "1 shard-00001.parquet 5-14 40-49 10",
        "2 shard-00001.parquet 15-24 50-59 10",
    ]
    one = show.plain(*sized, "--step", "1", "--rank", "2")
    assert [line for line in one.splitlines() if ".parquet" in line] == [shown.splitlines()[-2]]
    assert "rank 3 is not one of 3 ranks" in show.error(*sized, "--rank", "3")


def test_token_files_are_shown_with_their_sample_length(
    node: Daemon, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tokens(home / "tokens" / "a.bin", samples=30, sequence_length=4, dtype="uint16")
    show = Shown(str(home / "tokens"), str(node.socket), capsys)
    step = show.step("--sequence-length", "4", "--dtype", "uint16", "--batch-size", "30")
    assert sorted(one["sample_id"] for one in step["ranks"][0]["samples"]) == list(range(30))
    assert step["ranks"][0]["samples"][0]["shard"].endswith("/tokens/a.bin")


def test_the_quality_of_an_order_is_shown_beside_a_true_shuffle(show: Shown) -> None:
    sized = [*SAID, "--world-size", "8", "--batch-size", "1", "--ranks-per-node", "1"]
    shown = show.plain("--quality", *sized)
    assert "105 samples in 21 pieces of 3 shards, 4 lanes, window 12" in shown
    assert "in brackets: a true shuffle" in shown
    assert "pieces in a batch" in shown
    measured = show.step("--quality", *sized)
    assert measured["quality"]["nodes"] == 8
    assert measured["quality"]["fetches_per_piece"] > 1.5
    assert any("raise the lanes, which are 4" in said for said in measured["advice"])
    assert all(said in shown for said in measured["advice"])
    assert measured["quality"]["middle"]["true_shuffle"]["pieces_per_batch"] > 6
