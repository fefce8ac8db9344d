"""What `forebay order` prints for people: a step by rank and shard, and the figures of an order's quality.

However large a batch is, a rank takes a dozen lines at most and a line a handful of ranges; `--json` has everything.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.table import Table

from forebay.order.lanes import Int64
from forebay.order.quality import Excerpt, Figures, Quality
from forebay.order_command.contents import Found, RankBatch
from forebay_core.manifest import Manifest

_SHOWN_LINES = 12
_SHOWN_RANGES = 6
_FIGURES = {
    "shards in a batch": ("shards_per_batch", "{:,.1f}"),
    "pieces in a batch": ("pieces_per_batch", "{:,.1f}"),
    "shards in a rank's batch": ("shards_per_rank_batch", "{:,.1f}"),
    "pieces in a rank's batch": ("pieces_per_rank_batch", "{:,.1f}"),
    "largest share of a shard": ("largest_shard_share", "{:.1%}"),
    "mean displacement": ("mean_displacement", "{:.1%}"),
    "largest displacement": ("max_displacement", "{:.1%}"),
    "correlation with the next sample": ("correlation", "{:+.3f}"),
    "correlation with the next of its lane": ("lane_correlation", "{:+.3f}"),
    "open pieces": ("open_pieces", "{:,}"),
    "open pieces of a node": ("open_pieces_per_node", "{:,}"),
}


def ranges(numbers: Int64, *, shown: int = _SHOWN_RANGES) -> str:
    """The numbers as ascending ranges, `0-15, 17, 20-31`; after `shown` of them only how many more there are."""
    ascending = np.sort(numbers)
    cuts = np.flatnonzero(np.diff(ascending) > 1)
    first, last = ascending[np.append(0, cuts + 1)], ascending[np.append(cuts, len(ascending) - 1)]
    if len(first) <= shown + 1:
        shown = len(first)
    bounds = zip(first[:shown].tolist(), last[:shown].tolist(), strict=True)
    texts = [f"{one}" if one == other else f"{one}-{other}" for one, other in bounds]
    return ", ".join(texts) + (f", … {len(first) - shown:,} more ranges" if len(first) > shown else "")


def step_heading(found: Found, world_size: int) -> str:
    """One line that says which step it is."""
    step = found.step
    counted = f" counted from position {found.start:,}" if found.start else ""
    pads = f" and {_counted(step.pads, 'pad')}" if step.pads else ""
    return (
        f"epoch {found.epoch}, step {found.number:,} of {found.steps:,}{counted}: "
        f"positions {step.position:,} to {step.position + step.take - 1:,}{pads} over {_counted(world_size, 'rank')}, "
        f"then position {step.after:,}"
    )


def step_table(manifest: Manifest, batches: Sequence[RankBatch]) -> Table:
    """A line for each rank and shard, and one for its pads of it."""
    table = Table(title=f"shards of {readable(manifest.root)}", title_justify="left")
    table.add_column("rank", justify="right")
    for name in ("shard", "rows", "sample ids"):
        table.add_column(name, overflow="fold")
    table.add_column("samples", justify="right")
    for batch in batches:
        for line in _lines(manifest, batch):
            table.add_row(str(batch.rank), *line)
    return table


def readable(key: str) -> str:
    """A key for a terminal: bytes that are no UTF-8 show as the replacement character."""
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _lines(manifest: Manifest, batch: RankBatch) -> Iterator[list[str]]:
    """In the order in which the rank meets its shards, pads last."""
    group = batch.shard * 2 + batch.is_pad
    groups, first, number = np.unique(group, return_index=True, return_counts=True)
    by_first = np.argsort(first)
    for each in by_first[:_SHOWN_LINES].tolist():
        inside = group == groups[each]
        shard, is_pad = divmod(int(groups[each]), 2)
        samples = _counted(number[each], "pad") if is_pad else f"{number[each]:,}"
        yield [
            readable(manifest.objects.key(shard)),
            ranges(batch.row[inside]),
            ranges(batch.sample_id[inside]),
            samples,
        ]
    left = by_first[_SHOWN_LINES:]
    if len(left):
        yield [f"… {_counted(len(left), 'more shard')}", "", "", f"{number[left].sum():,}"]


def quality_heading(quality: Quality) -> str:
    """One line that says what was looked at."""
    return (
        f"epoch {quality.epoch}, {quality.algorithm}: {_counted(quality.samples, 'sample')} in "
        f"{_counted(quality.pieces, 'piece')} of {_counted(quality.shards, 'shard')}, "
        f"{_counted(quality.lanes, 'lane')}, window {quality.window:,}, batches of {quality.global_batch:,} over "
        f"{_counted(quality.world_size, 'rank')} on {_counted(quality.nodes, 'node')}; "
        f"a piece is fetched {quality.fetches_per_piece:.2f} times"
    )


def quality_table(quality: Quality) -> Table:
    """The figures of the three excerpts, in brackets those of a true shuffle."""
    table = Table(title="in brackets: a true shuffle of the same samples", title_justify="left")
    table.add_column("figure")
    excerpts = {"start": quality.start, "middle": quality.middle, "end": quality.end}
    for name, excerpt in excerpts.items():
        table.add_column(f"{name}, {_steps(excerpt)}", justify="right")
    for title, (name, form) in _FIGURES.items():
        cells = [
            f"{_number(excerpt.found, name, form)} ({_number(excerpt.true_shuffle, name, form)})"
            for excerpt in excerpts.values()
        ]
        table.add_row(title, *cells)
    return table


def _steps(excerpt: Excerpt) -> str:
    last = excerpt.first_step + excerpt.steps - 1
    return f"step {last:,}" if excerpt.steps == 1 else f"steps {excerpt.first_step:,}-{last:,}"


def _number(figures: Figures, name: str, form: str) -> str:
    value = getattr(figures, name)
    return "–" if value is None else form.format(value)
