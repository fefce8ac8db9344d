"""Every error has a status, and its name travels with it."""

import grpc
import pytest

from forebay_core import errors
from forebay_core.node_layout import ERROR_KEY
from forebay_server.rpc.errors import STATUS, status_of, trailing_metadata


def tree(base: type[errors.ForebayError]) -> list[type[errors.ForebayError]]:
    """A class of forebay_core.errors and all below it."""
    children = [child for child in base.__subclasses__() if child.__module__ == errors.__name__]
    return [base, *(found for child in children for found in tree(child))]


@pytest.mark.parametrize("kind", tree(errors.ForebayError), ids=lambda kind: str(kind.__name__))
def test_every_class_has_a_status_of_its_own_and_is_found_again_by_name(kind: type[errors.ForebayError]) -> None:
    assert kind in STATUS
    assert status_of(kind) not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)
    assert errors.by_name(dict(trailing_metadata(kind("x")))[ERROR_KEY]) is kind


def test_only_a_daemon_that_is_away_is_unavailable() -> None:
    unavailable = [kind for kind, status in STATUS.items() if status is grpc.StatusCode.UNAVAILABLE]
    assert unavailable == [errors.DaemonUnavailable], "clients retry UNAVAILABLE as the daemon being restarted"


def test_a_class_without_a_row_takes_its_base() -> None:
    class Moved(errors.SourceNotFound):
        """A later version's class."""

    assert status_of(Moved) is STATUS[errors.SourceNotFound]
