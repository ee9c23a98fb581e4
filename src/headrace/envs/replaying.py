"""One episode played again: an environment is sent recorded actions, and what it shows is summed up as the run did.

    first observation, actions as recorded --step--> rewards and flags · the last observation · the checksum so far

Serves whatever replays: a lost worker's successor, a resumed run, `headrace replay`. What it takes in is stored with
the dtypes of a slab first, so the same bytes go into the checksum. Never runs in a calm run.
Does not know what the checksum should be, nor where actions come from.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.actions import sender
from headrace.envs.clamping import Clamp
from headrace.envs.raising import failure
from headrace.envs.returns import Returns
from headrace.envs.vector_env import LiveEpisode
from headrace.errors import ReplayError
from headrace.memory.checksum import begin, extend
from headrace.memory.spaces import Leaves, ObservationSpace, Space, empty_leaves, shape_of, stored

Array = npt.NDArray[Any]
Step = Callable[[Any], tuple[Any, ...]]
_ROWS = 64  # taken in at a time


class Replay:
    """The episode of one environment, from its reset on. `position` is that of the environment in its shard."""

    def __init__(
        self,
        step: Step,
        first_obs: Any,
        spaces: tuple[ObservationSpace, Space],
        episode_id: tuple[int, int],
        position: int = 0,
        clamp: Clamp | None = None,
    ) -> None:
        self.obs = first_obs
        self.length = 0
        self.last_reward = 0.0  # of the last step, as slabs hold it
        self._step, self._position = step, position
        self._env_index, self._episode = episode_id
        self._space, action = spaces
        self._returns, self._clamp = Returns(self._space), clamp
        self._checksum = np.array([begin(*episode_id)], np.uint64)
        self._leaves = empty_leaves(self._space, _ROWS, 1)
        self._actions = np.empty((_ROWS, 1, *shape_of(action)), action.dtype)
        self._rewards = np.empty((_ROWS, 1), np.float32)
        self._flags = np.zeros((3, _ROWS, 1), np.bool_)  # terminated, truncated, valid
        self._flags[2] = True
        self._rows = 0  # not taken in yet
        self._cut: list[Leaves] = []  # the observation in which it was cut

    def step(self, action: Any, sent: Any) -> tuple[float, bool, bool]:
        """One step with an action as recorded, and as sent. Returns the reward as slabs hold it, and the flags."""
        row = self._rows
        for name, leaf in self.stored().items():  # before the step: an environment may reuse its arrays
            self._leaves[name][row, 0, ...] = leaf
        self._actions[row, 0] = action
        try:
            self.obs, reward, terminated, truncated, _ = self._step(sent)
        except BaseException as error:
            failed = failure(self._position, self._env_index, error)
            failed.step = self.length
            raise failed from error
        read = self._returns
        self._rewards[row, 0] = read.reward(self._position, reward)
        terminated = read.flag(self._position, "terminated", terminated)
        truncated = read.flag(self._position, "truncated", truncated)
        if self._clamp is not None:
            self._rewards[row] = self._clamp.rewards(self._rewards[row])
        self._flags[:2, row, 0] = terminated, truncated
        if truncated and not terminated:
            self._cut = [self.stored()]
        self._rows += 1
        self.length += 1
        if self._rows == _ROWS or terminated or truncated:
            self._take_in()
        self.last_reward = float(self._rewards[row, 0])
        return self.last_reward, bool(terminated), bool(truncated)

    @property
    def checksum(self) -> int:
        """Of the steps so far. After the last one it is the episode's."""
        self._take_in()
        return int(self._checksum[0])

    def _take_in(self) -> None:
        rows, self._rows = self._rows, 0
        if not rows:
            return
        final = empty_leaves(self._space, len(self._cut))
        for number, obs in enumerate(self._cut):
            for name, leaf in obs.items():
                final[name][number, ...] = leaf
        leaves = stored(self._space, {name: leaf[:rows] for name, leaf in self._leaves.items()})
        terminated, truncated, valid = self._flags[:, :rows]
        slab = SimpleNamespace(
            obs=leaves, action=self._actions[:rows], reward=self._rewards[:rows], terminated=terminated,
            truncated=truncated, valid=valid, episode=np.full((rows, 1), self._episode), step=np.zeros((rows, 1)),
            final_row=np.full(len(self._cut), rows - 1), final_obs=stored(self._space, final),
        )  # fmt: skip
        after = extend(self._checksum, self._env_index, slab)
        self._checksum[0] = after[-1, 0]  # not that of the episode that would follow

    def stored(self) -> Leaves:
        """The present observation, as a slab holds it."""
        read = self._returns.observation(self._position, self.obs)
        obs = {name: np.asarray(leaf, self._leaves[name].dtype) for name, leaf in read.items()}
        return (
            obs if self._clamp is None else {name: self._clamp.observations(name, leaf) for name, leaf in obs.items()}
        )


def require_seed(live: LiveEpisode, seed: int) -> None:
    """Refuse the journal of another run."""
    if live.seed != seed:
        raise ReplayError(
            f"env {live.env_index}, episode {live.name}: the journal's seed {live.seed} is not the "
            f"seed tree's; the journal belongs to a run with another seed"
        )


def bring_back(
    live: LiveEpisode,
    position: int,
    step: Step,
    first_obs: Any,
    spaces: tuple[ObservationSpace, Space],
    clamp: Clamp | None = None,
    counts: Array | None = None,
) -> Replay:
    """An environment that was just reset, brought to where its running episode stands.

    Its steps are counted in `counts`, at its position, as they are taken: a long replay is no hang.
    """
    replay = Replay(step, first_obs, spaces, (live.env_index, live.episode), position, clamp)
    sent = sender(spaces[1])(live.actions.copy())  # an environment may change what it is sent
    for count, actions in enumerate(zip(live.actions, sent, strict=True)):
        _, terminated, truncated = replay.step(*actions)
        if counts is not None:
            counts[position] = count + 1
        if terminated or truncated:
            raise ReplayError(
                f"env {live.env_index}, episode {live.name}, seed {live.seed}: ended at step {count} of "
                f"{len(live.actions)} journalled ones; the environment is not deterministic (see headrace check)"
            )
    return replay
