"""The socket between a worker's process and the hub: what nobody waits for any more is not generated."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from headrace.agents.desk import Desk
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.plan import Ticket
from headrace.agents.ports import Hub, SocketPort
from headrace.agents.scheduler import Scheduler
from support.waiting import wait_until

REQUEST = Request(0, 0, 0, [1, 2], 4, 7)


class Silent:
    """An engine that takes questions and says nothing of its own."""

    version = 0

    def __init__(self) -> None:
        self.asked: list[Future[Completion]] = []

    def expect(self, live: int) -> None:
        pass

    def submit(self, request: Request) -> Future[Completion]:
        self.asked.append(Future())
        return self.asked[-1]


@pytest.fixture
def engine() -> Silent:
    return Silent()


@pytest.fixture
def hub(engine: Silent) -> Iterator[Hub]:
    scheduler = Scheduler([Ticket(0, "A", 1, 2)], 1)
    made: Any = engine
    hub = Hub(Desk(scheduler, made, 1, 1), made)
    yield hub
    hub.close()


async def soon(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.005)


def test_an_answer_finds_its_question(hub: Hub, engine: Silent) -> None:
    async def scene() -> None:
        port = SocketPort(hub.address, hub.key, 0)
        asking = [asyncio.create_task(port.generate(REQUEST, 5.0)) for _ in range(3)]
        await soon(lambda: len(engine.asked) == 3)
        for at in (2, 0, 1):
            engine.asked[at].set_result(Completion([at], [-0.5], [0], f"answer {at}", "stop"))
        assert [one.text for one in await asyncio.gather(*asking)] == ["answer 0", "answer 1", "answer 2"]
        port.close()

    asyncio.run(scene())


def test_a_worker_that_comes_while_the_hub_closes_does_not_hold_it_up(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accepter may end with that worker, before anybody wakes it."""
    monkeypatch.setattr(hub, "_has_ended", lambda: True)

    async def come() -> None:
        SocketPort(hub.address, hub.key, 0)

    with pytest.raises(ConnectionResetError, match="the parent is gone"):
        asyncio.run(come())
    wait_until(lambda: not hub._accepter.is_alive())
    closing = threading.Thread(target=hub.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


@pytest.mark.parametrize("how", ["late", "cancelled", "gone"])
def test_what_nobody_waits_for_is_not_generated(hub: Hub, engine: Silent, how: str) -> None:
    async def scene() -> None:
        port = SocketPort(hub.address, hub.key, 0)
        asking = asyncio.create_task(port.generate(REQUEST, 0.05 if how == "late" else 60.0))
        await soon(lambda: len(engine.asked) == 1)
        if how == "late":
            with pytest.raises(TimeoutError):
                await asking
        elif how == "cancelled":
            asking.cancel()
        else:
            asking.add_done_callback(lambda task: task.exception())
            port.close()
        await soon(lambda: engine.asked[0].cancelled())
        if how != "gone":
            port.close()

    asyncio.run(scene())
