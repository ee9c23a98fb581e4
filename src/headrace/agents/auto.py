"""Where environments should run, by a short measurement, and why, in one line.

a few steps of one environment per tag -> seconds per step, and how much of that is computing
-> sequential (cheap: threads cost more than they save) · lock-step (they wait, but not for long)
   · threading (they wait) · loky (they compute)
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from statistics import mean
from typing import TypeVar

from headrace.agents.callers import Callers
from headrace.agents.environments.text_env import TextEnvSpec

T = TypeVar("T")

BACKENDS = ("threading", "loky", "multiprocessing")  # joblib's, that workers run in
WAYS = ("auto", "sequential", "lock-step", *BACKENDS)
_BUDGET_S, _MOST_STEPS, _LEAST_STEPS = 0.02, 50, 2
_CHEAP_S = 0.5e-3  # about what passing a turn to another thread and back costs at most
_CHEAP_BESIDE_S = 2e-3  # the same, where a model in this process needs the interpreter too
_BARELY_S = 2e-4  # waiting that is not worth a thread
_HEAVY_S = 5e-3  # computing that is worth a process


@dataclass(frozen=True)
class Measured:
    """Of one tag: seconds a step, and the share of them that is computing."""

    tag: str
    step_s: float
    computing: float


@dataclass(frozen=True)
class Choice:
    """A backend, a number of workers, and why."""

    backend: str
    n_jobs: int
    reason: str


def measure(spec: TextEnvSpec, limit_s: float) -> Measured | None:
    """A moment with one environment; None if it fails or hangs: its first episode will tell why."""
    return within(limit_s, lambda: _measured(spec))


def _measured(spec: TextEnvSpec) -> Measured:
    env = spec.build()
    rng = random.Random(0)
    steps: list[float] = []
    computing: list[float] = []
    begun = time.monotonic()
    try:
        env.reset(0)
        while len(steps) < _LEAST_STEPS or (len(steps) < _MOST_STEPS and time.monotonic() - begun < _BUDGET_S):
            action = rng.choice(env.actions) if env.actions else "1"
            wall, cpu = time.monotonic(), time.thread_time()
            step = env.step(action)
            steps.append(time.monotonic() - wall)
            computing.append(time.thread_time() - cpu)
            if step.is_done:
                env.reset(len(steps))
    finally:
        env.close()
    return Measured(spec.tag, mean(steps), min(1.0, sum(computing) / max(sum(steps), 1e-9)))


def choose(measured: Sequence[Measured | None], n_jobs: int, groups: int, is_in_process: bool = False) -> Choice:
    """From what was measured; a number of workers that was asked for is kept to. Pure but for the number of cores."""
    known = [one for one in measured if one is not None]
    if not known:
        return Choice("sequential", 1, "sequential: no environment could be measured; the first episode will tell why")
    slowest = max(known, key=lambda one: one.step_s)
    told = f"a step of {slowest.tag} takes {_time(slowest.step_s)}, {slowest.computing:.0%} of it computing"
    workers = n_jobs if n_jobs > 0 else max(1, min(cores(), groups))
    if n_jobs > 1 and (slowest.step_s < _HEAVY_S or slowest.computing < 0.5):
        return Choice("threading", workers, f"threading, n_jobs={workers} as asked for: {told}")
    if slowest.step_s < (_CHEAP_BESIDE_S if is_in_process else _CHEAP_S):
        if slowest.computing < 0.5 and slowest.step_s > _BARELY_S:
            return Choice("lock-step", 1, f"lock-step: {told}; they wait side by side, a worker would cost as much")
        return Choice("sequential", 1, f"sequential: {told}: passing it to a worker would cost as much")
    if slowest.computing < 0.5:
        return Choice("threading", workers, f"threading, n_jobs={workers}: {told}; waiting is done side by side")
    if slowest.step_s >= _HEAVY_S and cores() > 1 and workers > 1:
        return Choice("loky", workers, f"loky, n_jobs={workers}: {told}; {cores()} cores can share that")
    return Choice("sequential", 1, f"sequential: {told}, too little to share out")


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
