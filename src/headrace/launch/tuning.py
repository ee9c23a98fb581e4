"""What `--tune` may choose from, and what each choice promises: n_envs, workers, place and inference. Pure.

    TopologyConfig, options that stay, Bounds ──candidates──> Candidate ... ──predicted──> steps/s, to order the trials

The batch (n_envs * n_steps) stays what the user asked for, and so does every option that the user has typed. Tries
nothing itself (race, api/tuning).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from headrace.collecting.placing import can_take_turns
from headrace.collecting.topology import TopologyConfig
from headrace.errors import UsageError
from headrace.launch.decision import WORKER_BYTES, Measured, update_s
from headrace.launch.rehearsal import Rehearsal

SHORTEST_ROLLOUT = 32  # rows; advantages look about 20 rows ahead (gae_lambda 0.95)
_HALVED, _DOUBLED = 1, 5  # how often n_envs may be
_WAITING = 0.5  # a step that keeps a core busy for less than this share of its time waits for something
_MOST_THREADS, _MOST_PROCESSES = 32, 8  # for environments that wait
_ROUND_TRIP_S = 60e-6  # to an inference server and back; trials show what it is
_PLACES = ("inline", "threads", "processes")


@dataclass(frozen=True)
class Candidate:
    """One way to run the same batch."""

    n_envs: int
    n_steps: int
    topology: str
    workers: int = 1
    inference: str = "local"
    turns: int = 1
    max_lag: int = 0

    @property
    def place(self) -> str:
        """Where it runs, in words, without the number of environments."""
        if self.topology == "inline":
            return "inline"
        kind = {"threads": "thread", "processes": "worker process"}[self.topology]
        plural = "" if self.workers == 1 else "es" if self.topology == "processes" else "s"
        central = ", central inference" if self.inference == "central" else ""
        buffered = ", double-buffered" if self.turns > 1 else ""
        lag = f", max_lag {self.max_lag}" if self.max_lag else ""
        return f"{self.workers} {kind}{plural}{central}{buffered}{lag}"

    def applied(self, config: TopologyConfig) -> TopologyConfig:
        """A configuration that runs so: nothing of it is left to be measured."""
        buffering = config.double_buffering
        if self.inference == "central":
            buffering = "on" if self.turns > 1 else "off"
        elif buffering == "on":  # which local inference refuses
            buffering = "auto"
        workers = str(self.workers)
        if self.topology == "inline" and config.workers != "1":  # it has none
            workers = "auto"
        return replace(
            config, n_envs=self.n_envs, n_steps=self.n_steps, topology=self.topology, workers=workers,
            inference=self.inference, double_buffering=buffering, max_lag=self.max_lag,
        )  # fmt: skip

    def simplicity(self, other: Candidate) -> tuple[float, ...]:
        """Smaller is simpler; `other` is what the user would have had."""
        moved = abs(math.log2(self.n_envs / other.n_envs))
        place = _PLACES.index(self.topology), self.inference == "central", self.turns
        return (abs(self.max_lag - other.max_lag), *place, moved, self.workers)


@dataclass(frozen=True)
class Bounds:
    """What limits the choice: the machine, and what the environment is."""

    cores: int
    free_bytes: int = 1 << 60
    cpu_share: float = 1.0
    """Of a step's time, that it keeps a core busy."""
    make_s: float = 0.0
    """To build one environment."""
    is_pool: bool = False
    most_lag: int = 0
    """The largest max_lag that may be tried, if that is more than the user's."""


def candidates(config: TopologyConfig, fixed: Collection[str], bounds: Bounds) -> list[Candidate]:
    """All that may be tried, the simplest first: that is what the user would have without tuning and without auto."""
    lags = [config.max_lag]
    if bounds.most_lag > config.max_lag and "max_lag" not in fixed:
        lags.append(bounds.most_lag)
    found = []
    for n_envs in _numbers(config, fixed, bounds):
        n_steps = config.n_steps * config.n_envs // n_envs
        for lag in lags:
            places = _places(n_envs, n_steps, lag, config, fixed, bounds)
            found += [one for one in places if _is_allowed(one, config, fixed, bounds)]
    own = Candidate(config.n_envs, config.n_steps, "inline", max_lag=config.max_lag)
    return sorted(found, key=lambda one: one.simplicity(own))


def predicted(
    one: Candidate, config: TopologyConfig, measured: Measured, act_s: Mapping[int, float], cores: int
) -> float:
    """Steps per second, by the arithmetic of `auto`. `act_s`: of acting for all, by the number of environments."""
    acting = Rehearsal(_at(act_s, one.n_envs), measured.policy.update_s, call_s=_at(act_s, 1))
    place, seen = one.applied(config), replace(measured, policy=acting)
    steps = one.n_envs * one.n_steps
    if one.inference == "local":
        return steps / update_s(one.topology, one.workers, seen, place, cores)
    away = replace(seen, policy=Rehearsal(0.0, acting.update_s))
    step_s = update_s("processes", one.workers, away, replace(place, max_lag=0), cores) - acting.update_s
    serve_s = one.n_steps * (acting.act_s + one.turns * _ROUND_TRIP_S)
    busy_s = steps * measured.step_s * measured.cpu_share + one.n_steps * acting.act_s
    collect_s = max(step_s, serve_s, busy_s / cores) if one.turns > 1 else step_s + serve_s
    if one.max_lag:
        return steps / max(collect_s, acting.update_s, (busy_s + acting.update_s) / cores)
    return steps / (collect_s + acting.update_s)


def _numbers(config: TopologyConfig, fixed: Collection[str], bounds: Bounds) -> list[int]:
    """Of environments, such that whole rollouts make up the same batch."""
    if {"n_envs", "n_steps", "shards", "inference_servers"} & set(fixed):  # n_steps would follow n_envs
        return [config.n_envs]
    batch = config.n_envs * config.n_steps
    halves = [config.n_envs // 2**k for k in range(_HALVED, 0, -1) if config.n_envs % 2**k == 0]
    doubles = [config.n_envs * 2**k for k in range(1, _DOUBLED + 1)]
    fitting = [n for n in halves + doubles if batch % n == 0 and batch // n >= SHORTEST_ROLLOUT]
    return sorted([config.n_envs, *fitting])


def _places(
    n_envs: int, n_steps: int, lag: int, config: TopologyConfig, fixed: Collection[str], bounds: Bounds
) -> list[Candidate]:
    """Of one number of environments, whatever is allowed."""
    is_whole = bounds.is_pool and not _asks_for_workers(config, fixed)
    if is_whole and not lag:  # it steps all of its environments together, and can't be brought back
        return [Candidate(n_envs, n_steps, "inline")]
    most = min(n_envs, config.shards or n_envs)
    counts = {2**k for k in range(bounds.cores.bit_length()) if 2**k <= bounds.cores} | {bounds.cores}
    if config.workers != "auto":
        counts.add(int(config.workers))
    if bounds.cpu_share < _WAITING:
        counts |= {2**k for k in range(1, 10) if 2**k <= _MOST_THREADS}
    if is_whole:
        counts = {1}
    counts = {count for count in counts if count <= most}
    found = [Candidate(n_envs, n_steps, "inline", max_lag=lag)]
    is_sent = "topology" in fixed and config.topology != "auto"
    is_one_asked = is_sent and (counts == {1} or ("workers" in fixed and config.workers == "1"))
    least = 1 if lag or is_one_asked else 2  # one worker in step with the learner is inline with a pipe
    for workers in sorted(counts):
        if workers >= least:
            found.append(Candidate(n_envs, n_steps, "threads", workers, max_lag=lag))
        if workers > max(bounds.cores, _MOST_PROCESSES, 0 if config.workers == "auto" else int(config.workers)):
            continue
        if workers >= least:
            found.append(Candidate(n_envs, n_steps, "processes", workers, max_lag=lag))
            found.append(Candidate(n_envs, n_steps, "processes", workers, "central", 1, lag))
        found.append(Candidate(n_envs, n_steps, "processes", workers, "central", 2, lag))
    return found


def _asks_for_workers(config: TopologyConfig, fixed: Collection[str]) -> bool:
    """Whether the user has typed what only workers can do."""
    return (
        ("topology" in fixed and config.topology in ("threads", "processes"))
        or ("workers" in fixed and config.workers not in ("auto", "1"))
        or ("inference" in fixed and config.inference == "central")
        or ("double_buffering" in fixed and config.double_buffering == "on")
    )


def _is_allowed(one: Candidate, config: TopologyConfig, fixed: Collection[str], bounds: Bounds) -> bool:
    if "topology" in fixed and config.topology not in ("auto", one.topology):
        return False
    if "workers" in fixed and config.workers != "auto" and int(config.workers) != one.workers:
        return False
    if "inference" in fixed and config.inference not in ("auto", one.inference):
        return False
    if one.inference == "central" and not _can_serve(one, config, fixed):
        return False
    if "double_buffering" in fixed and config.double_buffering == "on" and one.turns == 1:
        return False
    is_asked = "topology" in fixed and config.topology == "processes"
    if not is_asked and one.topology == "processes" and one.workers * WORKER_BYTES > bounds.free_bytes:
        return False
    makers = min(one.workers, bounds.cores) if one.topology == "processes" else 1
    if (
        not bounds.is_pool and one.n_envs > config.n_envs and one.n_envs * bounds.make_s / makers > 1.0
    ):  # a second of building, no more
        return False
    try:
        one.applied(config)
    except UsageError:
        return False
    return True


def _can_serve(one: Candidate, config: TopologyConfig, fixed: Collection[str]) -> bool:
    if one.turns > 1 and "double_buffering" in fixed and config.double_buffering == "off":
        return False
    shards = config.shards or one.turns * one.workers
    if config.inference_servers > shards:
        return False
    return one.turns == 1 or can_take_turns(one.applied(config), one.workers)


def _at(act_s: Mapping[int, float], rows: int) -> float:
    """By a straight line between the numbers that were measured, and in proportion beyond them."""
    if rows in act_s:
        return act_s[rows]
    below, above = (max((n for n in act_s if n < rows), default=0), min((n for n in act_s if n > rows), default=0))
    if not below or not above:
        nearest = below or above
        return act_s[nearest] * max(rows / nearest, 0.25)
    share = (rows - below) / (above - below)
    return act_s[below] * (1 - share) + act_s[above] * share
