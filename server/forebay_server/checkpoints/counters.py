"""What became of the checkpoints that were sealed here, counted since the daemon's start. On the event loop."""

from dataclasses import dataclass, field

from forebay_server.distribution import Distribution

#: Upper bounds, in seconds: from a small checkpoint to one that waits for an operator.
_SECONDS = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)


@dataclass(slots=True)
class UploadCounters:
    """durable, lost: attempts that ended so. failures: tries that failed and are made again.

    sent_bytes: of files, those of tries that failed too. seconds: from the seal until durable.
    """

    durable: int = 0
    lost: int = 0
    failures: int = 0
    sent_bytes: int = 0
    seconds: Distribution = field(default_factory=lambda: Distribution(_SECONDS))
