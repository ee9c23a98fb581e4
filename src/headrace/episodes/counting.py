"""Which episode and which step of it every row of a slab is, worked out from the flags in one go.

    terminated, truncated, valid [T, B], counters before row 0  ->  episode, step [T, B], counters after row T-1

Row t belongs to the episode that was running before it; the row after an end begins the next one. Invalid rows
belong to nobody: they carry the number of the episode to come and step 0. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class Counters:
    """Per environment: the episode that is running and the steps it has taken."""

    episode: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]

    @classmethod
    def start(cls, n_envs: int) -> Counters:
        """Episode 0, step 0, everywhere."""
        return cls(np.zeros(n_envs, np.int64), np.zeros(n_envs, np.int64))


def number_rows(
    terminated: Array, truncated: Array, valid: Array, before: Counters, episode: Array, step: Array
) -> Counters:
    """Fill `episode` and `step` of every row; returns the counters after the last one."""
    ended = (terminated | truncated) & valid
    ends_before = np.zeros_like(ended, np.int64)
    np.cumsum(ended[:-1], axis=0, out=ends_before[1:])
    valid_until = np.cumsum(valid, axis=0)  # real steps up to and including row t
    valid_before = valid_until - valid
    rows = np.arange(len(ended))[:, None]
    last_end = np.maximum.accumulate(np.where(ended, rows, -1), axis=0)  # last end at or before row t
    last_end_before = np.vstack([np.full((1, ended.shape[1]), -1), last_end[:-1]])
    taken_at_end = np.take_along_axis(valid_until, np.maximum(last_end_before, 0), axis=0)
    episode[:] = before.episode + ends_before
    step[:] = np.where(last_end_before < 0, before.step + valid_before, valid_before - taken_at_end)
    final_end = last_end[-1]
    final_taken = np.take_along_axis(valid_until, np.maximum(final_end, 0)[None], axis=0)[0]
    return Counters(
        before.episode + ended.sum(0),
        np.where(final_end < 0, before.step + valid_until[-1], valid_until[-1] - final_taken),
    )
