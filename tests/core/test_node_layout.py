"""What the daemon and its clients agree on: where things lie, and how an error is left beside a piece."""

from pathlib import Path

import pytest

from forebay_core.errors import AccessDenied, BadObject, InternalError, one_line
from forebay_core.node_layout import ERROR_SUFFIX, error_file, piece_path, read_error, socket_lock


def test_places_are_spelt_alike_on_both_sides() -> None:
    assert piece_path("ab12") == "pieces/ab/ab12"
    assert socket_lock(Path("/run/x.sock")) == Path("/run/x.sock.lock")


def test_an_error_is_read_as_it_was_written_down(tmp_path: Path) -> None:
    piece = tmp_path / "piece"
    assert read_error(piece) is None
    Path(f"{piece}{ERROR_SUFFIX}").write_bytes(error_file(AccessDenied("no\n  ü")))
    found = read_error(piece)
    assert type(found) is AccessDenied
    assert str(found) == "no ü"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"error": "BadObject"}', b'{"error": [], "message": 1}'])
def test_an_error_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"piece{ERROR_SUFFIX}").write_bytes(content)
    assert read_error(tmp_path / "piece") is None


def test_an_error_of_a_later_version_is_a_fault_of_the_daemon(tmp_path: Path) -> None:
    (tmp_path / f"piece{ERROR_SUFFIX}").write_bytes(b'{"error": "Unheard", "message": "what"}')
    assert type(read_error(tmp_path / "piece")) is InternalError


def test_messages_are_one_line() -> None:
    assert one_line(BadObject("two\n  lines")) == "two lines"
    assert one_line(ValueError()) == "ValueError"
