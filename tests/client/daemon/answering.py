"""A small real gRPC server of the daemon's service, for what a whole daemon cannot be made to do on demand.

`python -m tests.client.daemon.answering SOCKET` serves until it is killed and prints a line when it does. What it
answers to `OpenDataset` is in the URL: `raise:CLASS` the daemon's error of that class, `abort:STATUS` a bare status,
`sleep:SECONDS` an answer that takes so long, `long:CHARACTERS` one of that length; else the dataset id is the URL.
"""

import sys
import time
from concurrent import futures
from pathlib import Path

import grpc

from forebay_core import errors
from forebay_protos.v1 import daemon_pb2 as pb
from forebay_protos.v1 import daemon_pb2_grpc
from forebay_server.rpc import errors as rpc_errors


class Answering(daemon_pb2_grpc.DaemonServiceServicer):
    def OpenDataset(self, request: pb.OpenDatasetRequest, context: grpc.ServicerContext) -> pb.OpenDatasetResponse:
        command, _, argument = request.urls[0].partition(":")
        if command == "raise":
            kind = errors.by_name(argument)
            context.set_trailing_metadata(rpc_errors.trailing_metadata(kind("what, where, what to do")))
            context.abort(rpc_errors.status_of(kind), "what, where, what to do")
        if command == "abort":
            context.abort(getattr(grpc.StatusCode, argument), "on request")
        if command == "sleep":
            time.sleep(float(argument))
        if command == "long":
            return pb.OpenDatasetResponse(dataset_id="x" * int(argument))
        return pb.OpenDatasetResponse(dataset_id=request.urls[0])

    def PublishNeeds(self, requests: object, context: grpc.ServicerContext) -> pb.PublishNeedsResponse:
        for _ in requests:  # type: ignore[attr-defined]
            pass
        return pb.PublishNeedsResponse()


def main(socket: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(16))
    daemon_pb2_grpc.add_DaemonServiceServicer_to_server(Answering(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    print("serving", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
