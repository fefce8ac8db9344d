"""The journal that outlives a kill: what is read back is what was whole."""

from pathlib import Path

from forebay.demo.records import Event, Journal, StepRecord, Tail, journal_path, read_events, read_steps


def step(number: int, rank: int) -> StepRecord:
    return StepRecord(0, rank, 2, number, 0, [number * 2 + rank], [7], [7], 1.5, 0.01, 0.1)


def test_records_of_all_ranks_come_back_by_step_then_rank(tmp_path: Path) -> None:
    for rank in (1, 0):
        journal = Journal(journal_path(tmp_path, 0, rank))
        for number in (1, 2):
            journal.append(step(number, rank))
        journal.close()
    assert read_steps(tmp_path, 0, 2) == [step(1, 0), step(1, 1), step(2, 0), step(2, 1)]


def test_a_line_that_a_kill_cut_off_is_not_a_record(tmp_path: Path) -> None:
    path = journal_path(tmp_path, 0, 0)
    journal = Journal(path)
    journal.append(step(1, 0))
    journal.append(step(2, 0))
    journal.close()
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for size in range(first_line, len(whole)):
        path.write_bytes(whole[:size])
        assert read_steps(tmp_path, 0, 1) == [step(1, 0)]


def test_a_tail_gives_each_line_once_as_it_becomes_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    tail = Tail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b'{"a": 1}\n{"b"')
    assert list(tail.lines()) == [{"a": 1}]
    assert list(tail.lines()) == []
    with path.open("ab") as file:
        file.write(b': 2}\n{"c": 3}\n')
    assert list(tail.lines()) == [{"b": 2}, {"c": 3}]


def test_events_come_back_in_their_order_and_a_run_that_never_began_has_none(tmp_path: Path) -> None:
    events = [Event(0, "started", 0, 0, 0, "abc"), Event(0, "saved", 20, 0, 1280, "abc")]
    journal = Journal(journal_path(tmp_path, 0, None))
    for event in events:
        journal.append(event)
    journal.close()
    assert read_events(tmp_path, 0) == events
    assert read_events(tmp_path, 1) == []
    assert read_steps(tmp_path, 1, 2) == []
