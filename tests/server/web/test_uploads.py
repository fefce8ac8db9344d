"""What the status page is told of uploads: those that fail first, bounded, without secrets."""

from forebay_core.checkpoints.documents import SUPERSEDED
from forebay_core.errors import AccessDenied, CheckpointError, ForebayError
from forebay_server.checkpoints.counters import UploadCounters
from forebay_server.checkpoints.rules import Phase
from forebay_server.checkpoints.statuses import Status
from forebay_server.web.uploads import MOST_UPLOADS, Staged, uploads_document
from tests.server.checkpoints.desks import attempt

ROOT = "s3://bucket/runs/a"


def status(phase: Phase, *, seconds: float = 1.0, error: ForebayError | None = None, root: str = ROOT) -> Status:
    return Status(root, attempt(int(seconds)), phase, 100, 40, error, seconds)


def staged(*statuses: Status) -> Staged:
    return Staged("/staging", "", 1000, 300, statuses, UploadCounters())


def test_pending_ones_stand_first_oldest_first_and_before_all_those_that_fail() -> None:
    found = uploads_document(
        staged(
            status(Phase.DURABLE, seconds=9.0),
            status(Phase.QUEUED, seconds=5.0),
            status(Phase.UPLOADED, seconds=7.0),
            status(Phase.UPLOADING, seconds=8.0, error=AccessDenied("no")),
            status(Phase.FAILED, seconds=2.0, error=AccessDenied("gone")),
        )
    )
    assert [row["phase"] for row in found["rows"]] == ["uploading", "uploaded", "queued", "failed", "durable"]
    assert (found["count"], found["pending"], found["failing"]) == (5, 3, 1)
    assert (found["pending_bytes"], found["oldest_seconds"]) == (180, 8.0)
    assert [row["error"] for row in found["rows"]] == ["no", "", "", "gone", ""]


def test_what_a_newer_checkpoint_has_superseded_is_not_called_failed() -> None:
    error = CheckpointError(f"it is {SUPERSEDED} a newer one before its upload began")
    rows = uploads_document(staged(status(Phase.FAILED, error=error)))["rows"]
    assert [(row["phase"], row["error"]) for row in rows] == [("superseded", str(error))]


def test_a_document_names_only_so_many_and_says_how_many_there_are() -> None:
    found = uploads_document(staged(*[status(Phase.QUEUED) for _ in range(MOST_UPLOADS + 30)]))
    assert (found["count"], len(found["rows"])) == (MOST_UPLOADS + 30, MOST_UPLOADS)


def test_no_secret_of_a_root_or_of_an_error_is_shown() -> None:
    secret = "s3://user:geheim@host/a?X-Amz-Signature=geheim"
    found = uploads_document(staged(status(Phase.QUEUED, root=secret, error=AccessDenied(f"{secret} refuses"))))
    assert "geheim" not in str(found)


def test_where_nothing_can_be_staged_the_reason_is_told() -> None:
    found = uploads_document(Staged("", "the disk is full", 0, 0, (), UploadCounters()))
    assert found["staging"] == {"path": "", "reason": "the disk is full", "quota_bytes": 0, "used_bytes": 0}
    assert (found["pending"], found["oldest_seconds"]) == (0, 0.0)
