"""The quarantine: bounded in pieces and in bytes, the oldest out first."""

import os
from pathlib import Path

import pytest

from forebay_server.disk.blocks import room_for
from forebay_server.disk.quarantine import Quarantine, QuarantineLimits

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def opened(root: Path, limits: QuarantineLimits | None = None) -> Quarantine:
    (root / "quarantine").mkdir(exist_ok=True)
    return Quarantine(os.open(root / "quarantine", os.O_RDONLY | os.O_DIRECTORY), limits)


def take(quarantine: Quarantine, root: Path, name: str, size: int = 100) -> bool:
    (root / name).write_bytes(b"x" * size)
    (root / f"{name}.json").write_text("{}")
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return quarantine.take(name, data=(name, directory), sidecar=(f"{name}.json", directory))
    finally:
        os.close(directory)


def names(root: Path) -> set[str]:
    return {path.name for path in (root / "quarantine").iterdir()}


@pytest.mark.parametrize("limits", [QuarantineLimits(pieces=2), QuarantineLimits(bytes=2 * room_for(100))])
def test_only_the_latest_stay_with_their_sidecars(tmp_path: Path, limits: QuarantineLimits) -> None:
    quarantine = opened(tmp_path, limits)
    for name in (A, B, C):
        assert take(quarantine, tmp_path, name)
    assert names(tmp_path) == {B, f"{B}.json", C, f"{C}.json"}
    assert quarantine.bytes == 2 * room_for(100)
    quarantine.close()


def test_a_piece_larger_than_all_of_it_is_only_removed(tmp_path: Path) -> None:
    quarantine = opened(tmp_path, QuarantineLimits(bytes=room_for(100)))
    assert take(quarantine, tmp_path, A)
    assert not take(quarantine, tmp_path, B, 100_000)
    assert names(tmp_path) == {A, f"{A}.json"}
    assert not (tmp_path / B).exists()
    quarantine.close()


def test_it_knows_after_a_restart_what_it_holds_and_keeps_to_smaller_limits(tmp_path: Path) -> None:
    quarantine = opened(tmp_path)
    for name in (A, B, C):
        take(quarantine, tmp_path, name)
    quarantine.close()
    again = opened(tmp_path, QuarantineLimits(pieces=1))
    assert names(tmp_path) == {C, f"{C}.json"}
    assert (len(again), again.bytes) == (1, room_for(100))
    again.close()


def test_what_somebody_else_put_there_stays(tmp_path: Path) -> None:
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine/notes").write_text("mine")
    quarantine = opened(tmp_path, QuarantineLimits(pieces=1))
    for name in (A, B):
        take(quarantine, tmp_path, name)
    assert names(tmp_path) == {"notes", B, f"{B}.json"}
    quarantine.close()
