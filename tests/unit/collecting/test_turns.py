"""Double buffering: rollouts of two shards in turns, in one thread, each shard's own one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest

from headrace.collecting.order import Order
from headrace.collecting.turns import serve_in_turns
from headrace.memory.lease import Lease


class Worker:
    """Fills rollouts of three rows and writes down what it does; orders come when `arrivals` says, by events so far."""

    def __init__(self, orders: Sequence[Order], arrivals: Sequence[int] = ()) -> None:
        self._coming = deque(zip(orders, arrivals or [0] * len(orders), strict=True))
        self.events: list[str] = []
        self.pause: Callable[[], None] | None = None

    def is_there(self) -> bool:
        return not self._coming or self._coming[0][1] <= len(self.events)  # the end can be read, too

    def receive(self) -> Order | None:
        return self._coming.popleft()[0] if self._coming else None

    def fill(self, order: Order, idle_ns: int = 0) -> None:
        assert self.pause is not None
        for row in range(3):
            self.events.append(f"ask {order.lease.shard}.{order.lease.sequence}.{row}")
            self.pause()
            self.events.append(f"step {order.lease.shard}.{order.lease.sequence}.{row}")
            if order.version == row + 1:
                raise ValueError("in the middle")

    def serve(self) -> list[str]:
        serve_in_turns(self, self, self.is_there, self.receive, lambda: self.events.append("done"))
        return self.events


def order(shard: int, sequence: int = 0, fails_after: int = 0) -> Order:
    return Order(Lease(0, shard, sequence, 1), fails_after, 0)


def test_one_steps_while_the_other_waits() -> None:
    a, b = "0.0", "2.0"
    assert Worker([order(0), order(2)]).serve() == [
        f"ask {a}.0", f"ask {b}.0",
        f"step {a}.0", f"ask {a}.1", f"step {b}.0", f"ask {b}.1",
        f"step {a}.1", f"ask {a}.2", f"step {b}.1", f"ask {b}.2",
        f"step {a}.2", "done", f"step {b}.2", "done",
    ]  # fmt: skip


def test_rollouts_of_one_shard_follow_one_another() -> None:
    events = Worker([order(0, 0), order(0, 1)]).serve()
    assert events.index("done") < events.index("ask 0.1.0")
    assert events.count("done") == 2


def test_no_more_than_two_at_a_time() -> None:
    events = Worker([order(0), order(1), order(2)]).serve()
    assert events.index("done") < events.index("ask 2.0.0")
    assert events.count("done") == 3


def test_an_order_that_comes_later_joins_in() -> None:
    events = Worker([order(0), order(1)], [0, 3]).serve()
    assert events[:5] == ["ask 0.0.0", "step 0.0.0", "ask 0.0.1", "ask 1.0.0", "step 0.0.1"]
    assert events.count("done") == 2


def test_a_failure_is_raised() -> None:
    worker = Worker([order(0), order(1, fails_after=2)])
    with pytest.raises(ValueError, match="in the middle"):
        worker.serve()
    assert worker.events[-1] == "step 1.0.1"
