"""One tower of the plain MLP, forward and back, with memory that is kept between calls.

    x -> (product -> activation)* -> hidden       dL/dhidden -> (activation -> products)* -> flat gradient

Products of whole minibatches are torch's; everything else is compiled (policies/kernels). The head belongs to whoever
uses the tower: the closed form joins it with the loss, completion with log-probabilities.
Does not know losses or rows' meaning.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.policies.kernels import KINDS, activate, through_activation

Array = npt.NDArray[Any]


class Both(NamedTuple):
    """The same memory, for torch and for compiled code. Allocated by torch, which aligns it (decision 0007)."""

    tensor: Tensor
    array: Array

    @classmethod
    def of(cls, tensor: Tensor) -> Both:
        """Two views of a tensor."""
        return cls(tensor, tensor.detach().numpy())


class Memory:
    """Hidden activations and what flows back to them, for at most two numbers of rows. Towers may share it."""

    def __init__(self, widths: list[int]) -> None:
        self._widths = widths
        self._kept: dict[int, tuple[list[Both], list[Both]]] = {}

    def of(self, rows: int) -> tuple[list[Both], list[Both]]:
        """Activations and gradients [rows, width] of every hidden layer."""
        if rows not in self._kept:
            if len(self._kept) > 1:  # sources that skip rows make last minibatches of every size
                self._kept.clear()
            self._kept[rows] = (
                [Both.of(torch.empty(rows, width)) for width in self._widths],
                [Both.of(torch.empty(rows, width)) for width in self._widths],
            )
        return self._kept[rows]


class Tower:
    """One MLP's hidden layers. Reads parameters in place; `gradients` are where `backward` writes, by layer."""

    def __init__(
        self,
        layers: nn.ModuleList,
        activation: str,
        memory: Memory,
        gradients: list[tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        *hidden, head = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self._layers = [(layer.weight.data, layer.bias.data) for layer in hidden]
        self.head_weight, self.head_bias = head.weight.detach().numpy(), head.bias.detach().numpy()
        self._kind = KINDS[activation]
        self._memory = memory
        self._inputs: list[Both] = []
        if gradients is not None:
            *hidden_gradients, (d_weight, d_bias) = gradients
            self._gradients = [(weight, bias.numpy()) for weight, bias in hidden_gradients]
            self.d_head_weight, self.d_head_bias = d_weight.numpy(), d_bias.numpy()

    def forward(self, x: Tensor) -> Array:
        """The last hidden activations [n, width], or x itself; kept for backward."""
        hidden, _ = self._memory.of(len(x))
        self._inputs = [Both.of(x), *hidden]
        for (weight, bias), before, after in zip(self._layers, self._inputs, hidden, strict=False):
            torch.addmm(bias, before.tensor, weight.t(), out=after.tensor)
            activate(after.array, self._kind)
        return self._inputs[-1].array

    def d_hidden(self) -> Array:
        """Where dL/dhidden belongs before `backward`."""
        _, scratch = self._memory.of(len(self._inputs[0].array))
        return scratch[-1].array if scratch else _NOTHING

    def backward(self) -> None:
        """From dL/dhidden to the gradients of every hidden layer."""
        _, scratch = self._memory.of(len(self._inputs[0].array))
        for i in range(len(self._layers) - 1, -1, -1):
            (weight, _), (d_weight, d_bias), d = self._layers[i], self._gradients[i], scratch[i]
            through_activation(d.array, self._inputs[i + 1].array, self._kind, d_bias)
            if i > 0:
                torch.mm(d.tensor.t(), self._inputs[i].tensor, out=d_weight)
                torch.mm(d.tensor, weight, out=scratch[i - 1].tensor)
            else:  # few columns: this order of the product is several times faster
                d_weight.copy_(torch.mm(self._inputs[0].tensor.t(), d.tensor).t())


_NOTHING = np.empty((0, 0), np.float32)
