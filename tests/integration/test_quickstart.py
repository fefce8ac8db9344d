"""`examples/quickstart.py` as its reader runs it."""

import json
import os
import sys
from pathlib import Path

from tests.server.daemons import daemon
from tests.support.data import write_parquet
from tests.support.processes import Process

PROGRAM = Path(__file__).parents[2] / "examples" / "quickstart.py"


def run(home: Path, source: Path, address: Path, *, rank: int = 0) -> tuple[int, str]:
    """The exit status of one rank of two, and what it printed; the position is kept in `home/position.json`."""
    environment = {**os.environ, "FOREBAY_ADDRESS": str(address), "RANK": str(rank), "WORLD_SIZE": "2"}
    command = [sys.executable, str(PROGRAM), str(source), "--state", str(home / "position.json")]
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
