"""Action masks: which choices an environment allows, as one more array of its observations.

    info["action_mask"], a method action_masks(), or a key of a Dict observation --ActionMasks-->
        {"observation": obs, "action_mask": mask}        a Dict observation gets one more key

A mask has an entry for every choice, 1 where it is allowed: n of Discrete(n), those of all choices side by side of
MultiDiscrete, and of MultiBinary two for every bit (0, then 1). As part of the observation it goes wherever
observations go: rollouts, checksums, replays, inference servers. The mask in which an episode ends is not looked at.
Does not know how a policy obeys it (policies/masks).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.envs.raising import RefusedError
from headrace.envs.spec import MASKS, EnvSpec
from headrace.errors import UsageError
from headrace.memory.spaces import MASK, Leaves, Space, choices_of

Array = npt.NDArray[Any]
_HOW = f'info["{MASK}"], or a method action_masks()'


def masked(spec: EnvSpec) -> EnvSpec:
    """The environment with its masks as part of its observations."""
    if spec.action_repeat > 1:
        raise UsageError(
            f"action_masks: an action that is sent {spec.action_repeat} times (action_repeat) may be forbidden after "
            f"the first; leave one of the two out"
        )
    return spec if MASKS in spec.wrappers else replace(spec, wrappers=(*spec.wrappers, MASKS))


class ActionMasks(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations hold its action mask. Bad masks, and actions that one forbids, are refused."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._counts = _counts(env.action_space)
        self._starts = np.cumsum([0, *self._counts[:-1]])
        self._offsets = np.asarray(getattr(env.action_space, "start", 0)).reshape(-1)
        space = env.observation_space
        self._is_dict = isinstance(space, gym.spaces.Dict)
        self._is_in_obs = isinstance(space, gym.spaces.Dict) and MASK in space.spaces
        self._has_method = env.has_wrapper_attr("action_masks")
        parts = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else {"observation": space}
        self.observation_space = gym.spaces.Dict(
            [*((name, one) for name, one in parts.items() if name != MASK), (MASK, gym.spaces.MultiBinary(self._size))]
        )
        self._allowed: Array = np.ones(self._size, np.int8)

    @property
    def _size(self) -> int:
        return sum(self._counts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation, with the mask of the first action."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, self._mask(obs, info)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, with the mask of the next action."""
        chosen = self._starts + (np.asarray(action).reshape(-1) - self._offsets)
        if not self._allowed[chosen].all():
            raise RefusedError(
                f"was sent the action {np.asarray(action).tolist()}, which its action mask forbids; a policy of your "
                f'own keeps to obs["{MASK}"]'
            )
        obs, reward, terminated, truncated, info = self.env.step(action)
        mask = np.ones(self._size, np.int8) if terminated or truncated else self._mask(obs, info)
        return self._joined(obs, mask), reward, terminated, truncated, info

    def _joined(self, obs: Any, mask: Array) -> dict[str, Any]:
        return {**(obs if self._is_dict else {"observation": obs}), MASK: mask}

    def _mask(self, obs: Any, info: Any) -> Array:
        given = self._given(obs, info)
        if given is None:
            raise RefusedError(
                f"gave no action mask; expected {self._size} entries of 0 and 1 in {_HOW}; leave action_masks out if "
                f"there are none"
            )
        mask = np.asarray(given)
        if mask.shape != (self._size,) or mask.dtype.kind not in "biuf":
            got = f"{mask.dtype} of shape {mask.shape}"
            raise RefusedError(f"gave an action mask of {got}, expected {self._size} entries of 0 and 1 in {_HOW}")
        if not ((mask == 0) | (mask == 1)).all():
            raise RefusedError(f"returned the action mask {mask.tolist()}, expected {self._size} of 0 and 1")
        self._allowed = mask.astype(np.int8)
        if not np.add.reduceat(self._allowed, self._starts).all():
            raise RefusedError(
                f"returned the action mask {self._allowed.tolist()}, which allows no action; end the episode where "
                f"there is none"
            )
        return self._allowed

    def _given(self, obs: Any, info: Any) -> Any:
        if self._is_in_obs:
            return obs.get(MASK) if isinstance(obs, dict) else None
        if self._has_method:
            return self.env.get_wrapper_attr("action_masks")()
        return info.get(MASK) if isinstance(info, dict) else None


def keep_lawful(space: Space, actions: Array, leaves: Leaves) -> None:
    """Made-up actions [B, ...], as slabs hold them, changed to the first that is allowed where a mask forbids them."""
    mask = leaves.get(f"obs/{MASK}")
    if mask is None:
        return
    columns, start = actions.reshape(len(actions), -1).copy(), 0
    for i, count in enumerate(choices_of(space)):
        allowed = mask[:, start : start + count] > 0
        is_lawful = np.take_along_axis(allowed, columns[:, i : i + 1].astype(np.int64), 1)[:, 0]
        columns[:, i] = np.where(is_lawful, columns[:, i], allowed.argmax(1))
        start += count
    actions[...] = columns.reshape(actions.shape)


def _counts(space: gym.Space[Any]) -> tuple[int, ...]:
    match space:
        case gym.spaces.Discrete():
            return (int(space.n),)
        case gym.spaces.MultiDiscrete():
            return tuple(int(n) for n in np.asarray(space.nvec).reshape(-1))
        case gym.spaces.MultiBinary():
            return (2,) * int(np.prod(space.shape))
    raise UsageError(
        f"action_masks: expected Discrete, MultiDiscrete or MultiBinary actions, got {type(space).__name__}; leave "
        f"action_masks out"
    )
