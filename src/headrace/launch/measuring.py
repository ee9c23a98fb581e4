"""What a step costs, how much faster two threads are than one, and how many cores other programs leave free.

    step one environment for a moment, again where that was not steady -> seconds · two of them in two threads -> GIL?

A rollout takes the sum of its steps, so it is their mean that counts: a few long ones may be most of it. A busy machine
spoils measurements, so they are repeated: the typical step is the median of the fastest one, and the mean of all of
them over their median says what long steps add. Time in which the thread waited for a core is no step's. Where steps
differ much, more of them are taken. Decides nothing (decision).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import fmean, mean, median, pstdev, quantiles

import numpy as np

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
from headrace.memory.spaces import empty_leaves, made_up

_FIRST_LOOK_S, _BUDGET_S = 0.01, 0.1  # of stepping: enough to see that it is cheap, and to measure if it is not
_ERROR, _LONGER_S = 0.05, 0.5  # of the mean, as a share of it; stepping that may be added to get there
_ACTIONS = 64  # rows of them, drawn once and sent again and again
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


@dataclass(frozen=True)
class _Steps:
    """What steps of one environment took."""

    step_s: float
    """On average."""
    spread: float
    jitter: float
    doubt: float


def measured_together(envs: VectorEnv, measured: Measured, n_envs: int, until_s: float) -> Measured:
    """A cheap step among others: what a row of steps costs as a whole, all of its environments share.

    `envs`: some more of the same. One alone pays all of it, so that many would look slower than they are. If they can't
    be stepped, the first trial or rollout shows why.
    """
    try:
        some_s = _alone(envs, envs.num_envs, until_s).step_s
    except (EnvFailure, HeadraceError):
        return measured
    return replace(measured, step_s=among_others(measured.step_s, some_s, envs.num_envs, n_envs))


def among_others(one_s: float, some_s: float, some: int, n_envs: int) -> float:
    """Seconds of a step of each of `n_envs`, from those of one alone and of each of some, stepped together."""
    further_s = min(max((some * some_s - one_s) / (some - 1), 0.0), one_s)
    return further_s + (one_s - further_s) / n_envs


def _measured_pool(spec: EnvSpec, seed: int, n_envs: int, until_s: float) -> Measured:
    pool = build_envs(spec, range(n_envs), seed)
    try:
        seen = _alone(pool, n_envs, until_s)
    finally:
        pool.close()
    return Measured(seen.step_s, seen.spread, 1.0, doubt=seen.doubt, is_pool=True, jitter=seen.jitter)


def _measured(spec: EnvSpec, seed: int, envs: VectorEnv, until_s: float) -> Measured:
    seen = _alone(envs, 1, until_s)
    measured = Measured(seen.step_s, seen.spread, 1.0, doubt=seen.doubt, jitter=seen.jitter)
    if seen.step_s < CHEAP_S or now_s() >= until_s:
        return measured
    other = build_envs(spec, range(1, 2), seed)
    try:
        two_threads = _two_threads(envs, other, seen.step_s, _rounds(seen.step_s))
        return replace(measured, two_threads=two_threads, cpu_share=_cpu_share(envs))
    finally:
        other.close()


def _alone(envs: VectorEnv, n_envs: int, until_s: float) -> _Steps:
    """In some rounds; more of them where steps differ so much that their mean is not known yet."""
    queued_s, every = _queued_s(), list[list[float]]()

    def once(budget_s: float) -> list[float]:
        every.append(_stepped(envs, budget_s))
        return every[-1]

    fastest, doubt = once(_FIRST_LOOK_S), 1.0
    if now_s() < until_s:
        first = median(fastest) / n_envs
        rounds = _rounds(first)
        budget_s = _FIRST_LOOK_S if first < CHEAP_S else _BUDGET_S / rounds
        every.clear()  # the first steps warmed up
        queued_s = _queued_s()
        fastest, doubt = repeated(lambda: once(budget_s), rounds, 3 * rounds if rounds > 1 else 1)
        longer_s = min(until_s, now_s() + _LONGER_S)
        while error_of_mean(every) > _ERROR and now_s() < longer_s:
            once(budget_s)
    typical = median(fastest)
    tail, jitter = tail_of(every, _queued_s() - queued_s)
    return _Steps(typical * tail / n_envs, _spread(fastest), jitter, doubt)


def error_of_mean(rounds: Sequence[Sequence[float]]) -> float:
    """The standard error of the mean of all steps, as a share of it."""
    times = [one for times in rounds for one in times]
    return pstdev(times) / fmean(times) / math.sqrt(len(times)) if any(times) else 0.0


def tail_of(rounds: Sequence[Sequence[float]], queued_s: float) -> tuple[float, float]:
    """The mean of all steps over their median, and their standard deviation over their mean.

    In `queued_s` of them all other programs had the core: no step is shorter for it than a typical one.
    """
    times = [one for times in rounds for one in times]
    typical, total_s = median(times), sum(times)
    if not typical:
        return 1.0, 0.0
    own_s = max(total_s - queued_s, min(total_s, typical * len(times)))
    is_own = own_s > 0.9 * total_s  # else it is not known whose the differences are
    return own_s / len(times) / typical, pstdev(times) / fmean(times) if is_own else 0.0


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
    drawn = made_up(envs.action_space, np.random.default_rng(0), _ACTIONS * envs.num_envs, from_zero=True)
    actions = cycle(drawn.reshape(_ACTIONS, *row.action.shape))
    times: list[float] = []
    begun = now_s()
    while now_s() - begun < budget_s or len(times) < 4:
        row.action[...] = next(actions)  # always the same one may end every episode early
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
