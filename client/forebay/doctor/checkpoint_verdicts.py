"""What the facts of a root for checkpoints mean: whether it can be written, who commits, and where this node stages.

Pure.
"""

from dataclasses import dataclass

from forebay.doctor.findings import Finding, ok, problem, warning

_CHECK = "checkpoints"


@dataclass(frozen=True, slots=True)
class RootFacts:
    """A root as the daemon opened it, which writes to it and deletes what it wrote."""

    root: str
    has_put_if_absent: bool
    staging_path: str
    #: Whether this process sees the staging directory, which trainers write to.
    is_staging_visible: bool
    is_embedded: bool
    #: It does not exist yet.
    is_new: bool = False


def root_findings(facts: RootFacts) -> list[Finding]:
    """What a job that saves there meets."""
    found = f"the daemon may write to {facts.root}"
    found += ", which does not exist yet and would be made" if facts.is_new else ""
    return [ok(_CHECK, found), _commit(facts), _staging(facts), *_end(facts)]


def _commit(facts: RootFacts) -> Finding:
    check = f"{_CHECK}: commit"
    if facts.has_put_if_absent:
        return ok(check, "the store decides who is first (put-if-absent), so that any node can commit")
    return warning(
        check,
        "the store does not decide who is first (put-if-absent), so that rank 0's node alone commits",
        "give each job a root of its own, and do not start it twice: an older one still running is not told",
    )


def _staging(facts: RootFacts) -> Finding:
    check = f"{_CHECK}: staging"
    if facts.is_staging_visible:
        return ok(check, f"this process sees {facts.staging_path}")
    return problem(
        check,
        f"this process does not see the daemon's staging directory {facts.staging_path}, or may not read it",
        "mount it here at the same path, writable; this user must be of the daemon's group (--group)",
    )


def _end(facts: RootFacts) -> list[Finding]:
    if not facts.is_embedded:
        return []
    found = "a daemon of this user's own uploads: it ends with the job's container or Slurm step"
    return [warning(f"{_CHECK}: daemon", found, "close() waits until all is durable; a system daemon would outlive it")]
