"""What becomes of an exception of the user's code between a worker process and the trainer."""

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.loading.raised import Raised, WorkerTraceback

WHERE = "in worker 1 (pid 5)"
may_go_on = threading.Event()
is_elsewhere = threading.Event()


class Coded(Exception):
    """Is made from more than its text, and can be made again."""

    def __init__(self, code: int, text: str = "none") -> None:
        super().__init__(code, text)
        self.doubled = 2 * code


class Two(Exception):
    """Is not made from its args."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Wraps(Exception):
    """Can be made from its args, and is then another."""

    def __init__(self, text: str) -> None:
        super().__init__(f"wrapped {text}")


class Hangs(Exception):
    def __reduce__(self) -> Any:
        return _waiting, ()


def _waiting() -> Exception:
    may_go_on.wait()
    return Hangs()


class BreaksElsewhere(Exception):
    """Can be made again where it was raised, and nowhere else."""

    def __reduce__(self) -> Any:
        return _made_here, ()


def _made_here() -> Exception:
    if is_elsewhere.is_set():
        raise RuntimeError("not here")
    return BreaksElsewhere()


class Unspeakable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def raised(error: Exception) -> Raised:
    """As it arrives."""
    try:
        raise error
    except Exception as caught:
        return pickle.loads(pickle.dumps(Raised.of(caught, WHERE, trial_seconds=0.2)))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _calm() -> Iterator[None]:
    yield
    may_go_on.set()
    is_elsewhere.clear()
    for thread in threading.enumerate():
        if thread.name == "forebay-raised":
            thread.join(10)
    may_go_on.clear()


@pytest.mark.parametrize(
    "error",
    [ValueError("one\nand two"), ValueError(), KeyError("x"), Coded(3, "three"), ValueError("at", {"an": object()})],
    ids=["a text", "nothing", "another class", "a class of one's own", "an object"],
)
def test_what_can_be_made_again_arrives_as_it_was_with_the_workers_traceback_as_its_cause(error: Exception) -> None:
    error.add_note("while reading sample 3")
    with pytest.raises(type(error)) as caught:
        raised(error).reraise()
    again: Any = caught.value
    assert type(again) is type(error)
    assert repr(again.args)[:9] == repr(error.args)[:9]
    assert again.__notes__ == ["while reading sample 3"]
    assert again.__dict__ == error.__dict__
    assert isinstance(again.__cause__, WorkerTraceback)
    assert str(again.__cause__).startswith(f"{WHERE}:\nTraceback (most recent call last)")
    assert "raise error" in str(again.__cause__)


def test_a_file_that_is_not_there_keeps_its_number_and_its_name() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        raised(FileNotFoundError(2, "No such file", "a.jpg")).reraise()
    assert (caught.value.errno, caught.value.filename) == (2, "a.jpg")


@pytest.mark.parametrize(
    ("error", "arrives"),
    [
        (Two("a", "b"), RuntimeError),
        (Wraps("a"), Wraps),
        (Hangs(), Hangs),
        (BreaksElsewhere(), BreaksElsewhere),
        (Unspeakable("a"), Unspeakable),
        (type("Local", (Exception,), {})("a"), RuntimeError),
        (ValueError(threading.Lock()), ValueError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_is_raised_as_torch_does_with_the_traceback_in_its_message(
    error: Exception, arrives: type[Exception]
) -> None:
    crossing = raised(error)
    is_elsewhere.set()
    with pytest.raises(arrives) as caught:
        crossing.reraise()
    assert f"Caught {type(error).__name__} {WHERE}.\nOriginal Traceback" in str(caught.value)
    assert "raise error" in str(caught.value)
