"""The room's map: groups go out to workers and come back, each exactly once. Read this first.

    plan (numbers, tags, seeds) -> scheduler -> player: workers (joblib) or the lock-step loop -> groups
                                                    ^ engine: one for all, here

    journal (if there is a run directory): a line when a group is done; what is in it is not played again

Sequential and parallel runs play the same tickets with the same seeds, so their records are the same; which is used is
a matter of time. Here are the numbers: which groups are out, which came back, which are left for the next call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from headrace.agents import auto
from headrace.agents.engines.protocol import Engine, EngineStatistics
from headrace.agents.engines.scripted import scripted
from headrace.agents.environments.registry import EnvSources, as_specs
from headrace.agents.environments.reuse import is_reusable
from headrace.agents.environments.text_env import TextEnvSpec
from headrace.agents.episode import Rules
from headrace.agents.journal import Journal, identity_of
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Ticket
from headrace.agents.playing import Player, Stage
from headrace.agents.records import FAILED, Group
from headrace.agents.scheduler import Pace, Scheduler
from headrace.clock import now_s
from headrace.errors import UsageError, whole

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
        if backend not in auto.WAYS:
            raise UsageError(f"backend: expected one of {', '.join(auto.WAYS)}, got {backend!r}")
        if n_jobs != -1 or isinstance(n_jobs, float):
            whole("n_jobs", n_jobs, 1, "-1 (auto) or at least 1")
        if isinstance(engine, str) and engine != "scripted":
            raise UsageError(f"engine: expected an engine or scripted, got {engine!r}")
        if not isinstance(engine, str) and not callable(getattr(engine, "submit", None)):
            raise UsageError(f"engine: expected an engine or scripted, got {engine!r}")
        for name, value, kind in (("rules", rules, Rules), ("limits", limits, Limits)):
            if value is not None and not isinstance(value, kind):
                raise UsageError(f"{name}: expected {kind.__name__}, got {value!r}")
        if not isinstance(pooled, bool):
            raise UsageError(f"pooled: expected True or False, got {pooled!r}")
        if run_dir is not None and not isinstance(run_dir, (str, os.PathLike)):
            raise UsageError(f"run_dir: expected a path, got {run_dir!r}")
        if n_groups is not None and not isinstance(n_groups, Sequence):
            raise UsageError(f"n_groups: expected a number per tag, got {n_groups!r}")
        specs = as_specs(envs)
        counts = (1,) * len(specs) if n_groups is None else tuple(n_groups)
        self.plan = GroupPlan(
            whole("seed", seed, 0), whole("group_size", group_size, 1), specs,
            tuple(whole("n_groups", count, 0) for count in counts), rules or Rules(),
        )  # fmt: skip
        self._is_engine_ours = isinstance(engine, str)
        self.engine: Engine = scripted() if isinstance(engine, str) else engine
        self.limits = limits or Limits()
        self._n_jobs, self._backend = n_jobs, backend
        self._pace = _pace(max_lag, groups_per_update)
        self._accepted = 0
        self._reusable = frozenset(spec.tag for spec in specs if pooled and self._may_reuse(spec))
        self._next_number = 0
        self._out: set[int] = set()  # numbers that are handed out
        self._left: list[int] = []  # those that did not come back
        self._early: set[int] = set()  # those that a journal gave before it was their turn
        self._journal = None if run_dir is None else Journal(Path(run_dir), identity_of(self.plan, self.engine))
        self._measured: list[auto.Measured | None] | None = None
        self.choice: auto.Choice | None = None
        self.statistics = Statistics()
        self.on_group: Callable[[Group], None] = lambda group: None
        self._player: Player | None = None
        self._is_streaming = self._is_closed = False

    def run(self, groups: int) -> list[Group]:
        """That many groups, in the order of their numbers; those that a journal holds are not played again."""
        whole("groups", groups, 0)
        if self._pace is not None and groups > (room := self._pace.room(self.engine.version, self._accepted)):
            raise UsageError(
                f"groups: expected at most {room}, got {groups}: no more may start before the next publish() (max_lag "
                f"= {self._pace.max_lag}, groups_per_update = {self._pace.groups_per_update}); ask for fewer, or take "
                f"them from stream() and publish on the way"
            )
        return sorted(self.stream(groups), key=lambda group: group.number)

    def stream(self, groups: int | None = None) -> Iterator[Group]:
        """Groups as they finish; without a number for ever, tags in the proportions of n_groups."""
        if groups is not None:
            whole("groups", groups, 0)
        return self._counted(groups)

    def play(self, numbers: Sequence[int]) -> list[Group]:
        """Groups of these numbers, in order, played now, whatever a journal holds: for whoever chooses the tasks."""
        wanted = {whole("numbers", number, 0) for number in numbers}
        with self._alone():
            played = self._played([self.plan.ticket(number) for number in sorted(wanted)])
            return sorted(played, key=lambda group: group.number)

    def __iter__(self) -> Iterator[Group]:
        return self.stream()

    def publish(self, weights: Any) -> int:
        """New weights for an engine of this process; returns their version."""
        self._require_open()
        version = self.engine.publish(weights)
        if self._player is not None:
            self._player.look_again()
        return version

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers that play now, by worker; none if they are threads."""
        return self._player.worker_pids if self._player is not None else {}

    def close(self) -> None:
        """Close the journal, and the engine if it was made here; may be called twice."""
        self._is_closed = True
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

    # ------------------------------------------------------------------------------------------- numbers, in and out

    def _counted(self, groups: int | None) -> Iterator[Group]:
        """Groups of the next numbers; first what a journal holds of them."""
        held = self._journal.groups if self._journal is not None else {}
        with self._alone():
            try:
                if groups is None:
                    again = {*self._left}
                    kept = sorted(one for one in held if one in again or self._is_to_come(one))
                    self._early |= {*kept}
                    self._left = sorted(again - held.keys())
                    tickets, rounds = list[Ticket](), self._rounds()
                else:
                    numbers = self._take_numbers(groups)
                    kept = [number for number in numbers if number in held]
                    tickets, rounds = [self.plan.ticket(number) for number in numbers if number not in held], None
                self._out = {*kept, *(ticket.number for ticket in tickets)}
                if kept:
                    logger.info("%d groups come from the journal", len(kept))
                for number in kept:
                    self._out.discard(number)
                    yield held[number]
                with closing(self._played(tickets, rounds)) as played:
                    for group in played:
                        if self._journal is not None:
                            self._journal.add(group)
                        self._out.discard(group.number)
                        self.on_group(group)
                        yield group
            finally:  # what was broken off is played first next time: nothing is skipped
                self._left = sorted({*self._out, *self._left})
                self._out = set()

    def _is_to_come(self, number: int) -> bool:
        return number >= self._next_number and number not in self._early

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One stream at a time: two would share the numbers that are out."""
        self._require_open()
        if self._is_streaming:
            raise UsageError("a stream of these rollouts is still open: finish it, or close() it, before the next")
        self._is_streaming = True
        try:
            yield
        finally:
            self._is_streaming = False

    def _rounds(self) -> Generator[list[Ticket], None, None]:
        """Numbers for ever; whoever plays asks for them, from whatever thread, one at a time."""
        while True:
            numbers = self._take_numbers(self.plan.per_round)
            self._out |= {*numbers}
            yield [self.plan.ticket(number) for number in numbers]

    def _take_numbers(self, count: int) -> list[int]:
        """First what was left unfinished, then new ones."""
        numbers, self._left = self._left[:count], self._left[count:]
        while len(numbers) < count:
            if self._next_number not in self._early:
                numbers.append(self._next_number)
            self._next_number += 1
        return numbers

    # ---------------------------------------------------------------------------------------------------- playing

    def _played(
        self, tickets: list[Ticket], rounds: Generator[list[Ticket], None, None] | None = None
    ) -> Generator[Group, None, None]:
        most = max(1, self.limits.max_live // self.plan.group_size)
        groups = most if rounds is not None else min(most, len(tickets))
        choice = self.choice = self._choose(groups)
        logger.info("%s: %s groups of %d", choice.reason, "endless" if rounds else len(tickets), self.plan.group_size)
        self.statistics = Statistics()
        started, before = now_s(), self.engine.statistics()
        scheduler = Scheduler(tickets, self.limits.attempts, self._pace, self._accepted, rounds, self._most_out(rounds))
        player = Player(Stage(self.plan, self.engine, self.limits, self._reusable), scheduler, self._judged)
        self._player = player
        try:
            with closing(player.play(choice, groups, self._n_jobs == -1)) as played:
                for group in played:
                    self._count(group, player.restarts, started, before)
                    yield group
        finally:
            self._accepted = scheduler.accepted
            self._player = None

    def _most_out(self, rounds: object) -> int:
        """Groups that an endless stream may have in play or waiting for whoever reads it; others know their number."""
        most = max(self.plan.per_round, 2 * self.limits.max_live // self.plan.group_size, 2)
        return most if rounds is not None else 1 << 30

    def _choose(self, groups: int) -> auto.Choice:
        if self._backend not in ("auto", *auto.BACKENDS):
            return auto.Choice(self._backend, 1, f"{self._backend}: asked for")
        if self._backend != "auto":
            workers = self._n_jobs if self._n_jobs > 0 else auto.cores()
            return auto.Choice(self._backend, max(1, workers), f"{self._backend}, n_jobs={workers}: asked for")
        if self._measured is None:
            self._measured = [auto.measure(spec, self.limits.env_s) for spec in self.plan.envs]
        return auto.choose(self._measured, self._n_jobs, groups, getattr(self.engine, "is_in_process", False))

    def _may_reuse(self, spec: TextEnvSpec) -> bool:
        return bool(auto.within(self.limits.env_s, lambda: is_reusable(spec)))

    def _judged(self, group: Group) -> Group:
        """Looked at once more at hand-over: weights may have moved on while it was played."""
        if self._pace is None or group.status == FAILED:
            return group
        versions = [row.versions[row.loss_mask > 0] for one in group.episodes for row in one.rows]
        oldest = min((int(one.min()) for one in versions if len(one)), default=self.engine.version)
        return replace(group, lag=self.engine.version - oldest, max_lag=self._pace.max_lag)

    def _count(self, group: Group, restarts: int, started_s: float, before: EngineStatistics) -> None:
        was, engine = self.statistics, self.engine.statistics()
        self.statistics = Statistics(
            groups=was.groups + 1,
            failed=was.failed + (group.status == FAILED),
            late=was.late + group.is_late,
            episodes=was.episodes + len(group.episodes),
            turns=was.turns + sum(len(one.turns) for one in group.episodes),
            tokens=was.tokens + int(sum(np.sum(row.loss_mask) for one in group.episodes for row in one.rows)),
            restarts=restarts,
            seconds=now_s() - started_s,
            engine=engine.since(before),
        )

    def _require_open(self) -> None:
        if self._is_closed:
            raise UsageError("these rollouts were closed: make new ones")


def _pace(max_lag: int | None, groups_per_update: int | None) -> Pace | None:
    if max_lag is None and groups_per_update is None:
        return None
    if max_lag is None or groups_per_update is None:
        raise UsageError(
            f"max_lag and groups_per_update: expected both or neither, got {max_lag} and {groups_per_update}"
        )
    return Pace(whole("max_lag", max_lag, 0), whole("groups_per_update", groups_per_update, 1))
