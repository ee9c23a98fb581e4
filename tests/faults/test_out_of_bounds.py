"""Observations outside of their Box: one warning that names env and step, an error if asked for, or nothing.

Never for numbers on the bounds, and never for spaces that have none.
"""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import headrace as hr
from headrace.errors import EnvError
from support.command import assert_says
from support.faulty_envs import Faulty, Steady


class Outside(Faulty):
    """Faulty, but the fault is one number beyond its Box, in a step or in the observation in which it was cut."""

    def __init__(self, fault: str = "high") -> None:
        super().__init__("none")
        self._what = fault

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        is_here = self._is_faulty_episode and self._steps == self.STEP + 1
        is_cut = self._is_faulty_episode and truncated
        if (is_here and self._what == "high") or (is_cut and self._what == "final"):
            obs[2] = 100.5
        elif is_here and self._what == "low":
            obs[0] = -0.5
        return obs, reward, terminated, truncated, info

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        if self._is_faulty_episode and self._what == "first":
            obs[1] = 101
        return obs, info


def train(env: Any, caplog: pytest.LogCaptureFixture, updates: int = 6, **options: Any) -> list[str]:
    """What was logged as a warning."""
    kwargs = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "seed": Faulty.SEED, "topology": "inline", **options}
    with caplog.at_level(logging.WARNING, "headrace"), hr.PPO("MlpPolicy", env, **kwargs) as model:
        model.learn(updates * 16)
    return [record.message for record in caplog.records]


EPISODE = f"env 1, episode 1:{Faulty.EPISODE}, seed {Faulty.fault_seed()}"
NAMED = {
    "high": [
        Faulty.PLACE,
        "the observation that followed lies outside of its space",
        "entry 2 is 100.5",
        "0.0 to 100.0",
    ],
    "low": [Faulty.PLACE, "entry 0 is -0.5, expected 0.0 to 100.0"],
    "first": [f"{EPISODE}, step 0: the first observation", "entry 1 is 101.0"],
    "final": [f"{EPISODE}, step 4: the final observation", "entry 2 is 100.5"],
}


@pytest.mark.parametrize("fault", NAMED)
def test_one_warning_names_env_and_step(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = train(Outside, caplog, env_kwargs={"fault": fault})
    assert_says(warning, NAMED[fault])


@pytest.mark.parametrize("fault", NAMED)
def test_refuse_makes_it_an_error(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EnvError) as caught:
        train(Outside, caplog, env_kwargs={"fault": fault}, out_of_bounds="refuse")
    assert_says(str(caught.value), NAMED[fault])


def test_ignore_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert train(Outside, caplog, out_of_bounds="ignore") == []


class Wild(Steady):
    """Every observation is outside."""

    def _seen(self) -> Any:
        return super()._seen() + np.float32(1000)


@pytest.mark.parametrize("place", ["inline", "threads", "processes"])
def test_it_is_one_warning_for_all_workers_and_updates(place: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {} if place == "inline" else {"workers": 2}
    (warning,) = train(Wild, caplog, topology=place, n_envs=4, shards=2, **options)
    assert warning.startswith("env 0, episode 0:0, seed")
    assert "step 0: the observation before this step lies outside" in warning


def test_the_bits_do_not_depend_on_it(caplog: pytest.LogCaptureFixture) -> None:
    def weights(policy: str) -> str:
        with hr.PPO("MlpPolicy", Wild, n_envs=2, n_steps=8, seed=1, topology="inline", out_of_bounds=policy) as model:
            return model.learn(64).run.hashes()["weights_sha256"]

    assert weights("warn") == weights("ignore")


class Bounded(gym.Env[Any, Any]):
    """Shows the corners of its space, and nothing else."""

    def __init__(self, kind: str) -> None:
        self.observation_space = {
            "float32": spaces.Box(-0.1, 0.3, (2,), np.float32),
            "float64": spaces.Box(-0.1, 0.3, (2,), np.float64),
            "per entry": spaces.Box(np.array([-1e-8, 5.0]), np.array([0.0, 5.0]), dtype=np.float64),
            "half open": spaces.Box(np.array([-np.inf, 0]), np.array([0.1, np.inf]), dtype=np.float64),
            "int64": spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
            "uint8": spaces.Box(0, 255, (2,), np.uint8),
            "int8": spaces.Box(-3, 3, (2,), np.int8),
        }[kind]
        self.action_space = spaces.Discrete(2)
        self._turn = 0

    def _seen(self) -> Any:
        self._turn += 1
        space = self.observation_space
        corner = space.low if self._turn % 2 else space.high
        return np.where(np.isfinite(corner), corner, 0).astype(space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), 0.0, False, self._turn % 7 == 0, {}


@pytest.mark.parametrize("kind", ["float32", "float64", "per entry", "half open", "int64", "uint8", "int8"])
def test_the_bounds_themselves_are_within(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    assert train(lambda: Bounded(kind), caplog, updates=2, out_of_bounds="refuse") == []


def test_a_float64_that_is_stored_as_float32_is_within_its_bounds(caplog: pytest.LogCaptureFixture) -> None:
    class Double(Bounded):
        def _seen(self) -> Any:
            super()._seen()
            return np.array([-0.1, 0.3])  # the bounds before they were rounded to float32

    assert train(lambda: Double("float32"), caplog, updates=2, out_of_bounds="refuse") == []
