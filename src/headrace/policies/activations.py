"""Activations of hidden layers: names that a file can hold, the torch functions, and SB3's `activation_fn` classes.

    torch.nn.ELU --activation_named--> "elu" --activation--> a function whose bits do not depend on a row's place

Torch computes some functions in vectors of up to 32 numbers, and rounds the rest of an array otherwise. So what is no
multiple of 32 is filled up first, unless the function rounds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.policies.config import ACTIVATIONS

Activation = Callable[[Tensor], Tensor]

_VECTOR = 32
_CLASSES: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "selu": nn.SELU, "gelu": nn.GELU,
    "silu": nn.SiLU, "mish": nn.Mish, "softplus": nn.Softplus, "sigmoid": nn.Sigmoid, "identity": nn.Identity,
}  # fmt: skip
_EXACT = ("relu", "leaky_relu", "identity")


def is_traced() -> bool:
    """Whether torch records a graph for other sizes than these (torch.jit.trace, torch.export)."""
    is_tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return is_tracing or torch.compiler.is_compiling()


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent as 2 * sigmoid(2x) - 1: the same to 1e-7, and on CPUs several times faster.

    Not for sizes that are no multiple of 32: there torch's sigmoid rounds the tail otherwise, and bits depend on place.
    """
    if is_traced() or x.numel() % _VECTOR:
        return torch.tanh(x)
    half = torch.sigmoid(x + x)
    return (half + half).sub_(1.0)


def activation(name: str) -> Activation:
    """The function of a name."""
    if name == "tanh":
        return tanh
    if name == "relu":
        return F.relu
    function: Activation = _CLASSES[name]()
    return function if name in _EXACT else _Filled(function)


class _Filled:
    """A function of every number, on arrays that are filled up to whole vectors."""

    def __init__(self, function: Activation) -> None:
        self._function = function

    def __call__(self, x: Tensor) -> Tensor:
        missing = 0 if is_traced() else -x.numel() % _VECTOR
        if not missing:
            return self._function(x)
        return self._function(F.pad(x.reshape(-1), (0, missing)))[: x.numel()].reshape(x.shape)


def activation_named(given: Any) -> str:
    """The name of SB3's `activation_fn`, a torch class; a name is taken as well."""
    for name, kind in _CLASSES.items():
        if given is kind or given == name:
            return name
    known = ", ".join(f"torch.nn.{kind.__name__}" for kind in _CLASSES.values())
    raise UsageError(
        f"activation_fn: expected one of {known}, as a class and with its own defaults, got {given!r}; "
        f"for another one write a policy of your own"
    )


assert tuple(_CLASSES) == ACTIVATIONS
