"""A program that forks while it uses the client: `python -m tests.client.daemon.forking SOCKET idle|busy|silent FORKS`.

Parent and child each call before and after every fork; `busy` has two more threads that never stop calling; in `silent`
the child does not call. A child that hangs is ended by its alarm. Prints one JSON object with what went wrong.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from forebay.daemon import channel
from forebay_protos.v1 import daemon_pb2 as pb

CHILD_SECONDS = 15


def ask(socket: Path, url: str = "") -> None:
    request = pb.OpenDatasetRequest(urls=[url or f"from {os.getpid()}"])
    answer = channel.call(socket, "OpenDataset", request, pb.OpenDatasetResponse, timeout_seconds=10)
    assert answer.dataset_id == request.urls[0]


def keep_asking(socket: Path, end: threading.Event, failures: list[str]) -> None:
    try:
        while not end.is_set():
            ask(socket, "sleep:0.002")
            needs = [pb.PublishNeedsRequest(pieces=range(1000)) for _ in range(3)]
            channel.stream(socket, "PublishNeeds", needs, pb.PublishNeedsResponse, timeout_seconds=10)
    except Exception as error:
        failures.append(f"thread: {error!r}")


def child(socket: Path, mode: str) -> None:
    signal.alarm(CHILD_SECONDS)
    status = 1
    try:
        if mode != "silent":
            for _ in range(3):
                ask(socket)
        status = 0
    except Exception as error:
        print(f"child: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def fork_once(socket: Path, mode: str) -> int:
    ask(socket)
    pid = os.fork()
    if pid == 0:
        child(socket, mode)
    ask(socket)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(socket: Path, mode: str, forks: int) -> None:
    end, failures = threading.Event(), list[str]()
    count = 2 if mode != "idle" else 0
    threads = [threading.Thread(target=keep_asking, args=(socket, end, failures)) for _ in range(count)]
    ask(socket)
    for thread in threads:
        thread.start()
    try:
        statuses = [fork_once(socket, mode) for _ in range(forks)]
    finally:
        end.set()
        for thread in threads:
            thread.join()
    print(json.dumps({"children": statuses, "failures": failures}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
