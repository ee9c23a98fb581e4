"""Double buffering: a worker steps the environments of one shard while another one waits for its inference server.

    shard A: ask ─┐        ┌─ answer, step, ask ─┐            one thread; each rollout is a greenlet, which is left
    shard B:      └─ step, ask ─┘                └─ ...       after it has asked, and continued when its turn comes

The same host and the same actors fill the same slabs: nothing changes but the order in which rows of different shards
are filled. Two rollouts at a time: more of them would make the server's batches smaller, and not the waiting shorter.
Does not know what is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from greenlet import getcurrent, greenlet

from headrace.clock import now_ns
from headrace.collecting.order import Order

_AT_ONCE = 2


class Fills(Protocol):
    """A host."""

    def fill(self, order: Order, idle_ns: int = 0) -> None: ...


class Pauses(Protocol):
    """What asks: it calls `pause` once it has, if there is one."""

    pause: Callable[[], None] | None


def serve_in_turns(
    host: Fills,
    asks: Pauses,
    is_there: Callable[[], bool],
    receive: Callable[[], Order | None],
    done: Callable[[], None],
) -> None:
    """Fill what is ordered until there is nothing more to receive; say when a slab is done.

    `is_there`: whether there is something to receive without waiting, if it is only the end.
    """
    hub, waiting = getcurrent(), deque[Order]()
    turns: deque[tuple[int, greenlet]] = deque()  # shards whose rollouts have begun, but for the one that runs
    is_open = True

    def pause() -> None:
        if turns or waiting or (is_open and is_there()):
            hub.switch()

    asks.pause = pause
    while True:
        asked = now_ns()
        while is_open and (is_there() or not (turns or waiting)):
            order = receive()
            is_open = order is not None
            if order is not None:
                waiting.append(order)
        if not (turns or waiting):
            return
        idle_ns = 0 if turns else now_ns() - asked
        busy, fresh = {shard for shard, _ in turns}, []
        for order in [*waiting]:
            shard = order.lease.shard
            if len(busy) < _AT_ONCE and shard not in busy:
                busy.add(shard)
                waiting.remove(order)
                fresh.append((shard, greenlet(partial(host.fill, order, idle_ns))))
                idle_ns = 0
        turns.extendleft(reversed(fresh))  # they ask before the others wait for their answers
        shard, rollout = turns.popleft()
        rollout.switch()  # an error in it is raised here
        if rollout.dead:
            done()
        else:
            turns.append((shard, rollout))
