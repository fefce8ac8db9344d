"""SIGKILL of trainers and daemons at every point of a checkpoint, and the loss of nodes, under a real training job.

After each death the job is started anew, and everything that it sees from then on (samples, random numbers, losses to
the bit) is what a run sees that nothing has happened to.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay_core.checkpoints.documents import State
from tests.integration.mortal_nodes import SECONDS, Node, nodes, states, until_clean
from tests.integration.mortal_trainers import Script, Watching, train
from tests.integration.training import Job
from tests.support.mortal import MortalRanks
from tests.support.processes import eventually

#: Within calls of the trainer, or while it watches; `tests/server/checkpoints/test_kill_points.py` has the others too.
SEEN_BY_TRAINERS = (
    "before staging",
    "the directory of an attempt is about to be made",
    "before sealing",
    "the manifests are kept and the seal is not",
    "sealed and not synced",
    "in the upload",
    "before the decision",
    "decided and not known to be",
    "a retired attempt is about to lose its objects",
)


@pytest.fixture(scope="module")
def mortal() -> Iterator[MortalRanks]:
    with MortalRanks(preload=("tests.integration.mortal_trainers",)) as made:
        yield made


class Run:
    """A job over its starts, each of which has to go on from where it should, exactly."""

    def __init__(self, mortal: MortalRanks, job: Job, home: Path) -> None:
        self._mortal, self._job, self._home = mortal, job, home
        self._world_size, self._starts = len(job.addresses), 0
        self._reference: list[Mapping[int, Any]] = []
        self._known = 0

    @contextmanager
    def start(self, *deeds: str, pauses: Mapping[int, str] | None = None) -> Iterator[Watching]:
        """One start; what its ranks have seen by the end of the block is compared. Who lives then is killed."""
        script = self._script(self._job, deeds, pauses or {})
        with self._mortal.start(self._world_size, train, script, directory=Path(script.directory)) as start:
            watching = Watching(script, start)
            yield watching
            for rank in range(self._world_size):
                self._check(rank, watching.trained(rank))

    def _script(self, job: Job, deeds: Sequence[str], pauses: Mapping[int, str]) -> Script:
        self._starts += 1
        return Script(job, str(self._home / f"start-{self._starts}"), deeds, pauses)

    def _check(self, rank: int, seen: Mapping[int, Any]) -> None:
        if max(seen, default=0) >= self._known:
            self._known = 2 * max(seen) + 20
            script = self._script(replace(self._job, root=f"{self._home}/reference"), ["step"] * self._known, {})
            with self._mortal.start(self._world_size, train, script, directory=Path(script.directory)) as start:
                assert set(start.wait(SECONDS)) == {0}, start.output(0)
                whole = Watching(script, start)
                self._reference = [whole.trained(each) for each in range(self._world_size)]
        assert seen == {step: self._reference[rank][step] for step in seen}


def job_of(home: Path, data: Path, there: Sequence[Node], **more: Any) -> Job:
    addresses = [node.address for node in there]
    wrap = "ddp" if len(there) > 1 else "plain"
    return Job(f"file://{home}/root", str(data), addresses, 0, wrap=wrap, batch_size=4 // len(there), **more)


def step_of(restored: Any) -> int | None:
    return None if restored is None else restored[0]


def test_a_trainer_rides_through_daemons_that_are_killed_whatever_it_has_asked_them_for(
    mortal: MortalRanks, home: Path, data: Path
) -> None:
    """CASES 38, 39 and 43: each save becomes durable with a successor, and what is restored then is the newest."""
    node = Node(home, "a")
    run = Run(mortal, job_of(home, data, [node], options={"keep_last": 2}), home)
    try:
        node.start()
        with run.start("step", "save", "durable", "until stop", "close") as trainer:
            trainer.wait("durable")
            node.kill()
            for point in SEEN_BY_TRAINERS:
                assert node.start(point).process.wait(SECONDS) == -signal.SIGKILL, point
            node.start()
            trainer.let_go("stop")
            assert trainer.start.wait(SECONDS) == [0], trainer.start.output(0)
            assert trainer.said(0, "error") == []
            step, newest = trainer.said(0, "durable")[-1]
            assert len(trainer.said(0, "durable")) == step + 1, "every one of them"
        with run.start("step", "close") as trainer:
            assert step_of(trainer.wait("restored")) == step
            assert trainer.start.wait(SECONDS) == [0]
        until_clean([node], newest)
    finally:
        node.close()


#: Which rank waits to be killed before it opens which file; none: before the save.
POINTS = {
    "before staging": {},
    "in the NVMe write": {1: r".*/__1_0\.distcp"},
    "the metadata is not written": {0: r".*/\.metadata.*"},
    "all is written but a manifest": {1: r".*/ranks/00001\.part"},
}


def test_ranks_that_are_killed_before_the_seal_leave_nothing_and_the_checkpoint_before_is_gone_on_from(
    mortal: MortalRanks, home: Path, data: Path
) -> None:
    """CASES 38"""
    with nodes(home, "a") as (node,):
        run = Run(mortal, job_of(home, data, [node, node]), home)
        expected: int | None = None
        for point, pauses in POINTS.items():
            save = ("arm", "save", "hold end") if pauses else ("hold end",)
            with run.start("step", "save", "durable", "hold on", "step", *save, pauses=pauses) as ranks:
                assert step_of(ranks.wait("restored")) == expected, point
                expected, newest = ranks.wait("durable")
                until_clean([node], newest)
                ranks.let_go("on")
                for rank in (0, 1):
                    ranks.wait("pauses" if rank in pauses else "holds", rank=rank)
                assert len(node.staged()) == 1 + bool(pauses)
                ranks.start.kill()
        with run.start("step", "save", "durable", "close") as ranks:
            assert step_of(ranks.wait("restored")) == expected
            until_clean([node], ranks.wait("durable")[1])
            assert ranks.start.wait(SECONDS) == [0, 0]


def test_an_attempt_that_is_wholly_written_and_not_sealed_is_nobodys(
    mortal: MortalRanks, home: Path, data: Path
) -> None:
    """CASES 38: rank 0, which would seal, is gone when the last manifest gets its name."""
    with nodes(home, "a") as (node,):
        run = Run(mortal, job_of(home, data, [node, node]), home)
        with run.start(
            *("step", "save", "durable", "step", "arm", "save", "local", "hold end"),
            pauses={1: r".*/ranks/00001\.json"},
        ) as ranks:
            expected, newest = ranks.wait("durable")
            path = Path(ranks.wait("pauses", rank=1))
            eventually(path.with_name("00000.json").exists, SECONDS, "the manifest of rank 0")
            ranks.start.kill(0)
            ranks.let_go("paused")
            assert "a rank has ended" in ranks.wait("error", rank=1)[1]
        with run.start("step", "save", "durable", "close") as ranks:
            assert step_of(ranks.wait("restored")) == expected
            _, newest = ranks.wait("durable")
            assert ranks.start.wait(SECONDS) == [0, 0]
        until_clean([node], newest)


#: Who dies: ranks, the daemon of the second node, or a node with all that it has staged.
DEATHS = ("ranks", "daemon", "ranks and daemon", "first node", "second node")
#: What is lost then, by moment.
LOSSES = {"local": {"first node", "second node"}, "uploaded": {"first node"}, "durable": set[str]()}


@pytest.mark.parametrize("moment", LOSSES)
def test_whoever_dies_what_was_saved_is_gone_on_from_and_a_lost_node_costs_what_it_had_not_uploaded(
    mortal: MortalRanks, home: Path, data: Path, moment: str
) -> None:
    """CASES 38, 39 and 45, T17: the moments are before any upload, after that of the second node, and in the end."""
    with nodes(home, "a", "b") as (a, b):
        run = Run(mortal, job_of(home, data, [a, b]), home)
        expected: int | None = None
        lost: set[str] = set()
        for death in DEATHS:
            with run.start(
                *("step", "save", "durable", "hold begin"),
                *("step", "save", "local", *(["durable"] if moment == "durable" else []), "hold end"),
                *("durable", "step", "hold death"),
            ) as ranks:
                let_go_on(a, b)
                assert step_of(ranks.wait("restored")) == expected, death
                base, _ = ranks.wait("durable")
                ranks.wait("holds")
                hold_up(a, b, moment)
                ranks.let_go("begin")
                newest, name = ranks.wait("local")
                wait_for(home / "root", name, moment, ranks)
                expected = base if death in LOSSES[moment] else newest
                lost |= {name} if death in LOSSES[moment] else set()
                die(death, ranks, a if death == "first node" else b)
                if death == "daemon":
                    let_go_on(a, b)
                    ranks.let_go("end")
                    assert ranks.wait("durable", times=3 if moment == "durable" else 2)[1] == name
                    ranks.wait("step", times=3)
        let_go_on(a, b)
        with run.start("step", "save", "durable", "close") as ranks:
            assert step_of(ranks.wait("restored")) == expected
            _, latest = ranks.wait("durable")
            assert ranks.start.wait(SECONDS) == [0, 0], ranks.start.output(0)
        decided = {each.name: state for each, state in states(a.address, f"file://{home}/root").items()}
        assert {name for name, state in decided.items() if state != State.COMMITTED} == lost
        until_clean([] if lost else [a, b], latest)


def hold_up(a: Node, b: Node, moment: str) -> None:
    if moment != "durable":
        a.held.touch()
    if moment == "local":
        b.held.touch()


def let_go_on(*there: Node) -> None:
    for node in there:
        node.held.unlink(missing_ok=True)


def wait_for(root: Path, name: str, moment: str, ranks: Watching) -> None:
    if moment == "uploaded":
        uploaded = root / "attempts" / name / "ranks" / "00001.json"
        eventually(uploaded.exists, SECONDS, "the second node's upload")
    if moment == "durable":
        ranks.wait("durable", times=2)


def die(death: str, ranks: Watching, victim: Node) -> None:
    if death != "daemon":
        ranks.start.kill()
    if "node" in death:
        victim.lose()
    elif death != "ranks":
        victim.kill()
    if death != "ranks":
        victim.start()
