"""Loops that outlive a failure, and work that is done once for all who ask."""

import asyncio
import logging
from functools import partial

import pytest

from forebay_server.concurrency import OneForAll, repeat


def test_a_failure_does_not_end_a_loop_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> int:
        calls = 0
        done = asyncio.Event()

        async def step() -> None:
            nonlocal calls
            calls += 1
            if calls < 3:
                raise OSError(5, "Input/output error")
            done.set()
            await asyncio.Event().wait()

        loop = asyncio.create_task(repeat(step, "looking", pause_seconds=0))
        await done.wait()
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop
        return calls

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(run()) == 3
    assert [record.message for record in caplog.records] == ["looking failed once; it goes on"] * 2


def test_those_who_ask_at_the_same_time_share_one_result_or_one_failure() -> None:
    async def run() -> None:
        shared: OneForAll[str, int] = OneForAll()
        calls: list[str] = []

        async def work(name: str) -> int:
            calls.append(name)
            await asyncio.sleep(0)
            if name == "bad":
                raise ValueError(name)
            return len(calls)

        asked = [shared.result(name, partial(work, name)) for name in ("a", "bad", "a", "bad")]
        one, failure, other, same_failure = await asyncio.gather(*asked, return_exceptions=True)
        assert (one, other) == (2, 2)
        assert isinstance(failure, ValueError)
        assert failure is same_failure
        assert calls == ["a", "bad"]
        assert await shared.result("a", lambda: work("a")) == 3

    asyncio.run(run())


def test_one_who_gives_up_does_not_end_the_work_of_another() -> None:
    async def run() -> None:
        shared: OneForAll[str, str] = OneForAll()
        go_on = asyncio.Event()

        async def work() -> str:
            await go_on.wait()
            return "done"

        one, other = (asyncio.create_task(shared.result("x", work)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.wait([one])
        go_on.set()
        assert await other == "done"

    asyncio.run(run())
