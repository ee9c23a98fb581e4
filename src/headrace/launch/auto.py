"""Chooses where actors run, by a short measurement, and says why in one line.

    one environment built -> spaces · a few dozen steps -> time per step and its spread · two threads -> GIL released?
    -> inline, threads or processes, and how many workers

Very cheap environments stay inline: what a hand-over and a second process cost must come back in every rollout.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, median, pstdev

import numpy as np

from headrace.clock import now_s
from headrace.envs.actions import sender
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import EnvFailure, VectorEnv
from headrace.errors import HeadraceError
from headrace.launch.shard import ShardPlan, build_envs
from headrace.launch.topology import Choice, Topology, TopologyConfig, resolve
from headrace.memory.schema import rollout_schema
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab, slab_bytes
from headrace.memory.spaces import Space, shape_of

_FIRST_LOOK_S, _BUDGET_S = 0.01, 0.1  # of stepping: enough to see that it is cheap, and to measure if it is not
_CHEAP_S = 50e-6  # a step below this stays inline: workers would save little and take a second to start
_LEAST_GAIN = 1.15  # a topology must promise this much more than inline
_HAND_OVER_S = 400e-6  # per rollout and worker: lease, wake, commit, wake
_ACT_S = 2e-6  # per step: what the policy and the loop around a step cost at least
_WORKER_BYTES = 400 * 2**20  # a process with torch and an environment


@dataclass(frozen=True)
class Survey:
    """What one look at the environment showed."""

    topology: Topology
    observation: Space
    action: Space


@dataclass(frozen=True)
class Measured:
    """Seconds per step, its spread, and how much faster two threads are than one."""

    step_s: float
    spread: float
    two_threads: float


def survey(spec: EnvSpec, seed: int, config: TopologyConfig, replayed_shards: int | None = None) -> Survey:
    """Build one environment, look at its spaces, settle the topology."""
    envs = build_envs(ShardPlan(spec, range(1), seed))
    try:
        observation, action = envs.observation_space, envs.action_space
        if replayed_shards is not None:
            place = replace(config, topology="inline", workers="auto", shards=replayed_shards)
            topology = resolve(place, _no_choice)
        else:
            topology = resolve(config, lambda wanted: choose(wanted, cpus(), lambda: measure(spec, seed, envs)))
    finally:
        envs.close()
    return Survey(topology, observation, action)


def choose(config: TopologyConfig, cores: int, look: Callable[[], Measured | None]) -> Choice:
    """Pure but for `look`, which measures: called only if the answer depends on it."""
    most = min(cores, config.shards or config.n_envs)
    if config.topology in ("threads", "processes"):
        return Choice(
            config.topology, most, f"workers={most}: one for each of {cores} cores, as far as there are shards"
        )
    wanted = most if config.workers == "auto" else int(config.workers)
    if config.workers == "auto" and most < 2:
        why = "one core" if cores == 1 else "one environment" if config.n_envs == 1 else "one shard"
        return Choice("inline", 1, f"topology=inline: {why}, so nothing could run beside it")
    measured = look()
    if measured is None and config.workers != "auto" and wanted > 1:
        return Choice("processes", wanted, f"topology=processes: workers={wanted} was asked for")
    if measured is None:
        return Choice(
            "inline", 1, "topology=inline: the environment could not be measured; its first rollout will tell why"
        )
    step_us = measured.step_s * 1e6
    told = f"a step takes {step_us:.0f} us (spread {measured.spread:.0%})"
    free = _available_bytes() // _WORKER_BYTES
    gain_threads = min(measured.two_threads, float(wanted))
    gain_processes = _gain(measured.step_s, config.n_envs, wanted)
    if config.workers != "auto" and wanted > 1:
        place = "threads" if gain_threads > 0.85 * wanted else "processes"
        return Choice(place, wanted, f"topology={place}: workers={wanted} was asked for; {told}")
    if measured.step_s < _CHEAP_S:
        return Choice("inline", 1, f"topology=inline: {told}: too cheap to share out")
    if gain_threads >= _LEAST_GAIN and gain_threads >= 0.9 * gain_processes:
        return Choice(
            "threads",
            wanted,
            f"topology=threads, workers={wanted}: {told}, two threads run {measured.two_threads:.1f}x",
        )
    if gain_processes >= _LEAST_GAIN and free >= wanted:
        promise = f"collecting should run {gain_processes:.1f}x inline"
        why = f"topology=processes, workers={wanted}: {told} and holds the GIL; {promise}"
        return Choice("processes", wanted, why)
    why = f"{told}: too little to share out" if free >= wanted else f"memory for {free} workers only"
    return Choice("inline", 1, f"topology=inline: {why}")


def measure(spec: EnvSpec, seed: int, envs: VectorEnv) -> Measured | None:
    """Step one environment for a moment, then two in two threads; None if it does not get that far."""
    try:
        return _measured(spec, seed, envs)
    except (EnvFailure, HeadraceError):
        return None


def _measured(spec: EnvSpec, seed: int, envs: VectorEnv) -> Measured:
    times = _stepped(envs, _FIRST_LOOK_S)
    if median(times) >= _CHEAP_S:
        times = _stepped(envs, _BUDGET_S)
    typical, spread = median(times), pstdev(times) / mean(times)
    if typical < _CHEAP_S or spec.is_vector():
        return Measured(typical, spread, 1.0)
    other = build_envs(ShardPlan(spec, range(1, 2), seed))
    try:
        counts: list[int] = []
        thread = threading.Thread(target=lambda: counts.append(len(_stepped(other, _BUDGET_S))))
        thread.start()
        counts.append(len(_stepped(envs, _BUDGET_S)))
        thread.join()
        return Measured(typical, spread, sum(counts) / max(1.0, _BUDGET_S / mean(times)))
    finally:
        other.close()


def cpus() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def _gain(step_s: float, n_envs: int, workers: int, rows: int = 32) -> float:
    """How much faster collecting promises to be with workers, for a short rollout."""
    alone = (step_s + _ACT_S) * n_envs * rows
    return alone / (alone / workers + _HAND_OVER_S * workers)


def _stepped(envs: VectorEnv, budget_s: float) -> list[float]:
    """Seconds of each step taken within the budget, at least three of them, without the first."""
    schema = rollout_schema(envs.observation_space, envs.action_space, 1, envs.num_envs)
    row = Slab(schema, HeapSegment(slab_bytes(schema)).buffer).rows[0]
    first = np.empty((envs.num_envs, *shape_of(envs.observation_space)), envs.observation_space.dtype)
    envs.begin(first)
    row.action[...] = 0
    actions = sender(envs.action_space)(row.action)
    times: list[float] = []
    begun = now_s()
    while now_s() - begun < budget_s or len(times) < 4:
        before = now_s()
        envs.step(actions, row, lambda env, obs: None)
        times.append(now_s() - before)
    return times[1:]


def _no_choice(config: TopologyConfig) -> Choice:
    raise AssertionError("inline asks for no choice")


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
