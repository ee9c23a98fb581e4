"""How numbers become groups: one call after the other, each group played, judged, counted and logged exactly once.

    numbers -> plan (tags, seeds) -> scheduler -> desk: workers (joblib)  ──> how old? -> ledger -> group log -> reader
                                        │           ^ engine: one for all, here       ^
                                        └─ lock-step loop: asked for, or no worker can be started

Sequential and parallel calls play the same tickets with the same seeds, so their records are the same; they differ in
time only. Every wait names what it waits for: a worker, the engine, its servers, or the learner that has not published.
Does not know what users may ask for: that is checked before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.agents import lock_step, ways
from headrace.agents.desk import Desk, MoveError, NoWorkersError
from headrace.agents.engines.protocol import Engine, EngineStatistics
from headrace.agents.group_log import GroupLog
from headrace.agents.hosts import JoblibHosts
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import FAILED, Group
from headrace.agents.scheduler import BROKEN_OFF, Numbers, Scheduler, settle
from headrace.agents.worker import WorkerBrief
from headrace.clock import now_s
from headrace.errors import UsageError
from headrace.memory.ledger import Ledger
from headrace.pace import Pace

_LOOK_S = 0.05  # between looks at the learner that is waited for
_WARN_S = 1.0  # without new weights, until the log says that they are waited for

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """What a call of run() has done so far; `ledger` is about all calls: groups produced, consumed, rejected ..."""

    groups: int = 0
    failed: int = 0
    late: int = 0
    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    restarts: int = 0
    seconds: float = 0.0
    engine: EngineStatistics = field(default_factory=EngineStatistics)
    ledger: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """What every way to play needs."""

    plan: GroupPlan
    engine: Engine
    limits: Limits
    reusable: frozenset[str] = frozenset()  # tags
    backend: str = "auto"
    n_jobs: int = -1
    pace: Pace | None = None


class Playing:
    """All calls of some rollouts, one at a time."""

    def __init__(self, stage: Stage, log: GroupLog | None = None) -> None:
        self._stage, self._log = stage, log
        self._numbers, self.ledger = Numbers(), Ledger()
        self._looks: list[ways.StepTime | None] | None = None  # at environments, by auto
        self._does_compute = False  # they do, by what was seen while they were played
        self._desk: Desk | None = None
        self._hosts: JoblibHosts | None = None
        self.choice: ways.Way | None = None
        self._statistics = Statistics()
        self._began = 0.0, EngineStatistics()  # when the call began, and what the engine had done by then
        self.on_group: Callable[[Group], None] | None = None
        self._is_streaming = self._is_closed = False

    @property
    def statistics(self) -> Statistics:
        """Of the last call, so far; the ledger's numbers are those of all calls."""
        return replace(self._statistics, ledger=self.ledger.encode())

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers that play now, by worker; none if they are threads."""
        return self._hosts.pids if self._hosts is not None else {}

    def look_again(self) -> None:
        """There are new weights: more groups may start."""
        if self._desk is not None:
            self._desk.look_again()

    def state(self) -> dict[str, Any]:
        """Which groups came back, and the ledger, as JSON: what is in play now will be played again."""
        return {"numbers": self._numbers.state(), "ledger": self.ledger.encode()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; what was in play then is discarded."""
        self._numbers.restore(state["numbers"])
        self.ledger.restore(state["ledger"])
        in_play = self.ledger.produced - self.ledger.settled
        if in_play:
            self.ledger.discarded[BROKEN_OFF] += in_play

    def close(self) -> None:
        """No more calls."""
        self._is_closed = True
        if self._log is not None:
            self._log.close()

    def require_open(self) -> None:
        """Raise if there can be no more calls."""
        if self._is_closed:
            raise UsageError("these rollouts were closed: make new ones")

    def play(self, numbers: Sequence[int]) -> Iterator[Group]:
        """Groups of these numbers, whatever the group log holds."""
        with self._alone(), closing(self._played([self._stage.plan.ticket(number) for number in numbers])) as played:
            yield from played

    def stream(self, groups: int | None) -> Generator[Group, None, None]:
        """Groups of the next numbers; first what the group log holds of them."""
        held = self._log.kept(self._stage.limits.plays) if self._log is not None else {}
        numbers, tickets, rounds = self._numbers, list[Ticket](), None
        with self._alone():
            try:
                if groups is None:
                    kept, rounds = numbers.take_known(held), self._rounds()
                else:
                    taken = numbers.take(groups)
                    kept = [number for number in taken if number in held]
                    tickets = [self._stage.plan.ticket(number) for number in taken if number not in held]
                if kept:
                    logger.info("%d groups come from the group log", len(kept))
                for number in kept:
                    numbers.returned(number)
                    self.ledger.produced += 1
                    settle(self.ledger, held[number])
                    yield held[number]
                with closing(self._played(tickets, rounds)) as played:
                    for group in played:
                        if self._log is not None:
                            self._log.add(group)
                        numbers.returned(group.number)
                        if self.on_group is not None:
                            self.on_group(group)
                        yield group
            finally:
                numbers.break_off()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One call at a time: two would share the numbers that are out."""
        self.require_open()
        if self._is_streaming:
            raise UsageError("a stream of these rollouts is still open: finish it, or close() it, before the next")
        self._is_streaming = True
        try:
            yield
        finally:
            self._is_streaming = False

    def _rounds(self) -> Generator[list[Ticket], None, None]:
        """Numbers for ever; the scheduler asks for them, in any thread, one round at a time."""
        while True:
            yield [self._stage.plan.ticket(number) for number in self._numbers.take(self._stage.plan.per_round)]

    def _played(
        self, tickets: list[Ticket], rounds: Generator[list[Ticket], None, None] | None = None
    ) -> Generator[Group, None, None]:
        """Every group once, handed over and counted: by workers, or by the lock-step loop if there can be none."""
        plan, limits = self._stage.plan, self._stage.limits
        most = max(1, limits.max_live // plan.group_size)
        groups = most if rounds is not None else min(most, len(tickets))
        way = self.choice = self._choose(groups)
        logger.info("%s: %s groups of %d", way.reason, "endless" if rounds else len(tickets), plan.group_size)
        self._desk, self._statistics = None, Statistics()
        self._began = now_s(), self._stage.engine.statistics()
        # An endless stream has only so much in play or waiting for its reader; the others know their number.
        most_out = max(plan.per_round, 2 * limits.max_live // plan.group_size, 2) if rounds is not None else 1 << 30
        scheduler = Scheduler(tickets, limits.attempts, self.ledger, self._stage.pace, rounds, most_out)
        learner = _LearnerWatch(scheduler, self._stage.engine, limits.publish_s)
        try:
            while way.backend in ways.BACKENDS:
                try:
                    yield from self._by_workers(way, groups, scheduler, learner)
                    return
                except MoveError:
                    way = self.choice = self._choose(groups)
                    logger.info("%s; groups in play begin again there", way.reason)
                except NoWorkersError as error:
                    logger.warning(
                        "parallel rollouts are not possible (%s); going on sequentially with the same seeds", error
                    )
                    break
            yield from self._in_lock_step(way.backend == "lock-step", scheduler, learner)
        finally:
            scheduler.close()

    def _by_workers(
        self, way: ways.Way, groups: int, scheduler: Scheduler, learner: _LearnerWatch
    ) -> Generator[Group, None, None]:
        stage, engine = self._stage, self._stage.engine
        desk = self._desk = Desk(scheduler, engine, way.n_jobs, groups, stage.limits, is_fragile=way.backend == "loky")
        share = stage.plan.group_size * max(1, -(-groups // way.n_jobs))
        most_live = min(share, max(1, stage.limits.max_live // way.n_jobs))
        brief = WorkerBrief(
            stage.plan,
            engine.codec,
            engine.is_text_only,
            _with_patience(stage.limits, engine),
            stage.reusable,
            most_live,
        )
        computing = ways.Computing()
        hosts = self._hosts = JoblibHosts(way.backend, brief, desk, engine, computing.stepped)
        adapting = ways.Adapting(desk, engine, way.n_jobs) if stage.n_jobs == -1 else None
        may_move = stage.backend == "auto" and self._choose(groups, does_compute=True).backend != way.backend

        def meanwhile() -> bool:
            if may_move and computing.is_heavy:
                self._does_compute = True
                raise MoveError("environments keep the interpreter busy")
            if adapting is not None:
                adapting.look()
            return learner.is_waited_for() or _require_servers(engine)

        try:
            with closing(desk.groups(hosts, meanwhile)) as played:
                for group in played:
                    yield self._taken(group, desk.handed_over)
        finally:
            self._hosts = None
            hosts.close(scheduler.is_done)

    def _in_lock_step(
        self, is_side_by_side: bool, scheduler: Scheduler, learner: _LearnerWatch
    ) -> Generator[Group, None, None]:
        stage = self._stage
        limits = _with_patience(stage.limits, stage.engine)
        how = (stage.plan, stage.engine, limits, stage.reusable, is_side_by_side)

        def next_ticket() -> Ticket | None:
            return scheduler.next(0, stage.engine.version)

        while not scheduler.is_done:
            with closing(lock_step.play(next_ticket, *how)) as played:
                for group in played:
                    scheduler.finished(group.number, group.seconds)
                    yield self._taken(group, scheduler.handed_over)
            learner.wait()

    def _choose(self, groups: int, does_compute: bool = False) -> ways.Way:
        stage = self._stage
        if stage.backend not in ("auto", *ways.BACKENDS):
            return ways.Way(stage.backend, 1, f"{stage.backend}: asked for")
        if stage.backend != "auto":
            workers = stage.n_jobs if stage.n_jobs > 0 else ways.cores()
            return ways.Way(stage.backend, max(1, workers), f"{stage.backend}, n_jobs={workers}: asked for")
        if self._looks is None:
            self._looks = [ways.look(spec) for spec in stage.plan.envs]
        return ways.choose(self._looks, stage.n_jobs, groups, does_compute or self._does_compute)

    def _taken(self, group: Group, hand_over: Callable[[Group], None]) -> Group:
        """Judged, handed over and counted: weights may have moved on while it was played."""
        pace, engine = self._stage.pace, self._stage.engine
        if group.status == FAILED:
            _require_servers(engine)  # a group that failed for want of a server is played again, not handed over
        if pace is not None and group.status != FAILED:
            versions = [row.versions[row.loss_mask > 0] for one in group.episodes for row in one.rows]
            oldest = min((int(one.min()) for one in versions if len(one)), default=engine.version)
            group = replace(group, lag=engine.version - oldest, max_lag=pace.max_lag)
        hand_over(group)
        was, (began_s, before) = self._statistics, self._began
        self._statistics = Statistics(
            groups=was.groups + 1,
            failed=was.failed + (group.status == FAILED),
            late=was.late + group.is_late,
            episodes=was.episodes + len(group.episodes),
            turns=was.turns + sum(len(one.turns) for one in group.episodes),
            tokens=was.tokens + int(sum(np.sum(row.loss_mask) for one in group.episodes for row in one.rows)),
            restarts=self._desk.restarts if self._desk is not None else 0,
            seconds=now_s() - began_s,
            engine=engine.statistics().since(before),
        )
        return group


def _require_servers(engine: Engine) -> bool:
    """Whether the engine waits for all of its servers, and has said so; an error if that takes too long."""
    outage = getattr(engine, "outage", None)  # engines of this process have no servers
    return bool(outage()) if outage is not None else False


def _with_patience(limits: Limits, engine: Engine) -> Limits:
    """Limits by which an answer may take longer, as long as the engine may wait for its servers."""
    return replace(limits, engine_s=limits.engine_s + float(getattr(engine, "patience_s", 0.0)))


class _LearnerWatch:
    """The learner that publishes weights, as seen by groups that may not start before that."""

    def __init__(self, scheduler: Scheduler, engine: Engine, limit_s: float) -> None:
        self._scheduler, self._engine, self._limit_s = scheduler, engine, limit_s
        self._since_s: float | None = None
        self._is_reported = False

    def is_waited_for(self) -> bool:
        """Whether nothing goes on without it; after limits.publish_s that is an error."""
        if not self._scheduler.is_held(self._engine.version):
            self._since_s, self._is_reported = None, False
            return False
        self._since_s = now_s() if self._since_s is None else self._since_s
        waited_s = now_s() - self._since_s
        what = (
            f"no group may start before the next publish(): {self._scheduler.accepted} were accepted, and the weights "
            f"are of version {self._engine.version}"
        )
        if waited_s > self._limit_s:
            raise UsageError(f"{what}; there was none within limits.publish_s = {self._limit_s:g} s")
        if waited_s > min(_WARN_S, 0.5 * self._limit_s) and not self._is_reported:
            self._is_reported = True
            logger.warning("%s; waiting for it", what)
        return True

    def wait(self) -> None:
        """Until it has published."""
        pause = threading.Event()
        while self.is_waited_for():
            pause.wait(_LOOK_S)
