"""What `forebay order` makes of its options and of a state, and how it shows a step; without a daemon."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from forebay import cli, progress
from forebay.console import make_console
from forebay.order import Order, OrderOptions, Split
from forebay.order.quality import measure
from forebay.order_command import contents, tables
from forebay.order_command.chosen import Choice, check, find_state
from forebay.order_command.format_options import FormatOptions, absolute_urls
from forebay.progress import Identity, Progress, SavedState
from forebay_core.errors import ConfigurationError, StateError, StateMismatch
from forebay_core.formats import Parquet, Tokens
from forebay_core.formats.base import Cut, ObjectCut, ObjectInfo
from forebay_core.manifest import Manifest
from tests.client.order import model
from tests.client.order.strategies import splits

SCHEMA = pa.schema([("id", pa.int64())])


def manifest(*shards: tuple[int, ...], names: str = "shard-{}") -> Manifest:
    """Shards of pieces of these rows."""
    entries = [
        (
            ObjectInfo(names.format(number), 1000, "v1"),
            ObjectCut([Cut(rows, 10 * i, 10 * i + 9, i, 1, 8 * rows) for i, rows in enumerate(pieces)], SCHEMA),
        )
        for number, pieces in enumerate(shards)
    ]
    return Manifest.build("s3://bucket/train", Parquet(), entries)


def state_of(data: Manifest, order: Order, *, epoch: int = 2, position: int = 8, tail: str = "even") -> dict[str, Any]:
    made = Progress()
    made.commit(epoch, position, 4)
    return made.encode(Identity(data.fingerprint, order.samples, {**order.spec(), "tail": tail}))


def shown(data: Manifest, batches: list[contents.RankBatch]) -> list[str]:
    """The lines of the table of a step."""
    console = Console(width=400, markup=False, emoji=False, no_color=True)
    with console.capture() as capture:
        console.print(tables.step_table(data, batches))
    return capture.get().splitlines()


@given(st.integers(0, 100), st.integers(0, 100), splits())
@settings(max_examples=100, deadline=None)
def test_a_step_is_found_where_walking_there_leads(samples: int, start: int, split: Split) -> None:
    start = min(start, samples)
    position, walked = start, []
    while (step := model.next_step(samples, position, **vars(split))) is not None:
        walked.append((position, len(step.take), len(step.pads), step.after))
        position = step.after
    for number, expected in enumerate(walked):
        found = contents.find_step(samples, split, epoch=1, start=start, number=number)
        at = found.step
        assert (at.position, at.take, at.pads, at.after) == expected
        assert found.steps == len(walked)
    with pytest.raises(ConfigurationError, match=rf"epoch 1 has {len(walked)} steps .* from position {start} on"):
        contents.find_step(samples, split, epoch=1, start=start, number=len(walked))


def test_both_of_the_steps_into_which_an_even_tail_is_cut_are_found() -> None:
    steps = [contents.find_step(13, Split(4, 10), epoch=0, start=0, number=number).step for number in (0, 1)]
    assert [(step.position, step.take, step.after) for step in steps] == [(0, 7, 7), (7, 6, 13)]


def test_the_last_step_of_a_very_long_epoch_is_found_at_once() -> None:
    found = contents.find_step(10**15 + 1, Split(4, 4, "drop"), epoch=0, start=0, number=10**15 // 4 - 1)
    assert (found.step.position, found.step.after) == (10**15 - 4, 10**15 + 1)


def test_a_position_beyond_the_data_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="position 11 is beyond the dataset's 10 samples"):
        contents.find_step(10, Split(1, 1), epoch=0, start=11, number=0)


def test_rows_count_within_their_shard_and_ids_within_the_dataset() -> None:
    data = manifest((3, 4), (), (5,), (2, 6, 1))
    order = Order(data.piece_rows, seed=3, options=OrderOptions(lanes=2, window=4))
    split = Split(3, 21, "even")
    found = contents.find_step(21, split, epoch=4, start=0, number=0)
    batches = contents.rank_batches(data, order.epoch(4), found, split, range(3))
    rows_of_shard = [range(7), range(0), range(5), range(9)]
    place = [(shard, row) for shard, rows in enumerate(rows_of_shard) for row in rows]
    places = [(int(s), int(r)) for batch in batches for s, r in zip(batch.shard, batch.row, strict=True)]
    ids = [int(sample) for batch in batches for sample in batch.sample_id]
    assert sorted(ids) == list(range(21))
    assert [place[sample] for sample in ids] == places
    written = contents.as_json(data, batches)
    assert [one["sample_id"] for rank in written for one in rank["samples"]] == ids
    assert written[0]["samples"][0]["shard"] == f"s3://bucket/train/shard-{places[0][0]}"


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranges_hold_exactly_the_numbers(numbers: set[int]) -> None:
    text = tables.ranges(np.array(sorted(numbers)), shown=100)
    bounds = [[int(bound) for bound in part.split("-")] for part in text.split(", ")]
    assert {n for bound in bounds for n in range(bound[0], bound[-1] + 1)} == numbers
    assert all(one[-1] + 1 < other[0] for one, other in pairwise(bounds))


def test_many_ranges_are_counted_not_listed() -> None:
    assert tables.ranges(np.array([0, 1, 2, 7])) == "0-2, 7"
    assert tables.ranges(np.arange(0, 14, 2)) == "0, 2, 4, 6, 8, 10, 12"
    assert tables.ranges(np.arange(0, 2_000_000, 2)) == "0, 2, 4, 6, 8, 10, … 999,994 more ranges"


def test_a_large_batch_takes_a_dozen_lines_a_rank_and_its_pads_stand_apart() -> None:
    data = manifest(*[(100,)] * 40)
    order = Order(data.piece_rows, seed=0, options=OrderOptions(window=250))
    split = Split(2, 5000, "pad")
    found = contents.find_step(4000, split, epoch=0, start=0, number=0)
    lines = shown(data, contents.rank_batches(data, order.epoch(0), found, split, range(2)))
    first = [line for line in lines if line.startswith("│    0 │ shard")]
    assert len(first) == 12
    assert "0-99" in first[0]
    assert any("… 13 more shards" in line and "1,300 │" in line for line in lines)
    small = Split(1, 6, "pad")
    end = contents.find_step(10, small, epoch=0, start=6, number=0)
    few = manifest((10,))
    batches = contents.rank_batches(few, Order([10], seed=0, shuffle=False).epoch(0), end, small, [0])
    body = [line for line in shown(few, batches) if "shard-0" in line]
    assert [line.split("│")[3:-1] for line in body] == [
        [" 6-9  ", " 6-9        ", "       4 "],
        [" 4-5  ", " 4-5        ", "  2 pads "],
    ]
    assert tables.step_heading(end, 1) == (
        "epoch 0, step 0 of 1 counted from position 6: positions 6 to 9 and 2 pads over 1 rank, then position 10"
    )


def test_a_figure_that_there_is_not_is_shown_as_a_dash() -> None:
    measured = measure(Order([1], seed=0), np.array([1]), np.array([0]), split=Split(1, 1))
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(tables.quality_table(measured))
    assert "– (–)" in capture.get()
    assert "1 sample in 1 piece of 1 shard" in tables.quality_heading(measured)


def test_a_key_is_shown_as_it_stands_and_always_printable(tmp_path: Path) -> None:
    data = manifest((4,), names="a[bold]:smile:\udce9-{}")
    order = Order([4], seed=0, shuffle=False)
    found = contents.find_step(4, Split(1, 4), epoch=0, start=0, number=0)
    batches = contents.rank_batches(data, order.epoch(0), found, Split(1, 4), [0])
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        make_console(file).print(tables.step_table(data, batches))
    assert "a[bold]:smile:\ufffd-0" in (tmp_path / "out").read_text(encoding="utf-8")


def test_a_state_says_the_order_the_place_and_the_batch() -> None:
    data = manifest((30, 30), (40,))
    order = Order(data.piece_rows, seed=9, options=OrderOptions(lanes=4, window=7, sticky=False))
    saved = progress.decode(json.loads(json.dumps(state_of(data, order, tail="drop"))))
    resumed = Choice().resumed(saved)
    assert (resumed.epoch, resumed.position) == (2, 8)
    assert resumed.split(2) == Split(2, 4, "drop")
    assert resumed.order(data).spec() == order.spec()
    check(saved, data, resumed.order(data), resumed.tail)
    assert Choice(epoch=3).resumed(saved).position is None
    assert Choice(position=20).resumed(saved).position == 20
    assert Choice(batch_size=5).resumed(saved).split(2) == Split(2, 10, "drop")
    assert Choice(seed=9, tail="drop", shuffle="window").resumed(saved) == resumed


@pytest.mark.parametrize("shuffle", ["window", "global", False])
def test_each_shuffle_is_made_again_from_its_state(shuffle: Any) -> None:
    data = manifest((30, 30), (40,))
    order = Order(data.piece_rows, seed=1, shuffle=shuffle, options=OrderOptions(lanes=3))
    saved = progress.decode(state_of(data, order))
    again = Choice().resumed(saved)
    assert again.order(data).spec() == order.spec()
    check(saved, data, again.order(data), again.tail)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": 4}, "seed is 4 on the command line, 9 in the state"),
        ({"shuffle": False}, "shuffle is none on the command line, window in the state"),
        ({"window": 8}, "window is 8"),
        ({"lanes": 2}, "lanes is 2"),
        ({"sticky": False}, "sticky is False on the command line, True in the state"),
        ({"tail": "pad"}, "tail is pad"),
    ],
)
def test_an_option_that_contradicts_the_state_is_refused(given: dict[str, Any], message: str) -> None:
    data = manifest((30, 30), (40,))
    order = Order(data.piece_rows, seed=9, options=OrderOptions(lanes=4, window=7))
    saved = progress.decode(state_of(data, order))
    with pytest.raises(ConfigurationError, match=message):
        Choice(**given).resumed(saved)


def test_a_state_of_other_data_or_of_an_unknown_order_is_refused() -> None:
    data, other = manifest((30, 30), (40,)), manifest((30, 30), (41,))
    order = Order(data.piece_rows, seed=9)
    saved = progress.decode(state_of(data, order))
    with pytest.raises(StateMismatch, match=r"dataset\.samples is 101 here, 100 in the state"):
        check(saved, other, Choice().resumed(saved).order(other), "even")
    mixture = SavedState(Identity("x", 100, {"algorithm": "mixture-1"}), 0, 0, None)
    with pytest.raises(StateError, match="the order 'mixture-1', of which no single dataset's batches"):
        Choice().resumed(mixture)


def test_a_state_with_no_step_left_goes_on_in_the_next_epoch_and_a_position_does_not() -> None:
    choice = Choice(epoch=2, position=8)
    drop, even = Split(1, 4, "drop"), Split(1, 4, "even")
    assert choice.place(drop, 10, is_loaded=True) == (3, 0)
    assert choice.place(drop, 10, is_loaded=False) == choice.place(even, 10, is_loaded=True) == (2, 8)
    assert Choice().place(even, 10, is_loaded=True) == (0, 0)


def test_a_state_is_found_at_any_depth_of_a_checkpoint() -> None:
    data = manifest((10,))
    state = state_of(data, Order([10], seed=0))
    assert find_state(state) == state
    assert find_state({"rng": [1], "ranks": [{"data": {"loader": state}}, {"data": {"loader": state}}]}) == state
    with pytest.raises(StateError, match="no state of a forebay loader"):
        find_state({"model": [1, 2], "version": 1})
    with pytest.raises(StateError, match=r"different states in it, at \$\.train, \$\.eval\[0\]"):
        find_state({"train": state, "eval": [{**state, "epoch": 7}]})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (FormatOptions(), None),
        (FormatOptions("parquet"), Parquet()),
        (FormatOptions("parquet", piece_bytes=5), Parquet(piece_bytes=5)),
        (FormatOptions(sequence_length=8, dtype="uint16"), Tokens(8, "uint16")),
        (FormatOptions("tokens", 8, piece_bytes=1 << 20), Tokens(8, piece_bytes=1 << 20)),
        (FormatOptions('{"name": "tokens", "sequence_length": 4}', dtype="int32"), Tokens(4, "int32")),
    ],
)
def test_a_format_is_made_of_its_options(given: FormatOptions, expected: Any) -> None:
    assert given.format() == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (FormatOptions("tokens"), "give --sequence-length"),
        (FormatOptions(dtype="uint16"), "give --sequence-length"),
        (FormatOptions(piece_bytes=5), "give --format beside it"),
        (FormatOptions("{"), "neither a name nor a JSON object"),
        (FormatOptions("{}"), "names no format"),
        (FormatOptions("parquet", sequence_length=8), "does not take these options"),
        (FormatOptions("cvs"), "unknown format 'cvs'"),
    ],
)
def test_a_format_that_cannot_be_made_is_a_configuration_error(given: FormatOptions, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        given.format()


def test_paths_are_made_absolute_as_the_daemon_needs_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_urls(["s3://b/x", "train/", "/data/**/*.bin"]) == [
        "s3://b/x",
        f"{tmp_path}/train/",
        "/data/**/*.bin",
    ]
    with pytest.raises(ConfigurationError, match="names no data"):
        absolute_urls([""])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "how large a batch is, is not said"),
        (["x", "--batch-size", "2", "--global-batch-size", "4"], "contradict each other"),
        (["x", "--batch-size", "2", "--world-size", "0"], "give the number of ranks, 1 or more"),
        (["x", "--batch-size", "2", "--tail", "half"], "'half' is not one of 'even', 'drop', 'pad'"),
        (["x", "--batch-size", "2", "--quality", "--step", "3"], "leave --step, --position and --rank out"),
        (["x", "--batch-size", "0"], "see forebay order --help"),
        (["x", "--state", "/nonexistent"], "/nonexistent cannot be read (No such file or directory)"),
        (["--batch-size", "2"], "Missing argument 'SOURCE…'"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_before_any_daemon_is_asked(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.run(["order", *arguments, "--address", "/nobody"])
    said = capsys.readouterr()
    assert status == (1 if "--state" in arguments else 2)
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_file_that_is_no_json_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, written in enumerate((b"\x80\x02}q", b"{", b"[]")):
        path = tmp_path / str(number)
        path.write_bytes(written)
        assert cli.run(["order", "x", "--batch-size", "2", "--state", str(path), "--json"]) == 1
        said = capsys.readouterr()
        assert json.loads(said.out)["error"] == "StateError"
        assert said.err.startswith(f"forebay: {path}")


def test_the_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    assert "order Show which samples" in " ".join(capsys.readouterr().out.replace("│", " ").split())


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from forebay import cli
print(cli.run(["order", "--help"]), [name for name in ("grpc", "mlflow") if name in sys.modules])
"""


def test_the_command_needs_no_torch_and_its_help_lists_its_options() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], check=False, capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.stdout.endswith("0 []\n"), done.stderr
    options = ("--world-size", "--batch-size", "--position", "--state", "--quality", "--ranks-per-node", "--no-sticky")
    assert all(option in done.stdout for option in options)
