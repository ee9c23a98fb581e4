"""Any order of workers coming up, working, dying, retiring, leaving and falling silent: the supervisor keeps its word.

    processes (a plain model: who is alive) ──events──> SupervisorState ──instructions──> carried out, some later

A worker is started exactly once per Start and never while it lives · its work is lost exactly once per death, and never
when it retires · it is given up exactly when a limit is reached (lives without a result, deaths at one place,
failures), counted from the history of what happened, and then for good · Kill is said once in a life, to a worker that
is silent for longer than it said or may be, and to no other.
The same machine, driven by hand, goes red under mutations of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.runtime.supervisor_state import (
    Beat,
    Died,
    Done,
    Event,
    GiveUp,
    Instruction,
    Kill,
    Left,
    Lost,
    Phase,
    Ready,
    RestartLimits,
    Retired,
    Start,
    SupervisorState,
    Tick,
)

HOW = "killed by signal 9"
picks = st.integers(0, 1000)  # an index into whatever there is to choose from


def limits_of(numbers: st.SearchStrategy[int]) -> st.SearchStrategy[RestartLimits]:
    seconds = st.one_of(st.none(), st.sampled_from([3.0, 10.0]))
    return st.builds(
        RestartLimits,
        fruitless=st.one_of(st.none(), numbers),
        first_starts=st.integers(1, 3),
        same_place=st.one_of(st.none(), st.integers(1, 3)),
        restarts=st.one_of(st.none(), numbers.map(lambda n: 3 * n)),
        failures=st.one_of(st.none(), numbers),
        start_s=seconds,
        silent_s=seconds,
    )


class SupervisorMachine(RuleBasedStateMachine):
    """The state, the processes it speaks of, and the plainest possible memory of what happened."""

    @initialize(num_workers=st.integers(1, 3), limits=limits_of(st.integers(0, 4)))
    def start(self, num_workers: int, limits: RestartLimits) -> None:
        self.limits = limits
        self.now_s = 100.0
        self.state = SupervisorState(num_workers, limits)
        self.workers = range(num_workers)
        self.alive: set[int] = set()  # processes that run
        self.pending: list[int] = []  # Starts that were said and not carried out yet
        self.starts = dict.fromkeys(self.workers, 0)
        self.history: dict[int, list[str]] = {worker: [] for worker in self.workers}
        self.beat_s = dict.fromkeys(self.workers, 0.0)
        self.notes: dict[int, object] = dict.fromkeys(self.workers)
        self.patience_s: dict[int, float | None] = dict.fromkeys(self.workers)
        self.deaths_at: list[str] = []  # of workers that were ready, or failed
        self.failures = 0  # that were followed by a start
        self.condemned: set[int] = set()
        self.left: set[int] = set()
        self.restarts = 0
        self.is_over = False
        for one in self.state.launch(self.now_s):
            self.said_start(one)

    # ---------------------------------------------------------------------------------------------------- what is done

    @precondition(lambda self: self.pending)
    @rule(pick=picks)
    def carry_out_a_start(self, pick: int) -> None:
        """Sooner or later, in any order."""
        worker = self.pending.pop(pick % len(self.pending))
        assert worker not in self.alive, "two of one worker"
        self.alive.add(worker)
        self.starts[worker] += 1

    def said_start(self, one: Start) -> None:
        assert one.worker not in self.alive, "asked for while it lives"
        assert one.worker not in self.pending, "asked for twice"
        self.pending.append(one.worker)

    # ------------------------------------------------------------------------------------------------- what happens

    @precondition(lambda self: self.alive)
    @rule(pick=picks)
    def ready(self, pick: int) -> None:
        worker = self.one_of(self.alive, pick)
        if "ready" in self.life(worker):
            return
        self.heard(worker)
        self.history[worker].append("ready")
        self.expect(Ready(worker), [])

    @precondition(lambda self: self.alive)
    @rule(pick=picks, note=st.sampled_from(["a", "b", None]), patience_s=st.sampled_from([None, 2.0, 6.0]))
    def beat(self, pick: int, note: object, patience_s: float | None = None) -> None:
        worker = self.one_of(self.alive, pick)
        self.heard(worker)
        self.notes[worker], self.patience_s[worker] = note, patience_s
        self.expect(Beat(worker, note, patience_s), [])

    @precondition(lambda self: self.ready_ones())
    @rule(pick=picks)
    def work(self, pick: int) -> None:
        worker = self.one_of(self.ready_ones(), pick)
        self.heard(worker)
        self.history[worker].append("done")
        self.expect(Done(worker), [])

    @precondition(lambda self: self.ready_ones())
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        worker = self.one_of(self.ready_ones(), pick)
        self.alive.discard(worker)
        self.left.add(worker)
        self.expect(Left(worker), [])
        self.expect(Died(worker, "exit code 0"), [])  # its process is reaped

    @precondition(lambda self: self.ready_ones())
    @rule(pick=picks)
    def retire(self, pick: int) -> None:
        worker = self.one_of(self.ready_ones(), pick)
        self.gone(worker, "retired")
        self.notes[worker] = None
        self.expect(Retired(worker), [Start(worker)])

    @precondition(lambda self: self.alive)
    @rule(pick=picks, place=st.sampled_from(["here", "there", None]), failed=st.booleans())
    def die(self, pick: int, place: str | None = None, failed: bool = False) -> None:
        worker = self.one_of(self.alive, pick)
        is_blamed = (worker in self.ready_ones() or failed) and place is not None
        if is_blamed and place is not None and not self.is_over:
            self.deaths_at.append(place)
        self.gone(worker, "died")
        has_been_ready = "ready" in self.history[worker]
        in_a_row = self.fruitless(worker)
        limits = self.limits
        reason = None
        if not has_been_ready and in_a_row >= limits.first_starts:
            reason = "died before it was ready"
        elif limits.fruitless is not None and in_a_row >= limits.fruitless:
            reason = f"started {in_a_row} times in a row without a result" if in_a_row else "died"
        elif limits.same_place is not None and is_blamed and place is not None:
            times = self.deaths_at.count(place)
            reason = f"lost {times} times at the same place" if times >= limits.same_place else None
        if reason is None and limits.restarts is not None and self.restarts + 1 > limits.restarts:
            reason = "workers keep dying"
        if reason is None and failed and limits.failures is not None and self.failures + 1 > limits.failures:
            reason = f"work keeps failing: workers were started again {self.failures} times"
        if reason is not None:
            self.expect_giving_up(Died(worker, HOW, place, failed), worker, reason)
            return
        note, self.notes[worker] = self.notes[worker], None
        self.restarts += not self.is_over
        self.failures += failed and not self.is_over
        self.expect(Died(worker, HOW, place, failed), [Lost(worker, HOW, note), Start(worker)])

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.5, 8.0]))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        has_begun = any("ready" in history for history in self.history.values())
        if self.limits.start_s is not None and not has_begun and self.now_s - 100.0 > self.limits.start_s:
            self.expect_giving_up(Tick(), None, "no worker came up")
            return
        quiet_s = {worker: self.now_s - self.beat_s[worker] for worker in sorted(self.alive)}
        limit_s = {worker: self.limit_s(worker) for worker in self.alive}
        silent = [worker for worker, quiet in quiet_s.items() if quiet > limit_s[worker]]
        said = [
            Kill(worker, f"gave no sign of life for {quiet_s[worker]:.1f} s (limit {limit_s[worker]:g} s)")
            for worker in silent
            if worker not in self.condemned
        ]
        if not self.is_over:
            self.condemned |= set(silent)
        self.expect(Tick(), said)

    # ------------------------------------------------------------------------------------------------------ comparisons

    def expect(self, event: Event, wanted: Sequence[Instruction]) -> None:
        got = list(self.state.handle(event, self.now_s))
        assert got == ([] if self.is_over else list(wanted))
        for one in got:
            if isinstance(one, Start):
                self.said_start(one)

    def expect_giving_up(self, event: Event, worker: int | None, reason: str) -> None:
        got = list(self.state.handle(event, self.now_s))
        if self.is_over:
            assert got == []
            return
        (one,) = got
        assert isinstance(one, GiveUp)
        assert (one.worker, reason in one.why) == (worker, True)
        assert one.has_begun == any("ready" in history for history in self.history.values())
        self.is_over = True

    def one_of(self, workers: set[int], pick: int) -> int:
        return sorted(workers)[pick % len(workers)]

    def heard(self, worker: int) -> None:
        self.beat_s[worker] = self.now_s

    def gone(self, worker: int, how: str) -> None:
        self.alive.discard(worker)
        self.condemned.discard(worker)
        self.patience_s[worker] = None
        self.history[worker].append(how)

    def limit_s(self, worker: int) -> float:
        limit_s = self.patience_s[worker]
        if limit_s is None and worker in self.ready_ones():
            limit_s = self.limits.silent_s
        return float("inf") if limit_s is None else limit_s

    def lives(self, worker: int) -> list[list[str]]:
        """What happened in each of them; the last one goes on."""
        lives: list[list[str]] = [[]]
        for what in self.history[worker]:
            lives[-1].append(what)
            if what in ("died", "retired"):
                lives.append([])
        return lives

    def life(self, worker: int) -> list[str]:
        return self.lives(worker)[-1]

    def fruitless(self, worker: int) -> int:
        """Lives that ended in death, since the last one that had a result."""
        count = 0
        for life in reversed(self.lives(worker)[:-1]):
            if "done" in life:
                break
            count += "died" in life
        return count

    def ready_ones(self) -> set[int]:
        return {worker for worker in self.alive if "ready" in self.life(worker)}

    @invariant()
    def phases_are_the_processes(self) -> None:
        if self.is_over:
            return
        for worker in self.workers:
            phase = Phase.STARTING
            if worker in self.left:
                phase = Phase.GONE
            elif worker in self.ready_ones():
                phase = Phase.READY
            assert self.state.phase(worker) is phase
            assert worker in self.state.in_phase(phase)
            assert self.state.has_been_ready(worker) == ("ready" in self.history[worker])
            assert worker in self.left or self.state.note(worker) == self.notes[worker]
            assert worker in self.left or self.state.has_worked(worker) == ("done" in self.life(worker))

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """Who is neither alive nor about to be has left, or it is over."""
        assert self.is_over or self.alive | set(self.pending) | self.left == set(self.workers)
        assert self.state.restarts == self.restarts
        assert self.state.failures == self.failures
        for worker in self.workers:
            ends = len(self.lives(worker)) - 1
            assert self.is_over or self.starts[worker] + (worker in self.pending) == ends + 1


TestSupervisor = SupervisorMachine.TestCase
TestSupervisor.settings = settings(deadline=None, max_examples=150, stateful_step_count=50)


# ---------------------------------------------------------------------------------------------------------- it can fail


def machine_of(num_workers: int, limits: RestartLimits) -> tuple[SupervisorMachine, Callable[..., None]]:
    machine = SupervisorMachine()
    machine.start(num_workers, limits)

    def do(*steps: Callable[..., None] | tuple[Callable[..., None], object]) -> None:
        for step in steps:
            function, arguments = (step[0], step[1:]) if isinstance(step, tuple) else (step, ())
            function(*arguments)
            machine.phases_are_the_processes()
            machine.nobody_is_forgotten()

    return machine, do


def by_hand() -> None:
    """A few lives of a supervisor, with no randomness."""
    random_kills_with_work_in_between()
    deaths_without_work()
    a_worker_that_does_not_come_up()
    silence()
    a_worker_leaves()
    restarts_run_out()
    the_same_place_again_and_again()
    workers_retire()
    patience()
    the_same_failure_again_and_again()
    failures_here_and_there()


def random_kills_with_work_in_between() -> None:
    """Each of two workers dies again and again, but gets something done in between: never too often."""
    m, do = machine_of(2, RestartLimits(fruitless=1, same_place=2))
    for _ in range(2):
        do((m.carry_out_a_start, 0), (m.ready, 0))
    do((m.ready, 1))
    for pick in (0, 1, 0, 0, 1, 1, 0):
        do((m.work, pick), (m.beat, pick, "a"), (m.die, pick), (m.carry_out_a_start, 0), (m.ready, 0), (m.ready, 1))
    do((m.work, 0), (m.die, 0, "here"), (m.carry_out_a_start, 0), (m.ready, 0))
    do((m.work, 0), (m.die, 0, "there"), (m.carry_out_a_start, 0), (m.ready, 0))
    assert not m.is_over


def deaths_without_work() -> None:
    """And what comes after giving up is not listened to."""
    m, do = machine_of(1, RestartLimits(fruitless=2))
    do((m.carry_out_a_start, 0), (m.ready, 0), (m.work, 0), (m.beat, 0, "a"), (m.die, 0))
    assert not m.is_over, "it had a result in that life"
    do((m.carry_out_a_start, 0), (m.ready, 0), (m.die, 0), (m.carry_out_a_start, 0), (m.beat, 0, "b"), (m.die, 0))
    assert m.is_over
    do((m.tick, 8.0))
    m, do = machine_of(2, RestartLimits(fruitless=0))
    do(*[(m.carry_out_a_start, 0)] * 2, (m.ready, 0), (m.ready, 1), (m.die, 0), (m.die, 0))
    assert m.is_over
    m, do = machine_of(2, RestartLimits(fruitless=2))
    do(*[(m.carry_out_a_start, 0)] * 2, (m.ready, 0), (m.ready, 1), (m.die, 0), (m.carry_out_a_start, 0), (m.die, 1))
    assert not m.is_over, "one death of each"


def a_worker_that_does_not_come_up() -> None:
    m, do = machine_of(2, RestartLimits(first_starts=2))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 1), (m.die, 0))
    do((m.carry_out_a_start, 0), (m.die, 0))
    assert m.is_over
    m, do = machine_of(2, RestartLimits(start_s=3.0))
    do((m.carry_out_a_start, 0), (m.tick, 2.5), (m.tick, 1.0))
    assert m.is_over


def silence() -> None:
    m, do = machine_of(2, RestartLimits(silent_s=3.0))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 0), (m.tick, 2.5), (m.beat, 0, None))
    do((m.tick, 2.5), (m.work, 0), (m.tick, 2.5), (m.ready, 1), (m.tick, 1.0), (m.tick, 1.0), (m.tick, 1.0))
    do((m.die, 0), (m.carry_out_a_start, 0), (m.tick, 8.0), (m.ready, 0), (m.tick, 8.0), (m.work, 1), (m.tick, 0.0))


def a_worker_leaves() -> None:
    m, do = machine_of(2, RestartLimits(silent_s=3.0))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 0), (m.ready, 1), (m.leave, 0), (m.tick, 8.0))


def restarts_run_out() -> None:
    m, do = machine_of(2, RestartLimits(fruitless=None, restarts=3))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 0), (m.ready, 1))
    for pick in (0, 1, 0):
        do((m.die, pick), (m.carry_out_a_start, 0), (m.ready, 0), (m.ready, 1), (m.work, 0), (m.work, 1))
    do((m.die, 0))
    assert m.is_over


def the_same_place_again_and_again() -> None:
    """Whatever is done in between, and whoever dies there; not while a worker starts."""
    m, do = machine_of(2, RestartLimits(same_place=3))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 0), (m.ready, 1))
    for pick, place in ((0, "here"), (0, "there"), (1, "here"), (1, "there")):
        do((m.work, pick), (m.die, pick, place), (m.carry_out_a_start, 0), (m.ready, 0), (m.ready, 1))
    do((m.work, 0), (m.die, 0, None), (m.carry_out_a_start, 0), (m.die, 0, "here"), (m.carry_out_a_start, 0))
    assert not m.is_over
    do((m.ready, 0), (m.work, 0), (m.die, 0, "here"))
    assert m.is_over


def workers_retire() -> None:
    """Again and again: neither a restart nor a death; a life without a result before it still counts after it."""
    m, do = machine_of(2, RestartLimits(fruitless=2, restarts=3))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 0), (m.ready, 1))
    for _ in range(5):
        do((m.beat, 1, "a"), (m.work, 1), (m.retire, 1), (m.tick, 8.0), (m.carry_out_a_start, 0), (m.ready, 1))
    do((m.die, 0), (m.carry_out_a_start, 0), (m.ready, 0), (m.retire, 0), (m.carry_out_a_start, 0))
    assert not m.is_over
    do((m.die, 0))
    assert m.is_over


def patience() -> None:
    """A beat says how long the next may take, in this life only, also of one that starts."""
    m, do = machine_of(2, RestartLimits(silent_s=3.0, first_starts=3))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 0), (m.beat, 0, None, 6.0), (m.tick, 2.5))
    do((m.tick, 2.5), (m.beat, 0, None, 2.0), (m.tick, 2.5), (m.tick, 1.0), (m.beat, 1, None, 2.0), (m.tick, 2.5))
    do((m.ready, 1), (m.tick, 2.5), (m.die, 1), (m.die, 0), (m.carry_out_a_start, 0), (m.carry_out_a_start, 0))
    do((m.tick, 8.0), (m.ready, 0), (m.tick, 2.5), (m.tick, 1.0))


def the_same_failure_again_and_again() -> None:
    """What fails in one place is a loop, also in workers that start; what kills them there is not."""
    m, do = machine_of(2, RestartLimits(same_place=3, fruitless=None, first_starts=9))
    do((m.carry_out_a_start, 0), (m.carry_out_a_start, 0), (m.ready, 1))
    for failed in (False, True, True, False):
        do((m.die, 0, "here", failed), (m.carry_out_a_start, 0))
    assert not m.is_over
    do((m.die, 0, "here", True))
    assert m.is_over


def failures_here_and_there() -> None:
    """With results in between: as many as are allowed, however many are killed."""
    m, do = machine_of(1, RestartLimits(failures=2, same_place=2))
    do((m.carry_out_a_start, 0), (m.ready, 0))
    for place, failed in (("here", True), (None, False), ("there", False), (None, False), (None, True)):
        do((m.work, 0), (m.die, 0, place, failed), (m.carry_out_a_start, 0), (m.ready, 0))
    assert not m.is_over
    do((m.work, 0), (m.die, 0, None, True))
    assert m.is_over
    m, do = machine_of(1, RestartLimits(failures=0))
    do((m.carry_out_a_start, 0), (m.ready, 0), (m.work, 0), (m.die, 0), (m.carry_out_a_start, 0), (m.ready, 0))
    do((m.work, 0), (m.die, 0, None, True))
    assert m.is_over


HANDLE, DIED, TICK, GIVE_UP, FRESH = (
    SupervisorState.handle,
    SupervisorState._died,
    SupervisorState._tick,
    SupervisorState._give_up,
    SupervisorState._fresh,
)


def counts_deaths_for_ever(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    return () if isinstance(event, Done) else HANDLE(state, event, now_s)


def takes_a_beat_for_a_result(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    if isinstance(event, Beat):
        state._workers[event.worker].has_worked = True
    return HANDLE(state, event, now_s)


def takes_readiness_for_a_result(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    if isinstance(event, Ready):
        state._workers[event.worker].has_worked = True
    return HANDLE(state, event, now_s)


def takes_retiring_for_dying(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    return HANDLE(state, Died(event.worker, HOW) if isinstance(event, Retired) else event, now_s)


def takes_retiring_for_leaving(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    return HANDLE(state, Left(event.worker) if isinstance(event, Retired) else event, now_s)


def does_not_listen_to_patience(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    return HANDLE(state, Beat(event.worker, event.note) if isinstance(event, Beat) else event, now_s)


def forgives_one_that_comes_up_late(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    if isinstance(event, Ready):
        state._workers[event.worker].is_condemned = False
    return HANDLE(state, event, now_s)


def starts_one_that_left(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    return HANDLE(state, Died(event.worker, HOW) if isinstance(event, Left) else event, now_s)


def does_not_hear_results(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    before = [worker.beat_s for worker in state._workers]
    said = HANDLE(state, event, now_s)
    if isinstance(event, Done):
        state._workers[event.worker].beat_s = before[event.worker]
    return said


def goes_on_after_giving_up(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    state._is_over = False
    return HANDLE(state, event, now_s)


def starts_it_twice(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    said = DIED(state, event)
    return (*said, Start(event.worker)) if isinstance(said[-1], Start) else said


def loses_nothing(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    return [one for one in DIED(state, event) if not isinstance(one, Lost)]


def does_not_start_again(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    return [one for one in DIED(state, event) if not isinstance(one, Start)]


def counts_deaths_anywhere(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    return DIED(state, replace(event, place=event.place and "somewhere"))


def takes_a_failure_for_a_death(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    return DIED(state, replace(event, is_failure=False))


def takes_a_death_for_a_failure(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    return DIED(state, replace(event, is_failure=True))


def forgives_failures_at_a_result(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    if isinstance(event, Done):
        state.failures = 0
    return HANDLE(state, event, now_s)


def blames_no_place_for_a_failure_at_the_start(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    is_starting = state._workers[event.worker].phase is Phase.STARTING
    return DIED(state, replace(event, place=None) if is_starting else event)


def counts_deaths_of_those_that_start(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    if state._workers[event.worker].phase is Phase.STARTING and event.place is not None:
        state._deaths_at[event.place] += 1
    return DIED(state, event)


def forgets_places(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    state._deaths_at.clear()
    return DIED(state, event)


def forgets_places_at_a_result(state: SupervisorState, event: Event, now_s: float) -> Sequence[Instruction]:
    if isinstance(event, Done):
        state._deaths_at.clear()
    return HANDLE(state, event, now_s)


def keeps_the_patience(state: SupervisorState, index: int) -> Sequence[Instruction]:
    patience_s = state._workers[index].patience_s
    said = FRESH(state, index)
    state._workers[index].patience_s = patience_s
    return said


def forgets_lives_without_a_result(state: SupervisorState, index: int) -> Sequence[Instruction]:
    said = FRESH(state, index)
    state._workers[index].fruitless = 0
    return said


def keeps_the_result(state: SupervisorState, index: int) -> Sequence[Instruction]:
    has_worked = state._workers[index].has_worked
    said = FRESH(state, index)
    state._workers[index].has_worked = has_worked
    return said


def keeps_the_note(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    note = state._workers[event.worker].note
    said = DIED(state, event)
    state._workers[event.worker].note = note
    return said


def takes_it_for_ready(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    said = DIED(state, event)
    state._workers[event.worker].phase = Phase.READY
    return said


def counts_all_workers_together(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    total = sum(worker.fruitless for worker in state._workers)
    state._workers[event.worker].fruitless = total
    return DIED(state, event)


def forgets_the_limit_of_first_starts(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    state._workers[event.worker].has_been_ready = True
    return DIED(state, event)


def counts_no_restarts(state: SupervisorState, event: Died) -> Sequence[Instruction]:
    said = DIED(state, event)
    state.restarts = 0
    return said


def says_kill_every_time(state: SupervisorState, now_s: float) -> Sequence[Instruction]:
    for worker in state._workers:
        worker.is_condemned = False
    return TICK(state, now_s)


def says_kill_once_in_a_run(state: SupervisorState, now_s: float) -> Sequence[Instruction]:
    before: set[Instruction] = state.__dict__.setdefault("said", set())
    said = [one for one in TICK(state, now_s) if not (isinstance(one, Kill) and Kill(one.worker, "") in before)]
    before |= {Kill(one.worker, "") for one in said if isinstance(one, Kill)}
    return said


def kills_those_that_are_starting(state: SupervisorState, now_s: float) -> Sequence[Instruction]:
    phases = [worker.phase for worker in state._workers]
    for worker in state._workers:
        worker.phase = Phase.READY
    said = TICK(state, now_s)
    for worker, phase in zip(state._workers, phases, strict=True):
        worker.phase = phase
    return said


def waits_for_ever_for_the_first(state: SupervisorState, now_s: float) -> Sequence[Instruction]:
    state._launched_s = now_s
    return TICK(state, now_s)


def gives_up_without_a_word(state: SupervisorState, worker: int | None, why: str) -> Sequence[Instruction]:
    GIVE_UP(state, worker, why)
    return ()


MUTATIONS = [
    ("handle", counts_deaths_for_ever),
    ("handle", takes_a_beat_for_a_result),
    ("handle", takes_readiness_for_a_result),
    ("handle", takes_retiring_for_dying),
    ("handle", takes_retiring_for_leaving),
    ("handle", does_not_listen_to_patience),
    ("handle", forgives_one_that_comes_up_late),
    ("handle", forgets_places_at_a_result),
    ("handle", forgives_failures_at_a_result),
    ("handle", starts_one_that_left),
    ("handle", does_not_hear_results),
    ("handle", goes_on_after_giving_up),
    ("_died", starts_it_twice),
    ("_died", loses_nothing),
    ("_died", does_not_start_again),
    ("_died", counts_deaths_anywhere),
    ("_died", counts_deaths_of_those_that_start),
    ("_died", takes_a_failure_for_a_death),
    ("_died", takes_a_death_for_a_failure),
    ("_died", blames_no_place_for_a_failure_at_the_start),
    ("_died", forgets_places),
    ("_fresh", keeps_the_patience),
    ("_fresh", forgets_lives_without_a_result),
    ("_fresh", keeps_the_result),
    ("_died", keeps_the_note),
    ("_died", takes_it_for_ready),
    ("_died", counts_all_workers_together),
    ("_died", forgets_the_limit_of_first_starts),
    ("_died", counts_no_restarts),
    ("_tick", says_kill_every_time),
    ("_tick", says_kill_once_in_a_run),
    ("_tick", kills_those_that_are_starting),
    ("_tick", waits_for_ever_for_the_first),
    ("_give_up", gives_up_without_a_word),
]


def test_the_supervisor_passes_when_driven_by_hand() -> None:
    by_hand()


@pytest.mark.parametrize(("method", "mutant"), MUTATIONS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_mutated_supervisor_is_caught(
    method: str, mutant: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SupervisorState, method, mutant)
    with pytest.raises((AssertionError, ValueError)):
        by_hand()
