"""Which way to play, by a short measurement, and why; and how many workers get groups, by the engine's load.

a few steps of one environment per tag -> seconds per step, and how much of that is computing
-> sequential (cheap: threads cost more than they save) · lock-step (they wait, but not for long)
   · threading (they wait) · loky (they compute)
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from statistics import mean
from typing import TypeVar

from headrace.agents.callers import Callers
from headrace.agents.desk import Desk
from headrace.agents.engines.protocol import Engine
from headrace.agents.environments.text_env import TextEnvSpec, some_action
from headrace.clock import now_s

T = TypeVar("T")

logger = logging.getLogger(__name__)

BACKENDS = ("threading", "loky", "multiprocessing")  # joblib's, that workers run in
WAYS = ("auto", "sequential", "lock-step", *BACKENDS)
_BUDGET_S, _MOST_STEPS, _LEAST_STEPS = 0.02, 50, 2
_CHEAP_S = 0.5e-3  # about what passing a turn to another thread and back costs at most
_CHEAP_BESIDE_S = 2e-3  # the same, where a model in this process needs the interpreter too
_BARELY_S = 2e-4  # waiting that is not worth a thread
_HEAVY_S = 5e-3  # computing that is worth a process
_ADAPT_S = 1.0  # between two thoughts about the number of workers


@dataclass(frozen=True)
class StepTime:
    """Of one tag: seconds a step, and the share of them that is computing."""

    tag: str
    step_s: float
    computing: float


@dataclass(frozen=True)
class Way:
    """How to play: a backend, a number of workers, and why."""

    backend: str
    n_jobs: int
    reason: str


def measure(spec: TextEnvSpec, limit_s: float) -> StepTime | None:
    """A moment with one environment; None if it fails or hangs: its first episode will show why."""
    return within(limit_s, lambda: _measured(spec))


def _measured(spec: TextEnvSpec) -> StepTime:
    env = spec.build()
    rng = random.Random(0)
    steps: list[float] = []
    computing: list[float] = []
    begun = time.monotonic()
    try:
        env.reset(0)
        while len(steps) < _LEAST_STEPS or (len(steps) < _MOST_STEPS and time.monotonic() - begun < _BUDGET_S):
            action = some_action(env, rng, "1")
            wall, cpu = time.monotonic(), time.thread_time()
            step = env.step(action)
            steps.append(time.monotonic() - wall)
            computing.append(time.thread_time() - cpu)
            if step.is_done:
                env.reset(len(steps))
    finally:
        env.close()
    return StepTime(spec.tag, mean(steps), min(1.0, sum(computing) / max(sum(steps), 1e-9)))


def choose(measured: Sequence[StepTime | None], n_jobs: int, groups: int, is_in_process: bool = False) -> Way:
    """From what was measured; a number of workers that was asked for is kept to. Pure but for the number of cores."""
    known = [one for one in measured if one is not None]
    if not known:
        return Way("sequential", 1, "sequential: no environment could be measured; the first episode will show why")
    slowest = max(known, key=lambda one: one.step_s)
    why = f"a step of {slowest.tag} takes {_time(slowest.step_s)}, {slowest.computing:.0%} of it computing"
    workers = n_jobs if n_jobs > 0 else max(1, min(cores(), groups))
    if n_jobs > 1 and (slowest.step_s < _HEAVY_S or slowest.computing < 0.5):
        return Way("threading", workers, f"threading, n_jobs={workers} as asked for: {why}")
    if slowest.step_s < (_CHEAP_BESIDE_S if is_in_process else _CHEAP_S):
        if slowest.computing < 0.5 and slowest.step_s > _BARELY_S:
            return Way("lock-step", 1, f"lock-step: {why}; they wait side by side, a worker would cost as much")
        return Way("sequential", 1, f"sequential: {why}: passing it to a worker would cost as much")
    if slowest.computing < 0.5:
        return Way("threading", workers, f"threading, n_jobs={workers}: {why}; waiting is done side by side")
    if slowest.step_s >= _HEAVY_S and cores() > 1 and workers > 1:
        return Way("loky", workers, f"loky, n_jobs={workers}: {why}; {cores()} cores can share that")
    return Way("sequential", 1, f"sequential: {why}, too little to share out")


def within(limit_s: float, call: Callable[[], T]) -> T | None:
    """What a call gives, in a thread that may hang; None if it fails, or does not come back in time."""
    callers = Callers(most=1)
    future = callers.submit(call)
    try:
        return None if future.exception(limit_s) is not None else future.result()
    except FutureTimeout:
        callers.give_up(future, lambda: None)
        return None
    finally:
        callers.close(0.0)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


class Adapting:
    """The number of workers that get groups, by how much the engine waits."""

    def __init__(self, desk: Desk, engine: Engine, most: int) -> None:
        self._desk, self._engine, self._most = desk, engine, most
        self._active = most
        self._since_s, self._busy_s = now_s(), engine.statistics().busy_s

    def look(self) -> None:
        """Now and then."""
        elapsed_s = now_s() - self._since_s
        if elapsed_s < _ADAPT_S:
            return
        busy_s = self._engine.statistics().busy_s
        idle = max(0.0, 1.0 - (busy_s - self._busy_s) / elapsed_s)
        self._since_s, self._busy_s = now_s(), busy_s
        active = suggested_workers(self._active, 1, self._most, idle, self._desk.num_waiting)
        if active != self._active:
            logger.info(
                "the engine waits %.0f %% of the time: %d of %d workers get groups", 100 * idle, active, self._most
            )
            self._active = active
            self._desk.set_active(active)


def suggested_workers(active: int, least: int, most: int, engine_idle: float, num_waiting: int) -> int:
    """How many workers should get groups, from what was measured since the last look.

    An engine that waits for requests wants more of them; one that never waits gets no faster from more workers, and
    fewer leave it more of the machine.
    """
    if num_waiting and engine_idle > 0.25:
        return min(most, active + 1)
    if engine_idle < 0.02:
        return max(least, active - 1)
    return min(most, max(least, active))
