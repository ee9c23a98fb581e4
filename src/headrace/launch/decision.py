"""Which place is worth its start: a pure function of numbers that were measured, and its reason in one line.

    Measured (a step, acting, an update, cores that are free) · Machine · steps that are left ──choose──> Choice

What counts is the time of the whole session: workers take seconds to start, so a short one stays inline; so do cheap
environments, those whose learner takes nearly all of the time, and all of them on a machine without a free core. With
max_lag of at least 1 a worker may collect while the learner learns: then even one pays. Numbers that did not repeat
are in doubt, and doubt is inline's. Measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

from headrace.collecting.topology import Choice, TopologyConfig
from headrace.launch.rehearsal import Rehearsal

CHEAP_S = 50e-6  # a step below this is not shared out in step with the learner, nor tried in two threads
USUAL_STEPS = 100_000  # of a session whose length is not known yet: total_timesteps of the command line
WORKER_BYTES = 400 * 2**20  # a process with torch and an environment

_LEAST_GAIN, _GAIN_IN_DOUBT = 1.15, 1.5  # a place must promise this much more than inline
_DOUBTFUL = 1.25  # the two fastest measurements differ by this much
_HAND_OVER_S = 400e-6  # per rollout and worker: lease, wake, commit, wake
_START_S = {"inline": 0.0, "threads": 0.05, "processes": 3.0}  # imports of torch and numba in a fresh process


@dataclass(frozen=True)
class Machine:
    """What there is."""

    cores: int
    free_bytes: int = 1 << 60


@dataclass(frozen=True)
class Measured:
    """Seconds per step on average, its spread, how much faster two threads are than one; and what the policy costs."""

    step_s: float
    spread: float
    """Of the middle half of steps, over the median."""
    two_threads: float
    policy: Rehearsal = field(default_factory=Rehearsal)
    doubt: float = 1.0
    """The second fastest measurement over the fastest one."""
    free_cores: float = math.inf
    """That other programs left to this one meanwhile."""
    is_pool: bool = False
    """A vector environment, measured whole."""
    cpu_share: float = 1.0
    """Of a step's time, that it keeps a core busy; the rest of it waits, and others may run."""
    jitter: float = 0.0
    """The standard deviation of steps over their mean."""

    @property
    def worst_doubt(self) -> float:
        """Of all that was measured."""
        return max(self.doubt, self.policy.doubt)


@dataclass(frozen=True)
class _Promise:
    """A place, the seconds that an update should take there, and those of the session."""

    topology: str
    workers: int
    update_s: float
    seconds: float


def choose(
    config: TopologyConfig, machine: Machine, look: Callable[[], Measured | None], steps: int | None = None
) -> Choice:
    """Pure but for `look`, which measures: called only if the answer depends on it. `steps`: those that are left."""
    cores = machine.cores
    most = min(cores, config.shards or config.n_envs)
    if config.topology in ("threads", "processes"):
        return Choice(
            config.topology, most, f"workers={most}: one for each of {cores} cores, as far as there are shards"
        )
    is_free = config.workers == "auto"
    wanted = most if is_free else int(config.workers)
    if is_free and most < 2 and (cores == 1 or config.max_lag == 0):
        why = "one core" if cores == 1 else "one environment" if config.n_envs == 1 else "one shard"
        return Choice("inline", 1, f"topology=inline: {why}, so nothing could run beside it")
    measured = look()
    if measured is None and not is_free and wanted > 1:
        return Choice("processes", wanted, f"topology=processes: workers={wanted} was asked for")
    if measured is None:
        return Choice(
            "inline", 1, "topology=inline: the environment could not be measured; its first rollout will show why"
        )
    seen = _seen(measured, cores)
    if not is_free and wanted > 1:
        place = "threads" if measured.two_threads > 1.7 else "processes"
        return Choice(place, wanted, f"topology={place}: workers={wanted} was asked for; {seen}")
    if measured.is_pool and config.max_lag == 0:
        why = "a vector environment steps all of its environments together, and can't be brought back if a worker dies"
        return Choice("inline", 1, f"topology=inline: {why}; {seen}")
    row_s = config.n_envs * measured.step_s + measured.policy.act_s
    if config.max_lag == 0 and row_s < config.n_envs * CHEAP_S:
        return Choice("inline", 1, f"topology=inline: {seen}: workers would cost more than they save")
    fit = machine.free_bytes // WORKER_BYTES
    counts = range(1 if config.max_lag else 2, wanted + 1)
    alone = _promise("inline", 1, measured, config, cores, steps)
    options = [_promise("threads", count, measured, config, cores, steps) for count in counts]
    options += [_promise("processes", count, measured, config, cores, steps) for count in counts if count <= fit]
    least_s = min((option.seconds for option in options), default=math.inf)
    best = next((option for option in options if option.seconds <= 1.05 * least_s), alone)  # the simplest good one
    gain = alone.seconds / best.seconds
    is_doubtful = measured.worst_doubt > _DOUBTFUL
    if gain >= (_GAIN_IN_DOUBT if is_doubtful else _LEAST_GAIN):
        text = f"{seen}; {_compared(alone, best, steps)}"
        return Choice(best.topology, best.workers, f"topology={best.topology}, workers={best.workers}: {text}")
    if fit < wanted:
        return Choice("inline", 1, f"topology=inline: memory for {fit} workers only; {seen}")
    rival = min(options, key=lambda option: option.update_s, default=alone)  # of a session without end
    doubt = f"; not enough, as measurements differed by {measured.worst_doubt:.1f}x" if gain >= _LEAST_GAIN else ""
    return Choice("inline", 1, f"topology=inline: {seen}; {_compared(alone, rival, steps)}{doubt}")


def _promise(
    place: str, workers: int, measured: Measured, config: TopologyConfig, cores: int, steps: int | None
) -> _Promise:
    """The start, and as many updates as the steps that are left take."""
    update_steps = config.n_steps * config.n_envs
    updates = math.ceil((USUAL_STEPS if steps is None else max(steps, 1)) / update_steps)
    one_s = update_s(place, workers, measured, config, cores)
    return _Promise(place, workers, one_s, _START_S[place] + updates * one_s)


def update_s(place: str, workers: int, measured: Measured, config: TopologyConfig, cores: int) -> float:
    """Collecting and learning one after the other, or side by side if data may be a version old. Arithmetic."""
    policy = measured.policy
    step_s, act_s = config.n_steps * config.n_envs * measured.step_s, config.n_steps * policy.act_s
    hand_over_s, free = _HAND_OVER_S * workers, min(measured.free_cores, cores)
    alone_s = step_s + act_s
    late = min(workers, 1.0 + lateness(measured.jitter, config.n_steps * config.n_envs / workers, workers))
    if place != "inline":  # every worker calls the policy for its own rows
        act_s += config.n_steps * policy.call_s * (workers - 1)
    busy_s = step_s * measured.cpu_share + act_s
    beside = max(1.0, min(workers, free * (step_s + act_s) / busy_s if busy_s else workers))  # that run at a time
    if place == "inline":
        return alone_s + policy.update_s
    if place == "threads":  # acting and learning hold the GIL, stepping as far as was seen
        speed_up = 1.0 + (measured.two_threads - 1.0) * (beside - 1)
        held_s = act_s + policy.update_s + hand_over_s
        if config.max_lag == 0:
            return late * step_s / max(speed_up, 1.0) + held_s
        return max(step_s / beside, step_s * (2.0 - measured.two_threads) + held_s)
    collect_s = (late * step_s + act_s) / beside + hand_over_s
    if config.max_lag == 0:
        return collect_s + policy.update_s
    return max(collect_s, policy.update_s, (busy_s + policy.update_s) / max(free, 1.0))


def lateness(jitter: float, steps: float, workers: int) -> float:
    """How much longer than on average the slowest of some workers takes for so many steps of its own, as a share.

    Steps differ by `jitter`, their sum by that over the root of their number, and the largest of some sums lies above
    the mean by about as many deviations as Blom's formula says.
    """
    if workers < 2 or not jitter:
        return 0.0
    return jitter / math.sqrt(max(steps, 1.0)) * NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def _compared(alone: _Promise, best: _Promise, steps: int | None) -> str:
    """What the session takes inline and elsewhere."""
    length = f"{USUAL_STEPS:,} steps (total_timesteps is not known yet)" if steps is None else f"{steps:,} steps"
    if best is alone:
        return f"{length} should take {_seconds(alone.seconds)}"
    kind = {"threads": "thread", "processes": "worker process"}[best.topology]
    plural = "" if best.workers == 1 else "es" if best.topology == "processes" else "s"
    start_s = _START_S[best.topology]
    start = f", {start_s:.0f} s of that to start" if start_s >= 1 else ""
    return (
        f"{length} should take {_seconds(alone.seconds)} inline, {_seconds(best.seconds)} with "
        f"{best.workers} {kind}{plural}{start}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _seen(measured: Measured, cores: int) -> str:
    policy = measured.policy
    text = f"a step takes {_time(measured.step_s)} (spread {measured.spread:.0%})"
    if measured.two_threads > 1.2:
        text += f", two threads run {measured.two_threads:.1f}x"
    if policy.act_s:
        text += f", acting for all {_time(policy.act_s)}"
    if policy.update_s:
        text += f", learning {_time(policy.update_s)} an update"
    if measured.free_cores < 0.8 * cores:
        text += f", other programs leave {measured.free_cores:.1f} of {cores} cores"
    return text


def _time(seconds: float) -> str:
    if seconds >= 1:
        return _seconds(seconds)
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
