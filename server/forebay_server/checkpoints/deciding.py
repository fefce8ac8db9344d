"""A decision on an attempt, as somebody outside asks for it; what holds then is the protocol's."""

from forebay_core.checkpoints.documents import Decision, State
from forebay_core.checkpoints.names import Attempt
from forebay_core.checkpoints.protocol import Procedure, abandon, commit, quarantine, retire
from forebay_server.checkpoints.destinations.base import Destination
from forebay_server.checkpoints.destinations.driving import drive


async def decide(root: Destination, attempt: Attempt, state: State, reason: str) -> Decision | None:
    """What holds now; None where it was to be committed and is not whole. Raises what the protocol raises."""
    conditional = await root.probe_put_if_absent()
    return await drive(_procedure(attempt, state, reason, conditional=conditional), root)


def _procedure(attempt: Attempt, state: State, reason: str, *, conditional: bool) -> Procedure[Decision | None]:
    if state is State.COMMITTED:
        return commit(attempt, conditional=conditional)
    if state is State.ABANDONED:
        return abandon(attempt, reason, conditional=conditional)
    if state is State.QUARANTINED:
        return quarantine(attempt, reason, conditional=conditional)
    return retire(attempt, reason)
