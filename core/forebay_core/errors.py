"""Every error that forebay raises on purpose, drawn as one tree.

::

    ForebayError
    ├── ConfigurationError          an option or argument that cannot work; also a ValueError
    ├── SourceError                 the data at its remote place
    │   ├── UnknownScheme           no such kind of URL
    │   ├── SourceNotFound          empty prefix, missing bucket or object; also a FileNotFoundError
    │   ├── AccessDenied            the store refuses these credentials; also a PermissionError
    │   ├── SourceUnreachable       no usable answer from the endpoint; also a ConnectionError
    │   ├── ObjectChanged           the object is no longer the one in the manifest
    │   └── BadObject               the object's bytes are not what its name or the manifest says
    ├── ColumnNotFound              a column that the dataset does not have; also a KeyError
    ├── EmptyDataset                no samples
    ├── CapacityError               a piece cannot fit into the cache
    ├── StateError                  a state that cannot be loaded, or read here
    │   └── StateMismatch           a state of other data, another order or another seed
    ├── CheckpointError             a checkpoint cannot be saved, or not be restored; also a RuntimeError
    │   ├── CheckpointNotFound      no such checkpoint
    │   ├── CheckpointDamaged       its bytes are not what was written
    │   ├── CheckpointFenced        a newer start of the job has taken over: this one must end
    │   └── StagingFull             no room for a further checkpoint on this node's staging disk
    ├── SampleError                 not one sample of a batch could be read
    ├── WorkerError                 a worker process died, hangs or cannot be started; also a RuntimeError
    ├── PieceGone                   a cached file that was leased is not there any more (handled inside the loader)
    └── DaemonError
        ├── DaemonUnavailable       no daemon answers at the address; also a ConnectionError
        ├── AlreadyRunning          another daemon holds the socket or the cache directory
        ├── UnknownSession          the daemon does not know the session (it was restarted, or the session lapsed)
        └── InternalError           a fault in the daemon; its log has the details

Messages are one line: what was wrong, where, what to do. An error crosses the wire and process borders as
(class name, message); `by_name` finds the class again. `one_line` is how a message leaves the process, without secrets.
"""

from forebay_core.printing import printable
from forebay_core.redaction import redacted


class ForebayError(Exception):
    """Base of all errors that forebay raises on purpose."""

    def __str__(self) -> str:
        """What was said. Where torch's loader has put a worker's traceback before it, the line that was said there."""
        said = str(self.args[0]) if self.args else type(self).__name__
        if not (said.startswith("Caught ") and "\nOriginal Traceback" in said):
            return said
        last_line = said.rstrip().rpartition("\n")[2]
        return last_line.removeprefix(f"{type(self).__module__}.{type(self).__qualname__}: ")


class ConfigurationError(ForebayError, ValueError):
    """An option or argument that cannot work."""


class SourceError(ForebayError):
    """Something is wrong with the data at its remote place."""


class UnknownScheme(SourceError, ValueError):
    """A URL of a kind that forebay cannot read."""


class SourceNotFound(SourceError, FileNotFoundError):
    """An empty prefix, a missing bucket or a missing object."""


class AccessDenied(SourceError, PermissionError):
    """The store refuses these credentials."""


class SourceUnreachable(SourceError, ConnectionError):
    """The endpoint gives no usable answer."""


class ObjectChanged(SourceError):
    """The object is no longer the one that the manifest names."""


class BadObject(SourceError):
    """The object's bytes are not what its name or the manifest says."""


class ColumnNotFound(ForebayError, KeyError):
    """A column that the dataset does not have."""


class EmptyDataset(ForebayError):
    """A dataset without samples."""


class CapacityError(ForebayError):
    """A piece cannot fit into the cache."""


class StateError(ForebayError):
    """A state that cannot be loaded, or cannot be read in this process."""


class StateMismatch(StateError):
    """A state of other data, another order or another seed."""

    #: What messages advise who holds the state. Where nobody does, they are put in other words.
    LENIENTLY = "load_state_dict(state, strict=False)"


class CheckpointError(ForebayError, RuntimeError):
    """A checkpoint cannot be saved, or cannot be restored."""


class CheckpointNotFound(CheckpointError):
    """There is no such checkpoint."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint whose bytes are not what was written."""


class CheckpointFenced(CheckpointError):
    """A newer start of the job has taken over: this one must end."""


class StagingFull(CheckpointError):
    """No room for a further checkpoint on this node's staging disk."""


class SampleError(ForebayError):
    """Not one sample of a batch could be read, so that there is none to put in the place of the others."""


class PieceGone(ForebayError):
    """A cached file that was leased is not there any more, or cannot be read; the loader leases it again."""

    unreadable = ""
    """The path of the file where it is there and its disk fails."""


class WorkerError(ForebayError, RuntimeError):
    """A worker process died, hangs or cannot be started. Iterating again starts others."""


class DaemonError(ForebayError):
    """The daemon, or the way to it."""


class DaemonUnavailable(DaemonError, ConnectionError):
    """No daemon answers at the address."""

    is_silent = False
    """True where one was there for as long as the call may take, and did not answer."""


class AlreadyRunning(DaemonError):
    """Another daemon holds the socket or the cache directory."""


class UnknownSession(DaemonError):
    """The daemon does not know the session: it was restarted, or the session lapsed."""


class InternalError(DaemonError):
    """A fault in the daemon; its log has the details."""


def _tree(base: type[ForebayError]) -> dict[str, type[ForebayError]]:
    classes = {base.__name__: base}
    for child in base.__subclasses__():
        classes |= _tree(child)
    return classes


def by_name(name: str) -> type[ForebayError]:
    """The class of that name; `InternalError` for a name that this version does not know."""
    return _tree(ForebayError).get(name, InternalError)


def one_line(error: BaseException) -> str:
    """The error's message without line breaks, control characters and secrets."""
    return printable(redacted(" ".join(str(error).split()))) or type(error).__name__
