"""Our own loop over single environments: the hot path for Python environments, and the only one with every guarantee.

    actions -> env.step, one after the other -> observations in one copy per row -> an ended episode is reset at once
               with its own leaf of the seed tree (class A: an environment is its seed and its actions)

It numbers its rows (episode, step in the episode), so a failure can be located. Checks what comes back (shape, casting)
because the environment is the user's code; NaNs are looked for per slab by the actor.
Does not know policies or slabs' lifetimes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_spaces import describe
from headrace.envs.vector_env import EnvFailure, FinalObs, LiveEpisode
from headrace.errors import EnvError, HeadraceError, ReplayError
from headrace.memory.slab import Row
from headrace.memory.spaces import Leaves, shape_of

Array = npt.NDArray[Any]
EpisodeSeed = Callable[[int, int], int]  # (env index, episode number) -> reset seed


class SerialEnvs:
    """B single environments of one shard. `make` is called B times."""

    skips_rows = False

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], env_indices: Sequence[int], seed_of: EpisodeSeed) -> None:
        self.num_envs = len(env_indices)
        self._indices = list(env_indices)
        self._seed_of = seed_of
        self._episode = np.zeros(self.num_envs, np.int64)
        self._step = np.zeros(self.num_envs, np.int64)
        self._envs: list[gym.Env[Any, Any]] = []
        try:
            for _ in env_indices:
                self._envs.append(make())
            env = self._envs[0]
            where = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
            self.observation_space = describe(env.observation_space, "observation", where)
            self.action_space = describe(env.action_space, "action", where)
        except BaseException:
            self.close()
            raise
        self._shape = shape_of(self.observation_space)
        self._as_sent = sender(self.action_space)
        self._steps = [env.step for env in self._envs]

    def begin(self, first: Leaves) -> None:
        """Start every environment's current episode."""
        self._write([self._reset(position) for position in range(self.num_envs)], first["obs"])

    def restore(self, live: Sequence[LiveEpisode], first: Leaves) -> None:
        """Replay every live episode to where its journal ends."""
        observations = []
        for position, episode in enumerate(live):
            self._episode[position], self._step[position] = episode.episode, len(episode.actions)
            if episode.seed != self._seed_of(self._indices[position], episode.episode):
                raise ReplayError(
                    f"env {episode.env_index}, episode {episode.episode}: the journal's seed {episode.seed} is not the "
                    f"seed tree's; the journal belongs to a run with another seed"
                )
            obs = self._reset(position)
            for count, action in enumerate(self._as_sent(episode.actions.copy())):  # it may change what it is sent
                try:
                    obs, _, terminated, truncated, _ = self._steps[position](action)
                except Exception as error:
                    raise EnvFailure(position, f"raised {type(error).__name__} in its replay: {error}") from error
                if terminated or truncated:
                    raise ReplayError(
                        f"env {episode.env_index}, episode {episode.episode}, seed {episode.seed}: ended at step "
                        f"{count} of {len(episode.actions)} journalled ones; the environment is not deterministic "
                        f"(see headrace check)"
                    )
            observations.append(obs)
        self._write(observations, first["obs"])

    def step(self, row: Row, final: FinalObs) -> None:
        """One step of every environment; an ended episode is followed by the first observation of the next."""
        observations: list[Any] = []
        rewards: list[Any] = []
        row.terminated.fill(False)
        row.truncated.fill(False)
        row.valid.fill(True)
        row.episode[:] = self._episode
        row.step[:] = self._step
        self._step += 1
        position = 0
        try:
            for step, action in zip(self._steps, self._as_sent(row.action), strict=True):
                obs, reward, terminated, truncated, _ = step(action)
                rewards.append(reward)
                if terminated or truncated:
                    row.terminated[position] = terminated
                    row.truncated[position] = truncated
                    if not terminated:
                        self._check(position, obs)
                        final(position, {"obs": obs})
                    self._episode[position] += 1
                    self._step[position] = 0
                    obs = self._reset(position)
                observations.append(obs)
                position += 1
        except (HeadraceError, EnvFailure):
            raise
        except Exception as error:
            raise EnvFailure(position, f"raised {type(error).__name__}: {error}") from error
        try:
            row.reward[:] = rewards
        except (TypeError, ValueError) as error:
            bad = next(i for i, reward in enumerate(rewards) if not _is_number(reward))
            raise EnvFailure(bad, f"returned the reward {rewards[bad]!r}, expected a number") from error
        self._write(observations, row.next_obs["obs"])

    def close(self) -> None:
        """Close every environment, whatever the others do."""
        envs, self._envs = self._envs, []
        failed: EnvError | None = None
        for index, env in zip(self._indices, envs, strict=False):
            try:
                env.close()
            except Exception as error:
                failed = failed or EnvError(f"env {index}: could not be closed: {type(error).__name__}: {error}")
                failed.__cause__ = failed.__cause__ or error
        if failed is not None:
            raise failed

    def _reset(self, position: int) -> Any:
        seed = self._seed_of(self._indices[position], int(self._episode[position]))
        try:
            obs, _ = self._envs[position].reset(seed=seed)
        except Exception as error:
            raise EnvFailure(position, f"reset(seed={seed}) raised {type(error).__name__}: {error}") from error
        return obs

    def _write(self, observations: list[Any], out: Array) -> None:
        """All observations into one row, in one copy; `concatenate` does the casting check."""
        shape = self._shape
        for position, obs in enumerate(observations):
            if getattr(obs, "shape", ()) != shape:
                self._check(position, obs)
        try:
            if shape:
                np.concatenate(observations, out=out.reshape(-1, *shape[1:]), casting="same_kind")
            else:
                np.copyto(out, observations, casting="same_kind")
        except (TypeError, ValueError) as error:
            for position, obs in enumerate(observations):
                self._check(position, obs)
            raise EnvFailure(0, f"observations can't be stored: {error}") from error

    def _check(self, position: int, obs: Any) -> None:
        expected = self.observation_space
        if np.shape(obs) != self._shape:
            raise EnvFailure(position, f"returned an observation of shape {np.shape(obs)}, expected {self._shape}")
        got = np.asarray(obs).dtype
        if not np.can_cast(got, expected.dtype, "same_kind"):
            raise EnvFailure(position, f"returned an observation of dtype {got}, expected {expected.dtype}")


def _is_number(reward: Any) -> bool:
    try:
        return np.ndim(reward) == 0 and not np.iscomplexobj(reward) and isinstance(float(reward), float)
    except (TypeError, ValueError):
        return False
