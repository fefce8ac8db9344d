"""The history behind the charts."""

from forebay_server.web.history import History, Totals


def totals(number: int) -> Totals:
    return Totals(
        remote_bytes=1000 * number, samples=10 * number, requests=4 * number, hits=3 * number, wait_seconds=0.5 * number
    )


def test_points_are_what_was_done_since_the_point_before() -> None:
    history = History(10.0, totals(1))
    history.add(12.0, totals(2))
    history.add(16.0, totals(6))
    first, second = history.after(-1)
    assert (first.remote_bytes_per_second, first.samples_per_second, first.seconds) == (500, 5, 2)
    assert (second.remote_bytes_per_second, second.samples_per_second, second.seconds) == (1000, 10, 4)
    assert (second.requests, second.hits, second.wait_seconds) == (16, 12, 2.0)


def test_who_has_a_point_is_given_those_after_it_whatever_its_digits() -> None:
    history = History(0.0, totals(0))
    for number in range(1, 20):
        history.add(number * 2.0001234567, totals(number))
    seen = history.after(-1)
    for point in seen:
        assert all(later.at_seconds > point.at_seconds for later in history.after(round(point.at_seconds, 3)))
    assert len(history.after(round(seen[9].at_seconds, 3))) == 9


def test_only_the_latest_points_are_kept() -> None:
    history = History(0.0, totals(0), points=3)
    for number in range(1, 10):
        history.add(float(number), totals(number))
    assert [point.at_seconds for point in history.after(-1)] == [7.0, 8.0, 9.0]


def test_a_clock_that_stands_still_gives_no_point() -> None:
    history = History(5.0, totals(0))
    history.add(5.0, totals(1))
    assert history.after(-1) == []
