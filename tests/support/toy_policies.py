"""Policies of a user's own, as the port in headrace.policies.policy asks for them; and ones that break its rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.memory.spaces import Space
from headrace.policies.config import PolicyConfig
from headrace.policies.distributions import DiagonalGaussian, distribution_for
from headrace.policies.features import VectorEncoder
from headrace.policies.networks import MlpPolicy
from headrace.policies.policy import Evaluation


class OwnPolicy(nn.Module):
    """One shared layer with a residual, both heads on it; any action space. Nothing of headrace's networks."""

    largest_tile = 16

    def __init__(self, observation: Space, action: Space, width: int = 24) -> None:
        super().__init__()
        self.encode = VectorEncoder(observation)
        self.distribution = distribution_for(action)
        self.noise = self.distribution.noise
        self.into = nn.Linear(self.encode.size, width)
        self.mix = nn.Linear(width, width)
        gaussian = isinstance(self.distribution, DiagonalGaussian)
        self.heads = nn.Linear(width, (self.noise.width if gaussian else self.distribution.params) + 1)
        self.spread = nn.Parameter(torch.full((self.noise.width,), -0.5)) if gaussian else None

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        return self.distribution.act(self._outputs(obs)[0], noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        params, value = self._outputs(obs)
        log_prob, entropy = self.distribution.evaluate(params, actions)
        return Evaluation(log_prob, entropy, value)

    def value(self, obs: Tensor) -> Tensor:
        return self._outputs(obs)[1]

    def _outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.nn.functional.silu(self.into(self.encode(obs)))
        out = self.heads(x + torch.tanh(self.mix(x)))
        params = out[:, :-1]
        if self.spread is not None:
            params = torch.cat([params, self.spread.expand_as(params)], -1)
        return params, out[:, -1]


def own_policy(observation: Space, action: Space, seed: int = 0, **kwargs: Any) -> OwnPolicy:
    """Initialised from a seed, without leaving a trace in torch's global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return OwnPolicy(observation, action, **kwargs)


class SubclassedMlp(MlpPolicy):
    """An MlpPolicy with something of its own: the closed form does not know about it."""

    def value(self, obs: Tensor) -> Tensor:
        return 2.0 * super().value(obs)


def mlp_policy(observation: Space, action: Space, seed: int = 0, **config: Any) -> MlpPolicy:
    """The plain one, without a run around it."""
    return MlpPolicy(observation, action, PolicyConfig(**config), torch.Generator().manual_seed(seed))


class NeighbourlyPolicy(OwnPolicy):
    """Breaks the rule that a row knows nothing of its neighbours, as batch normalisation on batch statistics does."""

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        params = self._outputs(obs)[0]
        return self.distribution.act((params - params.mean(0)) / (params.std(0) + 1e-5), noise)


class PlacedPolicy(OwnPolicy):
    """Breaks the rule that a row does not know its place in the tile."""

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        params = self._outputs(obs)[0] + torch.arange(len(obs)).unsqueeze(-1)
        return self.distribution.act(params * torch.linspace(-1, 1, params.shape[-1]), noise)


class RollingPolicy(OwnPolicy):
    """Breaks the rule that all randomness comes from the noise it is given."""

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        params = self._outputs(obs)[0]
        return self.distribution.act(params + torch.randn_like(params), noise)


class WhisperingPolicy(OwnPolicy):
    """Knows its neighbours by the last bits only: no argmax shows it today, some later one will."""

    def _outputs(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        params, value = super()._outputs(obs)
        return params + 1e-6 * params.mean(0), value


class Tiring(OwnPolicy):
    """Acts 30 times in a process, then raises."""

    calls = 0

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        self.calls += 1
        if self.calls > 30:
            raise ValueError("acted 30 times, and is tired")
        return super().act(obs, noise)
