"""A dataset as the daemon knows it: its manifest, its order, and what is made from them to read it.

Internal. A `StreamingDataset` makes one when something must be known of the data; a `DataLoader` borrows it.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from forebay.daemon.choice import DaemonChoice
from forebay.daemon.client import DaemonClient, OpenedDataset
from forebay.daemon.session import Session, check_same
from forebay.loading.engine import Feed
from forebay.loading.leases import SessionLeases
from forebay.loading.lookahead import Depth
from forebay.loading.places import shard_row
from forebay.order import Buckets, Order, OrderOptions, Pieces, RankOrder, Selection, Split, shared, spec_of
from forebay.order.options import Shuffle
from forebay.order.steps import Tail
from forebay.progress import Identity
from forebay.small_cache import SmallCacheWarning
from forebay.topology import Topology, nodes
from forebay_core.errors import EmptyDataset, ForebayError
from forebay_core.formats import Format
from forebay_core.manifest import Manifest

_AHEAD_BYTES = 64 << 20
_LEAST_AHEAD, _MOST_AHEAD = 4, 64


@dataclass(frozen=True)
class OrderSpec:
    """What a user chose of the order."""

    shuffle: Shuffle
    seed: int
    options: OrderOptions
    selection: Selection = field(default_factory=Selection)
    buckets: Buckets | None = None

    def over(self, manifest: Manifest) -> Order:
        """The order of these pieces. Raises `EmptyDataset` where the selection leaves nothing of them."""
        selected = None
        if self.selection.stages:
            pieces = Pieces(manifest.piece_rows, manifest.piece_object, manifest.objects.raw_keys())
            selected = self.selection.over(pieces)
            if manifest.samples and not selected.counts.any():
                raise EmptyDataset(
                    f"of the dataset's {manifest.samples} samples the selection {json.dumps(self.selection.spec())} "
                    f"leaves none: give a larger fraction"
                )
        return Order(
            manifest.piece_rows,
            seed=self.seed,
            shuffle=self.shuffle,
            options=self.options,
            total_bytes=manifest.total_bytes,
            selected=selected,
        )


@dataclass(frozen=True)
class StreamNames:
    """What a warning calls the pieces of a dataset, and the word of its daemon."""

    client: DaemonClient
    manifest: Manifest

    def piece(self, piece: int) -> str:
        """The shard's URL and the rows."""
        shard, row = shard_row(self.manifest, piece, 0)
        return f"rows {row}–{row + int(self.manifest.piece_rows[piece]) - 1} of {shard}"

    def capacity_bytes(self) -> int:
        """How large the daemon's cache is, asked now; 0 where it does not say."""
        try:
            return sum(disk.capacity_bytes for disk in self.client.status_now().disks)
        except ForebayError:
            return 0

    def daemon(self) -> str:
        """What the daemon is at, asked now."""
        try:
            said = self.client.status_now()
        except ForebayError as error:
            return str(error)
        count = said.counters
        fetched = f"{count.bytes_downloaded / 1e6:.0f} MB in {count.remote_requests} requests"
        return (
            f"the daemon at {self.client.address.socket} runs {said.fills_running} fills and has fetched {fetched}, "
            f"{count.remote_retries} of them repeats"
        )


@dataclass(frozen=True)
class Stream:
    """One dataset of one daemon, under one choice of columns and one order."""

    client: DaemonClient
    dataset: OpenedDataset
    manifest: Manifest
    columns: tuple[str, ...]
    order_spec: OrderSpec
    order: Order
    #: As the daemon opened it anew, once the disk with its manifest failed.
    _reopened: list[OpenedDataset] = field(default_factory=list, init=False, compare=False)

    @classmethod
    def open(
        cls,
        daemon: DaemonChoice,
        urls: Sequence[str],
        *,
        format: Format | None,
        columns: Sequence[str] | None,
        order_spec: OrderSpec,
    ) -> "Stream":
        """Asks the daemon. Raises the errors of the source, `ColumnNotFound`, `DaemonUnavailable`."""
        client = DaemonClient(daemon.address, fallback=daemon.fallback, reconnect_seconds=daemon.wait_seconds)
        dataset = client.open_dataset(urls, "" if format is None else json.dumps(format.spec(), sort_keys=True))
        manifest = Manifest.open(dataset.manifest_path, inode=dataset.inode, size=dataset.size_bytes)
        names = tuple(manifest.columns(None if columns is None else list(columns)))
        if order_spec.buckets is not None:
            order_spec.buckets.check(manifest.samples)
        return cls(client, dataset, manifest, names, order_spec, order_spec.over(manifest))

    def manifest_path(self) -> Path:
        """Where readers find the manifest: where it was or, if that disk has failed, where the daemon puts it now.

        Raises `ObjectChanged` where the source is another dataset by now, and what opening one raises.
        """
        known = self._reopened[-1] if self._reopened else self.dataset
        if not _can_be_read(known.manifest_path):
            known = self.client.open_dataset(known.urls, known.format_json)
            check_same(self.dataset, known)
            self._reopened.append(known)
        return known.manifest_path

    @property
    def samples(self) -> int:
        return self.order.samples

    def identity(self, tail: Tail) -> Identity:
        """What a state is bound to."""
        spec = spec_of(self.order, self.order_spec.buckets)
        return Identity(self.manifest.fingerprint, self.samples, {**spec, "tail": tail})

    @property
    def names(self) -> StreamNames:
        """What a warning calls its pieces."""
        return StreamNames(self.client, self.manifest)

    def nth(self, number: int) -> tuple[int, int, int]:
        """Sample id, piece and row of the number-th sample that takes part, in the order of the ids."""
        found = self._by_id.epoch(0).locate(number, number + 1)
        return int(found.sample_id[0]), int(found.piece[0]), int(found.row[0])

    @cached_property
    def _by_id(self) -> Order:
        return replace(self.order_spec, shuffle=False, options=OrderOptions()).over(self.manifest)

    def shard_row(self, piece: int, row: int) -> dict[str, Any]:
        """Where a row of a piece lies: its shard's URL, and its number among the shard's rows."""
        shard, number = shard_row(self.manifest, piece, row)
        return {"shard": shard, "row": number}

    def with_window_of(self, saved: Identity) -> "Stream":
        """This stream with the window of a state of the same kind of order over the same data; else itself."""
        window: Any = saved.order.get("window")
        is_same_kind = saved.order.get("algorithm") == self.order.algorithm and self.order_spec.shuffle is not False
        if not is_same_kind or saved.fingerprint != self.manifest.fingerprint:
            return self
        if type(window) is not int or window < 1 or window == self.order.window:
            return self
        return self.with_window(window)

    def with_window(self, window: int) -> "Stream":
        """This stream with another window."""
        spec = replace(self.order_spec, options=replace(self.order_spec.options, window=window))
        return replace(self, order_spec=spec, order=spec.over(self.manifest))

    def feed(self, split: Split, here: Topology, source: str) -> Feed:
        """What an engine reads from."""
        label = f"rank {here.rank} of {here.world_size}: {source}"

        def read(order: Order) -> RankOrder:
            return shared(order, self.order_spec.buckets, self.order_spec.seed, split, here.rank)

        return Feed(
            order=read(self.order),
            connect=lambda: self.leases(label),
            piece_bytes=self.manifest.piece_decoded_bytes,
            names=self.names,
            note=shared_lanes(self.order, nodes(here, os.environ)) if here.rank == 0 else "",
            on_small_cache=SmallCacheWarning(
                read(self.order),
                self.manifest.piece_decoded_bytes,
                window=None if self.order.algorithm == "global-1" else self.order.window,
                with_window=lambda window: read(self.with_window(window).order),
                capacity_bytes=self.names.capacity_bytes,
            ),
        )

    def leases(self, label: str) -> SessionLeases:
        """Of a session of its own, shown under this label."""
        return SessionLeases(Session(self.client, self.dataset, self.columns, label))

    def depth(self, split: Split) -> Depth:
        """How far a reader in this process runs ahead."""
        return depth_of(self.sample_bytes, split)

    @property
    def sample_bytes(self) -> float:
        """How large a sample is on average, as the manifest states it."""
        return self.manifest.total_bytes / max(1, self.manifest.samples)


def depth_of(sample_bytes: float, split: Split) -> Depth:
    """How far a reader of such samples runs ahead in its process: bounded in bytes."""
    step_samples = -(-split.global_batch // split.world_size)
    step_bytes = max(1, int(sample_bytes * step_samples))
    steps = max(_LEAST_AHEAD, min(_MOST_AHEAD, _AHEAD_BYTES // step_bytes))
    return Depth(steps=steps, chunk_steps=steps // 2)


def shared_lanes(order: Order, nodes: int | None) -> str:
    """What is to be said where several nodes read one lane; nothing where none do, or the lanes have no meaning."""
    if nodes is None or nodes <= order.lanes or order.algorithm == "global-1":
        return ""
    return (
        f"{nodes} nodes share the order's {order.lanes} lanes, so each piece is fetched about "
        f"{nodes / order.lanes:.3g} times in an epoch: a new run may have order=forebay.OrderOptions(lanes={nodes})"
    )


def _can_be_read(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return bool(file.read(1))
    except OSError:
        return False
