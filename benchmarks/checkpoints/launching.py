"""Starts a program of this package on ranks, by torchrun, and gives what it wrote. No rank outlives the call."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.checkpoints.program import Settings
from forebay.demo.processes import kill_tree

_LIMIT_SECONDS = 7200


def on_ranks(ranks: int, program: str, settings: Settings) -> Any:
    """What the program's rank 0 wrote. Its progress goes to standard error."""
    with tempfile.TemporaryDirectory(prefix="fb-", dir=settings.directory) as directory:
        described, results = Path(directory) / "settings.json", Path(directory) / "results.json"
        settings.write(described)
        launcher = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *launcher,
            "-m",
            program,
            str(described),
            str(results),
        ]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        running = subprocess.Popen(command, env=environment)
        try:
            status = running.wait(_LIMIT_SECONDS)
        finally:
            kill_tree(running)
        if status != 0:
            raise RuntimeError(f"{program} ended with status {status}: its ranks say above why")
        return json.loads(results.read_text())
