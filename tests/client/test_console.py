"""What `forebay status` says of checkpoints that are staged."""

import dataclasses

import pytest

from forebay.console import print_status
from forebay.daemon.status import Counters, StagingStatus, StatusSnapshot, UploadStatus

NAME = "g000001-s000000010-0123456789ab"
ROOT = "s3://bucket/runs/a"


def snapshot(staging: StagingStatus) -> StatusSnapshot:
    return StatusSnapshot(
        version="1",
        boot_id="b",
        process_id=1,
        uptime_seconds=5.0,
        embedded=False,
        draining=False,
        disks=(),
        sessions=(),
        counters=Counters(*[0] * len(dataclasses.fields(Counters))),
        fills_running=0,
        http_address="",
        staging=staging,
    )


def said(staging: StagingStatus, capsys: pytest.CaptureFixture[str]) -> str:
    print_status(snapshot(staging), "unix:/s")
    return capsys.readouterr().out


def test_pending_uploads_are_shown_with_why_they_fail(capsys: pytest.CaptureFixture[str]) -> None:
    uploads = (
        UploadStatus(ROOT, NAME, "uploading", 4 << 20, 1 << 20, "AccessDenied", "the store refuses \x1b[31m", 30.0),
        UploadStatus(ROOT, NAME, "durable", 4 << 20, 4 << 20, "", "", 90.0),
        UploadStatus(ROOT, NAME, "superseded", 4 << 20, 0, "CheckpointError", "it is superseded by another", 90.0),
    )
    text = said(StagingStatus("/staging", "", 64 << 20, 8 << 20, uploads), capsys)
    assert "checkpoints: 8.0 MiB of 64.0 MiB staged in /staging, 1 upload pending, 3.0 MiB to go" in text
    assert r"uploading: the store refuses \x1b[31m" in text
    assert "1.0 MiB of 4.0 MiB" in text
    assert ROOT in text


def test_where_nothing_can_be_staged_the_reason_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no checkpoints can be staged here: the disk is full" in said(
        StagingStatus("", "the disk is full", 0, 0, ()), capsys
    )


def test_of_a_daemon_that_stages_nothing_no_word_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "checkpoints" not in said(StagingStatus("", "", 0, 0, ()), capsys)
