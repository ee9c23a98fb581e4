"""A worker: plays groups, each episode going on as soon as its own answer is back. No loop between engine and threads.

    room for an episode? -> pull a group -> its members, as there is room -> done        `most_live` at one time
    episode: [thread: open] ─question─> engine ─answer─> [thread: answered, act] ─question─> engine ... [thread: close]

The thread that ends one leg of an episode starts the next: the engine's thread hands an answer to an environments'
thread, and that hands the next question to the engine. The worker's own thread begins episodes, gives signs of life and
looks after limits. What comes after a leg is for the first that takes it out of `_legs`: the thread that ends it, or
the one that finds that it took too long. So everything happens once.

The same worker runs in a thread of the parent or in a process of its own; all it has of the world outside is a port:
where groups come from, who answers, and where finished groups go. Groups are never split between workers.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headrace.agents.callers import Awaited, Callers, Outcome
from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.limits import END_S, Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import ENGINE, TIMEOUT, EpisodeError, Group
from headrace.agents.seat import EnvPool, Seat, Table, as_failure, report_close, too_slow
from headrace.clock import now_s

_BEAT_S = 0.5  # between two signs of life


class Port(Protocol):
    """A worker's only way out. Futures of a port fail with ConnectionError when the parent is gone."""

    def pull(self) -> Future[Ticket | None]:
        """The next group; None: there are no more."""

    def generate(self, request: Request) -> Future[Completion]:
        """The engine's answer; to cancel it says that it is not waited for any more."""

    def stepped(self, tag: str, step_s: float, computing_s: float) -> None:
        """What an environment took for a turn."""

    def over(self, number: int) -> None:
        """An episode of this group asks nothing more."""

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


@dataclass(slots=True, eq=False)
class _Leg:
    """What an episode waits for, and since when."""

    what: str
    since_s: float
    future: Awaited


_ENDED = Outcome(lambda _: None)
_ENDED.set_running_or_notify_cancel()  # it can't be cancelled any more
_IN_ENV, _IN_ENGINE, _IN_CLOSE = "the environment {}", "the engine", "the environment {} to close"


class Worker:
    """One worker."""

    def __init__(self, index: int, brief: WorkerBrief, port: Port) -> None:
        self._index, self._brief, self._port = index, brief, port
        self._pool = EnvPool(brief.reusable)
        self._callers = Callers()
        self._changed = threading.Condition()
        self._tables: dict[int, Table] = {}
        self._to_begin: deque[tuple[Ticket, int]] = deque()  # members without a seat
        self._live = 0  # episodes
        self._pulling: Future[Ticket | None] | None = None
        self._has_more = True
        self._legs: dict[_Leg, Seat] = {}
        self._end: BaseException | None = None  # why it was broken off
        self._is_stopped = False

    def run(self) -> None:
        """Play until there are no more groups, or it is stopped; raises what broke it off."""
        look_s = now_s()
        try:
            while self._admit():
                if now_s() >= look_s:
                    look_s = now_s() + self._look()
                with self._changed:
                    if not self._is_stopped and not self._may_admit:
                        self._changed.wait(max(0.0, look_s - now_s()))
        finally:
            self._break_off()
            self._callers.submit(self._pool.close)
            self._callers.close(min(self._brief.limits.env_s, END_S))
        if self._end is not None:
            raise self._end

    def stop(self, why: BaseException | None = None) -> None:
        """Lose what is in play, and end; from any thread."""
        with self._changed:
            self._is_stopped, self._end = True, self._end or why
            self._changed.notify()

    # ------------------------------------------------------------------------------------- what its own thread does

    @property
    def _may_admit(self) -> bool:
        """Whether there is room, and something to fill it with: a member, or a group that may be there."""
        if not (self._live or self._has_more or self._to_begin):
            return True  # it sees that this is the end
        is_known = self._pulling is None or self._pulling.done()
        return self._live < self._brief.most_live and (bool(self._to_begin) or (self._has_more and is_known))

    def _admit(self) -> bool:
        """Begin episodes for as long as there is room; False: there is nothing more to do."""
        while not self._is_stopped and self._live < self._brief.most_live:
            if self._to_begin:
                ticket, member = self._to_begin.popleft()
                with self._changed:
                    self._live += 1
                self._begin(ticket, member, 1)
                continue
            if not self._has_more:
                break
            if self._pulling is None:
                self._pulling = self._port.pull()
                self._pulling.add_done_callback(self._wake)
            if not self._pulling.done():
                break
            ticket_or_none, self._pulling = self._pulling.result(), None
            if ticket_or_none is None:
                self._has_more = False
            else:
                self._tables[ticket_or_none.number] = Table(ticket_or_none, now_s())
                self._to_begin.extend((ticket_or_none, member) for member in range(ticket_or_none.group_size))
        return not self._is_stopped and bool(self._has_more or self._to_begin or self._live)

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify()

    def _look(self) -> float:
        """A sign of life, and an end to what takes too long; returns the seconds until the next look."""
        limits, now = self._brief.limits, now_s()
        next_s = min(_BEAT_S, limits.env_s, limits.engine_s)
        waits: list[tuple[str, float]] = []
        for leg, seat in list(self._legs.items()):
            is_asking = leg.what == _IN_ENGINE
            limit_s = limits.engine_s if is_asking else limits.env_s
            begun_s = leg.since_s if is_asking else self._callers.begun_s(leg.future)  # queues are not its fault
            left_s = limit_s if begun_s is None else begun_s + limit_s - now
            if left_s > 0:
                next_s = min(next_s, left_s)
                what = leg.what.format(seat.ticket.tag)
                waits.append((f"{what}, group {seat.ticket.number} member {seat.member}", now - leg.since_s))
            elif is_asking:
                self._is_asked_too_long(seat, leg)
            elif self._callers.give_up(leg.future, seat.close):
                self._is_stuck(seat, leg)
        self._port.beat(sorted(waits, key=lambda one: -one[1])[:5])
        return next_s

    def _is_asked_too_long(self, seat: Seat, leg: _Leg) -> None:
        if self._claims(leg):
            leg.future.cancel()
            limit_s = self._brief.limits.engine_s
            self._over(seat, EpisodeError(TIMEOUT, f"the engine did not answer within {limit_s:g} s"))

    def _is_stuck(self, seat: Seat, leg: _Leg) -> None:
        """Its thread is left to itself, and closes the environment when, and if, it comes back."""
        limits = self._brief.limits
        if not self._claims(leg):
            return
        if leg.what == _IN_CLOSE:
            report_close(seat, f"it did not come back from close within {limits.env_s:g} s and is left behind")
            self._leave(seat)
        else:
            failure = too_slow(seat, limits)
            self._over(seat.abandoned(), failure)

    def _break_off(self) -> None:
        """Nothing goes on: environments are closed where they are, or by the thread that is in them."""
        self._is_stopped = True
        while self._legs:
            leg, seat = self._legs.popitem()
            if leg.what == _IN_ENGINE:
                leg.future.cancel()
                self._callers.submit(seat.close)
            elif not self._callers.give_up(leg.future, seat.close) and leg.future.cancelled():
                self._callers.submit(seat.close)

    # --------------------------------------------------------------------- an episode, leg by leg, in any thread

    def _begin(self, ticket: Ticket, member: int, attempt: int) -> None:
        brief = self._brief
        seat = Seat(brief.plan, ticket, member, brief.codec, brief.is_text_only, self._pool, attempt)
        self._move(seat, seat.open, "open", self._opened)

    def _move(
        self, seat: Seat, move: Callable[[], Request | None], kind: str, then: Callable[[Seat, _Leg], None]
    ) -> None:
        """An environment's call, in a thread."""
        self._callers.submit_all([(move, self._leg(seat, _IN_ENV, then))], f"{seat.ticket.tag} {kind}")

    def _leg(self, seat: Seat, what: str, then: Callable[[Seat, _Leg], None]) -> Outcome:
        """Of an environment's call, the next leg of an episode; cancelled, if there is none: it was broken off."""
        outcome = Outcome(lambda ended: self._after(seat, leg, then, ended))
        leg = _Leg(what, now_s(), outcome)
        if not self._starts(seat, leg):
            outcome.cancel()
            with contextlib.suppress(Exception):
                seat.close()
        return outcome

    def _moved(self, seat: Seat, leg: _Leg) -> None:
        """A thread has come back from an environment's turn."""
        assert isinstance(leg.future, Outcome)
        self._port.stepped(seat.ticket.tag, *leg.future.took_s)
        self._opened(seat, leg)

    def _opened(self, seat: Seat, leg: _Leg) -> None:
        """A thread has come back from an environment: the next question, the end, or a failure."""
        error = leg.future.exception()
        if error is not None:
            self._over(seat, as_failure(error))
            return
        request = leg.future.result()
        if request is None:
            self._over(seat, None)
            return
        try:
            asked = self._port.generate(request)
        except Exception as raised:
            self._over(seat, EpisodeError(ENGINE, f"{type(raised).__name__}: {raised}"))
            return
        asking = _Leg(_IN_ENGINE, now_s(), asked)
        if self._starts(seat, asking):
            asked.add_done_callback(partial(self._after, seat, asking, self._answered))
        else:
            asked.cancel()
            seat.close()

    def _answered(self, seat: Seat, leg: _Leg) -> None:
        """In the engine's thread: hand it on, and be quick."""
        error = EpisodeError(ENGINE, "cancelled") if leg.future.cancelled() else leg.future.exception()
        if error is None:
            self._move(seat, partial(seat.turn, leg.future.result(), now_s() - leg.since_s), "turn", self._moved)
        elif isinstance(error, ConnectionError):
            self.stop(error)
        elif isinstance(error, EpisodeError):
            self._over(seat, error)
        else:
            self._over(seat, EpisodeError(ENGINE, f"{type(error).__name__}: {error}"))

    def _over(self, seat: Seat, failure: EpisodeError | None) -> None:
        """The attempt is: its environment is closed, or given back."""
        if failure is not None:
            seat.failed(failure.failure)
        future = self._leg(seat, _IN_CLOSE, self._closed)
        self._callers.go_on(seat.close, future, f"{seat.ticket.tag} close")

    def _closed(self, seat: Seat, leg: _Leg) -> None:
        error = leg.future.exception()
        if error is not None:
            report_close(seat, str(error))
        self._leave(seat)

    def _leave(self, seat: Seat) -> None:
        """The episode is over, or is tried again with a fresh environment and the same seeds."""
        ticket = seat.ticket
        if seat.has_failed and seat.attempt < self._brief.limits.attempts:
            self._begin(ticket, seat.member, seat.attempt + 1)
            return
        record, table = seat.record(), self._tables[ticket.number]
        with self._changed:
            table.episodes[seat.member] = record
            is_full = table.is_full
        if is_full:
            del self._tables[ticket.number]
            self._port.done(table.group(self._index))
        else:
            self._port.over(ticket.number)
        with self._changed:
            self._live -= 1
            if self._may_admit:
                self._changed.notify()

    # ------------------------------------------------------------------------------------------------ whose leg it is

    def _starts(self, seat: Seat, leg: _Leg) -> bool:
        """False: the worker was broken off."""
        self._legs[leg] = seat
        return not (self._is_stopped and self._claims(leg))  # what breaks off looks after it was stopped

    def _claims(self, leg: _Leg) -> bool:
        """Whether what comes after this leg is for the caller: it is for the first that asks."""
        return self._legs.pop(leg, None) is not None

    def _after(self, seat: Seat, leg: _Leg, then: Callable[[Seat, _Leg], None], future: Awaited) -> None:
        """The end of a leg; an error of ours ends the worker, and not just a thread."""
        try:
            if self._claims(leg):
                then(seat, leg)
            elif leg.what != _IN_ENGINE and not future.cancelled():
                seat.close()  # broken off just when it came back
        except BaseException as error:
            self.stop(error)
        finally:
            leg.future = _ENDED  # they would keep each other, and the answer, until the garbage is collected
