"""LLM rollouts as users call them: arguments, checks, and who is closed when. Read this and playing.py first.

    AgentRollouts(envs, engine, ...) -> run(n): groups in order · stream(): as they finish · play(numbers) · publish
        -> playing: numbers -> workers, or a lock-step loop -> groups, each exactly once

With a run directory, a line goes to its group log when a group is done, and what is in it is not played again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.agents import ways
from headrace.agents.engines.protocol import Engine
from headrace.agents.engines.scripted import scripted
from headrace.agents.environments.registry import EnvSources, as_specs
from headrace.agents.environments.reuse import is_reusable
from headrace.agents.environments.text_env import TextEnvSpec
from headrace.agents.group_log import GroupLog, identity_of
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Rules
from headrace.agents.playing import Playing, Stage, Statistics
from headrace.agents.records import Group
from headrace.errors import UsageError, whole
from headrace.keywords import in_words
from headrace.memory.ledger import Ledger
from headrace.pace import Pace


@in_words()
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
        if backend not in ways.WAYS:
            raise UsageError(f"backend: expected one of {', '.join(ways.WAYS)}, got {backend!r}")
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
        self._pace = _pace(max_lag, groups_per_update)
        reusable = frozenset(spec.tag for spec in specs if pooled and self._may_reuse(spec))
        log = None if run_dir is None else GroupLog(Path(run_dir), identity_of(self.plan, self.engine))
        stage = Stage(self.plan, self.engine, self.limits, reusable, backend, n_jobs, self._pace)
        self._playing = Playing(stage, log)

    def run(self, groups: int) -> list[Group]:
        """That many groups, in the order of their numbers; those that the group log holds are not played again."""
        whole("groups", groups, 0)
        if self._pace is not None and groups > (room := self._pace.room(self.engine.version, self.ledger.consumed)):
            raise UsageError(
                f"groups: expected at most {room}, got {groups}: no more may start before the next publish() (max_lag "
                f"= {self._pace.max_lag}, groups_per_update = {self._pace.per_update}); ask for fewer, or take "
                f"them from stream() and publish on the way"
            )
        return sorted(self.stream(groups), key=lambda group: group.number)

    def stream(self, groups: int | None = None) -> Generator[Group, None, None]:
        """Groups as they finish; without a number for ever, tags in the proportions of n_groups."""
        if groups is not None:
            whole("groups", groups, 0)
        return self._playing.stream(groups)

    def play(self, numbers: int | Iterable[int]) -> list[Group]:
        """Groups of these numbers, in order, played now whatever the group log holds: for callers that choose tasks."""
        several = numbers if isinstance(numbers, Iterable) else [numbers]
        wanted = {whole("numbers", number, 0) for number in several}
        return sorted(self._playing.play(sorted(wanted)), key=lambda group: group.number)

    def __iter__(self) -> Iterator[Group]:
        return self.stream()

    def publish(self, weights: Any) -> int:
        """New weights for an engine of this process; returns their version."""
        self._playing.require_open()
        version = self.engine.publish(weights)
        self._playing.look_again()
        return version

    def look_again(self) -> None:
        """Weights were published at the engine itself: more groups may start."""
        self._playing.look_again()

    def state(self) -> dict[str, Any]:
        """What these rollouts need to go on elsewhere, as JSON: which groups came back, and the ledger.

        The weights and their version are the engine's; groups that are in play are played again.
        """
        return self._playing.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state, before the first call; groups that came back before it are not given again."""
        self._playing.restore(state)

    @property
    def pace(self) -> Pace | None:
        """How far groups may run ahead of a learner: max_lag and groups_per_update."""
        return self._pace

    @property
    def statistics(self) -> Statistics:
        """Of the last call, so far."""
        return self._playing.statistics

    @property
    def choice(self) -> ways.Way | None:
        """How the last call is played, and why."""
        return self._playing.choice

    @property
    def ledger(self) -> Ledger:
        """Where every group went, over all calls."""
        return self._playing.ledger

    @property
    def on_group(self) -> Callable[[Group], None] | None:
        """Called with every group that was played, before it is yielded."""
        return self._playing.on_group

    @on_group.setter
    def on_group(self, call: Callable[[Group], None] | None) -> None:
        self._playing.on_group = call

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of the workers that play now, by worker; none if they are threads."""
        return self._playing.worker_pids

    def close(self) -> None:
        """Close the group log, and the engine if it was made here; may be called twice."""
        self._playing.close()
        if self._is_engine_ours:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _may_reuse(self, spec: TextEnvSpec) -> bool:
        return bool(ways.within(self.limits.env_s, lambda: is_reusable(spec)))


def _pace(max_lag: int | None, groups_per_update: int | None) -> Pace | None:
    if max_lag is None and groups_per_update is None:
        return None
    if max_lag is None or groups_per_update is None:
        raise UsageError(
            f"max_lag and groups_per_update: expected both or neither, got {max_lag} and {groups_per_update}"
        )
    return Pace(whole("max_lag", max_lag, 0), whole("groups_per_update", groups_per_update, 1))
