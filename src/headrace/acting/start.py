"""Where an actor begins: at the first episodes of its environments, or where a journal says that they stand.

    begin: reset all                                                            -> Carry
    go_on: replay the live episodes, compare last observations and checksums    -> Carry

Runs once in an actor's life. Does not know policies, slabs or journals' files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.acting.culprit import Culprit
from headrace.envs.vector_env import EnvFailure, LiveEpisode, VectorEnv
from headrace.memory.spaces import Leaves, empty_leaves


@dataclass
class Carry:
    """What goes over from one slab to the next."""

    obs: Leaves
    noise_counter: npt.NDArray[np.int64]


def begin(envs: VectorEnv, culprit: Culprit) -> Carry:
    """Start every environment's first episode."""
    first = empty_leaves(envs.observation_space, envs.num_envs)
    try:
        envs.begin(first)
    except EnvFailure as failure:
        raise culprit.at_start(failure) from (failure.__cause__ or failure)
    culprit.check_first(first)  # with nan_policy=drop or clamp they were mended
    return Carry(first, np.zeros(envs.num_envs, np.int64))


def go_on(
    envs: VectorEnv,
    culprit: Culprit,
    live: Sequence[LiveEpisode],
    last_obs: Leaves,
    noise_counter: npt.NDArray[np.int64],
) -> Carry:
    """Go on after the last commit: replay the live episodes and check that they end where they did."""
    replayed = {name: np.empty_like(leaf) for name, leaf in last_obs.items()}
    try:
        checksums = envs.restore(live, replayed)
    except EnvFailure as failure:
        raise culprit.in_replay(failure, live) from (failure.__cause__ or failure)
    culprit.check_replayed(live, replayed, last_obs, checksums)
    return Carry(replayed, np.array(noise_counter, np.int64))
