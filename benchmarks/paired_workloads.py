"""One contender of paired.py: a workload of the headrace on its path, run in slices as they are asked for.

    stdin: a number of units -> run them -> stdout: {"steps", "seconds"}          closed stdin -> the end

A unit is an update, a rollout or a batch of groups. The run is one and goes on from slice to slice; between two slices
it waits for the next line, so start-up is not measured and the other contenders have the machine. With workers, the
first units of a slice were collected while it waited and are not timed. Only the public interface is used, since the
same file runs two versions of the package.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from burn import BurnEnv

import headrace as hr

JOB = {"n_envs": 64, "n_steps": 32, "batch_size": 512, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.95}
INLINE = {"topology": "inline"}
SYNC = {"topology": "processes", "workers": 2}
ASYNC = {"topology": "processes", "workers": 1, "max_lag": 1}
BURN = {"turns": 2_500}  # some 200 us of pure Python
WARM_UP = 3  # units


class Slices:
    """Called after every unit; waits for the next slice where one ends."""

    def __init__(self, ahead: int = 0) -> None:
        self._ahead = ahead  # units that may have been collected while nothing was asked for
        self._asked, self._left = 0, WARM_UP
        self._steps, self._start = 0, time.perf_counter()

    def __call__(self, steps: int) -> bool:
        """After a unit of so many steps: whether to go on."""
        self._left -= 1
        self._steps += steps
        now = time.perf_counter()
        if self._left == self._asked:  # from here on it is timed
            self._steps, self._start = 0, now
        if self._left:
            return True
        print(json.dumps({"steps": self._steps, "seconds": now - self._start}), flush=True)
        line = sys.stdin.readline()
        if line:
            self._asked = int(line)
            self._left, self._steps, self._start = self._asked + self._ahead, 0, time.perf_counter()
        return bool(line)


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


def train(**options: Any) -> None:
    """PPO on CartPole; a unit is an update."""
    goes_on, rollout = Slices(_ahead(options)), JOB["n_envs"] * JOB["n_steps"]
    with hr.PPO("MlpPolicy", "CartPole-v1", learning_rate=1e-3, seed=1, **JOB, **options) as model:
        model.learn(10**12, callback=lambda record: goes_on(rollout))


def collect(env: Any, **options: Any) -> None:
    """Completed rollouts."""
    goes_on = Slices(_ahead(options))
    with hr.Collector(env, "MlpPolicy", seed=1, **options) as rollouts:
        while goes_on(int(next(rollouts).steps)):
            pass


def _ahead(options: dict[str, Any]) -> int:
    return 0 if options["topology"] == "inline" else 1 + options.get("max_lag", 0)


def play(is_real: bool) -> None:
    """LLM agents with two threads; a unit is a call of run(), and what is counted are episodes."""
    options: dict[str, Any] = {"n_jobs": 2, "backend": "threading", "group_size": 4, "seed": 1}
    engine: Any = None
    if is_real:  # not taught: what it says does not matter, only that it says it
        from headrace.agents.build import tiny_engine

        with hr.AgentRollouts("FrozenLake") as default:
            rules = options["rules"] = replace(default.plan.rules, max_turn=3, max_tokens=16, max_context=512)
            engine = tiny_engine(default.plan.envs, rules, seed=1, steps=0)
    goes_on = Slices()
    try:
        with hr.AgentRollouts("FrozenLake", engine or "scripted", **options) as rollouts:
            while goes_on(sum(len(group.episodes) for group in rollouts.run(2))):
                pass
    finally:
        if engine is not None:
            engine.close()


WORKLOADS: dict[str, Callable[[], None]] = {
    "training, inline": lambda: train(**INLINE),
    "training, 2 workers, max_lag 0": lambda: train(**SYNC),
    "training, 1 worker, max_lag 1": lambda: train(**ASYNC),
    "training, inline, autograd": lambda: train(**INLINE, gradients="autograd"),
    "collecting, 8 envs": lambda: collect("CartPole-v1", n_envs=8, n_steps=128, **INLINE),
    "collecting, 64 envs": lambda: collect("CartPole-v1", n_envs=64, n_steps=128, **INLINE),
    "burning 200 us, 2 workers": lambda: collect(
        hr.EnvSpec(BurnEnv, BURN), n_envs=16, n_steps=16, **SYNC | {"max_lag": 1}
    ),
    "hand-over of 8 MiB rollouts": lambda: collect(Wide, n_envs=16, n_steps=128, **ASYNC),
    "agents, scripted engine": lambda: play(is_real=False),
    "agents, tiny model": lambda: play(is_real=True),
}

if __name__ == "__main__":
    WORKLOADS[sys.argv[1]]()
