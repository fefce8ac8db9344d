"""A cache directory as a message: what both services say of it."""

from forebay_protos.v1 import daemon_pb2 as pb
from forebay_server.pool.member import Member
from forebay_server.pool.pool import Pool


def disk_status(pool: Pool, member: Member) -> pb.DiskStatus:
    """A cache directory; without a disk id while it could not be claimed."""
    status = pb.DiskStatus(
        path=str(member.path),
        state=member.health.state,
        reason=member.health.reason,
        slow=pool.is_slow(member),
        draining=member.is_draining,
        configured_bytes=member.allowance.configured_bytes,
    )
    if (cache := member.cache) is not None:
        status.disk_id = cache.disk.id
        status.capacity_bytes = cache.ledger.capacity_bytes
        status.used_bytes = cache.ledger.used_bytes
        status.reserved_bytes = cache.ledger.reserved_bytes
        status.pieces = len(cache)
    return status
