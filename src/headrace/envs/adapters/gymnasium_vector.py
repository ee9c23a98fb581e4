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
from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation
from headrace.envs.clamping import Clamp
from headrace.envs.raising import failure
from headrace.envs.returns import Returns
from headrace.envs.vector_env import EnvFailure, FinalObs, LiveEpisode
from headrace.errors import EnvError, ReplayError
from headrace.memory.crash_note import CLOSE, DOING, NOTHING, RESET, STEP, CrashNote
from headrace.memory.layout import Row
from headrace.memory.spaces import Leaves

Array = npt.NDArray[Any]


class GymnasiumVector:
    """A gymnasium.vector.VectorEnv of one shard."""

    def __init__(
        self,
        envs: gym.vector.VectorEnv[Any, Any, Any],
        env_indices: Sequence[int],
        seed_of: Callable[[int, int], int],
        note: CrashNote | None = None,
        name: str = "",
        is_seeded: bool = False,
    ) -> None:
        """`is_seeded`: it got its seeds when it was made."""
        self._name, mode = name or type(envs).__name__, envs.metadata.get("autoreset_mode")
        try:
            if not isinstance(mode, AutoresetMode):
                raise EnvError(
                    f"{self._name}: expected an AutoresetMode in metadata['autoreset_mode'], got {mode!r}; see "
                    f"gymnasium.vector.AutoresetMode"
                )
            self.observation_space = describe_observation(envs.single_observation_space, self._name)
            self.action_space = describe_action(envs.single_action_space, self._name)
        except BaseException:
            envs.close()
            raise
        self.num_envs, self._is_seeded = envs.num_envs, is_seeded
        self.skips_rows = mode is AutoresetMode.NEXT_STEP
        self.step_ns = np.zeros(self.num_envs)  # not known: they step together
        self._mode = mode
        self._envs: Any = envs  # Gymnasium's annotations know one int as seed; its code takes a list, and None in it
        self._indices = list(env_indices)
        self._seed_of = seed_of
        self._returns = Returns(self.observation_space)
        self._as_sent = sender(self.action_space)
        note = note or CrashNote(self.num_envs)
        self._note, self._episode, self._step = note.words, note.episode, note.step
        self._note[DOING] = NOTHING
        self._resetting = np.zeros(self.num_envs, np.bool_)

    def begin(self, first: Leaves) -> None:
        """Reset all, each with its own leaf of the seed tree; a pool that takes one number gets its first one's."""
        if self._is_seeded:
            _write(self._reset(), first)
            return
        seeds = [self._seed_of(index, 0) for index in self._indices]
        try:
            obs = self._reset(seed=seeds)
        except EnvFailure as failure:
            if not any(word in str(failure.__cause__).lower() for word in ("seed", "list")):
                raise  # another failure must not be hidden because the second reset happens to work
            try:
                obs = self._reset(seed=seeds[0])
            except EnvFailure:
                raise failure from failure.__cause__
        _write(obs, first)

    def restore(self, live: Sequence[LiveEpisode], first: Leaves, clamp: Clamp | None = None) -> Sequence[int]:
        """Refused: a pool that resets itself can't be put back into an episode."""
        raise ReplayError(
            f"{self._name} is class B (it resets itself): recovery and resume of live episodes are not "
            f"possible; pass the single environment (an id or a factory without num_envs) to get them, or load the "
            f"weights alone (PPO.load(..., weights_only=True))"
        )

    def step(self, row: Row, final: FinalObs) -> None:
        """One step of the pool, in the common format."""
        row.episode[:] = self._episode
        row.step[:] = self._step
        self._step += ~self._resetting
        self._note[DOING] = STEP
        returns, n = self._returns, self.num_envs
        try:
            obs, reward, terminated, truncated, infos = self._envs.step(np.array(self._as_sent(row.action)))
        except BaseException as error:
            raise self._somewhere(error) from error
        row.valid[:] = ~self._resetting
        row.reward[:] = np.where(self._resetting, 0.0, returns.pool_rewards(reward, n))
        row.terminated[:] = returns.flags("terminated", terminated, n) & ~self._resetting
        row.truncated[:] = returns.flags("truncated", truncated, n) & ~self._resetting
        obs = returns.observations(obs, n)
        self._note[DOING] = NOTHING
        ended = row.terminated | row.truncated
        for position in np.flatnonzero(row.truncated & ~row.terminated):
            last = {name: leaf[position] for name, leaf in obs.items()}
            if self._mode is AutoresetMode.SAME_STEP:
                last = returns.observation(int(position), _final_obs(infos, int(position)))
            final(int(position), last)
        self._episode += ended
        self._step[ended] = 0
        if self._mode is AutoresetMode.DISABLED and ended.any():
            seeds = [
                self._seed_of(index, int(episode)) if over else None
                for index, episode, over in zip(self._indices, self._episode, ended, strict=True)
            ]
            obs = self._reset(seed=seeds, options={"reset_mask": ended.copy()})
        self._resetting = ended if self.skips_rows else self._resetting
        _write(obs, row.next_obs)

    def close(self) -> None:
        """Close the pool."""
        self._note[DOING] = CLOSE
        try:
            self._envs.close()
        except BaseException as error:
            why = failure(0, self._indices[0], error).reason.removeprefix("raised ")
            raise EnvError(f"{self._name}: could not be closed: {why}") from error
        self._note[DOING] = NOTHING

    def _reset(self, **arguments: Any) -> Leaves:
        self._note[DOING] = RESET
        try:
            obs, _ = self._envs.reset(**arguments)
        except BaseException as error:
            raise self._somewhere(error) from error
        self._note[DOING] = NOTHING
        return self._returns.observations(obs, self.num_envs)

    def _somewhere(self, error: BaseException) -> EnvFailure:
        """A pool does not say which of its environments it was."""
        return failure(0, self._indices[0], error, "(or another one of its pool)")


def _write(obs: Leaves, out: Leaves) -> None:
    for name, leaf in out.items():
        leaf[...] = obs[name]


def _final_obs(infos: Any, position: int) -> Any:
    try:
        return infos["final_obs"][position]
    except Exception as error:
        raise EnvFailure(position, "was truncated in same-step mode without an info['final_obs']") from error
