"""How long before their first use pieces arrive."""

from forebay_server.distribution import Distribution
from forebay_server.filling.leads import Leads
from tests.server.scripted import ManualClock


def test_only_the_first_use_counts_and_what_was_overtaken_is_late_by_what_its_reader_waited() -> None:
    clock = ManualClock()
    leads = Leads(clock)
    leads.arrived("a")
    clock.now += 7
    leads.used("a")
    leads.used("a")
    asked_at = clock.now
    clock.now += 2
    leads.overtaken(asked_at)
    leads.never_begun()
    counters = leads.counters
    assert (counters.in_time, counters.late, counters.never_begun, counters.unread) == (1, 1, 1, 0)
    assert counters.lead_seconds.total == 7 - 2
    assert sum(counters.lead_seconds.counts) == 2


def test_what_is_removed_before_anybody_read_it_was_fetched_in_vain() -> None:
    leads = Leads(ManualClock())
    for key in ("read", "unread"):
        leads.arrived(key)
    leads.used("read")
    leads.gone("read")
    leads.gone("unread")
    leads.gone("never there")
    assert (leads.counters.in_time, leads.counters.unread) == (1, 1)


def test_a_value_on_a_bound_belongs_below_it() -> None:
    made = Distribution((0.0, 1.0))
    for value in (-5.0, 0.0, 0.5, 1.0, 1.5):
        made.add(value)
    assert made.counts == [2, 2, 1]
    assert made.total == -2.0
