"""model.get_env(): environments to watch a model play in, with the four-value step of Stable-Baselines3.

    obs = vec_env.reset()        obs, rewards, dones, infos = vec_env.step(actions)        an ended one is reset at once

They are environments of their own: playing in them changes nothing of the training run. Only for loops that users
write; headrace's own loops go through envs/vector_env.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import concatenate, create_empty_array

from headrace.clock import now_s
from headrace.envs.masks import ActionMasks
from headrace.envs.seeds import Purpose
from headrace.envs.spec import EnvSpec
from headrace.errors import UsageError
from headrace.run_config import RunConfig

Array = npt.NDArray[Any]
Env = gym.Env[Any, Any]


class VecEnv:
    """Several environments, stepped one after the other."""

    def __init__(
        self, envs: Sequence[Env], seeds: Sequence[int | None], source: EnvSpec, borrowed: bool = False
    ) -> None:
        self.envs = list(envs)
        self.source = source  # what makes more of them
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.render_mode = self.envs[0].render_mode
        self._seeds: list[int | None] = list(seeds)
        self.is_closed = False
        self._borrowed = borrowed  # the user's own instance: theirs to close
        self._returns, self._lengths = [0.0] * self.num_envs, [0] * self.num_envs
        self._start_s = now_s()
        self.reset_infos: list[dict[str, Any]] = [{} for _ in self.envs]

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Of the next reset: `seed`, `seed` + 1 ..., as Stable-Baselines3 does."""
        self._seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        return self._seeds

    def reset(self) -> Any:
        """All begin anew; observations [n, ...]."""
        observations = [self._reset(index) for index in range(self.num_envs)]
        self._seeds = [None] * self.num_envs
        return self._together(observations)

    def step(self, actions: Any) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """One action each; observations, rewards, dones, infos.

        Where an episode has ended, the observation is the first of the next one, and the info has
        `terminal_observation`, `TimeLimit.truncated` and `episode`.
        """
        count = np.shape(actions)[0] if np.ndim(actions) else repr(actions)
        if count != self.num_envs:
            raise UsageError(f"step: expected {self.num_envs} actions, one for each environment, got {count}")
        seen = [self._step(index, action) for index, action in enumerate(actions)]
        observations, rewards, dones, infos = zip(*seen, strict=True)
        return self._together(observations), np.array(rewards, np.float32), np.array(dones), list(infos)

    def render(self, mode: str | None = None) -> Any:
        """A frame of the first environment (rgb_array), or a window (human)."""
        return self.envs[0].render()

    def get_images(self) -> list[Any]:
        """A frame of each."""
        return [env.render() for env in self.envs]

    def close(self) -> None:
        """Close them, except an instance that was passed to the model: that stays its owner's."""
        if not self._borrowed and not self.is_closed:
            self.is_closed = True
            for env in self.envs:
                env.close()

    def get_attr(self, name: str, indices: int | Sequence[int] | None = None) -> list[Any]:
        """An attribute of each, looked for through its wrappers."""
        return [env.get_wrapper_attr(name) for env in self._some(indices)]

    def set_attr(self, name: str, value: Any, indices: int | Sequence[int] | None = None) -> None:
        """Set an attribute of each."""
        for env in self._some(indices):
            env.set_wrapper_attr(name, value)

    def env_method(self, name: str, *args: Any, indices: int | Sequence[int] | None = None, **kwargs: Any) -> list[Any]:
        """Call a method of each."""
        return [env.get_wrapper_attr(name)(*args, **kwargs) for env in self._some(indices)]

    def _together(self, observations: Sequence[Any]) -> Any:
        """[n, ...], of each array where there are several."""
        space = self.observation_space
        if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
            return np.stack(observations)
        empty: Any = create_empty_array(space, len(observations))
        return concatenate(space, observations, empty)

    def _some(self, indices: int | Sequence[int] | None) -> list[Env]:
        if indices is None:
            return self.envs
        return [self.envs[index] for index in ([indices] if isinstance(indices, int) else indices)]

    def _reset(self, index: int) -> Any:
        self._returns[index], self._lengths[index] = 0.0, 0
        seed = self._seeds[index]
        observation, self.reset_infos[index] = self.envs[index].reset(seed=seed)
        return copy.deepcopy(observation)  # now: it may be memory that others write to as well

    def _step(self, index: int, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.envs[index].step(action)
        self._returns[index] += float(reward)
        self._lengths[index] += 1
        observation = copy.deepcopy(observation)
        info = {**(info or {}), "TimeLimit.truncated": bool(truncated and not terminated)}
        if terminated or truncated:
            elapsed = round(now_s() - self._start_s, 6)
            info |= {"terminal_observation": observation}
            info.setdefault("episode", {"r": self._returns[index], "l": self._lengths[index], "t": elapsed})
            self._seeds[index] = None
            observation = self._reset(index)
        return observation, float(reward), bool(terminated or truncated), info


def play_envs(config: RunConfig, instance: Env | None = None) -> VecEnv:
    """As many environments as a run has, seeded by the evaluation branch of its seed tree; or the user's instance."""
    if config.env.is_vector():
        raise UsageError(f"get_env: {config.env.name} is a pool that steps itself; make one with its own function")
    n_envs = config.topology.n_envs if instance is None else 1
    seed_of = config.env.seed_of(config.seed, Purpose.EVALUATION)
    seeds = [seed_of(index, 0) for index in range(n_envs)]
    if instance is not None and config.policy.action_masks:
        instance = ActionMasks(instance)
    envs = [config.env.make() for _ in range(n_envs)] if instance is None else [instance]
    return VecEnv(envs, seeds, config.env, borrowed=instance is not None)
