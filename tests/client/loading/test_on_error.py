"""Samples that cannot be read: whose they were is said, and `on_error="skip"` puts others in their place."""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
import torch

import forebay
from forebay import IS_PAD, POSITION, SAMPLE_ID
from forebay.skipping import KEPT_RECORDS, SkipLedger, SkippedSample

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WAYS: dict[str, dict[str, Any]] = {
    "in process": {},
    "2 threads": {"num_workers": 2, "worker_type": "thread"},
    "2 processes": {"num_workers": 2, "multiprocessing_context": "fork"},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


class Numbers:
    """`{"x": index}`; the indices in `bad` raise what it gives."""

    def __init__(self, length: int, bad: Sequence[int] = (), error: Callable[[str], BaseException] = ValueError):
        self.length, self.bad, self.error = length, frozenset(bad), error

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise self.error(f"{index} is\nbad")
        return {"x": torch.tensor(index)}


def loader(dataset: Any, batch_size: int, **options: Any) -> forebay.DataLoader:
    extras = options.pop("extras", (SAMPLE_ID, POSITION, IS_PAD))
    return forebay.DataLoader(dataset, batch_size, extras=extras, report_to=None, **options)


@ways
def test_an_error_passes_as_it_is_and_names_the_sample(way: dict[str, Any]) -> None:
    with closing(loader(Numbers(20, [13]), 5, **way)) as made:
        made.load_state_dict({**made.state_dict(), "epoch": 2, "position": 5})
        with pytest.raises(ValueError, match="13 is") as caught:
            list(made)
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert said.count("while reading sample 13 (index 13, epoch 2, position 13)") == 1


@ways
def test_an_error_has_its_own_arguments_and_a_note_of_the_sample(way: dict[str, Any]) -> None:
    data = Numbers(20, [13], lambda text: OSError(5, text, "13.jpg"))
    with closing(loader(data, 5, **way)) as made, pytest.raises(OSError, match="13 is") as caught:
        list(made)
    assert (caught.value.errno, caught.value.filename) == (5, "13.jpg")
    assert caught.value.__notes__ == ["while reading sample 13 (index 13, epoch 0, position 13)"]


def test_an_error_object_that_is_raised_again_is_noted_once() -> None:
    error = ValueError("always this one")
    with closing(loader(Numbers(4, [1], lambda _: error), 2)) as made:
        for _ in range(3):
            with pytest.raises(ValueError, match="this one"):
                next(iter(made))
            made.set_epoch(0)
    assert error.__notes__ == ["while reading sample 1 (index 1, epoch 0, position 1)"]


@ways
def test_a_bad_sample_is_replaced_by_the_next_good_one_of_its_batch_which_is_marked(way: dict[str, Any]) -> None:
    with closing(loader(Numbers(15, [1, 8, 9, 10, 12, 14]), 5, on_error="skip", **way)) as made:
        batches = list(made)
        records = made.skipped
    assert [batch["x"].tolist() for batch in batches] == [[0, 2, 2, 3, 4], [5, 6, 7, 5, 5], [11, 11, 13, 13, 11]]
    for batch in batches:
        assert batch[SAMPLE_ID].tolist() == batch[POSITION].tolist() == batch["x"].tolist()
    marked = [[1], [3, 4], [0, 2, 4]]
    assert [batch[IS_PAD].nonzero().flatten().tolist() for batch in batches] == marked
    assert records == [
        forebay.SkippedSample(0, i, i, None, i, step=step, error="ValueError", message=f"{i} is bad")
        for i, step in [(1, 0), (8, 1), (9, 1), (10, 2), (12, 2), (14, 2)]
    ]


def test_a_replacement_is_read_anew_so_that_no_two_places_of_a_batch_share_an_object() -> None:
    with closing(loader(Numbers(4, [0, 1]), 4, extras=(), on_error="skip", collate_fn=list)) as made:
        (samples,) = made
    assert [int(sample["x"]) for sample in samples] == [2, 2, 2, 3]
    assert len({id(sample) for sample in samples}) == 4


class Flaky(Numbers):
    """Index 1 can be read once."""

    def __init__(self) -> None:
        super().__init__(4, [0])
        self.read = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read += index == 1
        if index == 1 and self.read > 1:
            raise OSError("gone")
        return super().__getitem__(index)


def test_a_replacement_that_cannot_be_read_again_gives_way_to_the_next() -> None:
    with closing(loader(Flaky(), 4, on_error="skip")) as made:
        (batch,) = made
    assert batch["x"].tolist() == [2, 1, 2, 3]
    assert batch[SAMPLE_ID].tolist() == [2, 1, 2, 3]


@ways
def test_a_batch_without_a_good_sample_is_an_error_that_says_so_with_the_first_cause(way: dict[str, Any]) -> None:
    with closing(loader(Numbers(9, [3, 4, 5]), 3, on_error="skip", **way)) as made:
        iterator = iter(made)
        next(iterator)
        with pytest.raises(forebay.SampleError) as caught:
            next(iterator)
        assert made.position == 3
        assert made.skipped_total == 0
    message = str(caught.value)
    assert message.startswith("not one of the 3 samples of epoch 0, step 1 could be read")
    assert "sample 3 (index 3, epoch 0, position 3): ValueError: 3 is bad" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "error",
    [MemoryError, torch.OutOfMemoryError, forebay.ConfigurationError, forebay.DaemonError, KeyboardInterrupt],
)
def test_what_is_no_error_of_the_sample_is_not_skipped(error: type[BaseException]) -> None:
    with closing(loader(Numbers(4, [1], error), 4, on_error="skip")) as made, pytest.raises(error):
        next(iter(made))


def refuse(samples: list[Any]) -> None:
    raise ZeroDivisionError("in collate")


def test_an_error_of_the_collate_function_is_raised() -> None:
    with closing(loader(Numbers(4), 2, extras=(), on_error="skip", collate_fn=refuse)) as made:
        with pytest.raises(ZeroDivisionError):
            next(iter(made))
        assert made.skipped == []


@ways
def test_a_resume_gives_the_same_batches_and_what_was_only_read_ahead_is_not_counted(way: dict[str, Any]) -> None:
    bad = range(0, 60, 7)
    options = {"shuffle": True, "seed": 3, "on_error": "skip", **way}
    with closing(loader(Numbers(60, bad), 6, **options)) as whole:
        batches = list(whole)
    with closing(loader(Numbers(60, bad), 6, **options)) as first:
        iterator = iter(first)
        begun = [next(iterator) for _ in range(4)]
        state = first.state_dict()
        assert state["position"] == 24
        pads = sum(int(batch[IS_PAD].sum()) for batch in begun)
        assert first.skipped_total == len(first.skipped) == pads > 0
    with closing(loader(Numbers(60, bad), 6, **options)) as second:
        second.load_state_dict(state)
        resumed = begun + list(second)
    for one, other in zip(batches, resumed, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    good = sorted(int(x) for batch in batches for x in batch["x"][~batch[IS_PAD]])
    assert good == sorted(set(range(60)) - set(bad))


def test_ranks_stay_in_step_whoever_meets_bad_samples() -> None:
    steps = []
    for rank in range(3):
        with closing(loader(Numbers(31, [0, 1, 30]), 4, on_error="skip", rank=rank, world_size=3)) as made:
            steps.append([len(batch["x"]) for batch in made])
            assert made.epoch == 1
    assert [sum(sizes) for sizes in zip(*steps, strict=True)] == [12, 12, 7]


class Together(Numbers):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [super(Together, self).__getitem__(index) for index in indices]


def test_samples_read_together_are_named_together_or_skipped_one_by_one() -> None:
    with (
        closing(loader(Together(6, [4]), 3)) as made,
        pytest.raises(ValueError, match="4 is") as caught,
    ):
        list(made)
    assert caught.value.__notes__ == ["while reading 3 samples together (3, 4, 5; epoch 0, step 1)"]
    with closing(loader(Together(6, [4]), 3, on_error="skip")) as made:
        assert [batch["x"].tolist() for batch in made] == [[0, 1, 2], [3, 5, 5]]
        assert [record.sample_id for record in made.skipped] == [4]


class Drawn(Numbers):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "drawn": forebay.sample_rng().random()}


def test_a_replacement_draws_its_own_random_numbers() -> None:
    with closing(loader(Drawn(4, [0]), 4, on_error="skip")) as made:
        (batch,) = made
    assert batch["x"].tolist() == [1, 1, 2, 3]
    assert batch["drawn"][0] == batch["drawn"][1]
    assert len(set(batch["drawn"].tolist())) == 3


def test_single_samples_have_no_other_to_stand_in() -> None:
    with closing(forebay.DataLoader(Numbers(3, [1]), None, on_error="skip", report_to=None)) as made:
        iterator = iter(made)
        assert next(iterator)["x"] == 0
        with pytest.raises(forebay.SampleError, match="not one of the 1 samples"):
            next(iterator)


def test_another_value_is_refused_at_once() -> None:
    with pytest.raises(forebay.ConfigurationError, match="on_error='ignore': give 'raise' or 'skip'"):
        loader(Numbers(3), 1, on_error="ignore")
    assert loader(Numbers(3), 1).on_error == "raise"


def record(number: int, error: str = "ValueError") -> SkippedSample:
    return SkippedSample(0, number, number, "s3://b/a.tar", 7, step=0, error=error, message="bad")


def test_the_log_names_the_first_sample_of_each_class_of_error_and_then_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = SkipLedger()
    with caplog.at_level(logging.WARNING, logger="forebay"):
        ledger.take([record(5), record(6, "OSError"), record(7)])
        assert [message.partition(";")[0] for message in caplog.messages] == [
            "skipped sample 5 (s3://b/a.tar row 7, epoch 0, position 5): ValueError: bad",
            "skipped sample 6 (s3://b/a.tar row 7, epoch 0, position 6): OSError: bad",
        ]
        caplog.clear()
        ledger.summarise("epoch 0 has ended")
        ledger.summarise("epoch 1 has ended")
        expected = "epoch 0 has ended: 3 more skipped (2 × ValueError, 1 × OSError), 3 in all"
        assert [message.partition(";")[0] for message in caplog.messages] == [expected]
        caplog.clear()
        for number in range(2000):
            ledger.take([record(number)])
        assert [message.partition(":")[2].partition(";")[0] for message in caplog.messages] == [
            f" {more} more skipped ({more} × ValueError), {total} in all"
            for more, total in [(7, 10), (90, 100), (900, 1000)]
        ]


def test_the_records_are_bounded_and_the_total_is_not() -> None:
    ledger = SkipLedger()
    ledger.take([record(number) for number in range(KEPT_RECORDS + 5)])
    assert (len(ledger.latest), ledger.latest[0].sample_id, ledger.total) == (KEPT_RECORDS, 5, KEPT_RECORDS + 5)
    assert len(SkippedSample.of(record(1), 0, ValueError("x" * 9999)).message) == 500


def test_the_end_of_an_epoch_and_closing_say_what_was_skipped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="forebay"):
        made = loader(Numbers(4, [0, 1]), 2, shuffle=False, on_error="skip")
        with pytest.raises(forebay.SampleError):
            list(made)
        made.close()
        assert not caplog.messages
        made = loader(Numbers(4, [0, 3]), 2, on_error="skip")
        iterator = iter(made)
        next(iterator)
        made.close()
        assert "the loader was closed: 1 more skipped" in caplog.messages[-1]
        list(made)
        assert "epoch 1 has ended: 2 more skipped (2 × ValueError), 3 in all" in caplog.messages[-1]
        made.close()
