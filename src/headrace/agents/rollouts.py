"""The room's map: groups go out to workers and come back, each exactly once. Read this first.

    plan (numbers, tags, seeds) -> scheduler -> dispatcher -> workers (joblib) or the lock-step loop -> groups
                                                    ^ engine: one for all, here

    journal (if there is a run directory): a line when a group is done; what is in it is not played again

Sequential and parallel runs play the same tickets with the same seeds, so their records are the same; which is used is
a matter of time. If the workers can't be started, one line says why and the groups are played sequentially.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from headrace.agents import auto, lock_step
from headrace.agents.crew import BACKENDS, Crew, CrewError, CrewLostError
from headrace.agents.dispatcher import Dispatcher
from headrace.agents.engines.protocol import Engine, EngineStatistics
from headrace.agents.engines.scripted import scripted
from headrace.agents.environments.registry import EnvSources, as_specs
from headrace.agents.environments.reuse import is_reusable
from headrace.agents.environments.text_env import TextEnvSpec
from headrace.agents.episode import Rules
from headrace.agents.journal import Journal
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.records import COMPLETED, FAILED, WORKER, Failure, Group
from headrace.agents.scheduler import Pace, Scheduler, suggested_workers
from headrace.agents.seat import EnvPool
from headrace.agents.table import failed_group
from headrace.agents.worker import WorkerPlan
from headrace.clock import now_s
from headrace.errors import UsageError

_LOOK_S = 0.05  # between looks at the workers while no group comes
_ADAPT_S = 1.0  # between two thoughts about their number

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Statistics:
    """What a call of run() has done so far."""

    groups: int = 0
    failed: int = 0
    late: int = 0
    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    restarts: int = 0
    seconds: float = 0.0
    engine: EngineStatistics = field(default_factory=EngineStatistics)


class AgentRollouts:
    """Multi-turn rollouts over one engine: run() returns groups, iterating yields them as they finish.

    `envs` are tags of shipped environments, classes, TextEnvSpecs, or a mapping of tags to these. Use as a context
    manager, or close it: an engine that was made here is closed with it, one that was handed in is not.
    """

    def __init__(
        self,
        envs: EnvSources,
        engine: Engine | str = "scripted",
        n_jobs: int = -1,
        backend: str = "auto",
        *,
        group_size: int = 8,
        n_groups: Sequence[int] | None = None,
        seed: int = 1,
        rules: Rules | None = None,
        limits: Limits | None = None,
        pooled: bool = False,
        max_lag: int | None = None,
        groups_per_update: int | None = None,
        run_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if backend not in ("auto", "sequential", *BACKENDS):
            raise UsageError(f"backend: expected auto, sequential, {', '.join(BACKENDS)}, got {backend!r}")
        if n_jobs != -1 and n_jobs < 1:
            raise UsageError(f"n_jobs: expected -1 (auto) or at least 1, got {n_jobs}")
        if isinstance(engine, str) and engine != "scripted":
            raise UsageError(f"engine: expected an engine or scripted, got {engine!r}")
        specs = as_specs(envs)
        counts = tuple(n_groups) if n_groups is not None else (1,) * len(specs)
        self.plan = GroupPlan(seed, group_size, specs, counts, rules or Rules())
        self._is_engine_ours = isinstance(engine, str)
        self.engine: Engine = scripted() if isinstance(engine, str) else engine
        self.limits = limits or Limits()
        self._n_jobs, self._backend = n_jobs, backend
        self._pace = _pace(max_lag, groups_per_update)
        self._reusable = frozenset(spec.tag for spec in specs if pooled and self._may_reuse(spec))
        self._next_number = 0
        self._out: set[int] = set()  # numbers that are handed out
        self._left: list[int] = []  # those that did not come back
        self._accepted = 0
        self._journal = None if run_dir is None else Journal(Path(run_dir) / "groups.jsonl", self._identity())
        self._measured: list[auto.Measured | None] | None = None
        self.choice: auto.Choice | None = None
        self.statistics = Statistics()
        self.on_group: Callable[[Group], None] = lambda group: None
        self._dispatcher: Dispatcher | None = None
        self._crew: Crew | None = None

    def run(self, groups: int) -> list[Group]:
        """That many groups, in the order of their numbers; those that a journal holds are not played again."""
        return sorted(self.stream(groups), key=lambda group: group.number)

    def stream(self, groups: int | None = None) -> Iterator[Group]:
        """Groups as they finish; without a number, one round of n_groups after the other, for ever."""
        while True:
            count = self.plan.per_round if groups is None else groups
            if count < 0:
                raise UsageError(f"groups: expected 0 or more, got {groups}")
            try:
                yield from self._stream(self._take_numbers(count))
            finally:  # what was broken off is played first next time: nothing is skipped
                self._left = sorted({*self._out, *self._left})
            if groups is not None:
                return

    def play(self, numbers: Sequence[int]) -> list[Group]:
        """Groups of these numbers, in the order of their numbers, played now: for whoever chooses the tasks."""
        return sorted(self._stream(list(numbers)), key=lambda group: group.number)

    def __iter__(self) -> Iterator[Group]:
        return self.stream()

    def publish(self, weights: Any) -> int:
        """New weights for an engine of this process; returns their version."""
        version = self.engine.publish(weights)
        if self._dispatcher is not None:
            self._dispatcher.look_again()
        return version

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers that play now, by worker; none if they are threads."""
        return self._crew.pids if self._crew is not None else {}

    def close(self) -> None:
        """Close the journal, and the engine if it was made here."""
        if self._journal is not None:
            self._journal.close()
        if self._is_engine_ours:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -------------------------------------------------------------------------------------------------- inside

    def _stream(self, numbers: list[int]) -> Iterator[Group]:
        kept = self._journal.groups if self._journal is not None else {}
        tickets = [self.plan.ticket(number) for number in numbers if number not in kept]
        self.choice = self._choose(len(tickets))
        self.statistics = Statistics()
        started, before = now_s(), self.engine.statistics()
        logger.info("%s: %d groups of %d, %d from the journal", self.choice.reason, len(numbers), self.plan.group_size,
                    len(numbers) - len(tickets))  # fmt: skip
        self._out = set(numbers)
        for number in numbers:
            if number in kept:
                self._out.discard(number)
                yield kept[number]
        for group in self._play(tickets):
            group = self._received(group)
            self._count(group, started, before)
            if self._journal is not None:
                self._journal.add(group)
            self._out.discard(group.number)
            self.on_group(group)
            yield group

    def _play(self, tickets: list[Ticket]) -> Iterator[Group]:
        assert self.choice is not None
        if self.choice.backend == "sequential":
            yield from self._lock_step(tickets)
            return
        done: set[int] = set()
        try:
            for group in self._parallel(tickets, self.choice):
                done.add(group.number)
                yield group
        except CrewError as error:
            logger.warning("parallel rollouts are not possible (%s); going on sequentially with the same seeds", error)
            yield from self._lock_step([ticket for ticket in tickets if ticket.number not in done])

    def _lock_step(self, tickets: list[Ticket]) -> Iterator[Group]:
        scheduler = Scheduler(tickets, self.limits.attempts, self._pace, self._accepted)
        pool = EnvPool(self._reusable)
        try:
            next_ticket = lambda: scheduler.next(0, self.engine.version)  # noqa: E731
            while not scheduler.is_done:
                for group in lock_step.play(next_ticket, self.plan, self.engine, self.limits, pool):
                    scheduler.finished(group.number, group.seconds, group.status == COMPLETED)
                    yield group
                if scheduler.num_waiting and self._pace is not None:
                    raise UsageError(
                        f"{scheduler.num_waiting} groups can't start before the next publish(): max_lag = "
                        f"{self._pace.max_lag}, {self._pace.groups_per_update} groups an update; ask for fewer"
                    )
        finally:
            self._accepted = scheduler.accepted
            pool.close()

    def _parallel(self, tickets: list[Ticket], choice: auto.Choice) -> Iterator[Group]:
        scheduler = Scheduler(tickets, self.limits.attempts, self._pace, self._accepted)
        dispatcher = self._dispatcher = Dispatcher(
            scheduler, lambda: self.engine.version, self.engine.expect, is_fragile=choice.backend == "loky"
        )
        live_groups = max(1, self.limits.max_live // self.plan.group_size)
        plan = WorkerPlan(
            self.plan, self.engine.codec, self.engine.is_text_only, self.limits, self._reusable,
            max(1, -(-min(live_groups, len(tickets)) // choice.n_jobs)),
        )  # fmt: skip
        crew = self._crew = Crew(choice.backend, choice.n_jobs, plan, dispatcher, self.engine)
        adapt = _Adapting(dispatcher, self.engine, choice.n_jobs) if self._n_jobs == -1 else None
        told_s = now_s()
        try:
            crew.launch()
            while not scheduler.is_done or not dispatcher.is_empty:
                group = dispatcher.next_group(_LOOK_S)
                if group is not None:
                    yield group
                    continue
                crew.look()
                self.statistics = replace(self.statistics, restarts=crew.restarts)
                if adapt is not None:
                    adapt.look()
                quiet_s = now_s() - max(told_s, dispatcher.progress_s)
                if quiet_s > self.limits.stall_s:
                    told_s = now_s()
                    logger.warning("no progress for %.0f s: %s", quiet_s, dispatcher.explain())
        except CrewLostError as error:
            logger.error("%s; what is left of the groups has failed", error)
            for ticket in dispatcher.close():
                yield failed_group(ticket, Failure(WORKER, str(error)))
        finally:
            self._accepted = scheduler.accepted
            self._dispatcher = self._crew = None
            is_finished = scheduler.is_done
            dispatcher.close()
            crew.close(is_finished)

    def _choose(self, groups: int) -> auto.Choice:
        if self._backend == "sequential":
            return auto.Choice("sequential", 1, "sequential: asked for")
        if self._backend != "auto":
            workers = self._n_jobs if self._n_jobs > 0 else auto.cores()
            return auto.Choice(self._backend, max(1, workers), f"{self._backend}, n_jobs={workers}: asked for")
        if self._measured is None:
            self._measured = [auto.measure(spec, self.limits.env_s) for spec in self.plan.envs]
        return auto.choose(self._measured, self._n_jobs, groups)

    def _may_reuse(self, spec: TextEnvSpec) -> bool:
        return bool(auto.within(self.limits.env_s, lambda: is_reusable(spec)))

    def _received(self, group: Group) -> Group:
        """Looked at once more at hand-over: weights may have moved on while it was played."""
        if self._pace is None or group.status == FAILED:
            return group
        versions = [row.versions[row.loss_mask > 0] for one in group.episodes for row in one.rows]
        oldest = min((int(one.min()) for one in versions if len(one)), default=self.engine.version)
        return replace(group, lag=self.engine.version - oldest, max_lag=self._pace.max_lag)

    def _count(self, group: Group, started_s: float, before: EngineStatistics) -> None:
        was, engine = self.statistics, self.engine.statistics()
        self.statistics = replace(
            was,
            groups=was.groups + 1,
            failed=was.failed + (group.status == FAILED),
            late=was.late + group.is_late,
            episodes=was.episodes + len(group.episodes),
            turns=was.turns + sum(len(one.turns) for one in group.episodes),
            tokens=was.tokens + int(sum(np.sum(row.loss_mask) for one in group.episodes for row in one.rows)),
            seconds=now_s() - started_s,
            engine=engine.since(before),
        )

    def _take_numbers(self, count: int) -> list[int]:
        """First what was left unfinished, then new ones."""
        again, self._left = self._left[:count], self._left[count:]
        fresh = range(self._next_number, self._next_number + count - len(again))
        self._next_number = fresh.stop
        return [*again, *fresh]

    def _identity(self) -> dict[str, Any]:
        """What a journal must agree with to be this run's."""
        plan = self.plan
        return {
            "seed": plan.seed,
            "group_size": plan.group_size,
            "n_groups": list(plan.n_groups),
            "envs": [[spec.tag, _plain(spec.options), _plain(spec.limits)] for spec in plan.envs],
            "rules": vars(plan.rules),
        }


class _Adapting:
    """The number of workers that get groups, by how much the engine waits."""

    def __init__(self, dispatcher: Dispatcher, engine: Engine, most: int) -> None:
        self._dispatcher, self._engine, self._most = dispatcher, engine, most
        self._active = most
        self._since_s, self._busy_s = now_s(), engine.statistics().busy_s

    def look(self) -> None:
        """Now and then."""
        elapsed_s = now_s() - self._since_s
        if elapsed_s < _ADAPT_S:
            return
        busy_s = self._engine.statistics().busy_s
        idle = max(0.0, 1.0 - (busy_s - self._busy_s) / elapsed_s)
        self._since_s, self._busy_s = now_s(), busy_s
        active = suggested_workers(self._active, 1, self._most, idle, self._dispatcher.num_waiting)
        if active != self._active:
            logger.info(
                "the engine waits %.0f %% of the time: %d of %d workers get groups", 100 * idle, active, self._most
            )
            self._active = active
            self._dispatcher.set_active(active)


def _pace(max_lag: int | None, groups_per_update: int | None) -> Pace | None:
    if max_lag is None and groups_per_update is None:
        return None
    if max_lag is None or groups_per_update is None or max_lag < 0 or groups_per_update < 1:
        raise UsageError(
            f"max_lag and groups_per_update: expected both, at least 0 and 1, got {max_lag} and {groups_per_update}"
        )
    return Pace(max_lag, groups_per_update)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)
            for name, value in options.items()}  # fmt: skip
