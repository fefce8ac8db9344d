"""Whose word decides what lies at a path. Only root can make files of others: such tests are skipped elsewhere."""

import os
from pathlib import Path

import pytest

from forebay_core.errors import ConfigurationError
from forebay_server.process.places import check_place

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def check(path: Path) -> None:
    check_place(path, "the directory", "--this")


def test_a_directory_of_ours_below_a_sticky_one_is_ours(home: Path) -> None:
    (home / "sticky/ours").mkdir(parents=True)
    (home / "sticky").chmod(0o1777)
    check(home / "sticky/ours")
    check(home / "sticky")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o703])
def test_a_directory_that_others_can_rename_is_refused(home: Path, mode: int) -> None:
    (home / "above/below/ours").mkdir(parents=True)
    (home / "above").chmod(mode)
    with pytest.raises(ConfigurationError, match=f"others can write to {home}/above, and so replace .*--this"):
        check(home / "above/below/ours")
    with pytest.raises(ConfigurationError, match="others can write"):
        check(home / "above")


def test_links_of_ours_are_followed_and_what_they_lead_to_is_looked_at(home: Path) -> None:
    (home / "real/ours").mkdir(parents=True)
    (home / "link").symlink_to("real/../real")
    (home / "second").symlink_to(home / "link")
    check(home / "second/ours")
    (home / "real").chmod(0o777)
    with pytest.raises(ConfigurationError, match=f"others can write to {home}/real,"):
        check(home / "second/ours")


def test_what_is_not_there_or_leads_round_in_circles_is_said(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        check(home / "absent")
    (home / "round").symlink_to("round")
    with pytest.raises(ConfigurationError, match="too many symbolic links"):
        check(home / "round")


@as_root
def test_a_directory_of_another_user_is_refused(home: Path) -> None:
    (home / "theirs").mkdir()
    os.chown(home / "theirs", NOBODY, -1)
    with pytest.raises(ConfigurationError, match=f"belongs to another user .uid {NOBODY}"):
        check(home / "theirs")


@as_root
def test_a_link_of_another_user_is_refused_wherever_it_stands(home: Path) -> None:
    (home / "real/ours").mkdir(parents=True)
    (home / "ours").symlink_to("theirs")
    (home / "theirs").symlink_to("real")
    os.chown(home / "theirs", NOBODY, -1, follow_symlinks=False)
    for path in ("theirs/ours", "ours/ours"):
        with pytest.raises(ConfigurationError, match=f"leads through {home}/theirs, a symbolic link of another user"):
            check(home / path)
