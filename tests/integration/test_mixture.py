"""Mixtures over a real daemon: shares, own epochs, one order in any topology, exact resumes, and what is refused."""

import json
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import forebay
from tests.server.daemons import Daemon, daemon
from tests.support.data import write_parquet, write_tokens
from tests.support.processes import HOME_VARIABLE, end_processes_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

PIECES = forebay.Parquet(piece_bytes=1)
ORDER = forebay.OrderOptions(lanes=4, window=30)
EXTRAS = (forebay.SAMPLE_ID, forebay.POSITION, forebay.IS_PAD, forebay.SOURCE)
SAMPLES = {"web": 240, "code": 70}
FIRST_ID = {"web": 0, "code": 1000}
EPOCH = 360
"""Positions of an epoch: a bit more than all of web, and one and a half times code."""


@pytest.fixture(scope="module")
def directory(node: Daemon) -> Path:
    """24 and 7 pieces of 10 samples."""
    found = node.socket.parent.parent / "data"
    write_parquet(found / "web", shards=4, rows=60, row_group_rows=10)
    write_parquet(found / "code", shards=1, rows=70, row_group_rows=10, first_id=1000)
    return found


def stream(source: Path, address: str, **options: Any) -> forebay.StreamingDataset:
    given: dict[str, Any] = {"format": PIECES, "columns": ["id", "value"], "order": ORDER, "seed": 3, **options}
    return forebay.StreamingDataset(str(source), address=address, **given)


def mixture(directory: Path, address: str, *, source: dict[str, Any] | None = None, **options: Any) -> forebay.Mixture:
    web, code = (stream(directory / name, address, **(source or {})) for name in SAMPLES)
    given: dict[str, Any] = {"seed": 5, "extras": EXTRAS, "block": 20, "epoch": EPOCH, **options}
    return forebay.Mixture({"web": (web, 0.7), "code": (code, 0.3)}, **given)


Seen = tuple[int, int, int, int]


class Ranks:
    """All ranks of a job over a mixture. `seen`: (epoch, position, source, sample id) of every sample but pads."""

    def __init__(self, loaders: Sequence[forebay.DataLoader]) -> None:
        self.loaders = loaders
        self.seen: list[Seen] = []
        self.batches: list[list[dict[str, Any]]] = []

    def run(self, steps: int | None = None) -> int:
        """Steps of all ranks in turn, to the epoch's end or `steps`; gives how many there were."""
        iterators = [iter(loader) for loader in self.loaders]
        epoch, done = self.loaders[0].epoch, 0
        while steps is None or done < steps:
            step = [next(iterator, None) for iterator in iterators]
            batches = [batch for batch in step if batch is not None]
            assert len(batches) in (0, len(step)), "ranks disagree on the number of steps"
            if not batches:
                break
            self.batches.append(batches)
            for batch in batches:
                self.seen += [(epoch, *place) for place in places(batch)]
            done += 1
        assert all(loader.state_dict() == self.state for loader in self.loaders)
        return done

    @property
    def state(self) -> dict[str, Any]:
        return self.loaders[0].state_dict()


def places(batch: dict[str, Any]) -> list[tuple[int, int, int]]:
    """(position, source, sample id) of the batch's samples but pads, whose values are checked."""
    sample, source = batch[forebay.SAMPLE_ID], batch[forebay.SOURCE]
    assert source.dtype == torch.int64
    assert torch.equal(batch["id"], sample + torch.tensor(list(FIRST_ID.values()))[source])
    assert torch.equal(batch["value"], batch["id"].to(torch.float32) / 4)
    keep = ~batch[forebay.IS_PAD]
    columns = (batch[forebay.POSITION][keep], source[keep], sample[keep])
    return list(zip(*(column.tolist() for column in columns), strict=True))


@contextmanager
def ranks(
    directory: Path,
    address: str,
    *,
    world_size: int = 1,
    batch_size: int = 16,
    state: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Ranks]:
    with ExitStack() as stack:
        loaders = []
        for rank in range(world_size):
            data = mixture(directory, address, rank=rank, world_size=world_size, **options)
            made = stack.enter_context(closing(forebay.DataLoader(data, batch_size, **(loader or {}))))
            if state is not None:
                made.load_state_dict(state)
            loaders.append(made)
        yield Ranks(loaders)


@pytest.fixture(scope="module")
def order(node: Daemon, directory: Path) -> list[Seen]:
    """What one process sees in four epochs."""
    with ranks(directory, str(node.socket)) as alone:
        for _ in range(4):
            alone.run()
        return sorted(alone.seen)


def test_shares_are_exact_in_every_block_and_each_sources_own_epochs_are_once(order: list[Seen]) -> None:
    assert len(order) == 4 * EPOCH
    source = np.array([number for _, _, number, _ in order])
    assert np.all(source.reshape(-1, 20).sum(axis=1) == 6)
    for number, samples in enumerate(SAMPLES.values()):
        drawn = [sample for _, _, of, sample in order if of == number]
        epochs = [drawn[begin : begin + samples] for begin in range(0, len(drawn), samples)]
        assert len(epochs) >= 4
        for own in epochs[:-1]:
            assert sorted(own) == list(range(samples))
        assert len(set(epochs[-1])) == len(epochs[-1])
        assert epochs[0] != epochs[1]


def test_each_sources_sequence_is_the_one_it_has_when_it_is_read_alone(
    order: list[Seen], directory: Path, address: str
) -> None:
    for number, name in enumerate(SAMPLES):
        drawn = [sample for _, _, of, sample in order if of == number]
        data = stream(directory / name, address, extras=EXTRAS)
        alone: list[tuple[int, int, int]] = []
        with closing(forebay.DataLoader(data, 32)) as loader:
            for epoch in range(2):
                for batch in loader:
                    assert batch[forebay.SOURCE].tolist() == [0] * len(batch["id"])
                    positions, samples = batch[forebay.POSITION].tolist(), batch[forebay.SAMPLE_ID].tolist()
                    alone += [(epoch, *each) for each in zip(positions, samples, strict=True)]
        assert drawn[: 2 * SAMPLES[name]] == [sample for *_, sample in sorted(alone)]


def test_a_run_that_is_stopped_and_resized_again_and_again_reads_the_same_order(
    order: list[Seen], directory: Path, address: str
) -> None:
    seen: list[Seen] = []
    state = None
    for world_size, batch_size, steps in ((2, 8, 5), (3, 5, 7), (1, 32, 2), (4, 4, None), (2, 30, 3), (5, 7, None)):
        with ranks(directory, address, world_size=world_size, batch_size=batch_size, state=state) as job:
            job.run(steps)
            seen += job.seen
            state = json.loads(json.dumps(job.state))
    assert sorted(seen) == order[: 2 * EPOCH]
    assert state is not None
    assert (state["epoch"], state["position"]) == (2, 0)
    assert len(json.dumps(state)) < 1024


def augmented(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "drawn": rng.integers(1 << 60)}


@pytest.mark.parametrize("transform", [None, augmented], ids=["columns", "samples"])
def test_workers_of_any_kind_change_neither_batches_nor_state(transform: Any, directory: Path, address: str) -> None:
    kinds: list[dict[str, Any]] = [{}, {"num_workers": 2, "worker_type": "thread"}, {"num_workers": 2}]
    jobs = []
    for kind in kinds:
        with ranks(directory, address, world_size=2, loader=kind, source={"transform": transform}) as job:
            for steps in (None, 4, None):
                job.run(steps)
            jobs.append((job.batches, job.state))
    (expected, state), *others = jobs
    for batches, other_state in others:
        assert other_state == state
        for here, there in zip(expected, batches, strict=True):
            for mine, theirs in zip(here, there, strict=True):
                assert mine.keys() == theirs.keys()
                assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_random_numbers_of_a_sample_are_those_it_has_when_its_source_is_read_alone(
    directory: Path, address: str
) -> None:
    def drawn(loader: forebay.DataLoader, *, of: int, epochs: int) -> list[tuple[int, int]]:
        found = []
        for _ in range(epochs):
            for batch in loader:
                mine = batch[forebay.SOURCE] == of
                ids, numbers = batch[forebay.SAMPLE_ID][mine].tolist(), batch["drawn"][mine].tolist()
                found += list(zip(ids, numbers, strict=True))
        return found

    with ranks(directory, address, source={"transform": augmented}) as job:
        mixed = drawn(job.loaders[0], of=1, epochs=2)
    alone = forebay.DataLoader(stream(directory / "code", address, transform=augmented, extras=EXTRAS), 70)
    with closing(alone):
        whole = drawn(alone, of=0, epochs=3)
    assert len({number for _, number in mixed}) == len(mixed) == 216
    assert set(whole) <= set(mixed)


def test_columns_of_text_and_arrays_come_in_the_order_of_the_samples(directory: Path, address: str) -> None:
    columns = {"columns": ["id", "text", "embedding"]}
    with closing(mixture(directory, address, source=columns, batch_size=25)) as data:
        for batch in data:
            for number, sample in enumerate(batch["id"].tolist()):
                assert batch["text"][number].startswith(f"sample {sample} ")
                assert batch["embedding"][number].tolist() == [sample + column for column in range(4)]


def test_iterated_by_itself_it_yields_batches_or_single_samples(directory: Path, address: str) -> None:
    with closing(mixture(directory, address, epoch=40, batch_size=8)) as data:
        assert len(data) == 5
        assert [len(batch["id"]) for batch in data] == [8] * 5
    with closing(mixture(directory, address, epoch=40, extras=(forebay.SOURCE,))) as data:
        samples = list(data)
    assert len(samples) == 40
    assert sum(int(sample[forebay.SOURCE]) for sample in samples) == 12


def test_counters_and_description_follow_from_the_position_at_once_after_a_resume(
    order: list[Seen], directory: Path, address: str
) -> None:
    with ranks(directory, address, batch_size=30) as job:
        job.run()
        job.run(3)
        state = job.state
    data = mixture(directory, address)
    data.load_state_dict(state)
    before = [source for _, _, source, _ in order[: EPOCH + 90]]
    assert data.counters == {"web": before.count(0), "code": before.count(1)}
    assert data.names == ("web", "code")
    said = data.describe()
    assert (said["epoch"], said["position"], said["samples"]) == (1, 90, EPOCH)
    for number, source in enumerate(said["sources"]):
        drawn = before.count(number)
        samples = SAMPLES[source["name"]]
        assert (source["drawn"], source["epoch"], source["position"]) == (drawn, *divmod(drawn, samples))
        assert source["samples"] == samples


@pytest.mark.parametrize(("epoch", "positions"), [("longest", 343), ("shortest", 233), (90, 90)])
def test_an_epoch_is_as_long_as_asked_for(epoch: Any, positions: int, directory: Path, address: str) -> None:
    data = mixture(directory, address, epoch=epoch, batch_size=10)
    assert data.samples == positions
    assert len(data) == -(-positions // 10)


def test_a_source_may_be_given_twice_and_one_source_is_a_mixture_too(directory: Path, address: str) -> None:
    code = stream(directory / "code", address)
    data = forebay.Mixture({"a": (code, 1), "b": (code, 3)}, extras=EXTRAS, block=4, epoch=280, batch_size=20)
    with closing(data):
        sources = torch.cat([batch[forebay.SOURCE] for batch in data])
    assert np.bincount(sources).tolist() == [70, 210]
    with closing(forebay.Mixture({"only": (code, 0.1)}, extras=EXTRAS, batch_size=20)) as alone:
        assert sorted(torch.cat([batch["id"] for batch in alone]).tolist()) == list(range(1000, 1070))


def test_portions_of_a_dataset_are_sources_like_any_other(directory: Path, address: str) -> None:
    web = stream(directory / "web", address).split({"train": 0.75, "eval": 0.25})
    data = forebay.Mixture(
        {name: (part, part.samples) for name, part in web.items()}, extras=EXTRAS, block=4, epoch=240
    )
    with closing(forebay.DataLoader(data, 20)) as loader:
        batches = list(loader)
    samples = torch.cat([batch[forebay.SAMPLE_ID] for batch in batches])
    sources = torch.cat([batch[forebay.SOURCE] for batch in batches])
    assert sorted(samples.tolist()) == list(range(240))
    assert np.bincount(sources).tolist() == [180, 60]


def test_any_batch_is_replayed(directory: Path, address: str) -> None:
    with ranks(directory, address, world_size=2) as job:
        job.run(7)
        for rank, loader in enumerate(job.loaders):
            again, seen = loader.replay(0, 4), job.batches[4][rank]
            assert all(torch.equal(again[name], seen[name]) for name in seen)


def test_token_files_are_put_together_too(tmp_path: Path, address: str) -> None:
    write_tokens(tmp_path / "a.bin", samples=50, sequence_length=8)
    write_tokens(tmp_path / "b.bin", samples=30, sequence_length=8)
    format = forebay.Tokens(sequence_length=8, dtype="int32")
    streams = {
        name: (forebay.StreamingDataset(str(tmp_path / f"{name}.bin"), format=format, address=address), 1)
        for name in "ab"
    }
    with closing(forebay.Mixture(streams, extras=EXTRAS, batch_size=16, block=10)) as data:
        for batch in data:
            first = batch[forebay.SAMPLE_ID][:, None] * 8 + torch.arange(8)
            assert torch.equal(batch["tokens"], first.to(torch.int32))


def test_a_small_cache_is_enough_for_sources_that_are_read_several_times_in_an_epoch(tmp_path: Path) -> None:
    """12 MB of tokens, the first half read three times; a cache of 5 MB, of which a step needs 3 at most."""
    format = forebay.Tokens(sequence_length=1024, dtype="int32", piece_bytes=1 << 18)
    order = forebay.OrderOptions(lanes=2, window=60)
    for name in "ab":
        write_tokens(tmp_path / f"{name}.bin", samples=1500, sequence_length=1024)
    with tempfile.TemporaryDirectory(prefix="fb-") as home:
        environment = {"PATH": "/usr/bin:/bin", HOME_VARIABLE: home}
        options = ("--read-in-place", "never", "--capacity", str(5 << 20))
        with daemon(Path(home), *options, env=environment) as small:
            streams = {
                name: (
                    forebay.StreamingDataset(
                        str(tmp_path / f"{name}.bin"), format=format, order=order, address=str(small.socket)
                    ),
                    weight,
                )
                for name, weight in (("a", 3), ("b", 1))
            }
            with closing(forebay.Mixture(streams, extras=EXTRAS, batch_size=50, block=4)) as mixed:
                seen = torch.cat([batch[forebay.SAMPLE_ID][batch[forebay.SOURCE] == 0] for batch in mixed])
        end_processes_of(Path(home))
    assert sorted(seen.tolist()) == sorted([*range(1500)] * 3)


def test_a_state_of_another_mixture_is_refused_by_the_field_that_differs(directory: Path, address: str) -> None:
    state = mixture(directory, address).state_dict()
    web, code = stream(directory / "web", address), stream(directory / "code", address)

    def refused(says: str, sources: dict[str, tuple[forebay.StreamingDataset, float]], **options: Any) -> None:
        other = forebay.Mixture(sources, **{"seed": 5, "block": 20, "epoch": EPOCH, **options})
        with pytest.raises(forebay.StateMismatch, match=says):
            other.load_state_dict(state)
        assert (other.epoch, other.position) == (0, 0)
        other.load_state_dict(state, strict=False)

    refused(r"order\.slots is \[12, 8\] here, \[14, 6\]", {"web": (web, 0.6), "code": (code, 0.4)})
    refused(r"order\.sources\[1\]\.name is 'source' here, 'code'", {"web": (web, 7), "source": (code, 3)})
    refused(r"order\.sources\[1\]\.fingerprint is sha256", {"web": (web, 7), "code": (web, 3)})
    refused(
        r"order\.sources\[0\]\.order\.seed is 4 here, 3",
        {"web": (stream(directory / "web", address, seed=4), 7), "code": (code, 3)},
    )
    refused(r"order\.sources are 1 here, 2", {"web": (web, 7)})
    refused(r"order\.seed is 6 here, 5", {"web": (web, 7), "code": (code, 3)}, seed=6)
    refused(r"order\.epoch_length is 300 here, 360", {"web": (web, 7), "code": (code, 3)}, epoch=300)
    with pytest.raises(forebay.StateMismatch, match=r"dataset\.fingerprint"):
        mixture(directory, address).load_state_dict(web.state_dict())
    with pytest.raises(forebay.StateError, match="not a state of a forebay mixture"):
        mixture(directory, address).load_state_dict({**state, "order": {**state["order"], "sources": [1]}})


def test_a_window_that_differs_is_taken_over_for_each_source_and_survives_pickling(
    order: list[Seen], directory: Path, address: str
) -> None:
    with ranks(directory, address, batch_size=50) as job:
        job.run(2)
        state = job.state
    other = mixture(directory, address, source={"order": forebay.OrderOptions(lanes=4, window=9)}, batch_size=50)
    other.load_state_dict(state)
    again = pickle.loads(pickle.dumps(other))
    with closing(other), closing(again):
        for data in (other, again):
            assert sorted((0, *place) for batch in data for place in places(batch)) == order[100:EPOCH]


def test_what_cannot_be_mixed_is_refused_by_the_name_of_the_source(directory: Path, address: str) -> None:
    web, code = stream(directory / "web", address), stream(directory / "code", address)

    def refused(says: str, sources: Any, **options: Any) -> None:
        with pytest.raises(forebay.ConfigurationError, match=says):
            forebay.Mixture(sources, **options)

    refused("named sources", {})
    refused("named sources", [(web, 1)])
    refused("source 1: give each source a name", {1: (web, 1)})
    refused("source 'web' is .* give a dataset and its weight", {"web": web})
    refused("source 'web' is a list", {"web": ([1, 2], 1)})
    for weight in (0, -1, float("nan"), float("inf"), "much", True):
        refused(f"weight {weight!r} of source 'code'", {"web": (web, 1), "code": (code, weight)})
    for says, options in (
        ("batch_size", {"batch_size": 3}),
        ("extras", {"extras": EXTRAS}),
        ("tail", {"tail": "drop"}),
        ("rank, world_size", {"rank": 0, "world_size": 1}),
    ):
        given = stream(directory / "web", address, **options)
        refused(f"source 'web' has {says}.* of its own", {"web": (given, 1)})
    refused("block=1 for 2 sources", {"web": (web, 1), "code": (code, 1)}, block=1)
    for block in (2.5, "x"):
        refused(f"block={block!r}", {"web": (web, 1)}, block=block)
    refused("epoch='long'", {"web": (web, 1)}, epoch="long")
    refused("epoch=1.5", {"web": (web, 1)}, epoch=1.5)
    refused("seed='x'", {"web": (web, 1)}, seed="x")
    refused("extras", {"web": (web, 1)}, extras=("nothing",))
    with pytest.raises(forebay.ConfigurationError, match="seed=1 here, 0 in the dataset"):
        forebay.DataLoader(forebay.Mixture({"web": (web, 1)}), 4, seed=1)


def test_columns_that_do_not_agree_are_refused_before_the_first_batch_unless_something_makes_them_agree(
    directory: Path, tmp_path: Path, address: str
) -> None:
    pq.write_table(
        pa.table({"id": pa.array(range(1000, 1030), pa.int32()), "name": ["x"] * 30}), tmp_path / "other.parquet"
    )
    web = stream(directory / "web", address)
    typed = stream(tmp_path, address, columns=["id"])
    named = stream(tmp_path, address, columns=["name", "id"])
    fewer = stream(directory / "code", address, columns=["id"])

    def loaded(other: forebay.StreamingDataset, first: forebay.StreamingDataset = web, **options: Any) -> Any:
        data = forebay.Mixture({"web": (first, 1), "other": (other, 1)}, block=2, epoch=20)
        with closing(forebay.DataLoader(data, 20, **options)) as loader:
            return next(iter(loader))

    with pytest.raises(forebay.ConfigurationError, match=r"'id' is int64\[n\] in 'web' and int32\[n\] in 'other'"):
        loaded(typed)
    with pytest.raises(forebay.ConfigurationError, match=r"'value' is float32\[n\] in 'web' and missing in 'other'"):
        loaded(fewer)
    assert len(loaded(named, collate_fn=list)) == 20
    both = [
        stream(path, address, columns=columns, transform=only_id)
        for path, columns in ((directory / "web", None), (tmp_path, None))
    ]
    assert len(loaded(both[1], both[0])["id"]) == 20


def only_id(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(sample["id"])}


def test_an_empty_source_is_named(directory: Path, tmp_path: Path, address: str) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    web = stream(directory / "web", address)
    data = forebay.Mixture({"web": (web, 1), "empty": (stream(tmp_path, address, columns=["id"]), 1)})
    with pytest.raises(forebay.EmptyDataset):
        data.open()


def test_the_tail_is_the_mixtures(directory: Path, address: str) -> None:
    for tail, seen, pads in (("even", 90, 0), ("drop", 64, 0), ("pad", 90, 6)):
        with ranks(directory, address, world_size=2, batch_size=16, epoch=90, tail=tail) as job:
            assert job.run() == len(job.loaders[0])
            assert len(job.seen) == seen
            marked = sum(int(batch[forebay.IS_PAD].sum()) for step in job.batches for batch in step)
            assert marked == pads


def test_the_daemon_may_be_told_to_the_loader(directory: Path, address: str) -> None:
    sources = {
        name: (forebay.StreamingDataset(str(directory / name), format=PIECES, columns=["id"]), 1) for name in SAMPLES
    }
    data = forebay.Mixture(sources, epoch=40)
    with closing(forebay.DataLoader(data, 8, address=address)) as loader:
        assert len(list(loader)) == 5
    with closing(forebay.DataLoader(data, 8, address=address)) as loader:
        assert len(loader) == 5
    with pytest.raises(forebay.ConfigurationError, match="or it is open already"):
        forebay.DataLoader(data, 8, address="/elsewhere")
