"""Some clients of one daemon, a thread and a connection each, that lease and release the same pieces over and over.

`python -m benchmarks.node.acquire_program SOCKET DATASET PIECES CLIENTS CALLS CALLS_PER_SECOND`: says `ready`, waits
for a line on standard input, and prints as JSON the milliseconds of each Acquire, and of a health check after it, which
does nothing: what a call costs here at the moment."""

import json
import random
import sys
import threading
import time
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forebay_protos.v1 import daemon_pb2 as pb
from forebay_protos.v1 import daemon_pb2_grpc


class Caller:
    """One client."""

    def __init__(self, socket: str, dataset: str, pieces: int) -> None:
        self.acquires: list[float] = []
        self.empty_calls: list[float] = []
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.use_local_subchannel_pool", 1)])
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._stub = daemon_pb2_grpc.DaemonServiceStub(self._channel)  # type: ignore[no-untyped-call]
        request = pb.OpenSessionRequest(dataset_id=dataset, label="benchmark", process_id=1)
        self._session = self._stub.OpenSession(request, timeout=60).session_id
        self._pieces = range(pieces)

    def call(self, times: int, per_second: float) -> None:
        """So many calls, each at its time from a moment on that is this client's own."""
        start = time.perf_counter() + random.random() / per_second
        for number in range(times):
            time.sleep(max(0.0, start + number / per_second - time.perf_counter()))
            self.acquires.append(_milliseconds(self._acquire))
            self.empty_calls.append(_milliseconds(self._ask_for_nothing))
            self._stub.Release(pb.ReleaseRequest(session_id=self._session, pieces=self._pieces), timeout=60)

    def _acquire(self) -> None:
        self._stub.Acquire(pb.AcquireRequest(session_id=self._session, pieces=self._pieces), timeout=60)

    def _ask_for_nothing(self) -> None:
        self._health.Check(health_pb2.HealthCheckRequest(service=""), timeout=60)

    def close(self) -> None:
        self._stub.CloseSession(pb.CloseSessionRequest(session_id=self._session), timeout=60)
        self._channel.close()


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    socket, dataset, *numbers, per_second = sys.argv[1:]
    pieces, clients, calls = map(int, numbers)
    callers = [Caller(socket, dataset, pieces) for _ in range(clients)]
    for caller in callers:
        caller.call(5, 1000.0)
        caller.acquires.clear()
        caller.empty_calls.clear()
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=caller.call, args=(calls, float(per_second))) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = {
        "acquires": [value for caller in callers for value in caller.acquires],
        "empty_calls": [value for caller in callers for value in caller.empty_calls],
    }
    print(json.dumps(taken), flush=True)
    for caller in callers:
        caller.close()


if __name__ == "__main__":
    main()
