"""The socket between a worker's process and the hub: what nobody waits for any more is not generated."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from headrace.agents.desk import Desk
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.plan import Ticket
from headrace.agents.ports import Hub, SocketPort
from headrace.agents.records import EpisodeError
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


def test_an_answer_finds_its_question(hub: Hub, engine: Silent) -> None:
    port = SocketPort(hub.address, hub.key, 0)
    asking = [port.generate(REQUEST) for _ in range(3)]
    wait_until(lambda: len(engine.asked) == 3)
    for at in (2, 0, 1):
        engine.asked[at].set_result(Completion([at], [-0.5], [0], f"answer {at}", "stop"))
    assert [one.result(60).text for one in asking] == ["answer 0", "answer 1", "answer 2"]
    port.close()


def test_what_the_engine_fails_with_comes_back(hub: Hub, engine: Silent) -> None:
    port = SocketPort(hub.address, hub.key, 0)
    asking = port.generate(REQUEST)
    wait_until(lambda: len(engine.asked) == 1)
    engine.asked[0].set_exception(EpisodeError("engine", "no answer"))
    with pytest.raises(EpisodeError, match="no answer"):
        asking.result(60)
    port.close()


def test_who_waits_when_the_parent_goes_is_told(hub: Hub, engine: Silent) -> None:
    """And who asks after that, too."""
    port = SocketPort(hub.address, hub.key, 0)
    asking = port.generate(REQUEST)
    wait_until(lambda: len(engine.asked) == 1)
    hub.close()
    for one in (asking, port.pull()):
        with pytest.raises(ConnectionError, match="the parent is gone"):
            one.result(60)
    port.close()


def test_a_worker_that_comes_while_the_hub_closes_does_not_hold_it_up(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accepter may end with that worker, before anybody wakes it."""
    monkeypatch.setattr(hub, "_has_ended", lambda: True)
    with pytest.raises(ConnectionResetError, match="the parent is gone"):
        SocketPort(hub.address, hub.key, 0)
    wait_until(lambda: not hub._accepter.is_alive())
    closing = threading.Thread(target=hub.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


@pytest.mark.parametrize("how", ["cancelled", "gone"])
def test_what_nobody_waits_for_is_not_generated(hub: Hub, engine: Silent, how: str) -> None:
    port = SocketPort(hub.address, hub.key, 0)
    asking = port.generate(REQUEST)
    wait_until(lambda: len(engine.asked) == 1)
    if how == "cancelled":
        assert asking.cancel()
    else:
        port.close()
    wait_until(lambda: engine.asked[0].cancelled())
    if how == "cancelled":
        port.close()
