"""The facts of `forebay doctor` that only the daemon can find, as values that both sides agree on.

Field by field those of the messages of admin.proto. The daemon finds them and judges nothing; the client judges them.
None of them holds a credential. Times are in seconds, sizes in bytes; an empty `error` is a success.
"""

from dataclasses import dataclass

from forebay_core.machine import MachineFacts


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon's process."""

    version: str
    process_id: int
    user_id: int
    machine: MachineFacts


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A cache directory as the daemon sees it."""

    disk_id: str
    path: str
    #: Of the file `disk-id` in it: the same file is seen where the same inode is.
    id_inode: int
    file_system: str
    capacity_bytes: int
    used_bytes: int
    size_bytes: int
    free_bytes: int
    #: 0 in total: the file system has no such limit.
    inodes: int
    free_inodes: int
    #: "normal", or what the daemon has against it, and why.
    state: str = "normal"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """Where the credentials for a source come from."""

    origin: str = ""
    anonymous: bool = False
    requester_pays: bool = False
    #: 0: never, or not known.
    expires_in_seconds: float = 0.0
    region: str = ""
    endpoint: str = ""
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """What the service itself answers to a request without credentials."""

    endpoint: str
    status: int = 0
    seconds: float = 0.0
    has_date: bool = False
    clock_ahead_seconds: float = 0.0
    #: That the service names for the bucket; empty: none.
    bucket_region: str = ""
    #: Why there was no answer.
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """One request of the kind that reading makes: "list", "head" or "read"."""

    action: str
    url: str
    seconds: float = 0.0
    #: Of "list": what the first pages hold of the dataset.
    objects: int = 0
    bytes: int = 0
    #: Whether there are further pages.
    more: bool = False
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class MeasurementFacts:
    """How fast bytes moved: "remote", or "write" and "read" of a disk."""

    what: str
    disk_id: str = ""
    bytes: int = 0
    seconds: float = 0.0
    #: Of "remote": the median time of a small read, and the requests at once.
    latency_seconds: float = 0.0
    requests_at_once: int = 0
    error: str = ""
    message: str = ""

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0


Fact = DaemonFacts | DiskFacts | CredentialFacts | EndpointFacts | ProbeFacts | MeasurementFacts
