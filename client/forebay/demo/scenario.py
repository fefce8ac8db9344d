"""What the demo does, in order: write the corpus, start a daemon, train, kill, resume with more ranks, compare.

`play` is called by the command on the main thread. Everything it starts runs in sessions of their own below one
directory, and is gone when it returns or raises.
"""

import fcntl
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from typing import Protocol

from forebay.daemon.client import DaemonClient
from forebay.daemon.status import Counters
from forebay.demo import corpus, processes
from forebay.demo.config import TrainConfig
from forebay.demo.corpus import Corpus, Place
from forebay.demo.daemon import own_daemon
from forebay.demo.records import Event, StepRecord, Tail, journal_path, read_events, read_steps
from forebay.demo.verify import Verdict, effective_sequence, verify
from forebay_core.errors import ConfigurationError

__all__ = ["DemoFailed", "Options", "Outcome", "Watcher", "claim_directory", "play", "restored_by", "time_to_kill"]

WORLD_SIZES = (2, 3)
EPOCHS = 2
GLOBAL_BATCH = 64
#: The kill comes so many steps after what a checkpoint holds, so that there is something to repeat.
STEPS_PAST_THE_SAVE = 4
RUN_SECONDS = 900.0
CACHE_BYTES = 2 << 30
_MARKER = ".forebay-demo"
_POLL_SECONDS = 0.02


class DemoFailed(RuntimeError):
    """A part of the demo ended otherwise than it should."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. `bucket` is an s3:// URL, or None for a directory that plays the bucket."""

    directory: Path
    bucket: str | None = None
    keep: bool = True
    seed: int = 0


class Watcher(Protocol):
    """Who is told how far the demo is, on the thread that plays it."""

    def phase(self, what: str) -> None: ...

    def steps(self, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was recorded, and what it says."""

    first: Sequence[StepRecord]
    second: Sequence[StepRecord]
    restored: Event
    checkpoints: Sequence[Event]
    verdict: Verdict
    counters: Counters
    shards: int
    source: str
    mlflow_uri: str
    mlflow_run_id: str


def _cache_bytes(directory: Path) -> int:
    """Not more than a small disk has."""
    return min(CACHE_BYTES, shutil.disk_usage(directory).total // 2)


def play(options: Options, watcher: Watcher, *, text: Corpus | None = None) -> Outcome:
    """The whole demo. Raises `DemoFailed`, or a `ForebayError`, where a part of it cannot be done."""
    shape = text or Corpus()
    bucket = Place.bucket(options.bucket, os.environ) if options.bucket else None
    with ExitStack() as stack:
        directory = stack.enter_context(claim_directory(options.directory))
        if not options.keep:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        watcher.phase(f"writing {shape.shards} Parquet shards of the standard library's sources")
        place = bucket or Place.local(directory / "bucket")
        shards = corpus.write(shape, corpus.read_text(shape), place)
        root = place.below(f"checkpoints-{secrets.token_hex(6)}")
        if bucket and not options.keep:
            stack.callback(corpus.remove, place, shards, root)
        watcher.phase("starting the daemon")
        daemon = stack.enter_context(own_daemon(directory, "--capacity", str(_cache_bytes(directory))))
        config = TrainConfig(
            run=0,
            source=shards.url,
            root=root.url,
            address=str(daemon.socket),
            directory=str(directory),
            tracking_uri=f"sqlite:///{directory}/mlflow.db",
            sample_bytes=shape.sample_bytes,
            seed=options.seed,
            epochs=EPOCHS,
            global_batch_size=GLOBAL_BATCH,
        )
        return _train_twice(config, shape, watcher)


def _train_twice(config: TrainConfig, shape: Corpus, watcher: Watcher) -> Outcome:
    from forebay.demo.reference import ids_by_position

    directory = Path(config.directory)
    total = EPOCHS * -(-shape.samples // GLOBAL_BATCH)
    watcher.phase(f"training with {WORLD_SIZES[0]} ranks, to be killed in the second epoch")
    _run(config, WORLD_SIZES[0], lambda done: watcher.steps(done, total), until=time_to_kill)
    first = read_steps(directory, 0, WORLD_SIZES[0])
    watcher.phase(f"killed at step {first[-1].step}; resuming with {WORLD_SIZES[1]} ranks")
    _run(replace(config, run=1), WORLD_SIZES[1], lambda done: watcher.steps(done, total))
    second = read_steps(directory, 1, WORLD_SIZES[1])
    restored = restored_by(read_events(directory, 1))
    counters = DaemonClient(config.address).status().counters
    watcher.phase("comparing with one process that iterates without training")
    reference = ids_by_position(config)
    sequence = effective_sequence(first, second, (restored.epoch, restored.position))
    return Outcome(
        first=first,
        second=second,
        restored=restored,
        checkpoints=[event for run in (0, 1) for event in read_events(directory, run) if event.kind == "durable"],
        verdict=verify(sequence, reference, shape.samples),
        counters=counters,
        shards=shape.shards,
        source=config.source,
        mlflow_uri=config.tracking_uri,
        mlflow_run_id=restored.mlflow_run_id,
    )


def restored_by(events: Sequence[Event]) -> Event:
    """What a run went on from, by its events. Raises `DemoFailed` where it began at the beginning."""
    for event in events:
        if event.kind == "restored":
            return event
    raise DemoFailed("the second run began at the beginning: it found no checkpoint")


@contextmanager
def claim_directory(directory: Path) -> Iterator[Path]:
    """The demo's directory, empty, and no other demo's meanwhile. Only one that an earlier demo made is emptied."""
    directory = directory.expanduser().absolute()
    marker = directory / _MARKER
    if directory.exists() and not directory.is_dir():
        raise ConfigurationError(f"--directory {directory} is not a directory: choose another")
    if directory.exists() and any(directory.iterdir()) and not marker.exists():
        raise ConfigurationError(f"--directory {directory} holds something else than a demo: choose another")
    directory.mkdir(parents=True, exist_ok=True)
    with marker.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another demo is running in --directory {directory}: choose another") from None
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != marker:
                entry.unlink()
        yield directory


def time_to_kill(events: Sequence[Event], step: int) -> bool:
    """Whether the trainer is to be killed now: in the second epoch, some steps after a save that has become local."""
    saved = [event.step for event in events if event.kind == "local" and event.epoch == 1 and event.position > 0]
    return bool(saved) and step >= saved[0] + STEPS_PAST_THE_SAVE


def _run(
    config: TrainConfig,
    world_size: int,
    on_step: Callable[[int], None],
    *,
    until: Callable[[Sequence[Event], int], bool] | None = None,
) -> None:
    """Runs the trainer to its end, or until `until` says to kill it."""
    directory = Path(config.directory)
    config_file = directory / f"run-{config.run}.json"
    config.write(config_file)
    log = directory / f"run-{config.run}.log"
    trainer = processes.start(_torchrun(world_size, config_file), log, _trainer_environment(), directory)
    try:
        killed = _watch(trainer, config, on_step, until)
    finally:
        processes.kill_tree(trainer)
    if not killed and trainer.returncode != 0:
        raise DemoFailed(f"the trainer failed with {processes.last_words(log)} (its log: {log})")
    if not killed and until is not None:
        raise DemoFailed(f"the trainer finished before it could be killed (its log: {log})")


def _watch(
    trainer: Popen[bytes],
    config: TrainConfig,
    on_step: Callable[[int], None],
    until: Callable[[Sequence[Event], int], bool] | None,
) -> bool:
    """Follows the trainer's journals until it ends, or `until` says so: True then."""
    directory = Path(config.directory)
    steps, events = Tail(journal_path(directory, config.run, 0)), Tail(journal_path(directory, config.run, None))
    seen: list[Event] = []
    deadline = time.monotonic() + RUN_SECONDS
    while True:
        ended = trainer.poll() is not None
        seen += [Event(**line) for line in events.lines()]
        new_steps = [line["step"] for line in steps.lines()]
        if new_steps:
            on_step(new_steps[-1])
            if until is not None and until(seen, new_steps[-1]):
                return True
        if ended:
            return False
        if time.monotonic() > deadline:
            raise DemoFailed(f"the trainer did not finish within {RUN_SECONDS:.0f} s (logs in {directory})")
        time.sleep(_POLL_SECONDS)


def _torchrun(world_size: int, config_file: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(world_size)),
        *("-m", "forebay.demo.train", str(config_file)),
    ]


def _trainer_environment() -> Mapping[str, str]:
    """One thread for each rank, and gloo on the loopback device: a host name need not resolve."""
    ours = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MLFLOW_DISABLE_TELEMETRY": "true"}
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI")
    }
    return inherited | ours
