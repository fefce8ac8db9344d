"""The staging directory and its uploads as a message."""

from forebay_core.errors import CheckpointError, one_line
from forebay_protos.v1 import daemon_pb2 as pb
from forebay_server.node import Node
from forebay_server.rpc.errors import error_fields


def staging_status(node: Node) -> pb.StagingStatus:
    """What is staged on the node; why nothing can be, where there is no place for it."""
    try:
        desk = node.desk
    except CheckpointError as error:
        return pb.StagingStatus(reason=one_line(error))
    return pb.StagingStatus(
        path=str(desk.area.root),
        quota_bytes=desk.quota_bytes,
        used_bytes=desk.used_bytes,
        starting=desk.is_starting,
        uploads=[
            pb.UploadStatus(
                root=status.root,
                attempt=status.attempt.name,
                phase=status.said_phase,
                total_bytes=status.total_bytes,
                uploaded_bytes=status.uploaded_bytes,
                seconds=status.seconds,
                **error_fields(status.error),
            )
            for status in desk.statuses()
        ],
    )
