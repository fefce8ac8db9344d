"""Takes the pictures of the status page that the documents show: `make screenshots`.

A real daemon, a real store behind a slow line, loaders of three jobs and the checkpoints of one; a real browser looks
at its page. The pictures are of that moment: what they show differs from run to run.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import forebay
from tests.server.checkpoints.calls import node_of
from tests.server.checkpoints.desks import attempt
from tests.server.daemons import daemon
from tests.support.browser import browser, chromium
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.seaweedfs import Bucket, SeaweedFS

IMAGES = Path(__file__).parent / "images"
#: Name, and width and height of the window.
PICTURES = (("status-page", 1280, 900), ("status-page-phone", 375, 812))
RUN_SECONDS = 75
MIB = 1 << 20
#: Dataset, shards of 4 MiB, ranks that read it, seconds that a step of theirs takes.
JOBS = (
    ("corpus/c4-en/train", 60, 2, 0.05),
    ("corpus/code-python/train", 24, 1, 0.08),
    ("corpus/wiki/validation", 6, 1, 0.4),
)


def fill(bucket: Bucket) -> None:
    """Puts the datasets into the store."""
    random = np.random.default_rng(7)
    for name, shards, _, _ in JOBS:
        for shard in range(shards):
            bucket.put(f"{name}/{shard:05d}.bin", random.integers(0, 50_000, MIB, dtype=np.int32).tobytes())


@contextmanager
def training(bucket: Bucket, address: Path) -> Iterator[None]:
    """The jobs, each rank on a thread."""
    closing = threading.Event()

    def read(name: str, rank: int, ranks: int, step_seconds: float) -> None:
        spec = forebay.Tokens(sequence_length=2048, dtype="int32", piece_bytes=MIB)
        order = forebay.OrderOptions(lanes=4, window=256)
        dataset = forebay.StreamingDataset(
            bucket.uri(name), format=spec, address=str(address), order=order, rank=rank, world_size=ranks
        )
        loader = forebay.DataLoader(dataset, batch_size=16)
        while not closing.is_set():
            for _ in loader:
                if closing.wait(step_seconds):
                    break
        loader.close()

    threads = [
        threading.Thread(target=read, args=(name, rank, ranks, seconds))
        for name, _, ranks, seconds in JOBS
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        closing.set()
        for thread in threads:
            thread.join()


def save(bucket: Bucket, address: Path) -> None:
    """Checkpoints of a job: one is durable, one on its way, one waits."""
    with node_of(address, bucket.uri("runs/c4-base")) as ranks:
        first, *others = (attempt(step, generation=3) for step in (12_000, 12_500, 13_000))
        ranks.watch(ranks.save(first, size=MIB))
        for each in others:
            ranks.save(each, size=8 * MIB)


def slow(request: Request) -> Fault | None:
    """A store far away."""
    if request.method == "PUT" and "-s000012500-" in request.key and request.key.endswith(".distcp"):
        return Fault(delay_seconds=40.0)
    return Fault(delay_seconds=0.35) if request.method == "GET" else None


def take(url: str) -> None:
    """Opens the page in each window and keeps what it shows."""
    IMAGES.mkdir(exist_ok=True)
    with browser(chromium()) as running:
        for name, width, height in PICTURES:
            context = running.new_context(viewport={"width": width, "height": height})
            page = context.new_page()
            page.goto(url)
            page.wait_for_selector("#fills tr", timeout=60_000)
            page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
            context.close()


def main() -> int:
    """Makes all pictures and returns the exit status."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fb-")))
        store = stack.enter_context(SeaweedFS())
        bucket = Bucket("data", store)
        store.create_bucket(bucket.name)
        fill(bucket)
        proxy = stack.enter_context(CountingProxy(store.endpoint, fault=slow))
        env = {**os.environ, **store.environment(endpoint=proxy.endpoint)}
        flags = ("--http", "127.0.0.1:0", "--capacity", "192MiB", "--prefetch-fills", "4")
        running = stack.enter_context(daemon(home, *flags, env=env))
        stack.enter_context(training(bucket, running.socket))
        time.sleep(RUN_SECONDS)
        save(bucket, running.socket)
        take(forebay_http(running.process.output()))
    return 0


def forebay_http(output: str) -> str:
    """Where the daemon says that its page is."""
    return output.partition('"http": "')[2].partition('"')[0]


if __name__ == "__main__":
    sys.exit(main())
