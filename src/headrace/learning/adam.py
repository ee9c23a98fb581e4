"""Adam on one flat vector, in place, in one compiled pass.

The update of torch.optim.Adam, which tests hold this equal to. Written here because constructing torch's loads its
compiler (two seconds of every start) and its bookkeeping costs more per step than the arithmetic of a small policy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.compiler import compiled, summing
from headrace.errors import NumericsError
from headrace.learning.algorithm import require_moments

Array = npt.NDArray[Any]
BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-5  # PPO's eps, as SB3 and CleanRL have it


class Adam:
    """Owns the moments of a vector; reads its gradient from the tensor it was given."""

    def __init__(self, vector: Tensor, gradient: Tensor) -> None:
        self._vector, self._gradient = vector.detach().numpy(), gradient.numpy()
        self._mean, self._square = torch.zeros_like(vector), torch.zeros_like(vector)
        self._moments = self._mean.numpy(), self._square.numpy()
        self._steps = 0

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """One step against the gradient times `scale`."""
        self._steps += 1
        correction_1, correction_2 = 1 - BETA_1**self._steps, 1 - BETA_2**self._steps
        root = math.sqrt(correction_2)  # sqrt(v / c) + eps = (sqrt(v) + eps * sqrt(c)) / sqrt(c): one operation less
        numbers = (scale, BETA_1, BETA_2, learning_rate * root / correction_1, EPS * root)
        _step(self._vector, self._gradient, *self._moments, *(np.float32(number) for number in numbers))

    def clipped_step(self, learning_rate: float, max_grad_norm: float) -> float:
        """A step against the gradient, shortened to max_grad_norm; returns its length before. NaN is never applied."""
        norm = math.sqrt(_sum_of_squares(self._gradient))
        if not np.isfinite(norm):
            raise NumericsError(
                f"the gradient is not finite (norm {norm}) after {self._steps} minibatches; the parameters "
                f"are untouched. Lower learning_rate or check the scale of rewards and observations"
            )
        self.step(learning_rate, max_grad_norm / (norm + 1e-6) if norm > max_grad_norm else 1.0)
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The state by torch's names; empty before the first step."""
        if not self._steps:
            return {}
        return {"exp_avg": self._mean, "exp_avg_sq": self._square, "step": torch.tensor(float(self._steps))}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        require_moments(tensors, self._mean)
        for moment, name in ((self._mean, "exp_avg"), (self._square, "exp_avg_sq")):
            moment.copy_(tensors.get(name, torch.zeros(())))  # nothing: the state before the first step
        self._steps = int(tensors.get("step", 0))


@compiled
def _step(
    vector: Array, gradient: Array, mean: Array, square: Array,
    scale: np.float32, beta_1: np.float32, beta_2: np.float32, step: np.float32, eps: np.float32,
) -> None:  # fmt: skip
    one = np.float32(1)
    for i in range(len(vector)):
        g = gradient[i] * scale
        mean[i] += (one - beta_1) * (g - mean[i])
        square[i] = beta_2 * square[i] + (one - beta_2) * g * g
        vector[i] -= step * mean[i] / (np.sqrt(square[i]) + eps)


@summing
def _sum_of_squares(values: Array) -> float:
    total = 0.0
    for i in range(len(values)):
        total += float(values[i]) * float(values[i])
    return total
