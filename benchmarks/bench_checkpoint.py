"""For how long does a save hold training up, and what does it cost in all?

Four gloo ranks on this machine, a state of 1 GB in all (parameters and AdamW's moments), under DDP and under FSDP2;
`benchmarks/checkpoints/saves.py` says how each of the other ways is set up. *Blocked* is the time in the call and until
weights may change, without anything meanwhile that could hide it; *added* is what a fixed load with a save, until its
bytes are in local files on all ranks, takes longer than the load alone, which is longer than a save. Blocked time alone
can be gamed by doing the work later on the cores that train, so the *total* is compared too. It is until the save is
local, for all of them: nothing else uploads, and with the store on this machine an upload takes more of its cores than
the save, so that our daemon is stopped from there until the load has ended. How fast it uploads then, beside obstore
alone, is a measurement of its own, and so is whether memory grows over 50 saves.

A `torch.save` that counts is on the disk when training goes on, so the target is for one that syncs its file; one that
leaves that to the kernel is reported beside it. `copy_vs_…` is what a save that did nothing but copy would reach.
"""

import argparse
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.checkpoints.launching import on_ranks
from benchmarks.checkpoints.program import COPY, DCP, DCP_KEPT, DISK, NOTHING, OURS, STORE, SYNCED, Settings
from benchmarks.checkpoints.uploads import Uploads
from benchmarks.daemon import Daemon, daemon
from benchmarks.shape import Report, Row, Target, describe_machine, interleaved, main, summarised
from tests.support.seaweedfs import Bucket, SeaweedFS

QUESTION = "For how long does a save hold training up, and what does it cost in all?"
RANKS = 4
TARGETS = {
    "blocked_vs_torch_save_disk": Target(at_least=10.0),
    "blocked_vs_dcp_async_ddp": Target(at_least=5.0),
    "blocked_vs_dcp_async_fsdp": Target(at_least=1.0),
    "blocked_vs_copy": Target(at_most=1.5),
    "total_vs_least_other_ddp": Target(at_most=1.0),
    "total_vs_least_other_fsdp": Target(at_most=1.0),
    "upload_vs_obstore": Target(at_least=0.9),
    "memory_growth": Target(at_most=1.05),
}
Turns = Sequence[Mapping[str, float]]
#: The ways after which a checkpoint is in local files.
_OTHERS = (DCP, DCP_KEPT, DISK)


def benchmark(options: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="fb-", dir=options.directory) as temporary, SeaweedFS() as server:
        directory, bucket = Path(temporary), Bucket(f"bench-{secrets.token_hex(4)}", server)
        server.create_bucket(bucket.name)
        os.environ.update(server.environment())
        with daemon(directory, "--capacity", "1GiB") as node:
            saved = {wrap: _saves(wrap, directory, bucket, node, options) for wrap in ("ddp", "fsdp")}
            uploaded = _uploads(directory, bucket, node.address, options)
            grown = _growth(directory, bucket, node.address, options)
    rows = [summarised(f"{name}, {wrap}", turns) for wrap, ways in saved.items() for name, turns in ways.items()]
    rows += [summarised(name, turns) for name, turns in uploaded.items()]
    rows.append(Row(f"memory of {RANKS} ranks, {options.saves} saves", grown))
    return Report(QUESTION, rows, ratios(saved, uploaded, grown), TARGETS, describe_machine())


def with_added(ways: Mapping[str, Turns]) -> dict[str, Turns]:
    """Each turn beside the load alone in the same repeat."""
    return {
        name: [
            {**turn, "added_seconds": turn["total_seconds"] - alone["total_seconds"]}
            for turn, alone in zip(turns, ways[NOTHING], strict=True)
        ]
        for name, turns in ways.items()
    }


def ratios(
    saved: Mapping[str, Mapping[str, Turns]], uploaded: Mapping[str, Turns], grown: Mapping[str, float]
) -> dict[str, float]:
    """The numbers with targets, each the median of the ratios within turns."""

    def blocked(wrap: str, over: str, under: str) -> float:
        return _within(saved[wrap][over], saved[wrap][under], "blocked_seconds")

    total = {
        wrap: max(_within(ways[OURS], ways[other], "total_seconds") for other in _OTHERS)
        for wrap, ways in saved.items()
    }
    return {
        "blocked_vs_torch_save_disk": blocked("ddp", SYNCED, OURS),
        "blocked_vs_torch_save_disk_unsynced": blocked("ddp", DISK, OURS),
        "blocked_vs_torch_save_disk_fsdp": blocked("fsdp", SYNCED, OURS),
        "blocked_vs_torch_save_store": blocked("ddp", STORE, OURS),
        "blocked_vs_torch_save_store_fsdp": blocked("fsdp", STORE, OURS),
        "blocked_vs_dcp_async_ddp": blocked("ddp", DCP_KEPT, OURS),
        "blocked_vs_dcp_async_fsdp": blocked("fsdp", DCP_KEPT, OURS),
        "copy_vs_torch_save_disk_unsynced": blocked("ddp", DISK, COPY),
        "copy_vs_dcp_async_ddp": blocked("ddp", DCP_KEPT, COPY),
        "blocked_vs_copy": max(blocked(wrap, OURS, COPY) for wrap in saved),
        "total_vs_least_other_ddp": total["ddp"],
        "total_vs_least_other_fsdp": total["fsdp"],
        "upload_vs_obstore": _within(uploaded["upload, forebay"], uploaded["upload, obstore"], "megabytes_per_second"),
        "memory_growth": grown["growth"],
    }


def _within(over: Turns, under: Turns, key: str) -> float:
    return median(a[key] / b[key] for a, b in zip(over, under, strict=True))


def _saves(
    wrap: str, directory: Path, bucket: Bucket, node: Daemon, options: argparse.Namespace
) -> Mapping[str, Turns]:
    settings = Settings(
        wrap=wrap,
        size_bytes=options.megabytes * 10**6,
        repeats=options.repeats,
        products=options.products,
        directory=str(directory),
        root=bucket.uri(f"runs/{wrap}"),
        store=bucket.uri(f"torch/{wrap}"),
        address=node.address,
        daemon_process=node.own.process_id,
    )
    return with_added(on_ranks(RANKS, "benchmarks.checkpoints.program", settings))


def _growth(directory: Path, bucket: Bucket, address: str, options: argparse.Namespace) -> Mapping[str, float]:
    settings = Settings(
        wrap="ddp",
        size_bytes=options.megabytes * 10**6 // 4,
        repeats=0,
        products=0,
        directory=str(directory),
        root=bucket.uri("runs/growth"),
        store="",
        address=address,
        growth_saves=options.saves,
    )
    (grown,) = on_ranks(RANKS, "benchmarks.checkpoints.program", settings)["growth"]
    return dict(grown)


def _uploads(directory: Path, bucket: Bucket, address: str, options: argparse.Namespace) -> Mapping[str, Turns]:
    uploads = Uploads(bucket, address, options.megabytes * 10**6 // 2)
    turns = {"upload, forebay": uploads.ours, "upload, obstore": lambda _: uploads.alone(directory)}
    results = interleaved(turns, options.repeats)
    uploads.close()
    return results


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=1000, help="of the whole state")
    parser.add_argument("--products", type=int, default=100, help="of matrices, in the load of a turn")
    parser.add_argument("--saves", type=int, default=50, help="after which memory is compared")
    parser.add_argument("--directory", default=None, help="where the bucket's copy and the files go")


if __name__ == "__main__":
    main("bench_checkpoint", benchmark, repeats=7, add_arguments=_arguments)
