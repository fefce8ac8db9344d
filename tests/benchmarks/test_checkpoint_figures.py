"""What the checkpoint benchmarks compute from what they measured, and that they find what they look for."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks import bench_checkpoint, bench_restore  # noqa: E402
from benchmarks.checkpoints.program import COPY, DCP, DCP_KEPT, DISK, NOTHING, OURS, STORE, SYNCED  # noqa: E402
from benchmarks.checkpoints.restore_program import DURABLE, PLAIN, STAGED  # noqa: E402
from benchmarks.gpu_check import Job, check, measured  # noqa: E402


def turns(*blocked_and_total: tuple[float, float]) -> list[dict[str, float]]:
    return [{"blocked_seconds": blocked, "total_seconds": total} for blocked, total in blocked_and_total]


def test_a_saves_figures_are_medians_of_the_ratios_within_turns() -> None:
    ddp = {
        NOTHING: turns((0, 2), (0, 3), (0, 2)),
        OURS: turns((0.1, 3), (0.2, 4), (0.4, 3)),
        DCP: turns((4, 6), (4, 8), (4, 6)),
        DCP_KEPT: turns((1, 6), (1, 8), (1, 6)),
        DISK: turns((3, 4), (3, 4), (3, 4)),
        SYNCED: turns((6, 8), (6, 8), (6, 8)),
        STORE: turns((10, 12), (10, 12), (10, 12)),
        COPY: turns((0.1, 2), (0.1, 3), (0.1, 2)),
    }
    with_added = bench_checkpoint.with_added(ddp)
    assert [turn["added_seconds"] for turn in with_added[OURS]] == [1, 1, 1]
    fsdp = {**with_added, OURS: turns((0.2, 8), (0.2, 8), (0.2, 8))}
    uploaded = {
        "upload, forebay": [{"megabytes_per_second": rate} for rate in (90.0, 95.0, 99.0)],
        "upload, obstore": [{"megabytes_per_second": 100.0}] * 3,
    }
    figures = bench_checkpoint.ratios({"ddp": with_added, "fsdp": fsdp}, uploaded, {"growth": 1.01})
    assert figures.keys() >= bench_checkpoint.TARGETS.keys()
    assert figures["blocked_vs_torch_save_disk"] == pytest.approx(30), "of one that syncs its file"
    assert figures["blocked_vs_torch_save_disk_unsynced"] == pytest.approx(15)
    assert figures["copy_vs_dcp_async_ddp"] == pytest.approx(10)
    assert figures["blocked_vs_torch_save_store"] == pytest.approx(50)
    assert figures["blocked_vs_dcp_async_ddp"] == pytest.approx(5)
    assert figures["blocked_vs_dcp_async_fsdp"] == pytest.approx(5)
    assert figures["blocked_vs_copy"] == pytest.approx(2), "the worse of the two"
    assert figures["total_vs_least_other_ddp"] == pytest.approx(0.75), "beside torch.save, the best of the others"
    assert figures["total_vs_least_other_fsdp"] == pytest.approx(2)
    assert figures["upload_vs_obstore"] == pytest.approx(0.95)


def test_a_restores_figures_are_times_over_torchs() -> None:
    ways = {name: [{"seconds": seconds}] * 3 for name, seconds in ((STAGED, 1.0), (DURABLE, 3.0), (PLAIN, 2.0))}
    figures = bench_restore.ratios({"ddp": ways})
    assert figures == {"staged_vs_dcp_ddp": 0.5, "durable_vs_dcp_ddp": 1.5}


def test_the_check_of_staging_finds_a_copy_that_a_later_step_is_in() -> None:
    host = torch.device("cpu")
    numbers, wrong = check(host, megabytes=1, repeats=1)
    assert wrong == []
    assert numbers["state_gigabytes"] > 0.1

    class Torn(Job):
        def collected(self):  # type: ignore[no-untyped-def]
            found = super().collected()
            self.optimizer.step()
            return found

    _, wrong = measured(Torn(host, 1), repeats=1)
    assert "weight: a later step is in the copy" in wrong
