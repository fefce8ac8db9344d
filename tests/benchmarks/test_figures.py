"""What the benchmarks compute from what they measured, against the same by hand."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.bench_overhead import Turn, differences
from benchmarks.bench_shuffle import BATCH, DATA, Quality, our_order


def test_the_quality_of_an_order_is_that_of_counting_each_batch() -> None:
    batch = 7
    classes = np.random.default_rng(0).zipf(1.5, 200).clip(max=9)
    batches = [Counter(classes[start : start + batch].tolist()) for start in range(0, 196, batch)]
    quality = Quality.of(classes, batch)
    assert quality.classes == pytest.approx(np.mean([len(counts) for counts in batches]))
    assert quality.classes_first == len(batches[0])
    assert quality.classes_least == min(len(counts) for counts in batches)
    assert quality.most_of_one == pytest.approx(np.mean([max(counts.values()) for counts in batches]))
    assert quality.most_of_one_ever == max(max(counts.values()) for counts in batches)


def test_batches_of_one_class_and_of_all_different_classes_are_the_extremes() -> None:
    assert Quality.of(np.zeros(20, np.int64), 10) == Quality(1, 1, 1, 10, 10)
    assert Quality.of(np.arange(20), 10) == Quality(10, 10, 10, 1, 1)


def test_classes_follow_one_another_and_are_equally_large() -> None:
    data, ids = DATA[0], np.arange(DATA[0].samples)
    counts = np.bincount(data.class_of(ids))
    assert len(counts) == 1000
    assert counts.max() - counts.min() <= 1
    assert (np.diff(data.class_of(ids)) >= 0).all()


def test_the_global_shuffle_mixes_classes_as_a_permutation_does() -> None:
    data = DATA[0]
    permutation = Quality.of(data.class_of(np.random.default_rng(0).permutation(data.samples)), BATCH)
    ours = Quality.of(data.class_of(our_order(data, "global")[1]), BATCH)
    assert ours.classes == pytest.approx(permutation.classes, rel=0.01)


def test_the_cost_of_reporting_is_the_difference_of_each_pair() -> None:
    results: dict[str, list[Turn]] = {
        "reporting, paced, 20 a second": [{"cpu_fraction": 0.03}, {"cpu_fraction": 0.05}],
        "silent, paced, 20 a second": [{"cpu_fraction": 0.01}, {"cpu_fraction": 0.02}],
    }
    assert differences(results, "paced", 20, "cpu_fraction") == pytest.approx([0.02, 0.03])
