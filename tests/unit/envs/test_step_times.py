"""How long a step of each environment takes: timed in a row now and then, a mean of the last few."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from headrace.envs import serial
from headrace.envs.serial import SerialEnvs
from support.slabs import slab_for


class Taking(gym.Env[Any, Any]):
    """Steps of a given length, by a clock of the test's own."""

    observation_space, action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, clock: list[int], step_ns: list[int]) -> None:
        self._clock, self._step_ns = clock, step_ns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._clock[0] += self._step_ns[0]
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_a_row_now_and_then_is_timed_and_the_last_few_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lengths = [0], [[5], [80]]
    monkeypatch.setattr(serial, "now_ns", lambda: clock[0])
    numbers = iter(lengths)
    envs = SerialEnvs(lambda: Taking(clock, next(numbers)), range(2), lambda env, episode: env)
    row = slab_for(envs, 1).rows[0]
    row.action[:] = 0
    envs.begin(row.obs)

    def rows(count: int) -> list[float]:
        for _ in range(count):
            envs.step(row, lambda env, obs: None)
        found: list[float] = envs.step_ns.tolist()
        return found

    every = serial._TIMED_ROWS
    assert rows(every - 1) == [0.0, 0.0], "no row was timed yet"
    assert rows(1) == [5.0, 80.0]
    lengths[0][0] = 21
    assert rows(every - 1) == [5.0, 80.0], "others are not timed"
    assert rows(1) == [7.0, 80.0], "one of the last few"
    assert rows(40 * every) == [pytest.approx(21.0, rel=0.05), 80.0]
    envs.close()
