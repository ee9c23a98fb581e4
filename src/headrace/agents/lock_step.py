"""The ways without workers: every environment moves; then all that have a question ask in one batch.

    [ open or act -> questions -> generate(all of them) -> answers ] until no episode is left

Sequential moves them one after the other: what `base` runs, what auto chooses for cheap environments, and what the
parallel way falls back to. Lock-step moves them side by side, which pays where a step waits, but for less than passing
it to a worker costs. Same seeds, same records. The environments' calls run in threads beside this one (one, or as many
as they need), so that a hung call can be given up; the rest go on in another.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from headrace.agents.callers import Callers
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.limits import END_S, Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import ENGINE, TIMEOUT, EpisodeError, Group
from headrace.agents.seat import EnvPool, Seat, Table, as_failure, report_close, too_slow
from headrace.clock import now_s

Move = Callable[[], Request | None]  # a seat's open or act
_NEVER_S = float("inf")


def play(
    next_ticket: Callable[[], Ticket | None],
    plan: GroupPlan,
    engine: Engine,
    limits: Limits,
    reusable: frozenset[str],
    is_side_by_side: bool = False,
) -> Generator[Group, None, None]:
    """Play whatever `next_ticket` gives until it gives None and no episode is left; groups come as they finish."""
    movers, pool = _Movers(limits, is_side_by_side), EnvPool(reusable)
    tables: dict[int, Table] = {}
    moving: list[tuple[Seat, Move]] = []
    live: dict[tuple[int, int], Seat] = {}  # by group and member

    def seat_at(table: Table, member: int, attempt: int) -> None:
        seat = Seat(plan, table.ticket, member, engine.codec, engine.is_text_only, pool, attempt)
        live[table.ticket.number, member] = seat
        moving.append((seat, seat.open))

    def leave(seat: Seat, failure: EpisodeError | None) -> None:
        """The episode is over, or is tried again with a fresh environment and the same seeds."""
        del live[seat.ticket.number, seat.member]
        table = tables[seat.ticket.number]
        if failure is not None:
            seat.failed(failure.failure)
        movers.leave(seat)
        if failure is not None and seat.attempt < limits.attempts:
            seat_at(table, seat.member, seat.attempt + 1)
        else:
            table.episodes[seat.member] = seat.record()

    try:
        while True:
            while (not live or len(live) + plan.group_size <= limits.max_live) and (
                ticket := next_ticket()
            ) is not None:
                table = tables[ticket.number] = Table(ticket, now_s())
                for member in range(ticket.group_size):
                    seat_at(table, member, 1)
            if not live:
                return
            moves, moving[:] = moving[:], []
            asking: list[tuple[Seat, Request]] = []
            for seat, outcome in movers.move(moves):
                if isinstance(outcome, Request):
                    asking.append((seat, outcome))
                else:
                    leave(seat, outcome)
            movers.settle()
            engine.expect(len(live))
            started = now_s()
            answers = _generated(engine, [request for _, request in asking], limits)
            engine_s = now_s() - started
            for (seat, _), answer in zip(asking, answers, strict=True):
                try:
                    if isinstance(answer, EpisodeError):
                        raise answer
                    seat.answered(answer, engine_s)
                except EpisodeError as failure:
                    leave(seat, failure)
                else:
                    moving.append((seat, seat.act))
            for number in [one for one, table in tables.items() if table.is_full]:
                yield tables.pop(number).group(worker=0)
    finally:
        movers.close(live.values(), pool)


def _generated(engine: Engine, requests: list[Request], limits: Limits) -> list[Completion | EpisodeError]:
    """One batch, with the engine's deadline: an engine that does not answer fails its requests, not the program."""
    if not requests:
        return []
    asking = Callers(most=1)
    future = asking.submit(lambda: engine.generate(requests))
    try:
        error = future.exception(limits.engine_s)
        failure = None if error is None else EpisodeError(ENGINE, f"{type(error).__name__}: {error}")
        return future.result() if failure is None else [failure] * len(requests)
    except FutureTimeout:
        asking.give_up(future, lambda: None)
        late = EpisodeError(TIMEOUT, f"the engine did not answer within {limits.engine_s:g} s")
        return [late] * len(requests)
    finally:
        asking.close(0.0)


class _Movers:
    """The environments' calls, each with its limit from when it was begun. Between two calls of this nothing runs."""

    def __init__(self, limits: Limits, is_side_by_side: bool) -> None:
        self._limits = limits
        self._callers = Callers() if is_side_by_side else Callers(most=1)
        self._leaving: list[Seat] = []  # to be closed

    def move(self, moves: Sequence[tuple[Seat, Move]]) -> list[tuple[Seat, Request | EpisodeError | None]]:
        """What came of each: a question, its end (None), or a failure. For a seat that hung its twin is returned."""
        calls = {Future[Request | None](): seat for seat, _ in moves}
        twins: dict[Seat, Seat] = {}

        def give_up(future: Future[Any]) -> None:
            seat = calls[future]
            twins[seat] = seat.abandoned()  # before all else: what comes back from now on adds nothing
            if not self._callers.give_up(future, seat.close):
                self._leaving.append(seat)

        try:
            self._callers.submit_all([(move, future) for (_, move), future in zip(moves, calls, strict=True)])
            self._wait(calls, give_up)
        except BaseException:  # broken off: an environment in a call is closed by its own thread
            for future in reversed(calls):  # the last of the queue first: no call begins in the place of one given up
                if not future.done():
                    give_up(future)
            raise
        return [
            (twins[seat], too_slow(seat, self._limits)) if seat in twins else (seat, _outcome(future))
            for future, seat in calls.items()
        ]

    def leave(self, seat: Seat) -> None:
        """Its environment is closed, or given back, when all have moved."""
        self._leaving.append(seat)

    def settle(self, limit_s: float | None = None) -> None:
        """Seats that leave are closed; what does not come back from that is left behind. `limit_s`: all together."""
        if not self._leaving:
            return
        calls = {Future[None](): seat for seat in self._leaving}

        def give_up(future: Future[Any]) -> None:
            self._callers.give_up(future, lambda: None)
            within_s = limit_s or self._limits.env_s
            report_close(calls[future], f"it did not come back from close within {within_s:g} s and is left behind")

        self._leaving = []
        self._callers.submit_all([(seat.close, future) for future, seat in calls.items()])
        self._wait(calls, give_up, _NEVER_S if limit_s is None else now_s() + limit_s)
        for future, seat in calls.items():
            if future.done() and not future.cancelled() and (error := future.exception()) is not None:
                report_close(seat, str(error))

    def close(self, seats: Iterable[Seat], pool: EnvPool) -> None:
        """All leave, within a moment."""
        patience_s = min(self._limits.env_s, END_S)
        self._leaving += [seat for seat in seats if not seat.is_abandoned]
        self.settle(patience_s)
        self._callers.submit(pool.close)
        self._callers.close(patience_s)

    def _wait(
        self, futures: Iterable[Future[Any]], give_up: Callable[[Future[Any]], None], until_s: float = _NEVER_S
    ) -> None:
        """Until all are done or given up: a call that takes too long, and all of them at `until_s`."""
        left, limit_s = set(futures), self._limits.env_s
        patience_s = min(limit_s, until_s - now_s())
        while left:
            wait(left, max(0.0, patience_s))
            left = {future for future in left if not future.done()}
            now, patience_s = now_s(), limit_s
            for future in tuple(left):
                begun_s = self._callers.begun_s(future)  # None: it waits for a thread, which is not its fault
                rest_s = min(until_s - now, limit_s if begun_s is None else begun_s + limit_s - now)
                if rest_s > 0:
                    patience_s = min(patience_s, rest_s)
                else:
                    give_up(future)
                    left.discard(future)


def _outcome(future: Future[Request | None]) -> Request | EpisodeError | None:
    error = future.exception()
    return future.result() if error is None else as_failure(error)
