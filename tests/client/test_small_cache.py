"""What a loader says of a cache that is smaller than what its order mixes."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest

from forebay.order import Order, OrderOptions, SharedOrder, Split
from forebay.order.options import Shuffle
from forebay.small_cache import SmallCacheWarning, mixed_bytes

ROWS, PIECE_BYTES = [100] * 1000, np.full(1000, 8 << 20)


def shared(window: int | None, shuffle: Shuffle = "window", *, world_size: int = 1) -> SharedOrder:
    order = Order(ROWS, seed=1, shuffle=shuffle, options=OrderOptions(window=window))
    return SharedOrder(order, Split(world_size, 64), 0)


def warning(order: SharedOrder, capacity_bytes: int = 0) -> SmallCacheWarning:
    return SmallCacheWarning(
        order,
        PIECE_BYTES,
        window=None if order.order.algorithm == "global-1" else order.order.window,
        with_window=lambda window: replace(order, order=shared(window).order),
        capacity_bytes=lambda: capacity_bytes,
    )


def said(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [record for record in caplog.records if record.name == "forebay"]
    assert record.levelno == logging.WARNING
    return record.getMessage()


def test_the_warning_names_what_is_mixed_and_a_capacity_and_a_window_that_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    order, budget, capacity = shared(1000), 1 << 30, 4 << 30
    mixed = mixed_bytes(order, PIECE_BYTES, 0)
    assert mixed == pytest.approx(16 * (2 * 1000 + 100) / 100 * (8 << 20), rel=0.05)
    warning(order, capacity)(0, budget)
    text = said(caplog)
    assert "mixes about 2.62 GiB at a time and the cache gives this loader 1 GiB" in text
    (enough, unit), (window,) = re.findall(r"at least (\d+)(\wiB)", text)[0], re.findall(r"window=(\d+)", text)
    assert unit == "GiB"
    assert mixed <= (int(enough) << 30) * budget // capacity <= 1.2 * mixed
    assert 0.8 * budget < mixed_bytes(shared(int(window)), PIECE_BYTES, 0) <= budget


def test_it_is_said_once_for_a_loader(caplog: pytest.LogCaptureFixture) -> None:
    say = warning(shared(1000))
    say(0, 1 << 30)
    say(1, 1 << 29)
    assert "give the daemon more --capacity, or order=forebay.OrderOptions(window=" in said(caplog)


def test_a_rank_that_reads_one_lane_mixes_its_part() -> None:
    whole, one = shared(1000), shared(1000, world_size=16)
    assert mixed_bytes(one, PIECE_BYTES, 0) == pytest.approx(mixed_bytes(whole, PIECE_BYTES, 0) / 16, rel=0.1)


def test_no_window_is_named_where_none_fits_and_another_shuffle_where_all_is_mixed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warning(shared(1000), 1 << 30)(0, 8 << 20)
    assert "window=" not in said(caplog)
    caplog.clear()
    warning(shared(None, "global"), 4 << 30)(0, 1 << 30)
    assert 'or take shuffle="window"' in said(caplog)


def test_pieces_that_turned_out_larger_than_stated_count_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    order = shared(1000)
    stated = mixed_bytes(order, PIECE_BYTES, 0)
    warning(order)(0, 1 << 30, 7.0)
    assert f"mixes about {7 * stated / (1 << 30):.3g} GiB" in said(caplog)
