"""Gymnasium vector environments in the common format, whatever their autoreset mode.

    next-step: the step after an end is a reset -> that row is invalid; the end's own row holds the final observation
    same-step: the end's row holds the reset observation -> the final one is in info["final_obs"]
    disabled:  we reset the ended ones ourselves, in the same row, with seeds from the tree

They reset themselves, so they are class B: seeded once per environment, the same bits on every topology, but an
episode can't be rebuilt from its seed, and `restore` says so. Read by the actor through the VectorEnv contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_spaces import describe
from headrace.envs.vector_env import EnvFailure, FinalObs, LiveEpisode
from headrace.errors import EnvError, ReplayError
from headrace.memory.slab import Row
from headrace.memory.spaces import Leaves, shape_of

Array = npt.NDArray[Any]


class GymnasiumVector:
    """A gymnasium.vector.VectorEnv of one shard."""

    def __init__(
        self, envs: gym.vector.VectorEnv[Any, Any, Any], env_indices: Sequence[int], seed_of: Callable[[int, int], int]
    ) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            envs.close()
            raise EnvError(
                f"{type(envs).__name__}: expected an AutoresetMode in metadata['autoreset_mode'], got {mode!r}"
            )
        where = envs.spec.id if envs.spec is not None else type(envs).__name__
        self.num_envs = envs.num_envs
        self.observation_space = describe(envs.single_observation_space, "observation", where)
        self.action_space = describe(envs.single_action_space, "action", where)
        self.skips_rows = mode is AutoresetMode.NEXT_STEP
        self._mode = mode
        self._envs: Any = envs  # Gymnasium's annotations know one int as seed; its code takes a list, and None in it
        self._indices = list(env_indices)
        self._seed_of = seed_of
        self._shape = shape_of(self.observation_space)
        self._as_sent = sender(self.action_space)
        self._episode = np.zeros(self.num_envs, np.int64)
        self._step = np.zeros(self.num_envs, np.int64)
        self._resetting = np.zeros(self.num_envs, np.bool_)

    def begin(self, first: Leaves) -> None:
        """Reset all, each with its own leaf of the seed tree."""
        self._write(self._reset(seed=[self._seed_of(index, 0) for index in self._indices]), first["obs"])

    def restore(self, live: Sequence[LiveEpisode], first: Leaves) -> None:
        """Refused: a pool that resets itself can't be put back into an episode."""
        raise ReplayError(
            f"{type(self._envs).__name__} is class B (it resets itself): recovery and resume of live episodes are not "
            f"possible; pass the single environment (an id or a factory without num_envs) to get them, or load the "
            f"weights alone (PPO.load(..., weights_only=True))"
        )

    def step(self, row: Row, final: FinalObs) -> None:
        """One step of the pool, in the common format."""
        row.episode[:] = self._episode
        row.step[:] = self._step
        try:
            obs, reward, terminated, truncated, infos = self._envs.step(self._as_sent(row.action))
            row.valid[:] = ~self._resetting
            row.reward[:] = np.where(self._resetting, 0.0, reward)
            row.terminated[:] = terminated & ~self._resetting
            row.truncated[:] = truncated & ~self._resetting
        except Exception as error:
            raise _somewhere(error) from error
        ended = row.terminated | row.truncated
        cut = np.flatnonzero(row.truncated & ~row.terminated)
        if self._mode is AutoresetMode.SAME_STEP:
            if len(cut) and "final_obs" not in infos:
                raise EnvFailure(int(cut[0]), "was truncated in same-step mode without an info['final_obs']")
            for position in cut:
                final(int(position), {"obs": infos["final_obs"][position]})
        else:
            for position in cut:
                final(int(position), {"obs": obs[position]})
        self._episode += ended
        self._step = np.where(ended, 0, self._step + row.valid)
        if self._mode is AutoresetMode.DISABLED and ended.any():
            seeds = [
                self._seed_of(index, int(episode)) if over else None
                for index, episode, over in zip(self._indices, self._episode, ended, strict=True)
            ]
            obs = self._reset(seed=seeds, options={"reset_mask": ended.copy()})
        self._resetting = ended if self.skips_rows else self._resetting
        self._write(obs, row.next_obs["obs"])

    def close(self) -> None:
        """Close the pool."""
        self._envs.close()

    def _reset(self, **arguments: Any) -> Any:
        try:
            obs, _ = self._envs.reset(**arguments)
        except Exception as error:
            raise _somewhere(error) from error
        return obs

    def _write(self, obs: Any, out: Array) -> None:
        if np.shape(obs) != (self.num_envs, *self._shape):
            raise EnvFailure(
                0, f"returned observations of shape {np.shape(obs)}, expected {(self.num_envs, *self._shape)}"
            )
        try:
            np.copyto(out, obs, casting="same_kind")
        except TypeError as error:
            raise EnvFailure(
                0, f"returned observations of dtype {np.asarray(obs).dtype}, expected {out.dtype}"
            ) from error


def _somewhere(error: Exception) -> EnvFailure:
    """A pool does not say which of its environments it was."""
    return EnvFailure(0, f"(or another one of its pool) raised {type(error).__name__}: {error}")
