"""Rows of a rollout as the sequences that they are: cut where episodes start, brought together by length.

    starts [T, N] --Split--> buckets: rows [L, M] of M sequences of up to L rows · where every row came out

A fused layer takes sequences of one length. Short ones are filled up with their last row; a bucket holds lengths of up
to a factor of two, so that a long episode does not make all others as long. Numbers are found on the CPU and lie where
the rows do. Pure: numbers of rows, no arithmetic.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
_LITTLE_WASTE = 1.3  # times the rows that there are: one call for all is then the fastest


class Bucket(NamedTuple):
    """Sequences of about the same length."""

    length: int
    rows: Tensor  # [L * M], each t * N + n
    begins: Tensor  # [M], the environment whose state a sequence begins with; N: an episode starts there


class Split:
    """Sequences of [T, N] rows. Where `starts` says so, a row is the first of an episode."""

    def __init__(self, starts: Array, device: torch.device | None = None) -> None:
        self.n_steps, self.n_envs = starts.shape
        self._starts, self._device = starts, device  # None: the CPU

    @cached_property
    def going_on(self) -> tuple[Tensor, ...]:
        """Row by row, [N, 1]: 0 where an episode starts, else 1."""
        return self._there((~self._starts)[..., None].astype(np.float32)).unbind(0)

    @cached_property
    def buckets(self) -> list[Bucket]:
        """All sequences."""
        return self._made[0]

    @property
    def place(self) -> Tensor:
        """[T * N], where each row is among the rows of all buckets, one after the other."""
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[list[Bucket], Tensor]:
        steps, envs = self.n_steps, self.n_envs
        is_first = self._starts.T.copy()  # environment by environment
        is_first[:, 0] = True
        first = np.flatnonzero(is_first)
        length = np.diff(first, append=steps * envs)
        env, step = np.divmod(first, steps)
        begins = np.where((step == 0) & ~self._starts[0, env], env, envs)
        bucket = np.ceil(np.log2(length)).astype(np.int64)
        if len(length) * length.max() <= _LITTLE_WASTE * steps * envs:
            bucket[:] = 0
        place, buckets, done = np.empty(steps * envs, np.int64), [], 0
        for number in np.unique(bucket):
            some = np.flatnonzero(bucket == number)
            longest, count = int(length[some].max()), len(some)
            time = np.arange(longest)[:, None]
            rows = (step[some] + np.minimum(time, length[some] - 1)) * envs + env[some]  # [L, M]
            real = time < length[some]
            place[rows[real]] = done + np.flatnonzero(real)
            buckets.append(Bucket(longest, self._there(rows.reshape(-1)), self._there(begins[some])))
            done += longest * count
        return buckets, self._there(place)

    def _there(self, numbers: Array) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)
