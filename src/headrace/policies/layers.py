"""Layers of the built-in policies: how they start, how they are stacked into towers, and how a tower runs.

    tower([inputs, 64, 64, outputs]) --run--> [N, outputs]

Parameters start from a given generator, so they are a function of the run's seed. Bits do not depend on a row's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.policies.activations import Activation

FEW_OUTPUTS = 12
GAIN = math.sqrt(2)  # of hidden layers, whatever their activation, as SB3 has it


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """A linear layer whose bits do not depend on a row's place.

    With few outputs, and rows that do not start on 16 bytes, MKL rounds by place; the transposed product does not.
    """
    if layer.out_features >= FEW_OUTPUTS:
        return F.linear(x, layer.weight, layer.bias)
    return torch.addmm(layer.bias.unsqueeze(1), layer.weight, x.t()).t()


def tower(sizes: Sequence[int], head_gain: float, generator: torch.Generator, is_orthogonal: bool) -> nn.ModuleList:
    """Linear layers from the first size to the last one, which is the head."""
    layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
    for layer in layers:
        initialise(layer, head_gain if layer is layers[-1] else GAIN, generator, is_orthogonal)
    return layers


def headed(sizes: Sequence[int], gain: float, generator: torch.Generator, is_orthogonal: bool) -> nn.Module:
    """What comes after the convolutions: a layer, or a tower of them."""
    if len(sizes) > 2:
        return tower(sizes, gain, generator, is_orthogonal)
    head = nn.Linear(sizes[0], sizes[1])
    initialise(head, gain, generator, is_orthogonal)
    return head


def run(layers: nn.Module, x: Tensor, activate: Activation) -> Tensor:
    """Through a layer or a tower."""
    if isinstance(layers, nn.Linear):
        one: Tensor = layers(x)
        return one
    *hidden, head = cast("Iterable[nn.Linear]", layers)
    for layer in hidden:
        x = activate(linear(x, layer))
    return linear(x, head)


def initialise(layer: nn.Module, gain: float, generator: torch.Generator, is_orthogonal: bool) -> None:
    """Orthogonal weights and biases of 0, or as torch starts its layers."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert layer.bias is not None
    if is_orthogonal:
        nn.init.orthogonal_(layer.weight, gain, generator)
        nn.init.zeros_(layer.bias)
    else:  # as torch does it, from this generator
        bound = 1 / math.sqrt(layer.weight[0].numel())
        for parameter in (layer.weight, layer.bias):
            nn.init.uniform_(parameter, -bound, bound, generator)
