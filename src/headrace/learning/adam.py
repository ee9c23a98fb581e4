"""Adam on one flat vector, in place.

The update of torch.optim.Adam, which tests hold this equal to. Written here because constructing torch's loads its
compiler (two seconds of every start) and its bookkeeping costs more per step than the arithmetic of a small policy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Adam:
    """Owns the moments of a vector; reads its gradient from the tensor it was given."""

    def __init__(
        self, vector: Tensor, gradient: Tensor, eps: float = 1e-5, beta_1: float = 0.9, beta_2: float = 0.999
    ) -> None:
        self._vector, self._gradient = vector, gradient
        self._eps, self._beta_1, self._beta_2 = eps, beta_1, beta_2
        self._mean, self._square = torch.zeros_like(vector), torch.zeros_like(vector)
        self._scale = torch.zeros_like(vector)  # scratch
        self._steps = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step against the gradient."""
        self._steps += 1
        self._mean.lerp_(self._gradient, 1 - self._beta_1)
        self._square.mul_(self._beta_2).addcmul_(self._gradient, self._gradient, value=1 - self._beta_2)
        correction_1, correction_2 = 1 - self._beta_1**self._steps, 1 - self._beta_2**self._steps
        root = math.sqrt(correction_2)  # sqrt(v / c) + eps = (sqrt(v) + eps * sqrt(c)) / sqrt(c): one operation less
        torch.sqrt(self._square, out=self._scale).add_(self._eps * root)
        self._vector.addcdiv_(self._mean, self._scale, value=-learning_rate * root / correction_1)

    def tensors(self) -> dict[str, Tensor]:
        """The state by torch's names; empty before the first step."""
        if not self._steps:
            return {}
        return {"exp_avg": self._mean, "exp_avg_sq": self._square, "step": torch.tensor(float(self._steps))}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        if tensors:
            self._mean.copy_(tensors["exp_avg"])
            self._square.copy_(tensors["exp_avg_sq"])
            self._steps = int(tensors["step"])
