"""Distributions over actions: the head a network needs, and act / log_prob / entropy of what comes out of it.

    network -> params [N, P] --act(params, noise)--> actions     --evaluate(params, actions)--> log_prob, entropy [N]

Sampling is a pure function of the parameters and given noise. Without noise `act` gives the mode.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.memory.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, size_of
from headrace.policies.noise_spec import NoiseSpec

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """A family of distributions over one action space."""

    params: int  # P, the width of the network's head
    noise: NoiseSpec

    def act(self, params: Tensor, noise: Tensor | None) -> Tensor: ...

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]: ...


class Categorical:
    """One choice of n, by logits; sampled as the argmax of logits plus Gumbel noise."""

    def __init__(self, n: int) -> None:
        self.params = n
        self.noise = NoiseSpec("gumbel", n)

    def act(self, params: Tensor, noise: Tensor | None) -> Tensor:
        """[N] choices."""
        return (params if noise is None else params + noise).argmax(-1)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy, [N] each."""
        log_p = F.log_softmax(params, -1)
        return log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


class MultiCategorical:
    """Several independent choices; logits of all of them side by side."""

    def __init__(self, nvec: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self.params = sum(nvec)
        self.noise = NoiseSpec("gumbel", self.params)
        self._parts = [Categorical(n) for n in nvec]
        self._nvec, self._shape = list(nvec), shape

    def act(self, params: Tensor, noise: Tensor | None) -> Tensor:
        """[N, *shape] choices."""
        scores = params if noise is None else params + noise
        return torch.stack([part.argmax(-1) for part in self.parts(scores)], -1).reshape(-1, *self._shape)

    def parts(self, params: Tensor) -> tuple[Tensor, ...]:
        """The logits of each choice."""
        parts: tuple[Tensor, ...] = params.split(self._nvec, -1)
        return parts

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the choices, [N] each."""
        columns = actions.reshape(actions.shape[0], -1).unbind(-1)
        parts = [
            part.evaluate(logits, column)
            for part, logits, column in zip(self._parts, self.parts(params), columns, strict=True)
        ]
        return torch.stack([p[0] for p in parts]).sum(0), torch.stack([p[1] for p in parts]).sum(0)


class Bernoulli:
    """Independent bits, by logits; sampled by logistic noise."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.params = math.prod(shape)
        self.noise = NoiseSpec("logistic", self.params)
        self._shape = shape

    def act(self, params: Tensor, noise: Tensor | None) -> Tensor:
        """[N, *shape] bits."""
        return ((params if noise is None else params + noise) > 0).to(torch.int8).reshape(-1, *self._shape)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the bits, [N] each."""
        log_p1, log_p0 = F.logsigmoid(params), F.logsigmoid(-params)
        bits = actions.reshape(params.shape).to(params.dtype)
        entropy = -(log_p1.exp() * log_p1 + log_p0.exp() * log_p0)
        return (bits * log_p1 + (1 - bits) * log_p0).sum(-1), entropy.sum(-1)


class DiagonalGaussian:
    """Independent normals; params are mean and log standard deviation side by side."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = math.prod(shape)
        self.params = 2 * size
        self.noise = NoiseSpec("normal", size)
        self._shape = shape

    def act(self, params: Tensor, noise: Tensor | None) -> Tensor:
        """[N, *shape] numbers, not clipped."""
        mean, log_std = params.chunk(2, -1)
        actions = mean if noise is None else mean + log_std.exp() * noise
        return actions.reshape(-1, *self._shape)

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the entries, [N] each."""
        mean, log_std = params.chunk(2, -1)
        scaled = (actions.reshape(mean.shape) - mean) * (-log_std).exp()
        log_prob = -(0.5 * scaled.square() + log_std + HALF_LOG_2PI).sum(-1)
        return log_prob, (log_std + (0.5 + HALF_LOG_2PI)).sum(-1)


def distribution_for(space: Space) -> Distribution:
    """The distribution that PPO users expect for an action space."""
    match space:
        case Discrete():
            return Categorical(space.n)
        case MultiDiscrete():
            return MultiCategorical(space.nvec, space.shape)
        case MultiBinary():
            return Bernoulli(space.shape)
        case Box():
            assert size_of(space) > 0
            return DiagonalGaussian(space.shape)
