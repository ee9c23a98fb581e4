"""MlpPolicy and CnnPolicy: separate tanh towers for vectors, the Nature CNN for images, SB3's initialisation.

    obs --encode--> features --actor--> params -> distribution        --critic--> value

`act` runs the actor's half only. Parameters start from a given generator, so they are a function of the run's seed.
Does not know optimisers or tiles' sizes (it only says which is its largest sensible one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.memory.spaces import Box, Discrete, MultiDiscrete, Space, bounds, shape_of, size_of
from headrace.policies.config import PolicyConfig
from headrace.policies.distributions import DiagonalGaussian, distribution_for
from headrace.policies.policy import Evaluation, Policy, require_policy


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent as 2 * sigmoid(2x) - 1: the same to 1e-7, and on CPUs several times faster.

    Not for sizes that are no multiple of 32: there torch's sigmoid rounds the tail otherwise, and bits depend on place.
    """
    if x.numel() % 32:
        return torch.tanh(x)
    half = torch.sigmoid(x + x)
    return (half + half).sub_(1.0)


FEW_OUTPUTS = 12


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer whose bits do not depend on a row's place.

    With few outputs, and rows that do not start on 16 bytes, MKL rounds by place; the transposed product does not.
    """
    if len(weight) >= FEW_OUTPUTS:
        return F.linear(x, weight, bias)
    return torch.addmm(bias.unsqueeze(1), weight, x.t()).t()


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": F.relu}
_GAINS = {"tanh": math.sqrt(2), "relu": math.sqrt(2)}


class MlpPolicy(nn.Module):
    """Two separate towers over a flat observation."""

    largest_tile = 64

    def __init__(self, observation: Space, action: Space, config: PolicyConfig, generator: torch.Generator) -> None:
        super().__init__()
        if config.activation not in _ACTIVATIONS:
            raise UsageError(f"activation: expected one of {sorted(_ACTIVATIONS)}, got {config.activation!r}")
        self.encode = VectorEncoder(observation)
        self.distribution = distribution_for(action)
        self.noise = self.distribution.noise
        head, self.log_std = _head(action, config)
        gain, sizes = _GAINS[config.activation], [self.encode.size, *config.net_arch]
        self.actor = _tower([*sizes, head], gain, 0.01, generator)
        self.critic = _tower([*sizes, 1], gain, 1.0, generator)
        self.activation = config.activation
        self._activate = _ACTIVATIONS[config.activation]

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Actions, from the actor's tower alone."""
        return self.distribution.act(self._params(self.encode(obs)), noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """Both towers."""
        x = self.encode(obs)
        log_prob, entropy = self.distribution.evaluate(self._params(x), actions)
        return Evaluation(log_prob, entropy, self._run(self.critic, x).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        """The critic alone."""
        return self._run(self.critic, self.encode(obs)).squeeze(-1)

    def _params(self, x: Tensor) -> Tensor:
        return _with_log_std(self._run(self.actor, x), self.log_std)

    def _run(self, tower: nn.ModuleList, x: Tensor) -> Tensor:
        *hidden, head = tower
        for layer in hidden:
            x = self._activate(linear(x, layer.weight, layer.bias))  # type: ignore[arg-type]
        return linear(x, head.weight, head.bias)  # type: ignore[arg-type]


class CnnPolicy(nn.Module):
    """The Nature CNN, shared by actor and critic, over uint8 images of either layout."""

    largest_tile = 8

    def __init__(self, observation: Space, action: Space, config: PolicyConfig, generator: torch.Generator) -> None:
        super().__init__()
        if not is_image(observation):
            raise UsageError(f"CnnPolicy: expected a uint8 image of 3 axes, got {observation}; use MlpPolicy")
        shape = shape_of(observation)
        self._channels_last = shape[-1] < shape[0]
        self._scale = ImageScale(observation)
        channels, *plane = (shape[-1], *shape[:-1]) if self._channels_last else shape
        if min(plane) < 36:
            raise UsageError(
                f"CnnPolicy: expected images of at least 36 x 36, got {plane[0]} x {plane[1]}; resize or use MlpPolicy"
            )
        self.convolutions = nn.ModuleList(
            [nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        )
        with torch.no_grad():
            flat = self._convolve(torch.zeros(1, channels, *plane)).shape[1]
        self.features = nn.Linear(flat, 512)
        self.distribution = distribution_for(action)
        self.noise = self.distribution.noise
        head, self.log_std = _head(action, config)
        self.actor, self.critic = nn.Linear(512, head), nn.Linear(512, 1)
        gains = [(layer, math.sqrt(2)) for layer in (*self.convolutions, self.features)]
        for layer, gain in [*gains, (self.actor, 0.01), (self.critic, 1.0)]:
            _initialise(layer, gain, generator)

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Actions; the critic's head is not run."""
        return self.distribution.act(_with_log_std(self.actor(self._encode(obs)), self.log_std), noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """One pass through the convolutions for both heads."""
        x = self._encode(obs)
        log_prob, entropy = self.distribution.evaluate(_with_log_std(self.actor(x), self.log_std), actions)
        return Evaluation(log_prob, entropy, self.critic(x).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        """The critic's head."""
        value: Tensor = self.critic(self._encode(obs)).squeeze(-1)
        return value

    def _encode(self, obs: Tensor) -> Tensor:
        x = self._scale(obs)
        x = x.permute(0, 3, 1, 2) if self._channels_last else x
        return F.relu(self.features(self._convolve(x)))

    def _convolve(self, x: Tensor) -> Tensor:
        for layer in self.convolutions:
            x = F.relu(layer(x))
        return x.flatten(1)


class ImageScale(nn.Module):
    """uint8 images to 0..1 by the bounds of their space: most are divided by 255, masks of 0 and 1 stay as they are."""

    low: Tensor
    span: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        assert isinstance(space, Box)
        low, high = (torch.from_numpy(one.astype("float32")) for one in bounds(space))
        self._is_usual = bool((low == 0).all() and (high == 255).all())
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("span", torch.where(high > low, high - low, 1.0), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """[N, ...] as float32."""
        x = images.to(torch.float32)
        return x / 255.0 if self._is_usual else (x - self.low) / self.span


class VectorEncoder(nn.Module):
    """Raw observations to a flat float32 vector: choices one-hot, uint8 images scaled by their bounds."""

    def __init__(self, observation: Space) -> None:
        super().__init__()
        self._space = observation
        self._scale = ImageScale(observation) if is_image(observation) else None
        self.is_vector = isinstance(observation, Box) and len(observation.shape) == 1 and observation.dtype == "float32"
        match observation:
            case Discrete():
                self.size = observation.n
            case MultiDiscrete():
                self.size = sum(observation.nvec)
            case _:
                self.size = size_of(observation)

    def forward(self, obs: Tensor) -> Tensor:
        """[N, size]."""
        if self.is_vector:
            return obs
        match self._space:
            case Discrete(n=n, start=start):
                return F.one_hot(obs.long() - start, n).to(torch.float32)
            case MultiDiscrete(nvec=nvec, start=start):
                columns = obs.reshape(obs.shape[0], -1).long() - torch.tensor(start)
                return torch.cat([F.one_hot(c, n) for c, n in zip(columns.unbind(-1), nvec, strict=True)], -1).to(
                    torch.float32
                )
        x = obs.to(torch.float32) if self._scale is None else self._scale(obs)
        return x.reshape(obs.shape[0], -1)


def is_image(space: Space) -> bool:
    """A uint8 Box of three axes."""
    return isinstance(space, Box) and len(space.shape) == 3 and space.dtype == "uint8"


def build_policy(config: PolicyConfig, observation: Space, action: Space, seed: int) -> nn.Module:
    """A freshly initialised policy by name."""
    name = config.policy
    if name == "auto":
        name = "CnnPolicy" if is_image(observation) else "MlpPolicy"
    kinds: dict[str, type[MlpPolicy] | type[CnnPolicy]] = {"MlpPolicy": MlpPolicy, "CnnPolicy": CnnPolicy}
    if name not in kinds:
        raise UsageError(f"policy: expected one of {sorted(kinds)} or auto, or a torch module, got {name!r}")
    policy = kinds[name](observation, action, config, torch.Generator().manual_seed(seed))
    require_policy(policy)
    return policy


def as_policy(module: nn.Module) -> Policy:
    """The module through the policy port."""
    require_policy(module)
    return module  # type: ignore[return-value]


def _head(action: Space, config: PolicyConfig) -> tuple[int, nn.Parameter | None]:
    """The actor's outputs, and the state-independent log standard deviation where actions are continuous."""
    distribution = distribution_for(action)
    if isinstance(distribution, DiagonalGaussian):
        size = distribution.params // 2
        return size, nn.Parameter(torch.full((size,), config.log_std_init))
    return distribution.params, None


def _with_log_std(out: Tensor, log_std: Tensor | None) -> Tensor:
    return out if log_std is None else torch.cat([out, log_std.expand_as(out)], -1)


def _tower(sizes: Sequence[int], gain: float, head_gain: float, generator: torch.Generator) -> nn.ModuleList:
    layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
    for layer in layers:
        _initialise(layer, head_gain if layer is layers[-1] else gain, generator)
    return layers


def _initialise(layer: nn.Module, gain: float, generator: torch.Generator) -> None:
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    nn.init.orthogonal_(layer.weight, gain, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
