"""Adam where the parameters lie on another device than the CPU: the same update as `learning/adam`, by torch.

Reads one number back a step, the gradient's length: a gradient that is not finite is never applied.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.errors import NumericsError
from headrace.learning.adam import BETA_1, BETA_2, EPS, Adam


def adam_for(vector: Tensor, gradient: Tensor) -> Adam:
    """The optimiser of a flat vector, wherever it is."""
    return (Adam if vector.device.type == "cpu" else DeviceAdam)(vector, gradient)


class DeviceAdam(Adam):
    """Its state is Adam's; vector, gradient and moments stay tensors."""

    _vector: Tensor  # type: ignore[assignment]
    _gradient: Tensor  # type: ignore[assignment]

    def __init__(self, vector: Tensor, gradient: Tensor) -> None:
        self._vector, self._gradient = vector.detach(), gradient
        self._mean, self._square = torch.zeros_like(self._vector), torch.zeros_like(self._vector)
        self._steps = 0

    def step(self, learning_rate: float, scale: float = 1.0) -> None:
        """One step against the gradient times `scale`."""
        self._steps += 1
        correction_1, correction_2 = 1 - BETA_1**self._steps, 1 - BETA_2**self._steps
        root = math.sqrt(correction_2)
        gradient = self._gradient * scale
        self._mean.lerp_(gradient, 1 - BETA_1)
        self._square.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
        denominator = self._square.sqrt().add_(EPS * root)
        self._vector.addcdiv_(self._mean, denominator, value=-learning_rate * root / correction_1)

    def clipped_step(self, learning_rate: float, max_grad_norm: float) -> float:
        """A step against the gradient, shortened to max_grad_norm; returns its length before. NaN is never applied."""
        norm = float(torch.linalg.vector_norm(self._gradient))
        if not math.isfinite(norm):
            raise NumericsError(
                f"the gradient is not finite (norm {norm}) after {self._steps} minibatches; the parameters "
                f"are untouched. Lower learning_rate or check the scale of rewards and observations"
            )
        self.step(learning_rate, max_grad_norm / (norm + 1e-6) if norm > max_grad_norm else 1.0)
        return norm
