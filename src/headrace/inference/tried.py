"""A policy on trial: some observations, and what it does with them. Knows no tests.

numbers of observations, noise --act--> actions        numbers of observations, actions --log_prob--> what is claimed
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from headrace.memory.spaces import Leaves, Space, as_seen, shape_of, size_of
from headrace.policies.noise import CounterNoise
from headrace.policies.noise_spec import NoiseSpec

Array = npt.NDArray[Any]

OBSERVATIONS = 8
LOG_ALARM = float(np.log(1e-9))
BUDGET_S = 0.25  # of the processor, for acting


class Tried:
    """A policy, some observations, and what it does with them."""

    def __init__(self, module: Any, obs: Leaves, action: Space) -> None:
        self._policy, self.action, self._obs = module, action, obs
        self.name = type(module).__name__
        self.spec: NoiseSpec = self._policy.noise
        self.counts = counts_of(action)
        self.weights = np.random.default_rng(4).integers(1, 1 << 62, len(self.counts)) | 1

    def draw(self, rows: int, start: int) -> Array:
        """Noise [rows, width], as training draws it."""
        return CounterNoise(self.spec, [(3, 5)]).draw(np.full(1, start), rows)[:, 0]

    def act(self, which: Array, noise: Array) -> Array:
        """Actions [rows, entries] for the observations of these numbers."""
        with torch.inference_mode():
            actions = self._policy.act(self._seen(which), torch.from_numpy(noise)).numpy()
        return np.asarray(actions).reshape(len(which), -1)

    def log_prob(self, which: Array, actions: Array) -> Array:
        """Claimed log-probabilities [rows]."""
        shaped = actions.reshape(len(actions), *shape_of(self.action)).astype(self.action.dtype)
        with torch.inference_mode():
            claimed = self._policy.evaluate(self._seen(which), torch.from_numpy(shaped)).log_prob.numpy()
        return np.asarray(claimed, np.float64)

    def _seen(self, which: Array) -> Any:
        return as_seen({name: torch.from_numpy(leaf[which]) for name, leaf in self._obs.items()})

    def is_sound(self) -> bool:
        """Whether its numbers are ones that can be tested."""
        which = np.arange(OBSERVATIONS)
        try:
            actions = self.act(which, self.draw(OBSERVATIONS, 0))
            return bool(np.isfinite(actions).all() and np.isfinite(self.log_prob(which, actions)).all())
        except Exception:
            return False  # parameters that were moved may be out of their range

    def spread(self) -> float:
        """By how much the log-probabilities of different actions differ, typically."""
        rng, which = np.random.default_rng(2), np.arange(OBSERVATIONS)
        tried = [self.log_prob(which, rng.integers(0, self.counts, (OBSERVATIONS, len(self.counts)))) for _ in range(4)]
        return float(np.median(np.ptp(tried, axis=0)))


def moved(module: nn.Module, scale: float) -> nn.Module:
    """A copy with other parameters: signs stay, and what was the same stays the same."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            factor = 1.25 * (scale if parameter.ndim > 1 else 1.0)
            parameter.copy_(torch.where(parameter == 0, torch.full_like(parameter, 0.1), parameter * factor))
    return other


def counts_of(action: Space) -> Array:
    """How many values each entry of a discrete action has, flat."""
    counts = getattr(action, "nvec", None) or getattr(action, "n", None) or (2,) * size_of(action)
    return np.atleast_1d(np.array(counts, np.int64))
