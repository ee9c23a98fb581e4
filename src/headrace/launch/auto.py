"""Chooses where actors run, by a short measurement, and says why in one line.

    one environment built -> spaces · a few dozen steps -> time per step and its spread · two threads -> GIL released?
    · a rehearsal of the policy -> time of acting and of an update -> inline, threads or processes, how many workers

What counts is the time of a whole update, so cheap environments stay inline, and so do those whose learner takes nearly
all of it. With max_lag of at least 1 a worker may collect while the learner learns: then even one pays.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean, median, pstdev

from headrace.clock import now_s
from headrace.collecting.topology import Choice, Topology, TopologyConfig, resolve
from headrace.envs.building import build_envs, first_look
from headrace.envs.mended import mended
from headrace.envs.spec import EnvSpec
from headrace.envs.time_limit import time_limit
from headrace.envs.vector_env import EnvFailure, VectorEnv
from headrace.errors import HeadraceError
from headrace.launch.first_look import look_elsewhere
from headrace.launch.rehearsal import Rehearsal
from headrace.memory.crash_note import CrashNote
from headrace.memory.schema import rollout_schema
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab, slab_bytes
from headrace.memory.spaces import ObservationSpace, Space, empty_leaves

logger = logging.getLogger(__name__)

_FIRST_LOOK_S, _BUDGET_S = 0.01, 0.1  # of stepping: enough to see that it is cheap, and to measure if it is not
_CHEAP_S = 50e-6  # a step below this is not shared out in step with the learner, nor tried in two threads
_LEAST_GAIN = 1.15  # a topology must promise this much more than inline: workers take a second to start
_HAND_OVER_S = 400e-6  # per rollout and worker: lease, wake, commit, wake
_WORKER_BYTES = 400 * 2**20  # a process with torch and an environment


@dataclass(frozen=True)
class Survey:
    """What one look at the environment showed."""

    topology: Topology
    observation: ObservationSpace
    action: Space
    env: EnvSpec  # as it is to be built from now on


@dataclass(frozen=True)
class Measured:
    """Seconds per step, its spread, how much faster two threads are than one; and what the policy costs."""

    step_s: float
    spread: float
    two_threads: float
    policy: Rehearsal = field(default_factory=Rehearsal)


@dataclass(frozen=True)
class _Promise:
    """A place, and the seconds that an update should take there."""

    topology: str
    workers: int
    update_s: float


def survey(
    spec: EnvSpec,
    seed: int,
    config: TopologyConfig,
    rehearsed: Callable[[ObservationSpace, Space], Rehearsal] = lambda observation, action: Rehearsal(),
    replayed_shards: int | None = None,
) -> Survey:
    """Build one environment, look at its spaces, settle the topology. `rehearsed` is asked if it matters.

    For worker processes it is built in one; else here, where it may be measured, within the same limit of time.
    """
    if config.topology == "processes" and replayed_shards is None:
        spec, observation, action = look_elsewhere(spec, seed, config)
        return Survey(resolve(config, lambda wanted: choose(wanted, cpus(), lambda: None)), observation, action, spec)
    note = CrashNote(1)
    in_time = partial(time_limit, spec.name, note, config.hang_ceiling_s)
    with in_time():
        spec, envs = first_look(spec, seed, note=note)
    try:
        mended(envs, config.nan_policy)  # refused here, before anything starts, if they can't be
        observation, action = envs.observation_space, envs.action_space

        def look() -> Measured | None:
            with in_time():
                measured = measure(spec, seed, envs)
            try:
                return measured and replace(measured, policy=rehearsed(observation, action))
            except Exception as error:  # a policy that fails will fail again where its error is shown whole
                logger.warning("auto: the policy could not be rehearsed: %s: %s", type(error).__name__, error)
                return measured

        if replayed_shards is not None:
            place = replace(config, topology="inline", workers="auto", shards=replayed_shards)
            topology = resolve(place, _no_choice)
        else:
            topology = resolve(config, lambda wanted: choose(wanted, cpus(), look))
    finally:
        with in_time():
            envs.close()
    return Survey(topology, observation, action, spec)


def choose(config: TopologyConfig, cores: int, look: Callable[[], Measured | None]) -> Choice:
    """Pure but for `look`, which measures: called only if the answer depends on it."""
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
    if not is_free and wanted > 1:
        place = "threads" if measured.two_threads > 1.7 else "processes"
        return Choice(place, wanted, f"topology={place}: workers={wanted} was asked for; {_summary(measured)}")
    row_s = config.n_envs * measured.step_s + measured.policy.act_s
    if config.max_lag == 0 and row_s < config.n_envs * _CHEAP_S:
        return Choice("inline", 1, f"topology=inline: {_summary(measured)}: workers would cost more than they save")
    alone = _promise("inline", 1, measured, config, cores)
    fit = _available_bytes() // _WORKER_BYTES
    counts = range(1 if config.max_lag else 2, wanted + 1)
    options = [_promise("threads", count, measured, config, cores) for count in counts]
    options += [_promise("processes", count, measured, config, cores) for count in counts if count <= fit]
    least_s = min(option.update_s for option in [alone, *options])
    best = next(option for option in [*options, alone] if option.update_s <= 1.05 * least_s)  # the simplest good one
    gain = alone.update_s / best.update_s
    if gain < _LEAST_GAIN and fit < wanted:
        return Choice("inline", 1, f"topology=inline: memory for {fit} workers only; {_summary(measured)}")
    if gain < _LEAST_GAIN:
        return Choice("inline", 1, f"topology=inline: {_summary(measured)}; workers would give {max(gain, 1.0):.2f}x")
    text = f"{_summary(measured)}; an update should take {1 / gain:.0%} of inline's time"
    return Choice(best.topology, best.workers, f"topology={best.topology}, workers={best.workers}: {text}")


def _promise(place: str, workers: int, measured: Measured, config: TopologyConfig, cores: int) -> _Promise:
    """Collecting and learning one after the other, or side by side if data may be a version old. Arithmetic."""
    policy = measured.policy
    step_s, act_s = policy.rows * config.n_envs * measured.step_s, policy.rows * policy.act_s
    hand_over_s = _HAND_OVER_S * workers
    if place == "inline":
        return _Promise(place, 1, step_s + act_s + policy.update_s)
    if place == "threads":  # acting and learning hold the GIL, stepping as far as was seen
        speed_up = 1.0 + (measured.two_threads - 1.0) * (workers - 1)
        held_s = act_s + policy.update_s + hand_over_s
        if config.max_lag == 0:
            return _Promise(place, workers, step_s / max(speed_up, 1.0) + held_s)
        overlap_s = max(step_s / workers, step_s * (2.0 - measured.two_threads) + held_s)
        return _Promise(place, workers, overlap_s)
    collect_s = (step_s + act_s) / workers + hand_over_s
    if config.max_lag == 0:
        return _Promise(place, workers, collect_s + policy.update_s)
    shared_s = (step_s + act_s + policy.update_s) / cores
    return _Promise(place, workers, max(collect_s, policy.update_s, shared_s))


def _summary(measured: Measured) -> str:
    policy = measured.policy
    text = f"a step takes {_time(measured.step_s)} (spread {measured.spread:.0%})"
    if measured.two_threads > 1.2:
        text += f", two threads run {measured.two_threads:.1f}x"
    if policy.act_s:
        text += f", acting for all {_time(policy.act_s)}"
    if policy.update_s:
        text += f", learning {_time(policy.update_s)} an update"
    return text


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def measure(spec: EnvSpec, seed: int, envs: VectorEnv) -> Measured | None:
    """Step one environment for a moment, then two in two threads; None if it does not get that far."""
    try:
        return _measured(spec, seed, envs)
    except (EnvFailure, HeadraceError):
        return None


def _measured(spec: EnvSpec, seed: int, envs: VectorEnv) -> Measured:
    times = _stepped(envs, _FIRST_LOOK_S)
    rounds = _rounds(median(times))
    if median(times) >= _CHEAP_S:
        times = min((_stepped(envs, _BUDGET_S / rounds) for _ in range(rounds)), key=median)
    typical, spread = median(times), pstdev(times) / mean(times)
    if typical < _CHEAP_S or spec.is_vector():
        return Measured(typical, spread, 1.0)
    other = build_envs(spec, range(1, 2), seed)
    try:
        return Measured(typical, spread, _two_threads(envs, other, mean(times), rounds))
    finally:
        other.close()


def _rounds(step_s: float) -> int:
    """How often a measurement is repeated: a busy machine spoils some of them, and slow steps take their time."""
    return 3 if step_s < 0.02 else 2 if step_s < 0.2 else 1


def _two_threads(envs: VectorEnv, other: VectorEnv, alone_s: float, rounds: int) -> float:
    """How much faster two threads are than one: the least that was seen, in turns, each beside the faster neighbour.

    Another program that takes a core for a moment makes one thread look slow, and two of them look good.
    """
    seen, budget_s = [], _BUDGET_S / rounds
    for _ in range(rounds):
        rate = _rate_together(envs, other, budget_s)
        if rate is None:
            return 1.0
        after_s = mean(_stepped(envs, budget_s))
        seen.append(min(2.0, rate * min(alone_s, after_s)))
        alone_s = after_s
    return min(seen)


def _rate_together(envs: VectorEnv, other: VectorEnv, budget_s: float) -> float | None:
    """Steps per second of two threads; None if the other can't be stepped in another thread: they are not for it."""
    beside: list[float] = []

    def step_beside() -> None:
        with suppress(Exception):
            beside.extend(_stepped(other, budget_s))

    thread = threading.Thread(target=step_beside)
    thread.start()
    try:
        together = _stepped(envs, budget_s)
    finally:
        thread.join()
    return 1.0 / mean(together) + 1.0 / mean(beside) if beside else None


def cpus() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def _stepped(envs: VectorEnv, budget_s: float) -> list[float]:
    """Seconds of each step taken within the budget, at least three of them, without the first."""
    schema = rollout_schema(envs.observation_space, envs.action_space, 1, envs.num_envs)
    row = Slab(schema, HeapSegment(slab_bytes(schema)).buffer).rows[0]
    envs.begin(empty_leaves(envs.observation_space, envs.num_envs))
    row.action[...] = 0
    times: list[float] = []
    begun = now_s()
    while now_s() - begun < budget_s or len(times) < 4:
        before = now_s()
        envs.step(row, lambda env, obs: None)
        times.append(now_s() - before)
    return times[1:]


def _no_choice(config: TopologyConfig) -> Choice:
    raise AssertionError("inline asks for no choice")


def _available_bytes() -> int:
    """What could be had without swapping, the page cache included."""
    with open("/proc/meminfo") as lines:
        sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024
