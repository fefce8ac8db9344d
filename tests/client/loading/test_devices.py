"""Batches on a device: what is moved, when it is begun, and that looking ahead changes no position and no error."""

import gc
import weakref
from collections import UserDict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import forebay
from forebay.loading.chunk import Batch, StepEnd
from forebay.loading.devices import CudaMover, DeviceDelivery, PlainMover, checked_device, mapped
from forebay.loading.lookahead import Lookahead
from forebay.loading.waits import Reading
from tests.support.processes import eventually

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

WAYS: dict[str, dict[str, Any]] = {
    "in process": {},
    "2 threads": {"num_workers": 2, "worker_type": "thread"},
    "2 processes": {"num_workers": 2, "multiprocessing_context": "fork"},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


class Script:
    """Another delivery: gives what it is told, and says that it is ready where it is told."""

    def __init__(self, items: Sequence[str | BaseException], ready: Sequence[bool]) -> None:
        self.items, self.ready = list(items), list(ready)
        self.calls: list[str] = []

    def start(self, lookahead: Lookahead) -> None:
        self.calls.append("start")

    def next(self) -> Batch:
        item = self.items.pop(0)
        self.calls.append(f"next {item}")
        if isinstance(item, BaseException):
            raise item
        return Batch(item, StepEnd(0, 1, 0, False), 1, ())

    def is_ready(self) -> bool:
        return self.ready.pop(0) if self.ready else False

    def reading(self) -> Reading:
        return Reading(None, "the script")

    def close(self) -> None:
        self.calls.append("close")


class Noting:
    """A mover that notes what it does among the calls of the delivery."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def begin(self, data: Any) -> Any:
        self.calls.append(f"begin {data}")
        return f"moving {data}"

    def finish(self, moving: Any) -> Any:
        self.calls.append(f"finish {moving}")
        return moving.removeprefix("moving ")


def scripted(items: Sequence[str | BaseException], ready: Sequence[bool]) -> tuple[DeviceDelivery, list[str]]:
    inner = Script(items, ready)
    return DeviceDelivery(inner, Noting(inner.calls)), inner.calls


def test_the_next_batch_is_begun_as_soon_as_it_is_read_and_never_waited_for() -> None:
    delivery, calls = scripted(["a", "b", "c"], [True, False])
    assert delivery.next().data == "a"
    assert calls == ["next a", "begin a", "finish moving a", "next b", "begin b"]
    assert delivery.is_ready()
    calls.clear()
    assert delivery.next().data == "b"
    assert calls == ["finish moving b"]
    assert not delivery.is_ready()
    calls.clear()
    assert delivery.next().data == "c"
    assert calls == ["next c", "begin c", "finish moving c"]


def test_an_error_met_while_looking_ahead_is_raised_in_its_turn() -> None:
    delivery, _ = scripted(["a", OSError("b is broken")], [True])
    assert delivery.next().data == "a"
    with pytest.raises(OSError, match="b is broken"):
        delivery.next()


def test_an_interrupt_is_not_kept_for_later() -> None:
    delivery, _ = scripted(["a", KeyboardInterrupt()], [True])
    with pytest.raises(KeyboardInterrupt):
        delivery.next()


@pytest.mark.parametrize("end", ["start", "close"])
def test_what_was_moved_ahead_is_dropped_when_it_is_started_anew_or_closed(end: str) -> None:
    delivery, calls = scripted(["a", "b", "c"], [True])
    delivery.next()
    if end == "start":
        delivery.start(None)  # type: ignore[arg-type]
    else:
        delivery.close()
    assert calls[-1] == end
    assert delivery.next().data == "c"


class Point(NamedTuple):
    x: torch.Tensor
    label: str


@dataclass(frozen=True)
class Labelled:
    image: torch.Tensor
    names: list[str]


class Named(UserDict[str, Any]):
    pass


class Special(dict[str, Any]):
    pass


class Movable:
    def __init__(self, at: str = "nowhere") -> None:
        self.at = at

    def to(self, device: torch.device) -> "Movable":
        return Movable(str(device))


def nested() -> dict[str, Any]:
    return {
        "list": [torch.ones(2), "text", b"bytes", 7, None],
        "tuple": (torch.ones(1), (torch.zeros(1),)),
        "point": Point(torch.ones(3), "p"),
        "dataclass": Labelled(torch.ones(4), ["a"]),
        "mapping": Named(inner=torch.ones(1)),
        "special": Special(inner=[torch.ones(1)]),
        "packed": pack_sequence([torch.ones(3), torch.ones(2)]),
        "movable": Movable(),
    }


def tensors(data: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    mapped(lambda leaf: found.append(leaf) if isinstance(leaf, torch.Tensor) else None, data)
    return found


def test_tensors_are_moved_wherever_they_lie_and_all_else_stays() -> None:
    before = nested()
    mover = PlainMover(torch.device("meta"))
    after = mover.finish(mover.begin(before))
    assert len(tensors(before)) == 7
    assert {tensor.device.type for tensor in tensors(after)} == {"meta"}
    assert {tensor.device.type for tensor in tensors(before)} == {"cpu"}
    assert after["list"][1:] == ["text", b"bytes", 7, None]
    assert isinstance(after["point"], Point)
    assert after["point"].label == "p"
    assert after["dataclass"].names == ["a"]
    assert (type(after["mapping"]), type(after["special"])) == (Named, Special)
    assert isinstance(after["packed"], PackedSequence)
    assert (after["packed"].data.device.type, after["packed"].batch_sizes.device.type) == ("meta", "cpu")
    assert after["movable"].at == "meta"


class Numbers:
    def __init__(self, length: int, bad: int | None = None) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.bad:
            raise ValueError(f"{index} is bad")
        return {"x": torch.tensor(index), "name": str(index)}


def loader(dataset: Any, batch_size: int | None, **options: Any) -> forebay.DataLoader:
    return forebay.DataLoader(dataset, batch_size, report_to=None, **options)


@ways
def test_a_batch_counts_when_it_is_handed_out_and_not_when_it_is_moved(way: dict[str, Any]) -> None:
    with closing(loader(Numbers(40), 4, device="meta", shuffle=True, extras=[forebay.SAMPLE_ID], **way)) as made:
        for step, batch in enumerate(made, start=1):
            assert batch["x"].device.type == batch[forebay.SAMPLE_ID].device.type == "meta"
            assert (made.epoch, made.position) == ((0, 4 * step) if step < 10 else (1, 0))
        timings = made.timings
    assert [timing.step for timing in timings] == list(range(10))
    for timing in timings:
        parts = timing.remote_wait + timing.read + timing.transform + timing.collate + timing.queue
        assert parts == pytest.approx(timing.fetch_seconds)


@ways
def test_a_resume_goes_on_with_the_batch_that_was_moved_ahead_and_not_handed_out(way: dict[str, Any]) -> None:
    options = {"device": "cpu", "shuffle": True, "seed": 4, **way}
    with closing(loader(Numbers(40), 4, **options)) as whole:
        expected = [batch["name"] for batch in whole]
    seen = []
    state: dict[str, Any] | None = None
    for _ in range(5):
        with closing(loader(Numbers(40), 4, **options)) as part:
            if state is not None:
                part.load_state_dict(state)
            iterator = iter(part)
            seen += [next(iterator)["name"] for _ in range(2)]
            state = part.state_dict()
    assert seen == expected


class Gated(Numbers):
    """Index 4 cannot be read before a file is there."""

    def __init__(self, gate: Path) -> None:
        super().__init__(8)
        self.gate = gate

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 4:
            eventually(self.gate.exists, 30, "the batch before to be handed out")
        return super().__getitem__(index)


@ways
def test_a_batch_is_handed_out_while_the_next_one_is_still_being_read(way: dict[str, Any], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with closing(loader(Gated(gate), 4, device="cpu", **way)) as made:
        iterator = iter(made)
        assert next(iterator)["x"].tolist() == [0, 1, 2, 3]
        gate.touch()
        assert next(iterator)["x"].tolist() == [4, 5, 6, 7]


@ways
def test_an_error_comes_after_all_batches_before_it(way: dict[str, Any]) -> None:
    seen = []
    with closing(loader(Numbers(40, bad=22), 4, device="cpu", **way)) as made:
        iterator = iter(made)
        for _ in range(5):
            seen += next(iterator)["x"].tolist()
        with pytest.raises(ValueError, match="22 is bad"):
            next(iterator)
        assert made.position == 20
    assert seen == list(range(20))


def test_on_the_device_where_it_is_a_tensor_is_not_copied() -> None:
    made_by_us: list[torch.Tensor] = []

    def collate(samples: list[dict[str, Any]]) -> torch.Tensor:
        made_by_us.append(torch.stack([sample["x"] for sample in samples]))
        return made_by_us[-1]

    with closing(loader(Numbers(8), 4, device="cpu", collate_fn=collate)) as made:
        assert all(one is other for one, other in zip(made, made_by_us, strict=True))


class Kept(Numbers):
    """Remembers, weakly, every tensor that it gave."""

    def __init__(self) -> None:
        super().__init__(40)
        self.given: list[weakref.ref[torch.Tensor]] = []

    def __getitem__(self, index: int) -> Any:
        tensor = torch.tensor([index])
        self.given.append(weakref.ref(tensor))
        return tensor


@pytest.mark.parametrize("way", [WAYS["in process"], WAYS["2 threads"]], ids=["in process", "2 threads"])
def test_closing_with_a_batch_on_its_way_leaves_nothing(way: dict[str, Any], no_leaks: None) -> None:
    dataset = Kept()
    made = loader(dataset, None, device="cpu", **way)
    iterator = iter(made)
    for _ in range(5):
        next(iterator)
    made.close()
    del iterator
    gc.collect()
    assert dataset.given
    assert [ref for ref in dataset.given if ref() is not None] == []


@pytest.mark.parametrize("device", ["gpu", "cuda:-1", 3.5, True, "cuda:4096", "mps:77"])
def test_a_device_that_is_not_there_is_refused_at_once(device: Any) -> None:
    with pytest.raises(forebay.ConfigurationError, match="device="):
        loader(Numbers(4), 2, device=device)


def test_the_loader_keeps_its_argument() -> None:
    assert loader(Numbers(4), 2).device is None
    assert loader(Numbers(4), 2, device=torch.device("cpu")).device == torch.device("cpu")


@cuda
@ways
def test_on_cuda_every_batch_is_right_while_copies_overlap_the_trainers_work(way: dict[str, Any]) -> None:
    class Rows(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": torch.full((1 << 18,), index, dtype=torch.float32)}

    with closing(loader(Rows(64), 4, device="cuda", **way)) as made:
        weights = torch.rand(1 << 11, 1 << 11, device="cuda")
        sums = []
        for batch in made:
            assert batch["x"].is_cuda
            weights = torch.tanh(weights @ weights)
            sums.append(batch["x"].mean(dim=1))
            del batch
        assert torch.cat(sums).tolist() == list(range(64))


@cuda
def test_on_cuda_what_is_no_tensor_is_moved_on_the_trainers_stream() -> None:
    mover = CudaMover(checked_device("cuda"))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        after = mover.finish(mover.begin(nested()))
        assert {tensor.device.type for tensor in tensors(after)} == {"cuda"}
        assert after["packed"].data.sum().item() == 5
        assert after["movable"].at.startswith("cuda")
    assert CudaMover(torch.device("cuda")).begin(torch.ones(3)).tensors[0].is_cuda
