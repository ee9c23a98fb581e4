"""Our own loop over single environments: the hot path for Python environments, and the only one with every guarantee.

    actions -> env.step, one after the other -> its observation copied at once -> an ended episode is reset at once
               with its own leaf of the seed tree (class A: an environment is its seed and its actions)

An observation is copied before the next environment steps: instances may share a buffer. The usual types are taken
here; everything else is read, or refused, by `returns`. It numbers its rows (episode, step in the episode), so a
failure can be located; it keeps them in its crash note, so a hang can be, too. NaNs are looked for per slab by the
actor. Does not know policies or slabs' lifetimes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.clock import now_ns
from headrace.envs.actions import sender
from headrace.envs.clamping import Clamp
from headrace.envs.opening import close_all, open_all
from headrace.envs.raising import after_reset, failure
from headrace.envs.replaying import bring_back, require_seed
from headrace.envs.returns import PLAIN, WHOLE, Returns
from headrace.envs.vector_env import EnvFailure, FinalObs, LiveEpisode
from headrace.errors import HeadraceError
from headrace.memory.crash_note import DOING, NOTHING, POSITION, REPLAY, RESET, STEP, CrashNote
from headrace.memory.layout import Row
from headrace.memory.spaces import Leaves

Array = npt.NDArray[Any]
EpisodeSeed = Callable[[int, int], int]  # (env index, episode number) -> reset seed
_ONE = np.array(1)  # added to an array, in half the time of Python's own 1
_NO: Any = np.False_  # numpy has one of it, as Python has one False
_TIMED_ROWS = 61  # in one of so many, steps are timed; a prime number: not the same row of every rollout
_FEW = 8  # timed steps that the mean is of


class SerialEnvs:
    """B single environments of one shard. `make` is called B times."""

    skips_rows = False

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        env_indices: Sequence[int],
        seed_of: EpisodeSeed,
        note: CrashNote | None = None,
    ) -> None:
        self.num_envs, self._indices, self._seed_of = len(env_indices), list(env_indices), seed_of
        note = note or CrashNote(self.num_envs)
        self._note, self._episode, self._step = note.words, note.episode, note.step
        self._envs, self.observation_space, self.action_space = open_all(make, self._indices, self._note)
        self._returns = Returns(self.observation_space)
        self._as_sent = sender(self.action_space)
        self._steps = [env.step for env in self._envs]
        self.step_ns, self._rows = np.zeros(self.num_envs), 0
        self._timed_steps = [_timed(step, position, self.step_ns) for position, step in enumerate(self._steps)]
        size = self._returns.usual.flat_size
        self._spans = [slice(size * position, size * (position + 1)) for position in range(self.num_envs)]
        self._is_flat = size > 0  # as long as environments return arrays of their space's own dtype
        self._pack: Callable[..., None] = struct.Struct(f"={self.num_envs}f").pack_into  # refuses what does not fit

    def begin(self, first: Leaves) -> None:
        """Start every environment's current episode."""
        for position in range(self.num_envs):
            self._returns.write(position, self._reset(position), first)

    def abandon(self, position: int, first: Leaves) -> None:
        """Leave an episode where it is and start the next one."""
        self._episode[position] += 1
        self._step[position] = 0
        self._returns.write(position, self._reset(position), first)

    def restore(self, live: Sequence[LiveEpisode], first: Leaves, clamp: Clamp | None = None) -> Sequence[int]:
        """Replay every live episode to where its journal ends; returns the checksums of the replays."""
        checksums, spaces = [], (self.observation_space, self.action_space)
        self._note[DOING] = REPLAY
        for position, one in enumerate(live):
            require_seed(one, self._seed_of(self._indices[position], one.episode))
            self._episode[position], self._step[position] = one.episode, 0
            replay = bring_back(one, position, self._steps[position], self._reset(position), spaces, clamp, self._step)
            self._returns.write(position, replay.obs, first)
            checksums.append(replay.checksum)
        self._note[DOING] = NOTHING
        return checksums

    def step(self, row: Row, final: FinalObs) -> None:
        """One step of every environment; an ended episode is followed by the first observation of the next."""
        rewards: list[Any] = []
        row.terminated.fill(False)
        row.truncated.fill(False)
        row.valid.fill(True)
        row.episode[...], row.step[...] = self._episode, self._step
        self._step += _ONE
        note, returns, usual = self._note, self._returns, self._returns.usual
        out, array, is_flat, flat = row.next_obs[usual.name], np.ndarray, self._is_flat, row.next_flat[usual.name]
        shape, fits, (least, beyond) = usual.usual_shape, usual.fits, usual.choices
        note[DOING], position = STEP, 0
        actions, self._rows = self._as_sent(row.action), self._rows + 1
        steps = self._steps if self._rows % _TIMED_ROWS else self._timed_steps
        try:
            for position, step, action, span in zip(range(self.num_envs), steps, actions, self._spans, strict=True):
                note[POSITION] = position
                obs, reward, terminated, truncated, _ = step(action)
                rewards.append(reward if type(reward) in PLAIN else returns.reward(position, reward))  # may be shared
                if (terminated is not False and terminated is not _NO) or (
                    truncated is not False and truncated is not _NO
                ):
                    obs = self._end(position, row, obs, terminated, truncated, final)
                if is_flat and type(obs) is array:
                    try:
                        flat[span] = obs  # copies, if dtype and shape are the space's own
                        continue
                    except ValueError:  # another dtype or shape
                        is_flat = self._is_flat = False
                if (type(obs) is array and obs.shape == shape and obs.dtype in fits) or (
                    type(obs) in WHOLE and least <= obs < beyond
                ):
                    out[position] = obs
                else:
                    returns.write(position, obs, row.next_obs)
        except (HeadraceError, EnvFailure) as error:
            raise after_reset(error, self._step) from error.__cause__
        except BaseException as error:
            raise failure(position, self._indices[position], error) from error
        if usual.is_ranged:
            usual.require_range(out)
        note[DOING] = NOTHING
        try:
            self._pack(row.reward, 0, *rewards)
        except (OverflowError, struct.error):
            returns.rewards(rewards)  # raises, and names the first that does not fit

    def close(self) -> None:
        """Close every environment, whatever the others do."""
        envs, self._envs = self._envs, []
        close_all(envs, self._indices, self._note)

    def _end(self, position: int, row: Row, obs: Any, terminated: Any, truncated: Any, final: FinalObs) -> Any:
        """A flag was not plainly False: if the episode has ended, the next one's first observation."""
        flag = self._returns.flag
        is_terminated = terminated is True or (terminated is not False and flag(position, "terminated", terminated))
        is_truncated = truncated is True or (truncated is not False and flag(position, "truncated", truncated))
        if not is_terminated and not is_truncated:
            return obs
        row.terminated[position], row.truncated[position] = is_terminated, is_truncated
        usual = self._returns.usual
        is_usual = type(obs) is np.ndarray and obs.shape == usual.usual_shape and obs.dtype is usual.dtype
        last = {usual.name: obs} if is_usual and not usual.is_ranged else self._returns.observation(position, obs)
        if not is_terminated:
            final(position, last)
        self._episode[position] += 1
        self._step[position] = 0
        return self._reset(position)

    def _reset(self, position: int) -> Any:
        seed = self._seed_of(self._indices[position], int(self._episode[position]))
        before, self._note[DOING], self._note[POSITION] = self._note[DOING], RESET, position
        try:
            returned: Any = self._envs[position].reset(seed=seed)
            obs, _ = returned
        except BaseException as error:
            raise failure(position, self._indices[position], error, f"reset(seed={seed})") from error
        if type(returned) is np.ndarray:  # an observation of two numbers, which Python unpacks
            raise EnvFailure(position, f"reset(seed={seed}) returned an array, expected 2 (observation, info)")
        self._note[DOING] = before
        return obs


def _timed(step: Callable[[Any], Any], position: int, step_ns: Array) -> Callable[[Any], Any]:
    """The same step, which adds its time to a mean over the last few: enough to find one slow environment of many."""

    def timed(action: Any) -> Any:
        began = now_ns()
        returned = step(action)
        mean_ns = step_ns[position]
        step_ns[position] += (now_ns() - began - mean_ns) / (_FEW if mean_ns else 1)
        return returned

    return timed
