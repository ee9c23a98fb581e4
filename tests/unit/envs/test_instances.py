"""Instances that are passed: what was set on them is not lost, also after they were played."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from headrace.envs.instances import Copies, spec_of
from support.faulty_envs import Steady


class Goal(Steady):
    """Its reward depends on attributes that a user may set on the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.goal, self.weights, self.shaping = np.zeros(2), {"near": 1.0}, None
        self.count, self.best = 0, float("nan")

    def step(self, action: Any) -> Any:
        self.count += 1
        return super().step(action)


@pytest.fixture(autouse=True)
def _registered() -> Any:
    gym.register("Goal-v0", Goal)
    yield
    del gym.registry["Goal-v0"]


def played(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    env.reset(seed=3)
    for _ in range(7):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    return env


CHANGES: dict[str, Any] = {
    "gravity": ("CartPole-v1", lambda env: setattr(env, "gravity", 20.0)),
    "array": ("Goal-v0", lambda env: setattr(env, "goal", np.ones(2))),
    "in place": ("Goal-v0", lambda env: env.weights.update(near=2.0)),
    "new": ("Goal-v0", lambda env: setattr(env, "level", 3)),
}


@pytest.mark.parametrize("is_played", [False, True], ids=["new", "played"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_set_on_an_instance_is_kept(change: str, is_played: bool) -> None:
    env_id, set_on = CHANGES[change]
    env = gym.make(env_id)
    set_on(env.unwrapped)
    spec = spec_of(played(env) if is_played else env)
    assert isinstance(spec.env, Copies), "its spec does not say it"
    ours, theirs = vars(spec.make().unwrapped), vars(env.unwrapped)
    for name in ("gravity", "goal", "weights", "level"):
        assert np.array_equal(ours.get(name), theirs.get(name))


def test_a_function_that_was_set_is_kept() -> None:
    env = gym.make("Goal-v0")
    env.unwrapped.shaping = lambda obs: 1.0  # type: ignore[attr-defined]
    assert isinstance(spec_of(env).env, Copies)


@pytest.mark.parametrize("is_played", [False, True], ids=["new", "played"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1", "Taxi-v3", "Goal-v0"])
def test_an_instance_that_was_only_played_is_built_anew(env_id: str, is_played: bool) -> None:
    """What an episode changes is its state, which a run begins anew; a file can hold the id."""
    if env_id == "Taxi-v3" and env_id not in gym.registry:
        env_id = "Taxi-v4"
    env = gym.make(env_id)
    assert spec_of(played(env) if is_played else env).env == env_id


def test_a_window_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """SB3's quickstart, with a first look at the environment before it."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = gym.make("CartPole-v1", render_mode="human")
    env.reset(seed=1)
    assert spec_of(env).env == "CartPole-v1"
    env.close()
