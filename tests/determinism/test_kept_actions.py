"""Environments may keep the action they are sent, or change it in place: neither slabs nor the journal may feel it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import headrace as hr


class KeepsItsAction(gym.Env[Any, Any]):
    """Observes the action before the last one, by reference."""

    observation_space = gym.spaces.Box(-200, 200, (3,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.MultiBinary(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.kept: Any = np.zeros(3, np.int8)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs = self.kept.astype(np.float32) + self.np_random.normal()
        self.kept = action
        self.steps += 1
        return obs.astype(np.float32), float(obs.sum()), False, self.steps >= 50, {}


class KeepsItsChoices(KeepsItsAction):
    action_space = gym.spaces.MultiDiscrete([2, 3, 2])


class ChangesItsAction(KeepsItsAction):
    """Scales its action in place."""

    action_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action *= 0.1
        return super().step(action)


@pytest.mark.parametrize("env", [KeepsItsAction, KeepsItsChoices, ChangesItsAction])
def test_two_resumes_give_the_calm_runs_bits(env: type[KeepsItsAction], tmp_path: Path) -> None:
    def model() -> hr.PPO:
        return hr.PPO("MlpPolicy", env, n_envs=4, n_steps=16, batch_size=32, n_epochs=2, seed=3)

    with model() as calm:
        calm.learn(4 * 16 * 6)
        wanted = calm.run.hashes()
        assert abs(calm.run.snapshot().episodes["last_obs"]).max() < 20, "poison reached an observation"
    with model() as first:
        first.learn(4 * 16 * 2)
        first.save(tmp_path / "one")
    with hr.PPO.load(tmp_path / "one", env=env) as second:
        second.learn(4 * 16 * 2)
        second.save(tmp_path / "two")
    with hr.PPO.load(tmp_path / "two", env=env) as third:
        third.learn(4 * 16 * 2)
        assert third.run.hashes() == wanted
