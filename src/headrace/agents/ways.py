"""Which way to play, by a first look and by what is seen on the way; and how many workers get groups.

a first look at one environment per tag, a millisecond or so -> sequential (cheap: threads cost more than they save)
   · loky (steps that compute) · threading (all else: they wait, or the look did not show)
while threads play: environments that keep the interpreter busy -> loky plays what is left
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
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
_LOOK_S, _GLANCE_S = 0.02, 4e-4  # for a first look; for a sign in it that an environment computes
_STEPS_S, _LEAST_STEPS = 2e-3, 2  # of a first look
_CHEAP_S = 2e-4  # waiting that is not worth a thread
_HEAVY_S = 5e-3  # computing that is worth a process
_SHARED_S = 1e-3  # the same on average, where the interpreter has no time left
_SEEN_S = 0.25  # of computing, before that is judged
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


def look(spec: TextEnvSpec) -> StepTime | None:
    """A moment with one environment; None as soon as it waits, fails, or takes long: playing it will show the rest."""
    callers, is_over = Callers(most=1), threading.Event()
    begun_s, future = now_s(), callers.submit(lambda: _looked(spec, is_over))
    try:
        while now_s() - begun_s < _LOOK_S:
            computed_s = time.process_time()
            with contextlib.suppress(FutureTimeout):
                return future.result(_GLANCE_S) if future.exception(_GLANCE_S) is None else None
            if time.process_time() - computed_s < 0.5 * _GLANCE_S:
                break
        return None
    finally:
        is_over.set()
        if not future.done():
            callers.give_up(future, lambda: None)
        callers.close(0.0)


def _looked(spec: TextEnvSpec, is_over: threading.Event) -> StepTime:
    env = spec.build()
    rng = random.Random(0)
    steps: list[float] = []
    computing: list[float] = []
    try:
        env.reset(0)
        while not is_over.is_set() and (len(steps) < _LEAST_STEPS or (sum(steps) < _STEPS_S and len(steps) < 50)):
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


def choose(looks: Sequence[StepTime | None], n_jobs: int, groups: int, does_compute: bool = False) -> Way:
    """From the first look, and from what was seen since: `does_compute`. A number of workers that was asked for is
    kept to. Pure but for the number of cores.
    """
    known = [one for one in looks if one is not None]
    slowest = max(known, key=lambda one: one.step_s, default=StepTime("", 0.0, 0.0))
    why = f"a step of {slowest.tag} takes {_time(slowest.step_s)}, {slowest.computing:.0%} of it computing"
    workers = n_jobs if n_jobs > 0 else max(1, min(cores(), groups))
    if does_compute:
        why = "environments kept the interpreter busy"
    elif slowest.step_s >= _HEAVY_S and slowest.computing >= 0.5:
        does_compute = True
    if does_compute and cores() > 1 and workers > 1:
        return Way("loky", workers, f"loky, n_jobs={workers}: {why}; {cores()} cores can share that")
    if n_jobs > 1:
        return Way("threading", workers, f"threading, n_jobs={workers} as asked for")
    if len(known) < len(looks):
        return Way("threading", 1, "threading, n_jobs=1: waiting is done side by side, and what computes will show")
    if slowest.step_s < _CHEAP_S or slowest.computing >= 0.5:
        return Way("sequential", 1, f"sequential: {why}: passing it to a thread would cost as much")
    return Way("threading", 1, f"threading, n_jobs=1: {why}; waiting is done side by side")


class Computing:
    """How much environments compute in threads of this process. Fed from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._computing_s, self._since_s = 0, 0.0, 0.0

    def stepped(self, tag: str, step_s: float, computing_s: float) -> None:
        """One turn of an environment."""
        with self._lock:
            self._since_s = self._since_s or now_s() - step_s
            self._count += 1
            self._computing_s += computing_s

    @property
    def is_heavy(self) -> bool:
        """Whether they keep the interpreter busy with steps that are worth sending to a process."""
        with self._lock:
            is_worth_it = self._computing_s > max(_SEEN_S, self._count * _SHARED_S)
            return is_worth_it and self._computing_s > 0.5 * (now_s() - self._since_s)


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
