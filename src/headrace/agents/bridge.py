"""From threads into an event loop: what many threads have to say wakes the loop once, not once for each.

    thread: post(call) ──> box ──(one wake-up)──> loop: every call in the box, in order

An engine that answers a batch, or environments that come back together, would else write to the loop's pipe for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Bridge:
    """Into the loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._box: deque[Callable[[], None]] = deque()
        self._is_woken = False

    def post(self, call: Callable[[], None]) -> None:
        """Have it called in the loop; from any thread."""
        self._box.append(call)
        if not self._is_woken:  # one wake-up too many does no harm; one too few can't be: see `_empty`
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                self._loop.call_soon_threadsafe(self._empty)

    async def result(self, future: Future[T], limit_s: float | None = None) -> T:
        """What a future of some thread gives; TimeoutError after limit_s. Whoever stops waiting leaves it to itself."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(lambda _: self.post(partial(_wake, waiter)))
        await awaited(waiter, limit_s)
        return future.result()

    def _empty(self) -> None:
        self._is_woken = False  # before looking: what comes after the look wakes again
        while self._box:
            self._box.popleft()()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def awaited(waiter: asyncio.Future[T], limit_s: float | None) -> T:
    """A future of this loop, with a limit: asyncio.timeout at a quarter of its price, for what is awaited all day."""
    timer = None if limit_s is None else waiter.get_loop().call_later(limit_s, _expire, waiter)
    try:
        return await waiter
    finally:
        if timer is not None:
            timer.cancel()


def _expire(waiter: asyncio.Future[T]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
