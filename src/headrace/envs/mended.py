"""nan_policy=drop and clamp: environments whose NaN and infinities are mended before a policy sees them.

    VectorEnv --Mended--> VectorEnv          nan_policy=raise needs none of this: the actor looks at whole slabs

    clamp  NaN becomes 0, an infinity the bound of its Box (no further than 1e6); the row stays valid
    drop   the episode of the bad step is dropped: its row is invalid (step DROPPED_END), and the next episode begins.
           A bad first observation dooms its episode: it is clamped, one step is taken, and the episode is dropped
           in that row. So every dropped episode has a row, and episodes are counted by their rows, as always.

Both are functions of what the environment returned: the same bits on every topology, after a kill and a resume.
`notes` collects what happened until the actor puts it into the slab's header. Does not know slabs: the earlier rows of
a dropped episode are marked by the actor's inspection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.clamping import Clamp
from headrace.envs.serial import SerialEnvs
from headrace.envs.vector_env import EnvFailure, FinalObs, LiveEpisode, VectorEnv
from headrace.errors import UsageError
from headrace.memory.layout import Row
from headrace.memory.schema import DROPPED_END
from headrace.memory.spaces import Leaves

Array = npt.NDArray[Any]

MOST_IN_A_ROW = 20  # dropped episodes of one environment without one that ended


@dataclass
class Notes:
    """What was mended since the last slab: steps, episodes, and the first place (position, episode, step)."""

    clamped: int = 0
    dropped: int = 0
    place: tuple[int, int, int] | None = None


def mended(envs: VectorEnv, nan_policy: str) -> VectorEnv:
    """The environments under this policy."""
    if nan_policy == "raise":
        return envs
    if nan_policy == "drop" and not isinstance(envs, SerialEnvs):
        envs.close()
        raise UsageError(
            "nan_policy=drop needs single environments: a vector environment can't be made to leave one of its "
            "episodes; use nan_policy=clamp, or pass the single environment"
        )
    return Mended(envs, is_dropping=nan_policy == "drop")


class Mended:
    """Other environments, without their NaN and infinities."""

    def __init__(self, envs: VectorEnv, is_dropping: bool) -> None:
        self._envs, self._is_dropping = envs, is_dropping
        self.num_envs, self.skips_rows, self.step_ns = envs.num_envs, envs.skips_rows, envs.step_ns
        self.observation_space, self.action_space = envs.observation_space, envs.action_space
        self._clamp_to = Clamp(envs.observation_space)
        self._is_doomed = np.zeros(envs.num_envs, np.bool_)  # its first observation was bad
        self._in_a_row = np.zeros(envs.num_envs, np.int64)
        self._bad_finals: set[int] = set()
        self.notes = Notes()

    def begin(self, first: Leaves) -> None:
        """Start every environment's first episode."""
        self._envs.begin(first)
        self._mend_first(first)

    def restore(self, live: Sequence[LiveEpisode], first: Leaves, clamp: Clamp | None = None) -> Sequence[int]:
        """Replay every live episode; what was mended in it is mended the same way again."""
        checksums = self._envs.restore(live, first, self._clamp_to)
        self._mend_first(first)
        return checksums

    def step(self, row: Row, final: FinalObs) -> None:
        """One step, mended."""
        self._bad_finals.clear()
        self._envs.step(row, lambda position, obs: self._take_final(position, obs, final))
        bad_reward, bad_obs = ~np.isfinite(row.reward), _bad(row.next_obs)
        if self._is_dropping:
            self._drop(row, bad_reward, bad_obs)
        else:
            self._clamp(row, bad_reward, bad_obs)

    def close(self) -> None:
        """Close every environment."""
        self._envs.close()

    def _take_final(self, position: int, obs: dict[str, Any], final: FinalObs) -> None:
        if all(np.isfinite(leaf).all() for leaf in obs.values()):
            final(position, obs)
            return
        self._bad_finals.add(position)
        if not self._is_dropping:
            final(position, {name: self._clamp_to.observations(name, np.array(leaf)) for name, leaf in obs.items()})

    def _clamp(self, row: Row, bad_reward: Array, bad_obs: Array) -> None:
        is_bad = bad_reward | bad_obs
        is_bad[list(self._bad_finals)] = True
        if not is_bad.any():
            return
        row.reward[:] = self._clamp_to.rewards(row.reward)
        for name, leaf in row.next_obs.items():
            leaf[bad_obs] = self._clamp_to.observations(name, leaf[bad_obs])
        self.notes.clamped += int(is_bad.sum())
        self._note(row, int(np.argmax(is_bad)))

    def _drop(self, row: Row, bad_reward: Array, bad_obs: Array) -> None:
        has_ended = row.terminated | row.truncated
        is_spoilt = self._is_doomed | bad_reward | (bad_obs & ~has_ended)
        is_spoilt[list(self._bad_finals)] = True
        self._is_doomed &= ~is_spoilt
        self._in_a_row[has_ended & ~is_spoilt] = 0
        self._doom(row.next_obs, bad_obs & has_ended)  # the first observations of the next episodes
        if not is_spoilt.any():
            return
        self._note(row, int(np.argmax(is_spoilt)))
        self.notes.dropped += int(is_spoilt.sum())
        for position in np.flatnonzero(is_spoilt).tolist():
            self._in_a_row[position] += 1
            if self._in_a_row[position] >= MOST_IN_A_ROW:
                raise EnvFailure(
                    position,
                    f"returned NaN or infinity in {MOST_IN_A_ROW} episodes in a row; nan_policy=drop is for single bad "
                    f"episodes. Mend the environment or use nan_policy=clamp",
                )
            if not has_ended[position]:  # else it was reset already
                assert isinstance(self._envs, SerialEnvs)
                self._envs.abandon(position, row.next_obs)
        self._doom(row.next_obs, _bad(row.next_obs) & is_spoilt & ~has_ended)
        row.reward[is_spoilt] = 0.0
        row.step[is_spoilt] = DROPPED_END
        for flags in (row.valid, row.terminated, row.truncated):
            flags[is_spoilt] = False

    def _mend_first(self, first: Leaves) -> None:
        is_bad = _bad(first)
        if self._is_dropping:
            self._doom(first, is_bad)
        elif is_bad.any():
            for name, leaf in first.items():
                leaf[is_bad] = self._clamp_to.observations(name, leaf[is_bad])
            self.notes.clamped += int(is_bad.sum())

    def _doom(self, first: Leaves, is_bad: Array) -> None:
        if is_bad.any():
            self._is_doomed |= is_bad
            for name, leaf in first.items():
                leaf[is_bad] = self._clamp_to.observations(name, leaf[is_bad])

    def _note(self, row: Row, position: int) -> None:
        if self.notes.place is None:
            self.notes.place = position, int(row.episode[position]), int(row.step[position])


def _bad(leaves: Leaves) -> Array:
    """Which environments' observations hold something that is not finite."""
    parts = [~np.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in leaves.values()]
    return np.asarray(np.logical_or.reduce(parts))
