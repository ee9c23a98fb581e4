"""Which workers live, which are replaced, and when to give up: decided in plain data. No process, no clock, no RL.

    Ready · Beat · Done · Left · Retired · Died · Tick  ──handle(event, now_s)──>  Start · Kill · Lost · GiveUp

A worker is starting, ready, or gone. One that dies is lost (its work goes to another) and started again; one that was
retired is started again, and nothing of it is lost. A worker that shows no progress for longer than its patience is
killed. A crash loop is given up, and the run with it: start-ups in a row without a result, or deaths of ready workers
at one and the same place. Deaths elsewhere, with results in between, are no loop, however many. A failure is a death
that the work itself brought about by raising an error: its place is to blame for it, also in a worker that starts, and
failures may have a limit of their own.
The same machine serves worker processes of environments and workers of LLM agents. Whoever owns the processes feeds it
what it sees and carries out what comes back, in order; a Start may be carried out later, when its place is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Ready:
    """A worker has come up."""

    worker: int


@dataclass(frozen=True)
class Beat:
    """A sign of life, and what the worker is at: an opaque note, handed back if it is lost."""

    worker: int
    note: object = None
    patience_s: float | None = None
    """How long the next sign may take, also while it is starting. None: as long as the limits say."""


@dataclass(frozen=True)
class Done:
    """A worker has finished a piece of work."""

    worker: int


@dataclass(frozen=True)
class Left:
    """A worker has ended as it should."""

    worker: int


@dataclass(frozen=True)
class Retired:
    """A worker has ended as it should, to be replaced by a fresh one."""

    worker: int


@dataclass(frozen=True)
class Died:
    """A worker is gone, and nothing of it is left: it has been reaped, or its line is closed for good."""

    worker: int
    how: str
    place: Hashable = None
    """Where in its work it was; None if that is not known, or not to blame."""
    is_failure: bool = False
    """It ended because its work raised an error there."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Start:
    """Start this worker."""

    worker: int


@dataclass(frozen=True)
class Kill:
    """End this worker by force; its Died will follow."""

    worker: int
    why: str


@dataclass(frozen=True)
class Lost:
    """This worker's unfinished work must go to another."""

    worker: int
    how: str
    note: object = None


@dataclass(frozen=True)
class GiveUp:
    """Nothing more can be done. `has_begun` is False if no worker ever came up."""

    worker: int | None
    why: str
    has_begun: bool = True


Event = Ready | Beat | Done | Left | Retired | Died | Tick
Instruction = Start | Kill | Lost | GiveUp


@dataclass(frozen=True)
class RestartLimits:
    """When a death is one too many. None: no limit."""

    fruitless: int | None = 5
    """Lives of one worker in a row that ended without a finished piece of work; at 0 no death is allowed."""
    same_place: int | None = 3
    """Deaths of ready workers at the same place."""
    first_starts: int = 1
    """Attempts to bring a worker up for the first time."""
    needs_all: bool = True
    """Whether every worker has to come up once. False: one is enough to begin, the others are started again."""
    restarts: int | None = None
    """Workers started again, in all."""
    failures: int | None = None
    """Those of them that were started again after a failure."""
    start_s: float | None = None
    """Seconds for the first of all workers to be ready."""
    silent_s: float | None = None
    """Seconds between two signs of life of a worker that is ready."""


class Phase(Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    GONE = "gone"


@dataclass
class _Worker:
    phase: Phase = Phase.GONE
    has_been_ready: bool = False
    has_worked: bool = False  # in this life
    fruitless: int = 0  # lives before this one
    beat_s: float = 0.0
    patience_s: float | None = None
    note: object = None
    is_condemned: bool = False  # Kill was said; say it once


class SupervisorState:
    """The workers 0..n-1 of a run."""

    def __init__(self, num_workers: int, limits: RestartLimits | None = None) -> None:
        self._workers = [_Worker() for _ in range(num_workers)]
        self._limits = limits or RestartLimits()
        self._launched_s = 0.0
        self._is_over = False
        self._deaths_at: Counter[Hashable] = Counter()
        self.restarts = 0
        self.failures = 0  # among the deaths

    def launch(self, now_s: float) -> list[Start]:
        """Begin: every worker is to be started."""
        self._launched_s = now_s
        for worker in self._workers:
            worker.phase = Phase.STARTING
        return [Start(index) for index in range(len(self._workers))]

    def handle(self, event: Event, now_s: float) -> Sequence[Instruction]:
        """What is to be done about it. After GiveUp nothing more is."""
        if self._is_over:
            return ()
        if isinstance(event, Tick):
            return self._tick(now_s)
        worker = self._workers[event.worker]
        if isinstance(event, Died):
            return self._died(event) if worker.phase is not Phase.GONE else ()
        if isinstance(event, Left):
            worker.phase = Phase.GONE
            return ()
        if isinstance(event, Retired):
            return self._fresh(event.worker) if worker.phase is not Phase.GONE else ()
        if worker.phase is Phase.GONE:
            return ()  # the last words of one that was given up
        worker.beat_s = now_s
        if isinstance(event, Ready):
            worker.phase, worker.has_been_ready = Phase.READY, True
        elif isinstance(event, Done):
            worker.has_worked = True
        else:
            worker.note, worker.patience_s = event.note, event.patience_s
        return ()

    def phase(self, worker: int) -> Phase:
        """Where a worker is in its life."""
        return self._workers[worker].phase

    def note(self, worker: int) -> object:
        """What a worker last said it was at."""
        return self._workers[worker].note

    def in_phase(self, phase: Phase) -> list[int]:
        """The workers that are there."""
        return [index for index, worker in enumerate(self._workers) if worker.phase is phase]

    def has_been_ready(self, worker: int) -> bool:
        """Whether it ever came up."""
        return self._workers[worker].has_been_ready

    def has_worked(self, worker: int) -> bool:
        """Whether it has finished something since it was last started."""
        return self._workers[worker].has_worked

    @property
    def has_begun(self) -> bool:
        """Whether any worker ever came up."""
        return any(worker.has_been_ready for worker in self._workers)

    def _died(self, event: Died) -> Sequence[Instruction]:
        worker, limits = self._workers[event.worker], self._limits
        worker.fruitless = 0 if worker.has_worked else worker.fruitless + 1
        is_needed = not worker.has_been_ready and (limits.needs_all or not self.has_begun)
        if is_needed and worker.fruitless >= limits.first_starts:
            return self._give_up(event.worker, f"worker {event.worker} died before it was ready: {event.how}")
        if limits.fruitless is not None and worker.fruitless >= limits.fruitless:
            lives = f"was started {worker.fruitless} times in a row without a result" if worker.fruitless else "died"
            return self._give_up(event.worker, f"worker {event.worker} {lives}, last: {event.how}")
        is_blamed = worker.phase is Phase.READY or event.is_failure  # one that starts may be killed there for years
        if is_blamed and event.place is not None:
            self._deaths_at[event.place] += 1
            times = self._deaths_at[event.place]
            if limits.same_place is not None and times >= limits.same_place:
                return self._give_up(
                    event.worker, f"worker {event.worker} was lost {times} times at the same place, last: {event.how}"
                )
        if limits.restarts is not None and self.restarts >= limits.restarts:
            return self._give_up(event.worker, f"workers keep dying: {self.restarts} were started again")
        if event.is_failure and limits.failures is not None and self.failures >= limits.failures:
            return self._give_up(
                event.worker, f"work keeps failing: workers were started again {self.failures} times, last: {event.how}"
            )
        self.failures += event.is_failure
        lost = Lost(event.worker, event.how, worker.note)
        self.restarts += 1
        return (lost, *self._fresh(event.worker))

    def _fresh(self, index: int) -> Sequence[Instruction]:
        old = self._workers[index]
        fruitless = 0 if old.has_worked else old.fruitless
        self._workers[index] = _Worker(Phase.STARTING, old.has_been_ready, fruitless=fruitless)
        return (Start(index),)

    def _tick(self, now_s: float) -> Sequence[Instruction]:
        limits = self._limits
        if limits.start_s is not None and not self.has_begun and now_s - self._launched_s > limits.start_s:
            return self._give_up(None, f"no worker came up within {limits.start_s:g} s")
        silent = []
        for index, worker in enumerate(self._workers):
            limit_s, quiet_s = worker.patience_s, now_s - worker.beat_s
            if limit_s is None and worker.phase is Phase.READY:
                limit_s = limits.silent_s
            if limit_s is None or quiet_s <= limit_s or worker.phase is Phase.GONE:
                continue
            if not worker.is_condemned:
                worker.is_condemned = True
                silent.append(Kill(index, f"gave no sign of life for {quiet_s:.1f} s (limit {limit_s:.3g} s)"))
        return silent

    def _give_up(self, worker: int | None, why: str) -> Sequence[Instruction]:
        self._is_over = True
        return (GiveUp(worker, why, self.has_begun),)
