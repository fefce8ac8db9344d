"""The copy: owned pieces, in buffers that are kept, of one moment."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from forebay.checkpoint.holdings import Collected, Entry
from forebay.checkpoint.reader import CheckpointReader
from forebay.checkpoint.saving import Saving
from forebay.checkpoint.staging import Staged, Stager, bit_sum
from forebay_core.errors import CheckpointError
from tests.client.checkpoint.rank_programs import PIECE_BYTES, Trainer
from tests.client.checkpoint.whole import write_whole
from tests.support.ranks import Ranks


def alone(value: Any) -> list[Any]:
    return [value]


def collected(**tensors: Tensor) -> Collected:
    """Names that begin with `buffer` are module buffers."""
    return Collected(tuple(Entry(("m", name), each, name.startswith("buffer")) for name, each in tensors.items()))


def values(staged: Staged) -> dict[str, list[Any]]:
    """Of tensors that are one piece."""
    return {tensor.path[-1]: next(iter(tensor.parts.values())).tolist() for tensor in staged.tensors}


def test_the_copy_is_of_the_moment_of_the_guard_and_buffers_of_that_of_the_start() -> None:
    """T11, T18: forward passes change buffers at once, optimizers change parameters behind the guard."""
    released = threading.Event()

    def gather(value: Any) -> list[Any]:
        assert released.wait(60)
        return [value]

    weight, statistics = torch.arange(4.0), torch.arange(3.0)
    staging = Stager(0, 1, gather).start(collected(weight=weight, buffer=statistics))
    statistics.zero_()
    assert not staging.done.done()
    with pytest.raises(TimeoutError):
        staging.guard(0.01)
    released.set()
    staging.guard(60)
    weight.zero_()
    assert values(staging.done.result(60)) == {"weight": [0, 1, 2, 3], "buffer": [0, 1, 2]}


def test_a_second_copy_before_the_first_is_released_is_refused() -> None:
    """T2 and CASES 40: it would put the second step's values into the first step's checkpoint."""
    stager = Stager(0, 1, alone)
    weight = torch.ones(3)
    first = stager.start(collected(weight=weight))
    first.guard(60)
    weight.fill_(2)
    with pytest.raises(CheckpointError, match="release it first"):
        stager.start(collected(weight=weight))
    assert values(first.done.result(60)) == {"weight": [1, 1, 1]}
    stager.release()
    again = stager.start(collected(weight=weight))
    assert values(again.done.result(60)) == {"weight": [2, 2, 2]}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_fifty_saves_each_hold_their_own_step_in_the_same_memory(tmp_path: Path) -> None:
    """T12, CASES 40 and 42: neither the first save's values for ever, nor memory that grows."""
    stager, saving = Stager(0, 1, alone, piece_bytes=400), Saving(None)
    weight, state = torch.zeros(50, 20), torch.zeros(1000)
    places = set()
    for step in range(50):
        weight.fill_(step)
        state.fill_(-step)
        staging = stager.start(collected(weight=weight, state=state, buffer=torch.full((2,), step)))
        staging.guard(60)
        weight.add_(0.5)
        staged = staging.done.result(60)
        places |= {part.data_ptr() for tensor in staged.tensors[:2] for part in tensor.parts.values()}
        assert saving.knows(staged) == (step > 0)
        write_whole(saving, staged, tmp_path / str(step))
        stager.release()
        assert stager.kept_bytes == weight.nbytes + state.nbytes + 16
    assert len(places) == 20
    for step in (0, 1, 49):
        content = {"m": {"weight": torch.zeros(50, 20), "state": torch.zeros(1000), "buffer": torch.zeros(2).long()}}
        dcp.load(content, storage_reader=CheckpointReader(tmp_path / str(step)))
        assert [set(tensor.flatten().tolist()) for tensor in content["m"].values()] == [{step}, {-step}, {step}]


def test_buffers_without_use_are_let_go_and_new_ones_made_when_the_state_changes() -> None:
    stager = Stager(0, 1, alone)
    for tensors in ({"a": torch.ones(10), "b": torch.ones(5)}, {"b": torch.zeros(7)}, {"b": torch.ones(7).double()}):
        staging = stager.start(collected(**tensors))
        assert values(staging.done.result(60)) == {name: tensor.tolist() for name, tensor in tensors.items()}
        assert stager.kept_bytes == sum(tensor.nbytes for tensor in tensors.values())
        stager.release()


def test_a_copy_that_was_given_up_is_waited_for_before_its_memory_is_used_again() -> None:
    released = threading.Event()

    def gather(value: Any) -> list[Any]:
        assert released.wait(60)
        return [value]

    stager = Stager(0, 1, gather)
    given_up = stager.start(collected(weight=torch.ones(3)))
    stager.release()
    with pytest.raises(CheckpointError, match="still being taken"):
        stager.start(collected(weight=torch.zeros(3)))
    released.set()
    assert values(given_up.done.result(60)) == {"weight": [1, 1, 1]}
    assert values(stager.start(collected(weight=torch.zeros(3))).done.result(60)) == {"weight": [0, 0, 0]}


def broken(value: Any) -> list[Any]:
    raise CheckpointError("a rank has ended")


@pytest.mark.parametrize(
    ("gather", "tensor", "said"),
    [
        (broken, torch.ones(2), "a rank has ended"),
        (alone, torch.ones(2).to_sparse(), "only dense tensors"),
        (alone, torch.ones(2, device="meta"), "a meta tensor"),
    ],
)
def test_what_goes_wrong_is_raised_by_the_guard_and_by_the_copy(
    gather: Callable[[Any], list[Any]], tensor: Tensor, said: str
) -> None:
    stager = Stager(0, 1, gather)
    staging = stager.start(collected(weight=tensor))
    with pytest.raises(CheckpointError, match=said):
        staging.done.result(60)
    with pytest.raises(CheckpointError, match=said):
        staging.guard(60)
    stager.release()


def test_strided_and_strange_tensors_are_copied_as_they_are() -> None:
    tensors = {
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "last": torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
        "every": torch.arange(10)[::3],
        "flags": torch.tensor([True, False]),
        "complex": torch.ones(2, dtype=torch.complex64),
        "scalar": torch.tensor(7, dtype=torch.int16),
        "empty": torch.zeros(0, 3),
        "expanded": torch.ones(1).expand(4),
    }
    staging = Stager(0, 1, alone).start(collected(**tensors))
    assert values(staging.done.result(60)) == {name: tensor.tolist() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.complex128],
)
def test_a_sum_of_bits_tells_two_tensors_apart_by_one_element(dtype: torch.dtype) -> None:
    for start in (0, 1):
        tensor = torch.ones(40)[start:].to(dtype)[start:]
        for at in (0, 3, len(tensor) - 1):
            other = tensor.clone()
            assert bit_sum(tensor) == bit_sum(other)
            other[at] = 0
            assert bit_sum(tensor) != bit_sum(other)
    assert bit_sum(tensor.view(-1, 2).t()) == bit_sum(tensor.view(-1, 2).t().contiguous())
    assert bit_sum(torch.zeros(0).to(dtype)) == 0


def staged_sizes(rank: int, kind: str) -> tuple[int, int, list[tuple[str, ...]]]:
    trainer = Trainer(kind)
    trainer.step(0)
    gathered, _ = trainer.state.collect()
    staging = trainer.stager.start(gathered)
    staged = staging.done.result(60)
    whole = {entry.key: entry.tensor.nbytes for entry in gathered.entries}
    buffers = [tensor.path for tensor in staged.tensors if "running" in tensor.path[-1]]
    return staged.size_bytes, sum(whole.values()), buffers


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "hsdp"])
def test_each_rank_copies_its_share_and_no_more(ranks: Ranks, kind: str) -> None:
    """DCP's own stagers copy all of it on every rank before they drop what others write as well."""
    found = ranks.run(4, staged_sizes, kind)
    sizes = [size for size, _, _ in found]
    assert sum(sizes) == found[0][1]
    assert max(sizes) - min(sizes) <= 2 * PIECE_BYTES
    assert len(found[0][2]) == 2
    assert all(not buffers for _, _, buffers in found[1:])


def test_what_is_copied_while_the_ranks_agree_counts_only_where_nothing_has_changed_on_any() -> None:
    """This rank holds the same throughout; the other one holds nothing any more in the third save."""
    has_changed = False

    def gather(value: Any) -> list[Any]:
        match value:
            case (True, str()) if has_changed:
                return [value, (True, "of another state")]
            case (list(), dict()) if has_changed:
                return [value, ([], {})]
        return [value, value]

    stager = Stager(0, 2, gather)
    a, b = torch.zeros(10), torch.zeros(10)
    found = []
    for save in range(6):
        has_changed = save in {2, 3}
        a.fill_(save)
        b.fill_(save + 0.5)
        staging = stager.start(collected(a=a, b=b))
        staging.guard(60)
        a.fill_(-1)
        b.fill_(-1)
        found.append({name: set(value) for name, value in values(staging.done.result(60)).items()})
        stager.release()
    mine = [{"a": {save}} for save in range(6)]
    assert found == [*mine[:2], {"a": {2}, "b": {2.5}}, {"a": {3}, "b": {3.5}}, *mine[4:]]
