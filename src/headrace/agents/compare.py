"""Sequential and parallel side by side: speed, equal records, what failures do, and the metrics. A table and a plot.

    the same groups, sequentially and in parallel -> seconds, fingerprints, metrics
    the same groups once more with injected failures -> every group accounted for, equally in both

`agree` is false if any record, metric or failure differs: the command then ends with exit code 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.agents import ways
from headrace.agents.build import rollouts_of
from headrace.agents.config import AgentsConfig
from headrace.agents.engines.protocol import Engine
from headrace.agents.environments.text_env import Step, TextEnv, TextEnvSpec
from headrace.agents.metrics import summary
from headrace.agents.playing import Statistics
from headrace.agents.records import FAILED, Group, fingerprint
from headrace.clock import now_s

FAULTY_SHARE = 0.25  # of reset seeds


@dataclass(frozen=True)
class Side:
    """One way to run, with what came of it."""

    name: str
    how: str
    seconds: float
    groups: tuple[Group, ...]
    statistics: Statistics

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
class Comparison:
    """Two ways, calm and with injected failures."""

    expected: int  # groups
    advice: str  # what auto would do, where it may choose
    sequential: Side
    parallel: Side
    faulty_sequential: Side
    faulty_parallel: Side

    @property
    def checks(self) -> dict[str, bool]:
        """What has to hold, by name."""
        one, other, bad, bad_other = self.sequential, self.parallel, self.faulty_sequential, self.faulty_parallel
        return {
            "every group returned": len(one.groups) == len(other.groups) == self.expected,
            "identical records": one.fingerprint == other.fingerprint,
            "equal metrics, pass@k included": one.metrics == other.metrics,
            "failures: every group accounted for": len(bad.groups) == len(bad_other.groups) == self.expected,
            "failures: identical records and reasons": bad.fingerprint == bad_other.fingerprint
            and bad.failures == bad_other.failures,
            "failures: some were injected": bool(bad.failures),
        }

    @property
    def agree(self) -> bool:
        """Whether all of it holds."""
        return all(self.checks.values())

    @property
    def speed_up(self) -> float:
        """How much faster parallel was."""
        return self.sequential.seconds / self.parallel.seconds if self.parallel.seconds else 0.0


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
    config: AgentsConfig, engine: Callable[[], Engine], on_side: Callable[[str], None] = lambda name: None
) -> Comparison:
    """Run all four."""
    bad = replace(config, envs=tuple(faulty(spec) for spec in config.envs))
    is_auto = config.backend in ("auto", "sequential")
    parallel = "threading" if is_auto else config.backend  # the parallel way, whatever auto would do
    sides = []
    for name, which, backend in (
        ("sequential", config, "sequential"),
        ("parallel", config, parallel),
        ("sequential, failures", bad, "sequential"),
        ("parallel, failures", bad, parallel),
    ):
        on_side(name)
        sides.append(_side(name, which, engine, backend))
    return Comparison(config.env_groups, _advice(config) if is_auto else "", *sides)


def _advice(config: AgentsConfig) -> str:
    times = [ways.measure(spec, config.limits.env_s) for spec in config.envs]
    way = ways.choose(times, config.n_jobs, config.env_groups, config.engine.kind == "tiny")
    return f"left to auto: {way.reason}"


def _side(name: str, config: AgentsConfig, engine: Callable[[], Engine], backend: str) -> Side:
    maker = engine()
    try:
        with rollouts_of(config, maker, backend=backend) as rollouts:
            started = now_s()
            groups = rollouts.run(config.env_groups)
            seconds = now_s() - started
            assert rollouts.choice is not None
            how = f"{rollouts.choice.backend}, n_jobs={rollouts.choice.n_jobs}"
            return Side(name, how, seconds, tuple(groups), rollouts.statistics)
    finally:
        maker.close()


def text_table(comparison: Comparison) -> str:
    """For the terminal."""
    one, other = comparison.sequential, comparison.parallel
    rows: list[tuple[str, ...]] = [
        ("", "sequential", "parallel"),
        ("seconds", f"{one.seconds:.2f}", f"{other.seconds:.2f}"),
        ("episodes/s", *(f"{side.statistics.episodes / side.seconds:.1f}" for side in (one, other))),
        ("turns/s", *(f"{side.statistics.turns / side.seconds:.1f}" for side in (one, other))),
        ("engine batch", *(f"{side.statistics.engine.batch_mean:.1f}" for side in (one, other))),
        ("groups", f"{len(one.groups)}", f"{len(other.groups)}"),
        ("records", one.fingerprint[:12], other.fingerprint[:12]),
    ]
    names = [name for name in sorted({*one.metrics, *other.metrics}) if _is_shown(name)]
    rows += [(name, *(f"{side.metrics.get(name, float('nan')):.3f}" for side in (one, other))) for name in names]
    bad = (comparison.faulty_sequential, comparison.faulty_parallel)
    rows.append(("with failures: groups failed", *(f"{len(side.failures)} of {len(side.groups)}" for side in bad)))
    rows.append(("with failures: records", *(side.fingerprint[:12] for side in bad)))
    width = max(len(row[0]) for row in rows) + 2
    lines = [f"{name:<{width}}{left:>14}{right:>14}" for name, left, right in rows]
    lines += ["", f"parallel is {comparison.speed_up:.2f}x sequential ({other.how})"]
    lines += [*([comparison.advice] if comparison.advice else []), ""]
    lines += [f"{'ok  ' if holds else 'FAIL'}  {name}" for name, holds in comparison.checks.items()]
    return "\n".join(lines)


def _is_shown(name: str) -> bool:
    return name.rpartition("/")[2] in ("success", "reward", "groups_failed") or "pass@" in name


def write_plot(comparison: Comparison, path: Path) -> Path:
    """Speed and metrics of both, as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    one, other = comparison.sequential, comparison.parallel
    names = [name for name in sorted(one.metrics) if name.endswith("/success") or "/pass@" in name]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.28 * max(8, len(names)) + 1.8), width_ratios=(1, 2))
    speeds = [side.statistics.episodes / side.seconds for side in (one, other)]
    bars = left.bar(["sequential", "parallel"], speeds, color=["#7a8793", "#2a7f9e"], width=0.6)
    left.bar_label(bars, [f"{speed:.1f}" for speed in speeds], padding=2)
    left.set_title(f"episodes/s: {comparison.speed_up:.2f}x", loc="left")
    left.spines[["top", "right"]].set_visible(False)
    left.margins(y=0.12)
    places = range(len(names))
    right.barh(
        [at + 0.2 for at in places], [one.metrics[name] for name in names], 0.38, color="#7a8793", label="sequential"
    )
    right.barh(
        [at - 0.2 for at in places],
        [other.metrics.get(name, 0.0) for name in names],
        0.38,
        color="#2a7f9e",
        label="parallel",
    )
    right.set_yticks(list(places), names)
    right.set_xlim(0, 1)
    right.set_title("identical records" if comparison.agree else "RECORDS DIFFER", loc="left")
    right.spines[["top", "right"]].set_visible(False)
    right.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
