"""The plain MLP's `act` without module calls: the same numbers into memory that is kept between calls.

A small policy spends most of its time on bookkeeping around a few tiny matrix products. This does the products alone.
Takes MlpPolicy over float vectors with Categorical or DiagonalGaussian actions; `supports` says so, everything else
acts through the policy's own `act`, which tests hold this equal to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headrace.policies.distributions import Categorical, DiagonalGaussian
from headrace.policies.networks import FEW_OUTPUTS, MlpPolicy


def supports(module: nn.Module) -> bool:
    """Whether this knows the policy. Subclasses may have changed anything, so they are not taken."""
    return (
        type(module) is MlpPolicy
        and module.encode.is_vector
        and isinstance(module.distribution, Categorical | DiagonalGaussian)
    )


class PlainMlpAct:
    """Acts on tiles of one size. Reads the module's parameters in place, so loading new weights is seen."""

    def __init__(self, module: MlpPolicy, tile: int) -> None:
        layers = [layer for layer in module.actor if isinstance(layer, nn.Linear)]
        self._log_std = None if module.log_std is None else module.log_std.detach()
        self._layers = [_Product(layer, tile) for layer in layers]
        self._scale, self._activate = _activation(module.activation, tile)

    def __call__(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Actions of one tile; the result is overwritten by the next call."""
        out = self.forward(obs)
        if self._log_std is None:
            return torch.argmax(out if noise is None else out.add_(noise), 1)
        return out if noise is None else out.addcmul_(noise, self._log_std.exp())

    def forward(self, obs: Tensor) -> Tensor:
        """The actor's head: logits or means."""
        *hidden, head = self._layers
        x = obs
        for layer in hidden:
            x = self._activate(layer(x, self._scale))
        return head(x, 1.0)


class _Product:
    """One layer's product, as `networks.linear` does it, into memory of its own."""

    def __init__(self, layer: nn.Linear, tile: int) -> None:
        weight, bias = layer.weight.detach(), layer.bias.detach()
        self._is_narrow = len(bias) < FEW_OUTPUTS
        self._weight = weight if self._is_narrow else weight.t()
        self._bias = bias.unsqueeze(1) if self._is_narrow else bias
        self._out = torch.empty(len(bias), tile) if self._is_narrow else torch.empty(tile, len(bias))

    def __call__(self, x: Tensor, scale: float) -> Tensor:
        if self._is_narrow:
            return torch.addmm(self._bias, self._weight, x.t(), beta=scale, alpha=scale, out=self._out).t()
        return torch.addmm(self._bias, x, self._weight, beta=scale, alpha=scale, out=self._out)


def _activation(name: str, tile: int) -> tuple[float, Callable[[Tensor], Tensor]]:
    """The cheapest way to the activation at this size, and what the products before it are scaled by."""
    if name == "relu":
        return 1.0, Tensor.relu_
    if tile <= _SMALL_TILE or tile % 32:  # see networks.tanh
        return 1.0, Tensor.tanh_
    return 2.0, lambda y: torch.add(_MINUS_ONE, y.sigmoid_(), alpha=2.0, out=y)


_MINUS_ONE = torch.tensor(-1.0)
_SMALL_TILE = 32  # rows up to which one slow tanh costs less than three quick operations
