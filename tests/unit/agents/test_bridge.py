"""From threads into a loop: nothing is lost, many wake it once, and whoever waits too long is told."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from unittest import mock

import pytest

from headrace.agents.callers import Bridge


def test_answers_of_many_threads_arrive() -> None:
    async def main() -> list[int]:
        bridge = Bridge()
        futures: list[Future[int]] = [Future() for _ in range(400)]

        def answer(part: int) -> None:
            for number in range(part, 400, 4):
                futures[number].set_result(number)

        threads = [threading.Thread(target=answer, args=(part,)) for part in range(4)]
        waiting = [asyncio.create_task(bridge.result(future)) for future in futures]
        for thread in threads:
            thread.start()
        got = await asyncio.gather(*waiting)
        for thread in threads:
            thread.join()
        return got

    assert asyncio.run(main()) == list(range(400))


def test_a_batch_wakes_the_loop_once() -> None:
    async def main() -> int:
        bridge, loop = Bridge(), asyncio.get_running_loop()
        futures: list[Future[int]] = [Future() for _ in range(50)]
        waiting = [asyncio.create_task(bridge.result(future)) for future in futures]
        await asyncio.sleep(0)
        with mock.patch.object(loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe) as wake:
            for future in futures:
                future.set_result(1)
            await asyncio.gather(*waiting)
        return wake.call_count

    assert asyncio.run(main()) == 1


def test_errors_and_limits() -> None:
    async def main() -> None:
        bridge = Bridge()
        failing: Future[int] = Future()
        failing.set_exception(KeyError("x"))
        with pytest.raises(KeyError):
            await bridge.result(failing)
        silent: Future[int] = Future()
        with pytest.raises(TimeoutError):
            await bridge.result(silent, 0.01)
        silent.set_result(3)  # late: nobody minds
        await asyncio.sleep(0.01)
        done: Future[int] = Future()
        done.set_result(7)
        assert await bridge.result(done, 1.0) == 7

    asyncio.run(main())


def test_a_loop_that_has_ended_does_not_mind() -> None:
    """Nothing is raised where it is posted, and nothing runs: nobody is left to run it."""
    called = list[int]()

    async def main() -> Bridge:
        return Bridge()

    bridge = asyncio.run(main())
    for number in range(2):
        bridge.post(lambda number=number: called.append(number))
    assert called == []
