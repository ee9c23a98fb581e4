"""A row that belongs to no slab, for environments that are played without one."""

from __future__ import annotations

import numpy as np

from headrace.memory.layout import Row, flat
from headrace.memory.spaces import ObservationSpace, Space, empty_leaves, shape_of


def lone_row(observation: ObservationSpace, action: Space, n_envs: int) -> Row:
    """Fresh memory for one step of every environment."""
    obs, following = empty_leaves(observation, n_envs), empty_leaves(observation, n_envs)
    chosen = np.empty((n_envs, *shape_of(action)), action.dtype)
    terminated, truncated, valid = np.zeros((3, n_envs), bool)
    episode, step = np.zeros((2, n_envs), np.int64)
    reward = np.zeros(n_envs, np.float32)
    return Row(obs, chosen, reward, terminated, truncated, valid, episode, step, following, flat(following))
