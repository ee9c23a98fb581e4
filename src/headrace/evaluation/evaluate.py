"""Evaluation: n whole episodes of a policy, on environments and seeds of their own.

    VectorEnv (evaluation branch of the seed tree) + act --> returns and lengths of exactly n episodes

Environment i plays the i-th share of the episodes (as SB3 does), so that short episodes are not over-represented.
Does not know what acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.successes import Successes
from headrace.envs.vector_env import EnvFailure, VectorEnv
from headrace.errors import EnvError, NumericsError
from headrace.evaluation.lone_row import lone_row
from headrace.memory.schema import DROPPED_END
from headrace.memory.spaces import Leaves, in_words

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Evaluated:
    """Returns and lengths, in the order in which episodes ended."""

    returns: list[float]
    lengths: list[int]
    successes: list[bool] = field(default_factory=list)
    """Of the episodes whose environment said whether it was one."""

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
    act: Callable[[Leaves, int, Array, Array], None],
    n_episodes: int,
    callback: Callable[[int], None] | None = None,
    successes: Successes | None = None,
) -> Evaluated:
    """Play `n_episodes`. act(obs, row number, out, starts) writes actions; callback gets the episodes done.

    `successes` watches the environments.
    """
    n = envs.num_envs
    targets = np.array([(n_episodes + i) // n for i in range(n)])
    row = lone_row(envs.observation_space, envs.action_space, n)
    obs, action, following = row.obs, row.action, row.next_obs
    total, length, played = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
    result = Evaluated([], [])
    number, starts = 0, np.ones(n, bool)  # of episodes
    try:
        envs.begin(obs)
        while (played < targets).any():
            act(obs, number, action, starts)
            envs.step(row, _ignore)
            _require_finite(row.reward, "reward", played, length)
            for name, leaf in following.items():
                _require_finite(leaf, f"{in_words(name)} that followed", played, length)
            total += row.reward * row.valid
            length += row.valid
            starts = row.terminated | row.truncated | ~row.valid
            is_dropped = row.step == DROPPED_END
            total[is_dropped], length[is_dropped] = 0.0, 0
            for env in np.flatnonzero((row.terminated | row.truncated) & row.valid):
                if played[env] < targets[env]:
                    result.returns.append(float(total[env]))
                    result.lengths.append(int(length[env]))
                    said = None if successes is None else successes.said(int(env))
                    result.successes.extend([] if said is None else [said])
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
    return f"evaluation, env {env}, episode {env}:{played[env]}, step {length[env]}"


def _ignore(env: int, obs: Any) -> None:
    """Final observations do not matter to an evaluation."""
