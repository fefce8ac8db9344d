"""What a save has cost, to the MLflow run that is active; on any of the checkpointer's threads."""

import time

from forebay.checkpoint.handle import POINTS, SaveHandle
from forebay.reporting import Metric, MlflowReporter, ReportTo


class SaveReports:
    """`follow` is called on the trainer's thread, which has the run."""

    def __init__(self, report_to: ReportTo) -> None:
        self._report_to = report_to
        self._reporter: MlflowReporter | None = None

    def follow(self) -> None:
        """Reports go to the run that is active now, if to any."""
        active = MlflowReporter.active_run_id(self._report_to)
        if self._reporter is not None and self._reporter.run_id != active:
            self._reporter.close()
            self._reporter = None
        if self._reporter is None:
            self._reporter = MlflowReporter.for_active_run(self._report_to)

    def ended(self, handle: SaveHandle, *, pending: int, failures: int) -> None:
        """A save is durable, or has failed; so many others are neither yet, and so many have failed in all."""
        if self._reporter is None:
            return
        values = {f"{point}_seconds": getattr(handle, f"{point}_seconds") for point in POINTS}
        values |= {"blocked_seconds": handle.blocked_seconds, "pending": pending, "failures": failures}
        now = time.time()
        self._reporter.report(
            [
                Metric(f"checkpoint/{name}", float(value), handle.step, now)
                for name, value in values.items()
                if value is not None
            ]
        )

    def close(self) -> None:
        """Sends what is left."""
        if self._reporter is not None:
            self._reporter.close()
