"""A worker: an event loop that plays groups, each episode going on as soon as its own answer is back.

    slot: pull -> all members of the group at once -> done        as many slots as groups may be live here
    episode: [environment's call in a thread, with a limit] -> [engine's answer, with a limit] -> ...

The same coroutine runs in a thread of the parent or in a process of its own; all it has of the world outside is a
port: where groups come from, who answers, and where finished groups go. Groups are never split between workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.agents.callers import Callers
from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.failures import EpisodeError
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import ENGINE, TIMEOUT, Episode, Group
from headrace.agents.seat import EnvPool, Seat
from headrace.agents.table import Table, as_failure, told_close, too_slow
from headrace.clock import now_s

_BEAT_S = 0.5  # between two signs of life
_END_S = 5.0  # for environments to close when the worker ends
_ENGINE = "the engine"
_IN_ENV = ("", 0.0)


class Port(Protocol):
    """A worker's only way out."""

    async def pull(self) -> Ticket | None:
        """The next group; None: there are no more."""

    async def generate(self, request: Request) -> Completion:
        """The engine's answer."""

    def done(self, group: Group) -> None:
        """A group that is over."""

    def beat(self, waits: list[tuple[str, float]]) -> None:
        """A sign of life: what is waited for, and since when (seconds ago), longest first."""


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker needs to know; it travels to processes."""

    plan: GroupPlan
    codec: Codec
    is_text_only: bool
    limits: Limits
    reusable: frozenset[str]
    slots: int


class Worker:
    """One worker."""

    def __init__(self, index: int, plan: WorkerPlan, port: Port) -> None:
        self._index, self._plan, self._port = index, plan, port
        self._pool = EnvPool(plan.reusable)
        self._callers = Callers()
        self._waits: dict[Seat, tuple[str, float]] = {}

    async def run(self) -> None:
        """Play until there are no more groups."""
        beating = asyncio.create_task(self._beat())
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._plan.slots):
                    tasks.create_task(self._serve())
        finally:
            beating.cancel()
            self._callers.submit(self._pool.close)
            self._callers.close(min(self._plan.limits.env_s, _END_S))

    async def _serve(self) -> None:
        while (ticket := await self._port.pull()) is not None:
            table = Table(ticket, now_s())
            members = range(ticket.group_size)
            episodes = await asyncio.gather(*(self._episode(ticket, member) for member in members))
            table.episodes = dict(enumerate(episodes))
            self._port.done(table.group(self._index))

    async def _episode(self, ticket: Ticket, member: int) -> Episode:
        plan, attempt = self._plan, 0
        while True:
            attempt += 1
            seat = Seat(plan.plan, ticket, member, plan.codec, plan.is_text_only, self._pool, attempt)
            try:
                request = await self._call(seat, seat.open)
                while request is not None:
                    asked = now_s()
                    completion = await self._answer(seat, request)
                    seat.answered(completion, now_s() - asked)
                    request = await self._call(seat, seat.act)
            except _Hung as hung:
                seat = seat.abandoned()
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
            if attempt >= plan.limits.attempts:
                return seat.record()

    async def _call(self, seat: Seat, move: Callable[[], Request | None]) -> Request | None:
        """An environment's call in a thread; one that does not come back is given up."""
        limits = self._plan.limits
        self._waits[seat] = (f"the environment {seat.ticket.tag}", now_s())
        future = self._callers.submit(move)
        try:
            async with asyncio.timeout(limits.env_s):
                return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            self._callers.give_up(future, seat.close)
            raise
        except TimeoutError:
            self._callers.give_up(future, seat.close)
            self._waits.pop(seat, None)
            raise _Hung(too_slow(seat, limits)) from None
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:
            raise as_failure(error) from error

    async def _close(self, seat: Seat) -> None:
        """In a thread, too; one that does not come back is left behind."""
        limits = self._plan.limits
        self._waits[seat] = (f"the environment {seat.ticket.tag} to close", now_s())
        future = self._callers.submit(seat.close)
        try:
            async with asyncio.timeout(limits.env_s):
                await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            self._callers.give_up(future, lambda: None)
            told_close(seat, f"did not come back from close within {limits.env_s:g} s and is left behind")
        except (Exception, SystemExit) as error:
            told_close(seat, f"raised in close: {type(error).__name__}: {error}")
        finally:
            self._waits.pop(seat, None)

    async def _answer(self, seat: Seat, request: Request) -> Completion:
        limits = self._plan.limits
        self._waits[seat] = (_ENGINE, now_s())
        try:
            async with asyncio.timeout(limits.engine_s):
                return await self._port.generate(request)
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


class _Hung(Exception):  # noqa: N818 - a way out of nested calls, never seen outside
    def __init__(self, why: EpisodeError) -> None:
        super().__init__(str(why))
        self.why = why
