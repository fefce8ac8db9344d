"""For whom pieces are fetched: the sessions that hold a lease on them or will need them.

Asked every two seconds for each page that is open, while calls wait: so whatever is done for each session is done for
all pieces at once. Only reads; on the event loop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forebay_core.needs import Numbers
from forebay_server.filling.job import Job
from forebay_server.sessions import Session

#: How many are named.
MOST_NAMED = 4


@dataclass(slots=True)
class Wanting:
    """The sessions that want one piece: how many, and the first few by id."""

    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, session_id: str) -> None:
        self.count += 1
        if len(self.ids) < MOST_NAMED:
            self.ids.append(session_id)


class _OfOneView:
    """Pieces of one dataset under one choice of columns."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._keys = [job.key for job in jobs]
        self._pieces = np.array([job.piece.index for job in jobs], np.int64)
        self._place_of = {key: place for place, key in enumerate(self._keys)}

    def wanted(self, session: Session) -> list[str]:
        """Their keys, as far as the session wants them."""
        is_wanted = _are_in(session.progress.needs.pieces, self._pieces)
        for key in self._place_of.keys() & session.leases:
            is_wanted[self._place_of[key]] = True
        return [self._keys[place] for place in np.flatnonzero(is_wanted).tolist()]


def wanting_sessions(jobs: Sequence[Job], sessions: Iterable[Session]) -> dict[str, Wanting]:
    """By key, who wants the piece."""
    wanting = {job.key: Wanting() for job in jobs}
    by_view: dict[tuple[str, tuple[str, ...]], list[Job]] = {}
    for job in jobs:
        by_view.setdefault((job.root, job.columns), []).append(job)
    views = {name: _OfOneView(listed) for name, listed in by_view.items()}
    nothing = _OfOneView([])
    for session in sessions:
        view = views.get((session.view.manifest.root, session.view.columns), nothing)
        for key in view.wanted(session):
            wanting[key].add(session.id)
    return wanting


def _are_in(ascending: Numbers, wanted: Numbers) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(wanted), np.bool_)
    found: npt.NDArray[np.bool_] = ascending.take(ascending.searchsorted(wanted), mode="clip") == wanted
    return found
