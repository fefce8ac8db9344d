"""What is said of a root for checkpoints."""

import dataclasses

from forebay.doctor.checkpoint_verdicts import RootFacts, root_findings
from forebay.doctor.findings import Verdict

GOOD = RootFacts("s3://bucket/runs/a", True, "/nvme/staging", True, False)


def verdicts(facts: RootFacts) -> dict[str, Verdict]:
    return {finding.check: finding.verdict for finding in root_findings(facts)}


def test_a_good_root_has_nothing_to_be_done() -> None:
    assert set(verdicts(GOOD).values()) == {Verdict.OK}


def test_a_root_that_would_be_made_is_said_to_be_none_yet() -> None:
    assert root_findings(GOOD)[0].found == "the daemon may write to s3://bucket/runs/a"
    assert root_findings(dataclasses.replace(GOOD, is_new=True))[0].found.endswith("not exist yet and would be made")


def test_a_store_without_put_if_absent_is_a_warning_that_says_who_commits() -> None:
    found = root_findings(dataclasses.replace(GOOD, has_put_if_absent=False))
    (commit,) = [finding for finding in found if finding.verdict is not Verdict.OK]
    assert commit.verdict is Verdict.WARNING
    assert "rank 0's node alone commits" in commit.found
    assert commit.advice


def test_a_staging_directory_that_a_trainer_does_not_see_is_a_problem() -> None:
    assert verdicts(dataclasses.replace(GOOD, is_staging_visible=False))["checkpoints: staging"] is Verdict.PROBLEM


def test_a_daemon_that_ends_with_the_job_is_said() -> None:
    assert verdicts(dataclasses.replace(GOOD, is_embedded=True))["checkpoints: daemon"] is Verdict.WARNING
