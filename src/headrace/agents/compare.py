"""Ways to play side by side: speed, equal records, what failures do, and the metrics.

    the configured environments and one that waits ──> sequential · what auto chose       (the row that counts)
    the cheap ones alone ──> sequential · what auto chose · threads, where auto would not take them
    all of them with injected failures ──> every group accounted for, equally in both

Workers pay where environments wait. The shipped ones but Lookup take microseconds: a comparison over them alone would
show what workers cost and not what they are for. `agree` is false if any record, metric or failure differs: the command
then ends with exit code 1. How a comparison is shown is views/comparison.py's matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.agents.build import rollouts_of
from headrace.agents.config import AgentsConfig
from headrace.agents.engines.protocol import Engine
from headrace.agents.environments.lookup import Lookup
from headrace.agents.environments.registry import SHIPPED, spec_of
from headrace.agents.environments.text_env import Step, TextEnv, TextEnvSpec
from headrace.agents.metrics import summary
from headrace.agents.playing import Statistics
from headrace.agents.records import FAILED, Group, fingerprint
from headrace.agents.ways import BACKENDS, Way
from headrace.clock import now_s

FAULTY_SHARE = 0.25  # of reset seeds
WAITING = "Lookup"
SEQUENTIAL, AUTO, THREADS = "sequential", "auto", "threading"


@dataclass(frozen=True)
class Side:
    """One way to play, with what came of it."""

    asked: str  # a backend, or auto
    way: Way
    seconds: float
    groups: tuple[Group, ...]
    statistics: Statistics

    @property
    def how(self) -> str:
        """What was played, and who chose it."""
        workers = f", n_jobs={self.way.n_jobs}" if self.way.backend in BACKENDS else ""
        return f"{'auto: ' if self.asked == AUTO else ''}{self.way.backend}{workers}"

    @property
    def fingerprint(self) -> str:
        """Of all records."""
        return fingerprint(self.groups)

    @property
    def metrics(self) -> dict[str, float]:
        """Of all records."""
        return summary(self.groups)

    @property
    def failures(self) -> dict[int, list[str]]:
        """Group number -> boundaries at which its episodes failed."""
        return {
            group.number: sorted({failure.boundary for failure in group.failures})
            for group in self.groups
            if group.status == FAILED
        }


@dataclass(frozen=True)
class Table:
    """The same groups, played in several ways; the first is sequential."""

    name: str
    expected: int  # groups
    sides: tuple[Side, ...]

    def speed_up(self, side: Side) -> float:
        """Against the sequential one."""
        return self.sides[0].seconds / side.seconds if side.seconds else 0.0

    @property
    def has_all(self) -> bool:
        """Whether every group came back, in every way."""
        return all(len(side.groups) == self.expected for side in self.sides)

    @property
    def is_one(self) -> bool:
        """Whether all ways have the same records."""
        return len({side.fingerprint for side in self.sides}) == 1


@dataclass(frozen=True)
class Comparison:
    """The environments that count, the cheap ones alone (None: there is no difference), and all with failures."""

    counting: Table
    cheap: Table | None
    faulty: Table
    added: str = ""  # the tag that was put beside the configured ones

    @property
    def sequential(self) -> Side:
        """One environment after the other."""
        return self.counting.sides[0]

    @property
    def chosen(self) -> Side:
        """What auto chose, or the backend that was asked for."""
        return self.counting.sides[1]

    @property
    def speed_up(self) -> float:
        """Of the row that counts."""
        return self.counting.speed_up(self.chosen)

    @property
    def checks(self) -> dict[str, bool]:
        """What has to hold, by name."""
        calm = [self.counting, *([self.cheap] if self.cheap else [])]
        bad = self.faulty.sides
        return {
            "every group returned": all(table.has_all for table in calm),
            "identical records": all(table.is_one for table in calm),
            "equal metrics, pass@k included": all(
                repr(side.metrics) == repr(table.sides[0].metrics)  # a NaN is not equal to itself
                for table in calm
                for side in table.sides
            ),
            "failures: every group accounted for": self.faulty.has_all,
            "failures: identical records and reasons": self.faulty.is_one
            and all(side.failures == bad[0].failures for side in bad),
            "failures: some were injected": bool(bad[0].failures),
        }

    @property
    def agree(self) -> bool:
        """Whether all of it holds."""
        return all(self.checks.values())


class FaultyEnv:
    """An environment that raises in step for some seeds."""

    def __init__(self, inner: TextEnv) -> None:
        self._inner = inner
        self.instructions, self.actions = inner.instructions, inner.actions
        self.action_form, self.tools = getattr(inner, "action_form", None), getattr(inner, "tools", None)
        self._seed = 0

    def reset(self, seed: int) -> str:
        """As the environment inside."""
        self._seed = seed
        return self._inner.reset(seed)

    def step(self, action: str) -> Step:
        """May raise."""
        draw = int.from_bytes(hashlib.sha256(str(self._seed).encode()).digest()[:4], "big") / 2**32
        if draw < FAULTY_SHARE:
            raise RuntimeError("injected failure")
        return self._inner.step(action)

    def close(self) -> None:
        """As the environment inside."""
        self._inner.close()


def faulty(spec: TextEnvSpec) -> TextEnvSpec:
    """The environment with injected failures."""
    return replace(spec, factory=partial(_faulty, spec.factory))


def _faulty(factory: Callable[..., TextEnv], **options: Any) -> TextEnv:
    return FaultyEnv(factory(**options))


def compare(
    config: AgentsConfig,
    engine: Callable[[], Engine],
    on_side: Callable[[str], None] = lambda name: None,
    cheap_only: bool = False,
) -> Comparison:
    """Play all of it; `cheap_only` adds no environment that waits."""
    asked = AUTO if config.backend in (AUTO, SEQUENTIAL) else config.backend
    cheap = _cheap(config)
    added = WAITING if cheap is not None and len(cheap.envs) == len(config.envs) and not cheap_only else ""
    counting = _with_waiting(config) if added else config

    def side(backend: str, which: AgentsConfig, about: str) -> Side:
        on_side(f"{about}, {backend}")
        return _side(backend, which, engine)

    def table(name: str, which: AgentsConfig) -> Table:
        sides = [side(SEQUENTIAL, which, name), side(asked, which, name)]
        if sides[1].way.backend not in BACKENDS:  # so that workers are compared, whatever auto thinks of them
            sides.append(side(THREADS, which, name))
        return Table(name, which.env_groups, tuple(sides))

    everything = table("all environments", counting)
    alone = table("cheap ones only", cheap) if cheap is not None and len(cheap.envs) < len(counting.envs) else None
    bad = replace(counting, envs=tuple(faulty(spec) for spec in counting.envs))
    parallel = everything.sides[-1].way.backend
    broken = tuple(side(backend, bad, "with failures") for backend in (SEQUENTIAL, parallel))
    return Comparison(everything, alone, Table("with failures", bad.env_groups, broken), added)


def _cheap(config: AgentsConfig) -> AgentsConfig | None:
    """The shipped environments that do not wait, alone; None if there is none."""
    known = [factory for factory in SHIPPED.values() if factory is not Lookup]
    kept = [at for at, spec in enumerate(config.envs) if _inside(spec.factory) in known and config.n_groups[at]]
    counts = tuple(config.n_groups[at] for at in kept)
    envs = tuple(config.envs[at] for at in kept)
    return replace(config, envs=envs, n_groups=counts, env_groups=sum(counts)) if kept else None


def _inside(factory: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(factory, partial):
        factory = factory.args[0] if factory.args and callable(factory.args[0]) else factory.func
    return factory


def _with_waiting(config: AgentsConfig) -> AgentsConfig:
    count = max(config.n_groups)
    envs, counts = (*config.envs, spec_of(WAITING)), (*config.n_groups, count)
    return replace(config, envs=envs, n_groups=counts, env_groups=config.env_groups + count)


def _side(backend: str, config: AgentsConfig, engine: Callable[[], Engine]) -> Side:
    maker = engine()
    try:
        with rollouts_of(config, maker, backend=backend) as rollouts:
            started = now_s()
            groups = rollouts.run(config.env_groups)
            seconds = now_s() - started
            assert rollouts.choice is not None
            return Side(backend, rollouts.choice, seconds, tuple(groups), rollouts.statistics)
    finally:
        maker.close()
