"""Evaluation: n whole episodes of a policy, on environments and seeds of their own.

    VectorEnv (evaluation branch of the seed tree) + act --> returns and lengths of exactly n episodes

Environment i plays the i-th share of the episodes (as SB3 does), so that short episodes are not over-represented.
Does not know what acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.vector_env import EnvFailure, VectorEnv
from headrace.errors import EnvError, NumericsError
from headrace.memory.schema import DROPPED_END
from headrace.memory.slab import Row
from headrace.memory.spaces import Leaves, empty_leaves, in_words, shape_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Evaluated:
    """Returns and lengths, in the order in which episodes ended."""

    returns: list[float]
    lengths: list[int]

    @property
    def mean_reward(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std_reward(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        """Mean length."""
        return float(np.mean(self.lengths))


def evaluate(
    envs: VectorEnv,
    act: Callable[[Leaves, int, Array], None],
    n_episodes: int,
    callback: Callable[[int], None] | None = None,
) -> Evaluated:
    """Play `n_episodes`. act(obs, row number, out) writes the actions; callback gets the episodes done so far."""
    n = envs.num_envs
    targets = np.array([(n_episodes + i) // n for i in range(n)])
    obs, following = empty_leaves(envs.observation_space, n), empty_leaves(envs.observation_space, n)
    action = np.empty((n, *shape_of(envs.action_space)), envs.action_space.dtype)
    terminated, truncated, valid = np.zeros((3, n), bool)
    episode, step = np.zeros((2, n), np.int64)
    row = Row(obs, action, np.zeros(n, np.float32), terminated, truncated, valid, episode, step, following)
    total, length, played = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
    result = Evaluated([], [])
    number = 0
    try:
        envs.begin(obs)
        while (played < targets).any():
            act(obs, number, action)
            envs.step(row, _ignore)
            _require_finite(row.reward, "reward", played, length)
            for name, leaf in following.items():
                _require_finite(leaf, f"{in_words(name)} that followed", played, length)
            total += row.reward * row.valid
            length += row.valid
            is_dropped = row.step == DROPPED_END
            total[is_dropped], length[is_dropped] = 0.0, 0
            for env in np.flatnonzero((row.terminated | row.truncated) & row.valid):
                if played[env] < targets[env]:
                    result.returns.append(float(total[env]))
                    result.lengths.append(int(length[env]))
                    if callback is not None:
                        callback(len(result.returns))
                played[env] += 1
                total[env], length[env] = 0.0, 0
            for name, leaf in following.items():
                obs[name][...] = leaf
            number += 1
    except EnvFailure as failure:
        raise EnvError(f"{_place(failure.position, played, length)}: the environment {failure.reason}") from (
            failure.__cause__ or failure
        )
    return result


def _require_finite(values: Array, what: str, played: Array, length: Array) -> None:
    finite = np.isfinite(values)  # of whole numbers, all are
    if not finite.all():
        bad = int(np.argmin(finite.reshape(len(values), -1).all(1)))
        raise NumericsError(f"{_place(bad, played, length)}: the {what} is {values[bad].tolist()}; expected numbers")


def _place(env: int, played: Array, length: Array) -> str:
    return f"evaluation, env {env}, episode {played[env]}, step {length[env]}"


def _ignore(env: int, obs: Any) -> None:
    """Final observations do not matter to an evaluation."""
