"""One contender of paired.py: a workload of whichever headrace is on the path, run in slices as they are asked for.

    stdin: a number of units -> run them -> stdout: {"steps", "seconds"}          closed stdin -> the end

Start-up is not measured: the parts are built and warm before the first line is read, and a slice of training is timed
from its first update to its last. Only the public interface is used, since the same file runs two versions of the
package. While nothing is asked, nothing runs: the other contenders have the machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from burn import BurnEnv

import headrace as hr

Slice = Callable[[int], tuple[int, float]]  # units -> steps, seconds
JOB = {"n_envs": 64, "n_steps": 32, "batch_size": 512, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.95}
SYNC = {"topology": "processes", "workers": 2}
ASYNC = {"topology": "processes", "workers": 1, "max_lag": 1}
BURN_TURNS = 2_500  # some 200 us of pure Python


class Wide(gym.Env):
    """4 KiB of observation for nothing: what is left is the way from worker to reader."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1024,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.obs = np.linspace(-1.0, 1.0, 1024, dtype=np.float32)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.obs, 0.0, False, self.count >= 500, {}


@contextmanager
def training(**options: Any) -> Iterator[Slice]:
    """PPO on CartPole; a unit is an update."""
    rollout = JOB["n_envs"] * JOB["n_steps"]
    with hr.PPO("MlpPolicy", "CartPole-v1", learning_rate=1e-3, seed=1, **JOB, **options) as model:

        def updates(count: int) -> tuple[int, float]:
            times: list[float] = []
            model.learn((count + 1) * rollout, callback=lambda record: times.append(time.perf_counter()))
            return count * rollout, times[-1] - times[0]

        yield updates


@contextmanager
def collecting(env: Any, **options: Any) -> Iterator[Slice]:
    """Completed rollouts; a unit is one of them."""
    with hr.Collector(env, "MlpPolicy", seed=1, **options) as collector:

        def rollouts(count: int) -> tuple[int, float]:
            next(collector)  # what was collected ahead, while others were measured
            start = time.perf_counter()
            steps = sum(int(next(collector).steps) for _ in range(count))
            return steps, time.perf_counter() - start

        yield rollouts


@contextmanager
def playing(is_real: bool) -> Iterator[Slice]:
    """LLM agents with two threads; a unit is a group, and what is counted are episodes."""
    options: dict[str, Any] = {"n_jobs": 2, "backend": "threading", "group_size": 4 if is_real else 8, "seed": 1}
    engine: Any = None
    if is_real:  # not taught: what it says does not matter, only that it says it
        from headrace.agents.build import tiny_engine

        with hr.AgentRollouts("FrozenLake") as default:
            rules = options["rules"] = replace(default.plan.rules, max_turn=3, max_tokens=16, max_context=512)
            engine = tiny_engine(default.plan.envs, rules, seed=1, steps=0)
    try:
        with hr.AgentRollouts("FrozenLake", engine or "scripted", **options) as rollouts:

            def groups(count: int) -> tuple[int, float]:
                start = time.perf_counter()
                played = rollouts.run(count)
                return sum(len(group.episodes) for group in played), time.perf_counter() - start

            yield groups
    finally:
        if engine is not None:
            engine.close()


WORKLOADS: dict[str, Callable[[], Any]] = {
    "training, inline": lambda: training(topology="inline"),
    "training, 2 workers, max_lag 0": lambda: training(**SYNC),
    "training, 1 worker, max_lag 1": lambda: training(**ASYNC),
    "training, inline, autograd": lambda: training(topology="inline", gradients="autograd"),
    "collecting, 8 envs": lambda: collecting("CartPole-v1", n_envs=8, n_steps=128, topology="inline"),
    "collecting, 64 envs": lambda: collecting("CartPole-v1", n_envs=64, n_steps=128, topology="inline"),
    "burning 200 us, 2 workers": lambda: collecting(
        hr.EnvSpec(BurnEnv, {"turns": BURN_TURNS}), n_envs=16, n_steps=32, **SYNC | {"max_lag": 1}
    ),
    "hand-over of 8 MiB rollouts": lambda: collecting(Wide, n_envs=16, n_steps=128, **ASYNC),
    "agents, scripted engine": lambda: playing(is_real=False),
    "agents, tiny model": lambda: playing(is_real=True),
}


def main() -> None:
    with WORKLOADS[sys.argv[1]]() as run:
        run(1)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            steps, seconds = run(int(line))
            print(json.dumps({"steps": steps, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
