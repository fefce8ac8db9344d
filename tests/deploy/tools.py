"""Programs that check deployment files: from this environment, or the machine's."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


def tool(name: str, *, brought_by: str) -> str:
    """The path of a program; skips the test where it is not there."""
    found = shutil.which(name, path=os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"])))
    if found is None:
        pytest.skip(f"{name} is not installed; {brought_by} brings it")
    return found


def output(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What the program prints, both streams; fails with it where the program does."""
    ended = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
        env=env,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout
