"""A worker: an event loop that plays groups, each episode going on as soon as its own answer is back.

    room for a group? -> pull -> all its members at once -> done      `most_live` episodes at one time
    episode: [environment's call in a thread, with a limit] -> [engine's answer, with a limit] -> ...

The same coroutine runs in a thread of the parent or in a process of its own; all it has of the world outside is a
port: where groups come from, who answers, and where finished groups go. Groups are never split between workers; the
next one begins when there is room for its episodes, not when another group is over: its last member may take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.agents.callers import Bridge, Callers
from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.limits import END_S, Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import ENGINE, TIMEOUT, Episode, EpisodeError, Group
from headrace.agents.seat import EnvPool, Seat, Table, as_failure, report_close, too_slow
from headrace.clock import now_s

T = TypeVar("T")

_BEAT_S = 0.5  # between two signs of life
_ENGINE = "the engine"
_IN_ENV = ("", 0.0)


class Port(Protocol):
    """A worker's only way out."""

    async def pull(self) -> Ticket | None:
        """The next group; None: there are no more."""

    async def generate(self, request: Request, limit_s: float) -> Completion:
        """The engine's answer; TimeoutError after limit_s."""

    def done(self, group: Group) -> None:
        """A group that is over."""

    def beat(self, waits: list[tuple[str, float]]) -> None:
        """A sign of life: what is waited for, and since when (seconds ago), longest first."""

    def close(self) -> None:
        """Say goodbye."""


@dataclass(frozen=True)
class WorkerBrief:
    """What a worker needs to know; it travels to processes."""

    plan: GroupPlan
    codec: Codec
    is_text_only: bool
    limits: Limits
    reusable: frozenset[str]
    most_live: int


class Worker:
    """One worker."""

    def __init__(self, index: int, brief: WorkerBrief, port: Port) -> None:
        self._index, self._brief, self._port = index, brief, port
        self._pool = EnvPool(brief.reusable)
        self._callers = Callers()
        self._bridge = Bridge()
        self._live = 0  # episodes
        self._has_room = asyncio.Event()
        self._calls: list[tuple[Callable[[], Any], Future[Any]]] = []  # that have not gone to the callers yet
        self._waits: dict[Seat, tuple[str, float]] = {}

    async def run(self) -> None:
        """Play until there are no more groups."""
        group_size = self._brief.plan.group_size
        beating = asyncio.create_task(self._beat())
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    while self._live and self._live + group_size > self._brief.most_live:
                        self._has_room.clear()
                        await self._has_room.wait()
                    ticket = await self._port.pull()
                    if ticket is None:
                        break
                    self._live += group_size
                    tasks.create_task(self._group(ticket))
        finally:
            beating.cancel()
            self._flush()
            self._callers.submit(self._pool.close)
            self._callers.close(min(self._brief.limits.env_s, END_S))

    async def _group(self, ticket: Ticket) -> None:
        table = Table(ticket, now_s())
        episodes = await asyncio.gather(*(self._member(ticket, member) for member in range(ticket.group_size)))
        table.episodes = dict(enumerate(episodes))
        self._port.done(table.group(self._index))

    async def _member(self, ticket: Ticket, member: int) -> Episode:
        try:
            return await self._episode(ticket, member)
        finally:
            self._live -= 1
            self._has_room.set()

    async def _episode(self, ticket: Ticket, member: int) -> Episode:
        brief, attempt = self._brief, 0
        while True:
            attempt += 1
            seat = Seat(brief.plan, ticket, member, brief.codec, brief.is_text_only, self._pool, attempt)
            try:
                request = await self._call(seat, seat.open)
                while request is not None:
                    asked = now_s()
                    completion = await self._answer(seat, request)
                    seat.answered(completion, now_s() - asked)
                    request = await self._call(seat, seat.act)
            except _Hung as hung:
                seat = hung.twin
                seat.failed(hung.why.failure)
            except EpisodeError as failure:
                seat.failed(failure.failure)
            except asyncio.CancelledError:
                if self._waits.get(seat, _IN_ENV)[0] == _ENGINE:  # else its thread closes it, when it comes back
                    self._callers.submit(seat.close)
                raise
            else:
                await self._close(seat)
                return seat.record()
            finally:
                self._waits.pop(seat, None)
            await self._close(seat)
            if attempt >= brief.limits.attempts:
                return seat.record()

    async def _call(self, seat: Seat, move: Callable[[], Request | None]) -> Request | None:
        """An environment's call in a thread; one that does not come back is given up."""
        limits = self._brief.limits
        self._waits[seat] = (f"the environment {seat.ticket.tag}", now_s())
        future = self._submit(move)
        try:
            return await self._result(future)
        except asyncio.CancelledError:
            if not self._callers.give_up(future, seat.close):
                self._callers.submit(seat.close)
            raise
        except TimeoutError:
            twin = seat.abandoned()  # before all else: what comes back from now on adds nothing
            if not self._callers.give_up(future, seat.close):
                await self._close(seat)
            self._waits.pop(seat, None)
            raise _Hung(too_slow(seat, limits), twin) from None
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:
            raise as_failure(error) from error

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        """To the callers, together with all else that this turn of the loop brings: one lock, one wake-up."""
        future: Future[T] = Future()
        self._calls.append((call, future))
        if len(self._calls) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        return future

    def _flush(self) -> None:
        calls, self._calls = self._calls, []
        if calls:
            self._callers.submit_all(calls)

    async def _result(self, future: Future[T]) -> T:
        """Of an environment's call; TimeoutError if it takes too long from when it was begun, queues aside."""
        limit_s = left_s = self._brief.limits.env_s
        while True:
            try:
                return await self._bridge.result(future, left_s)
            except TimeoutError:
                begun_s = self._callers.begun_s(future)
                if future.done():
                    return future.result()
                left_s = limit_s if begun_s is None else limit_s - (now_s() - begun_s)
                if left_s <= 0:
                    raise

    async def _close(self, seat: Seat) -> None:
        """In a thread, too; one that does not come back is left behind."""
        limits = self._brief.limits
        self._waits[seat] = (f"the environment {seat.ticket.tag} to close", now_s())
        future = self._submit(seat.close)
        try:
            await self._result(future)
        except TimeoutError:
            self._callers.give_up(future, lambda: None)
            report_close(seat, f"it did not come back from close within {limits.env_s:g} s and is left behind")
        except (Exception, SystemExit) as error:
            report_close(seat, str(error))
        finally:
            self._waits.pop(seat, None)

    async def _answer(self, seat: Seat, request: Request) -> Completion:
        limits = self._brief.limits
        self._waits[seat] = (_ENGINE, now_s())
        try:
            return await self._port.generate(request, limits.engine_s)
        except TimeoutError:
            raise EpisodeError(TIMEOUT, f"the engine did not answer within {limits.engine_s:g} s") from None
        except (EpisodeError, ConnectionError):
            raise
        except Exception as error:
            raise EpisodeError(ENGINE, f"{type(error).__name__}: {error}") from error

    async def _beat(self) -> None:
        while True:
            now = now_s()
            waits = [
                (f"{what}, group {seat.ticket.number} member {seat.member}", now - since)
                for seat, (what, since) in self._waits.items()
            ]
            self._port.beat(sorted(waits, key=lambda one: -one[1])[:5])
            await asyncio.sleep(_BEAT_S)


async def work(index: int, brief: WorkerBrief, open_port: Callable[[], Port]) -> None:
    """A worker's life in this event loop, from the opening of its port to the closing."""
    port = open_port()
    try:
        await Worker(index, brief, port).run()
    finally:
        port.close()


class _Hung(Exception):  # noqa: N818 - a way out of nested calls, never seen outside
    def __init__(self, why: EpisodeError, twin: Seat) -> None:
        super().__init__(str(why))
        self.why, self.twin = why, twin
