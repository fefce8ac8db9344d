"""A real daemon that ends itself with SIGKILL at a named step: `python dying_daemon.py STEP FLAGS…`.

Nothing of it is changed: Python says of each file operation that it is about to happen (`sys.addaudithook`), and the
step is recognised by that. So the operation named has not happened, and all before it have.
"""

import os
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TEMP = re.compile(r"[0-9a-f]{16}-[0-9]+")
_KEY = re.compile(r"[0-9a-f]{64}")
_SIDECAR = re.compile(r"[0-9a-f]{64}\.json")

#: A step: whether it is the one that an audit event announces.
Step = Callable[[str, tuple[Any, ...]], bool]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal is on its way


def opens(name: re.Pattern[str], *, nth: int = 1) -> Step:
    """The nth opening of a file of that name."""
    count = 0

    def is_it(event: str, arguments: tuple[Any, ...]) -> bool:
        nonlocal count
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and name.fullmatch(os.fspath(arguments[0])):
            count += 1
        return count >= nth

    return is_it


def renames(name: re.Pattern[str], *, nth: int = 1, event_name: str = "os.rename") -> Step:
    """The nth renaming of a file to such a name; or linking."""
    count = 0

    def is_it(event: str, arguments: tuple[Any, ...]) -> bool:
        nonlocal count
        if event == event_name and name.fullmatch(str(arguments[1])):
            count += 1
        return count >= nth

    return is_it


def makes(name: re.Pattern[str]) -> Step:
    """The first making of a directory of such a name."""

    def is_it(event: str, arguments: tuple[Any, ...]) -> bool:
        return event == "os.mkdir" and bool(name.fullmatch(str(arguments[0])))

    return is_it


def after(first: Step, then: Step) -> Step:
    """The second step, once the first has been come to."""
    reached = False

    def is_it(event: str, arguments: tuple[Any, ...]) -> bool:
        nonlocal reached
        reached = reached or first(event, arguments)
        return reached and then(event, arguments)

    return is_it


def unlinks(name: re.Pattern[str]) -> Step:
    """The first unlinking of a file of such a name."""
    return lambda event, arguments: event == "os.remove" and bool(name.fullmatch(str(arguments[0])))


def removes(name: re.Pattern[str]) -> Step:
    """The first unlinking of a file of that name that was renamed to it before."""
    there: set[str] = set()

    def is_it(event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "os.rename":
            there.add(str(arguments[1]))
        return event == "os.remove" and bool(name.fullmatch(str(arguments[0]))) and str(arguments[0]) in there

    return is_it


STEPS: dict[str, Step] = {
    "room is reserved": opens(_TEMP),
    "in mid-download": opens(re.compile(r".*\.bin"), nth=3),
    "all is written": opens(_TEMP, nth=2),
    "the sidecar is written and not in its place": renames(_SIDECAR),
    "the sidecar is in its place and the data is not": renames(_KEY),
    "one piece is there and the next has its sidecar": renames(_KEY, nth=2),
    "a piece is about to be evicted": removes(_KEY),
    "an evicted piece has lost its data": removes(_SIDECAR),
    "a synced piece is about to be marked": renames(_SIDECAR, nth=2),
}
_SEAL = re.compile(r".*/seal\.json")
_DECISION = re.compile(r"g\d{6}-s\d{9}-[0-9a-f]{12}\.json")
_DATA = re.compile(r"__0_0\.distcp")
#: Of a node with the ranks 0 and 1 that saves to a directory; a file there gets its name when all of it has arrived.
CHECKPOINT_STEPS: dict[str, Step] = {
    "before staging": opens(re.compile(r".*/\.begun\.json")),
    "the directory of an attempt is about to be made": makes(re.compile(r".*/attempts/[0-9a-f]{32}/g[^/]+")),
    "before sealing": opens(re.compile(r".*/\.00000\.json")),
    "the manifests are kept and the seal is not": renames(_SEAL),
    "sealed and not synced": opens(_DATA, nth=2),
    "synced and not known to be": renames(_SEAL, nth=2),
    "in the upload": renames(_DATA),
    "the first file is uploaded": renames(re.compile(r"00000\.json")),
    "verified, before the manifest of rank 1": renames(re.compile(r"00001\.json"), nth=2),
    "before the metadata": renames(re.compile(r"\.metadata")),
    "before the manifest of rank 0": renames(re.compile(r"00000\.json"), nth=2),
    "before the decision": renames(_DECISION, event_name="os.link"),
    "decided and not known to be": renames(_SEAL, nth=3),
    "before an attempt is retired": renames(_DECISION),
    "a retired attempt is about to lose its objects": after(renames(_DECISION), unlinks(re.compile(r"\.metadata"))),
    "a retired attempt has lost some": after(renames(_DECISION), unlinks(_DATA)),
}
#: The one step that lies behind an operation: the data is in its place, and the index cannot be written to.
BEFORE_THE_INDEX = "the data is in its place and the index does not know"


def _watch(step: Step) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "os.remove", "os.link", "os.mkdir") and step(event, arguments):
            die()

    sys.addaudithook(hook)


def _watch_the_index(cache: Path) -> None:
    is_due = renames(_KEY)
    held: list[sqlite3.Connection] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and not held and is_due(event, arguments):
            held.append(sqlite3.connect(cache / "index" / "cache.db", check_same_thread=False))
            held[0].execute("BEGIN EXCLUSIVE")
            key = str(arguments[1])
            threading.Thread(target=_die_once, args=(cache / "pieces" / key[:2] / key,), daemon=True).start()

    sys.addaudithook(hook)


def _die_once(path: Path) -> None:
    while not path.exists():
        time.sleep(0.001)
    die()


def main() -> int:
    from forebay_server.__main__ import main as serve

    step, *flags = sys.argv[1:]
    if step == BEFORE_THE_INDEX:
        _watch_the_index(Path(flags[flags.index("--cache-dir") + 1]))
    else:
        _watch((STEPS | CHECKPOINT_STEPS)[step])
    return serve(flags)


if __name__ == "__main__":
    sys.exit(main())
