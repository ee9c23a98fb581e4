"""What a step costs, how much faster two threads are than one, and how many cores other programs leave free.

    step one environment for a moment, again where that was not steady -> seconds · two of them in two threads -> GIL?

A busy machine spoils measurements, so they are repeated and the fastest one counts. Decides nothing (decision).
"""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from statistics import mean, median, quantiles

from headrace.clock import now_s
from headrace.envs.building import build_envs
from headrace.envs.masks import keep_lawful
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import EnvFailure, VectorEnv
from headrace.errors import HeadraceError
from headrace.launch.decision import CHEAP_S, Measured
from headrace.launch.repeating import repeated
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import empty_leaves

_FIRST_LOOK_S, _BUDGET_S = 0.01, 0.1  # of stepping: enough to see that it is cheap, and to measure if it is not
_SHORTEST_S = 0.05  # the kernel counts a core's time in hundredths of a second


def measure(spec: EnvSpec, seed: int, envs: VectorEnv, n_envs: int = 1, until_s: float = math.inf) -> Measured | None:
    """Step one environment for a moment, then two in two threads; None if it does not get that far.

    A pool is measured whole: most of what a small one takes for a step is not the environment's. After `until_s` the
    first steps have to do.
    """
    try:
        if spec.is_vector():
            return _measured_pool(spec, seed, n_envs, until_s)
        return _measured(spec, seed, envs, until_s)
    except (EnvFailure, HeadraceError):
        return None


def _measured_pool(spec: EnvSpec, seed: int, n_envs: int, until_s: float) -> Measured:
    pool = build_envs(spec, range(n_envs), seed)
    try:
        times, doubt = _alone(pool, n_envs, until_s)
    finally:
        pool.close()
    return Measured(median(times), _spread(times), 1.0, doubt=doubt, is_pool=True)


def _measured(spec: EnvSpec, seed: int, envs: VectorEnv, until_s: float) -> Measured:
    times, doubt = _alone(envs, 1, until_s)
    typical, spread = median(times), _spread(times)
    if typical < CHEAP_S or now_s() >= until_s:
        return Measured(typical, spread, 1.0, doubt=doubt)
    other = build_envs(spec, range(1, 2), seed)
    try:
        two_threads = _two_threads(envs, other, mean(times), _rounds(typical))
        return Measured(typical, spread, two_threads, doubt=doubt, cpu_share=_cpu_share(envs))
    finally:
        other.close()


def _alone(envs: VectorEnv, n_envs: int, until_s: float) -> tuple[list[float], float]:
    """Seconds of steps in the fastest measurement, and how far the second fastest was from it."""
    seen = _stepped(envs, _FIRST_LOOK_S)
    if now_s() >= until_s:
        return [row_s / n_envs for row_s in seen], 1.0
    first = median(seen) / n_envs
    rounds = _rounds(first)
    budget_s = _FIRST_LOOK_S if first < CHEAP_S else _BUDGET_S / rounds
    times, doubt = repeated(lambda: _stepped(envs, budget_s), rounds, 3 * rounds if rounds > 1 else 1)
    return [row_s / n_envs for row_s in times], doubt


def _cpu_share(envs: VectorEnv) -> float:
    """Of the time of stepping, that a core is busy with it: little of it if steps wait for something.

    Time in which it could have run, but other programs had the cores, does not count.
    """
    begun_s, cpu_s, queued_s = now_s(), time.process_time(), _queued_s()
    _stepped(envs, _FIRST_LOOK_S)
    wall_s = now_s() - begun_s - (_queued_s() - queued_s)
    return min(1.0, (time.process_time() - cpu_s) / max(wall_s, 1e-6))


def _queued_s() -> float:
    """How long this thread has waited for a core; 0 if the system does not say."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _spread(times: list[float]) -> float:
    """Of the middle half: a moment without a core is no property of the environment."""
    low, _, high = quantiles(times, n=4)
    return (high - low) / median(times)


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


def _stepped(envs: VectorEnv, budget_s: float) -> list[float]:
    """Seconds of each step taken within the budget, at least three of them, without the first."""
    schema = rollout_schema(envs.observation_space, envs.action_space, 1, envs.num_envs)
    row = Slab(schema, HeapSegment(slab_bytes(schema)).buffer).rows[0]
    obs = empty_leaves(envs.observation_space, envs.num_envs)
    envs.begin(obs)
    row.action[...] = 0
    times: list[float] = []
    begun = now_s()
    while now_s() - begun < budget_s or len(times) < 4:
        keep_lawful(envs.action_space, row.action, obs)
        before = now_s()
        envs.step(row, lambda env, obs: None)
        times.append(now_s() - before)
        obs = row.next_obs
    return times[1:]


class FreeCores:
    """How many cores other programs leave to this one, from when it is made."""

    def __init__(self) -> None:
        self._begun_s, self._own_s = now_s(), time.process_time()
        self._idle, self._all = _jiffies()

    def seen(self, also: float = 0.0) -> float:
        """Idle cores and those that this process used (and `also`), on average; infinity if that can't be known."""
        elapsed_s, own_s = now_s() - self._begun_s, time.process_time() - self._own_s
        idle, total = _jiffies()
        if elapsed_s < _SHORTEST_S or total == self._all:
            return math.inf
        idle_s = (idle - self._idle) / os.sysconf("SC_CLK_TCK")
        return max(1.0, (idle_s + own_s) / elapsed_s + also)


def _jiffies() -> tuple[int, int]:
    """Idle time, and all time, of the cores that this process may use; 0 if the system does not say."""
    idle = total = 0
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    with suppress(OSError, ValueError), open("/proc/stat") as lines:
        for name, *counts in map(str.split, lines):
            if name in cores:
                numbers = [int(count) for count in counts[:8]]
                idle, total = idle + numbers[3] + numbers[4], total + sum(numbers)
    return idle, total
