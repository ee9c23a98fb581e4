"""What changes with normalisation around an algorithm: scaled rewards before it learns, observed statistics after.

    batch --rewards / std of discounted returns, clipped--> algorithm.learn --> the batch's observations are taken into
                                                                                the policy's statistics

Rewards of slabs stay raw, and so do the returns that users see. An environment's discounted return goes on from batch
to batch and is part of the algorithm's state. Observations change their statistics after the epochs, once per update
and in the order of environments: completion and training see the same ones, so the first ratio is 1, and it does not
matter where rollouts were collected. Does not know how statistics are applied to observations (policies/normalization).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.errors import CheckpointError
from headrace.learning.algorithm import Algorithm, Moment
from headrace.learning.batch import Batch
from headrace.learning.config import AlgorithmConfig
from headrace.policies.normalization import EPSILON, merged, normalizers

Array = npt.NDArray[Any]
_PREFIX = "rewards."


def normalizing(algorithm: Algorithm, module: nn.Module, config: AlgorithmConfig) -> Algorithm:
    """The algorithm, with what normalisation adds to it, if it adds anything."""
    if not (config.norm_reward or normalizers(module)):
        return algorithm
    return Normalizing(algorithm, module, Rewards(config.gamma, config.clip_reward) if config.norm_reward else None)


class Normalizing:
    """An algorithm that learns from normalised observations, normalised rewards, or both."""

    def __init__(self, algorithm: Algorithm, module: nn.Module, rewards: Rewards | None) -> None:
        self._algorithm, self._rewards, self._observed = algorithm, rewards, normalizers(module)
        self.threads, self.summary = algorithm.threads, algorithm.summary

    def learn(self, batch: Batch, moment: Moment) -> dict[str, float]:
        """One update."""
        seen = batch if self._rewards is None else replace(batch, reward=self._rewards.normalized(batch))
        record = self._algorithm.learn(seen, moment)
        for one in self._observed:
            one.take(batch.leaves, batch.valid)
        return record

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The algorithm's, and the statistics of rewards; those of observations are part of the policy."""
        state, tensors = self._algorithm.state()
        return state, tensors | ({} if self._rewards is None else self._rewards.tensors())

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
        if self._rewards is not None:
            self._rewards.restore(own)
        self._algorithm.restore(state, {name: tensor for name, tensor in tensors.items() if name not in own})


class Rewards:
    """The discounted return of every environment, and its running variance."""

    def __init__(self, gamma: float, clip: float) -> None:
        self._gamma, self._clip = gamma, clip
        self._mean, self._var, self._count = 0.0, 1.0, 0
        self._running: Array = np.zeros(0)  # of each environment: up to its last row

    def normalized(self, batch: Batch) -> Array:
        """A batch's rewards over the standard deviation of discounted returns, these rows included."""
        if not len(self._running):
            self._running = np.zeros(batch.n_envs)
        if len(self._running) != batch.n_envs:
            raise CheckpointError(
                f"the statistics of rewards: expected those of {batch.n_envs} environments, got {len(self._running)}; "
                f"use another checkpoint"
            )
        returns = np.empty(batch.reward.shape)
        for t in range(batch.n_steps):  # a row of step 0 begins an episode
            following = batch.reward[t] + self._gamma * self._running * (batch.step[t] > 0)
            self._running = returns[t] = np.where(batch.valid[t], following, self._running)
        seen = returns[batch.valid]
        if len(seen):
            self._mean, self._var = merged(self._mean, self._var, self._count, seen.mean(), seen.var(), len(seen))
        self._count += len(seen)
        scaled: Array = batch.reward / np.sqrt(self._var + EPSILON)
        return scaled.clip(-self._clip, self._clip).astype(np.float32)

    def tensors(self) -> dict[str, Tensor]:
        """What the next batch depends on."""
        arrays = {
            "running": self._running,
            "statistics": np.array([self._mean, self._var]),
            "count": np.array(self._count, np.int64),
        }
        return {f"{_PREFIX}{name}": torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        got = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
        forms = {name: (tensor.ndim, tensor.dtype) for name, tensor in got.items()}
        wanted = {"running": (1, torch.float64), "statistics": (1, torch.float64), "count": (0, torch.int64)}
        if forms != wanted or len(got["statistics"]) != 2 or not (got["statistics"][1] >= 0 and got["count"] >= 0):
            raise CheckpointError(
                f"the statistics of rewards: expected running, statistics and count, got {str(forms)[:200]}; use "
                f"another checkpoint, or leave norm_reward as the run had it"
            )
        self._running = got["running"].numpy().copy()
        self._mean, self._var = got["statistics"].tolist()
        self._count = int(got["count"])
