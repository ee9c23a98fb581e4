"""The ways without workers: every environment moves; then all who have a question ask in one batch.

    [ open or act -> questions -> generate(all of them) -> answers ] until nobody is left

Sequential moves them one after the other: what `base` runs, what auto chooses for cheap environments, and what the
parallel way falls back to. Lock-step moves them side by side, which pays where a step waits, but for less than passing
it to a worker costs. Same seeds, same records. The environments' calls run in threads beside this one (one, or as many
as they need), so that a hung call can be given up; the rest go on in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout

from headrace.agents.callers import Callers
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.failures import EpisodeError
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import ENGINE, TIMEOUT, Group
from headrace.agents.seat import EnvPool, Seat
from headrace.agents.table import Table, as_failure, told_close, too_slow
from headrace.clock import now_s

Move = Callable[[], Request | None]  # a seat's open or act
Call = tuple[Seat, Move, Future[Request | None]]


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


def _run(callers: Callers, calls: Sequence[Call], limits: Limits) -> set[Seat]:
    """All of them, each with the environment's limit from when it was begun; returns those that were given up."""
    callers.submit_all([(move, future) for _, move, future in calls])
    left, hung, patience_s = list(calls), set[Seat](), limits.env_s
    while left:
        wait([future for _, _, future in left], patience_s)
        now, patience_s = now_s(), limits.env_s
        for seat, _, future in (one for one in left if not one[2].done()):
            begun_s = callers.begun_s(future)
            left_s = limits.env_s if begun_s is None else limits.env_s - (now - begun_s)  # queues are our matter
            if left_s <= 0:
                callers.give_up(future, seat.close)
                hung.add(seat)
            else:
                patience_s = min(patience_s, left_s)
        left = [one for one in left if not one[2].done() and one[0] not in hung]
    return hung


def play(
    next_ticket: Callable[[], Ticket | None],
    plan: GroupPlan,
    engine: Engine,
    limits: Limits,
    reusable: frozenset[str],
    most_moving: int = 1,
) -> Iterator[Group]:
    """Play whatever `next_ticket` gives until it gives None and nobody is left; groups come as they finish."""
    callers, pool = Callers(most=most_moving), EnvPool(reusable)
    closing: list[tuple[Seat, Future[None]]] = []
    tables: dict[int, Table] = {}
    moving: list[tuple[Seat, Move]] = []
    seats: set[Seat] = set()

    def seat_at(table: Table, member: int, attempt: int) -> None:
        seat = Seat(plan, table.ticket, member, engine.codec, engine.is_text_only, pool, attempt)
        seats.add(seat)
        moving.append((seat, seat.open))

    def leave(seat: Seat, failure: EpisodeError | None) -> None:
        """The episode is over, or is tried again with a fresh environment and the same seeds."""
        seats.discard(seat)
        table = tables[seat.ticket.number]
        if failure is not None:
            seat.failed(failure.failure)
        closing.append((seat, callers.submit(seat.close)))  # settled before anybody moves again
        if failure is not None and seat.attempt < limits.attempts:
            seat_at(table, seat.member, seat.attempt + 1)
        else:
            table.episodes[seat.member] = seat.record()

    def settle() -> None:
        """Whatever is being closed has its time, and is left behind after that."""
        for seat, future in closing:
            try:
                future.result(limits.env_s)
            except FutureTimeout:
                callers.give_up(future, lambda: None)
                told_close(seat, f"it did not come back from close within {limits.env_s:g} s and is left behind")
            except (Exception, SystemExit) as error:
                told_close(seat, str(error))
        closing.clear()

    try:
        while True:
            while len(seats) < limits.max_live and (ticket := next_ticket()) is not None:
                table = tables[ticket.number] = Table(ticket, now_s())
                for member in range(ticket.group_size):
                    seat_at(table, member, 1)
            if not seats:
                return
            calls, moving[:] = [(seat, move, Future[Request | None]()) for seat, move in moving], []
            asking: list[tuple[Seat, Request]] = []
            hung = _run(callers, calls, limits)
            for seat, _, future in calls:
                if seat in hung:
                    seats.discard(seat)
                    leave(seat.abandoned(), too_slow(seat, limits))
                elif (error := future.exception()) is not None:
                    leave(seat, as_failure(error))
                elif (request := future.result()) is None:
                    leave(seat, None)
                else:
                    asking.append((seat, request))
            settle()
            engine.expect(len(seats))
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
        closing += [(seat, callers.submit(seat.close)) for seat in seats]
        settle()
        callers.submit(pool.close)
        callers.close(limits.env_s)
