"""The ledger against an `append` that is slow, refuses, or is applied although it said that it failed."""

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.checkpoint.ledger import MOST_QUEUED, Ledger, Standing, events_of
from forebay.digest import SampleDigest
from forebay_core.errors import ConfigurationError, SourceUnreachable

PATIENCE = 30.0


class Store:
    """Parts by number. `refusing`: how many calls to come fail, `applied`: although the part is there then."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        self.refusing, self.applied = 0, False
        self.changed = threading.Condition()
        self.free = threading.Event()
        self.free.set()

    def append(self, part: int, content: bytes) -> None:
        self.free.wait(PATIENCE)
        with self.changed:
            refused, self.refusing = self.refusing > 0, max(0, self.refusing - 1)
            if not refused or self.applied:
                assert self.parts.get(part, content) == content, "a part was changed"
                self.parts[part] = content
            self.changed.notify_all()
        if refused:
            raise SourceUnreachable("the store does not answer")

    def await_events(self, name: str, number: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.names().count(name) >= number, PATIENCE)

    def events(self) -> list[dict[str, Any]]:
        return events_of(self.parts[number] for number in sorted(self.parts))

    def names(self) -> list[str]:
        return [event["event"] for event in self.events()]


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.free.set()


def begun(store: Store, heartbeat_seconds: float = 3600.0, **options: Any) -> Ledger:
    ledger = Ledger(store.append, heartbeat_seconds=heartbeat_seconds, clock=lambda: 12.5, **options)
    ledger.begin(Standing(4, {"epoch": 1, "position": 8}, SampleDigest(255, 8)), parent="g1", notes={"world_size": 2})
    return ledger


def test_the_begin_is_durable_when_it_returns_with_parent_position_and_digest(store: Store) -> None:
    with begun(store):
        (began,) = store.events()
    assert began == {
        "event": "began",
        "at": 12.5,
        "parent": "g1",
        "step": 4,
        "position": {"epoch": 1, "position": 8},
        "digest": SampleDigest(255, 8).encode(),
        "world_size": 2,
    }


def test_a_begin_that_cannot_be_written_is_an_error(store: Store) -> None:
    store.refusing = 1
    with pytest.raises(SourceUnreachable):
        begun(store)


def test_saves_and_the_end_are_there_after_close_in_one_part(store: Store) -> None:
    ledger = begun(store)
    seconds = {"staged": 0.1, "local": 0.5, "durable": None}
    ledger.saved(Standing(9), attempt="g2", seconds=seconds, error="lost")
    ledger.close("preempted")
    ledger.close("again")
    _, saved, ended = store.events()
    assert (saved["attempt"], saved["step"], saved["local_seconds"], saved["durable_seconds"]) == ("g2", 9, 0.5, None)
    assert saved["error"] == "lost"
    assert ended == {"event": "ended", "at": 12.5, "reason": "preempted"}
    assert len(store.parts) == 2


def test_heartbeats_tell_where_the_job_is(store: Store) -> None:
    standings = iter(range(1000))
    with begun(store, 0.01, standing=lambda: Standing(next(standings))):
        store.await_events("heartbeat", 3)
    beats = [event["step"] for event in store.events() if event["event"] == "heartbeat"]
    assert beats == list(range(len(beats)))


@pytest.mark.parametrize("applied", [False, True])
def test_a_part_that_was_refused_is_tried_again_unchanged_and_said_once(
    applied: bool, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay")
    ledger = begun(store, 0.01)
    with store.changed:
        store.refusing, store.applied = 3, applied
    ledger.saved(Standing(9), attempt="g2", seconds={})
    with store.changed:
        assert store.changed.wait_for(lambda: store.refusing == 0, PATIENCE)
    store.await_events("heartbeat", 5)
    ledger.close()
    assert store.names().count("saved") == 1
    assert store.names()[-1] == "ended"
    assert ledger.failures == 3
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "cannot be written" in text] == [
        "the ledger of this run cannot be written (the store does not answer): training goes on, and it is tried again "
        "every 0.01 s"
    ]
    assert said[-1] == "the ledger of this run is written again"


def test_a_store_that_hangs_holds_up_neither_training_nor_the_end(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = begun(store, 0.01)
    store.free.clear()
    for step in range(2 * MOST_QUEUED):
        ledger.saved(Standing(step), attempt="g2", seconds={})
    ledger.close("closed", timeout_seconds=0.1)
    assert "the end of this run's ledger is not written" in caplog.text
    store.free.set()
    store.await_events("ended")
    lost = sum(event["events"] for event in store.events() if event["event"] == "lost")
    steps = [event["step"] for event in store.events() if event["event"] == "saved"]
    assert lost > 0
    assert lost + len(store.events()) >= 2 * MOST_QUEUED
    assert steps[-1] == 2 * MOST_QUEUED - 1


def test_an_end_that_is_refused_is_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    ledger = begun(store)
    store.refusing = 1
    ledger.close("preempted")
    assert "the end of this run's ledger is not written: preempted" in caplog.text


def test_whoever_is_asked_where_the_job_is_may_fail(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    def standing() -> Standing:
        asked.set()
        raise RuntimeError("no loader")

    ledger = begun(store, 0.01, standing=standing)
    assert asked.wait(PATIENCE)
    ledger.close()
    assert ledger.failures >= 1
    assert store.names() == ["began", "ended"]
    assert "no loader" in caplog.text


def test_an_exception_in_the_block_is_the_reason_of_the_end(store: Store) -> None:
    with pytest.raises(KeyError), begun(store):
        raise KeyError("x")
    assert store.events()[-1]["reason"] == "KeyError"


def test_a_ledger_that_never_began_closes_quietly(store: Store) -> None:
    Ledger(store.append).close()
    assert store.parts == {}


def test_parts_that_cannot_be_read_are_told() -> None:
    parts = [json.dumps([{"event": "began"}]).encode(), b"{", b"[1]"]
    assert [event["event"] for event in events_of(parts)] == ["began", "unreadable", "unreadable"]


def test_a_heartbeat_that_never_rests_is_refused(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="heartbeat_seconds=0"):
        Ledger(store.append, heartbeat_seconds=0)
