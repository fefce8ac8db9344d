"""The programs of `examples/` as their readers run them."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.server.daemons import daemon
from tests.support.data import write_parquet
from tests.support.processes import Process

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(home: Path, source: Path, address: Path, *, rank: int = 0) -> tuple[int, str]:
    """The exit status of one rank of two, and what it printed; the position is kept in `home/position.json`."""
    environment = {**os.environ, "FOREBAY_ADDRESS": str(address), "RANK": str(rank), "WORLD_SIZE": "2"}
    command = [sys.executable, str(EXAMPLES / "quickstart.py"), str(source), "--state", str(home / "position.json")]
    log = home / f"rank-{rank}.log"
    log.unlink(missing_ok=True)
    with Process(command, log=log, limit_seconds=60, env=environment) as process:
        return process.wait(60), process.output()


def test_a_source_that_is_not_there_is_one_error_and_keeps_no_position(home: Path) -> None:
    with daemon(home) as running:
        status, output = run(home, home / "nothing", running.socket)
    assert status == 1
    assert output.count("Traceback") == 1
    assert "for batch in loader" in output
    assert "SourceNotFound" in output.splitlines()[-1]
    assert not (home / "position.json").exists()


def test_rank_0_alone_keeps_the_position_and_the_next_run_goes_on_from_it(home: Path) -> None:
    state = home / "position.json"
    write_parquet(home / "data", shards=2)
    with daemon(home) as running:
        assert run(home, home / "data", running.socket, rank=1)[0] == 0
        assert not state.exists()
        assert run(home, home / "data", running.socket)[0] == 0
        first = json.loads(state.read_text())
        assert (first["epoch"], first["position"]) == (2, 0)
        state.write_text(json.dumps({**first, "epoch": 1, "position": 128}))
        status, output = run(home, home / "data", running.socket)
        assert status == 0
        assert "going on in epoch 1 at position 128" in output
        assert json.loads(state.read_text()) == first
    assert not list(home.glob("*.draft"))


def swapped_in(home: Path, *arguments: str, address: str = "") -> str:
    """What `swap_in.py` printed; its position and model are kept in `home`."""
    command = [sys.executable, str(EXAMPLES / "swap_in.py"), "--state", str(home / "swap_in.json"), *arguments]
    with Process(
        command, log=home / "log", limit_seconds=100, env={**os.environ, "FOREBAY_ADDRESS": address}
    ) as process:
        assert process.wait(100) == 0, process.output()
        return process.output()


def test_a_swapped_in_loader_over_a_map_style_dataset_goes_on_with_other_batches_and_workers(home: Path) -> None:
    assert "epoch 1, position 224: 7 steps" in swapped_in(home, "--stop-after", "70")
    output = swapped_in(home, "--batch-size", "20", "--num-workers", "2")
    assert "going on in epoch 1 at position 224" in output
    assert "epoch 2, position 0: 89 steps" in output
    kept = json.loads((home / "swap_in.json").read_text())
    assert (kept["loader"]["epoch"], kept["loader"]["position"]) == (2, 0)
    assert abs(kept["model"]["weight"][0][0] - 3) < 0.5, "it has learnt y = 3 x + 1"


def test_the_same_script_reads_a_directory_through_the_daemon(home: Path) -> None:
    x = np.arange(1000, dtype=np.float32) / 1000
    (home / "shards").mkdir()
    pq.write_table(pa.table({"x": x, "y": 3 * x + 1}), home / "shards" / "0.parquet")
    with daemon(home) as running:
        arguments = ["--source", str(home / "shards"), "--epochs", "1"]
        assert "epoch 0, position 320: 10 steps" in swapped_in(
            home, *arguments, "--stop-after", "10", address=str(running.socket)
        )
        assert "epoch 1, position 0: 22 steps" in swapped_in(home, *arguments, address=str(running.socket))


def test_the_same_script_reads_the_data_that_the_readme_makes(home: Path) -> None:
    made = (ROOT / "README.md").read_text().partition("```python\n# make_data.py\n")[2].partition("```")[0]
    with Process([sys.executable, "-c", made], log=home / "made.log", limit_seconds=60, cwd=home) as process:
        process.check(60)
    with daemon(home) as running:
        arguments = ["--source", str(home / "data"), "--epochs", "1"]
        assert "epoch 1, position 0: 250 steps" in swapped_in(home, *arguments, address=str(running.socket))
    kept = json.loads((home / "swap_in.json").read_text())
    assert abs(kept["model"]["weight"][0][0] - 3) < 0.5, "it has learnt y = 3 x + 1"
