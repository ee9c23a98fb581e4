"""MlpPolicy, CnnPolicy and MultiInputPolicy: extractor -> towers -> distribution, with SB3's start.

    obs --encode--> features --actor--> params -> distribution        --critic--> value

`act` runs the actor's half only. Parameters start from a given generator, so they are a function of the run's seed.
Does not know optimisers or tiles' sizes (it only says which is its largest sensible one).
"""

from __future__ import annotations

import difflib

import torch
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.memory.spaces import Dict, ObservationSpace, Space, in_short
from headrace.policies.activations import activation
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.config import BUILT_IN, RECURRENT, PolicyConfig
from headrace.policies.distributions import DiagonalGaussian, distribution_for
from headrace.policies.features import (
    CNNS,
    IMAGE_TILE,
    VECTOR_TILE,
    ImageEncoder,
    Own,
    VectorEncoder,
    build_features,
    described,
    is_image,
    is_large_image,
    layout,
)
from headrace.policies.layers import headed, run, tower
from headrace.policies.policy import Evaluation, Policy, require_policy


class MlpPolicy(ActorCritic):
    """Two separate towers over a flat observation."""

    largest_tile = VECTOR_TILE

    def __init__(
        self, observation: ObservationSpace, action: Space, config: PolicyConfig, generator: torch.Generator
    ) -> None:
        super().__init__(observation, action)
        if isinstance(observation, Dict):
            raise UsageError(
                "policy MlpPolicy: expected observations of one array, got a Dict; use MultiInputPolicy or auto"
            )
        self.encode = VectorEncoder(observation, config.normalize_images)
        head, self.log_std = head_of(action, config)
        actor, critic = config.sizes(usual=(64, 64))
        self.actor = tower([self.encode.size, *actor, head], 0.01, generator, config.ortho_init)
        self.critic = tower([self.encode.size, *critic, 1], 1.0, generator, config.ortho_init)
        self.activation, self.is_even = config.activation, actor == critic
        self._activate = activation(config.activation)

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Actions, from the actor's tower alone."""
        return self.distribution.act(self.params(obs), noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """Both towers."""
        x = self.encode(obs)
        params = with_log_std(run(self.actor, x, self._activate), self.log_std)
        log_prob, entropy = self.distribution.evaluate(params, actions)
        return Evaluation(log_prob, entropy, run(self.critic, x, self._activate).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        """The critic alone."""
        return run(self.critic, self.encode(obs), self._activate).squeeze(-1)

    def params(self, obs: Tensor) -> Tensor:
        """Of the distribution over actions."""
        return with_log_std(run(self.actor, self.encode(obs), self._activate), self.log_std)


class CnnPolicy(ActorCritic):
    """Convolutions (the Nature CNN's, or fewer), shared by actor and critic, over uint8 images of either layout."""

    largest_tile = IMAGE_TILE

    def __init__(
        self, observation: ObservationSpace, action: Space, config: PolicyConfig, generator: torch.Generator
    ) -> None:
        super().__init__(observation, action)
        encoder = ImageEncoder(_require_image(observation, config), config, generator)
        # Its parts are the policy's own, by the names that checkpoints have for them.
        self.convolutions, self.features, self._scale = encoder.convolutions, encoder.features, encoder.scale
        self._encoder = (encoder,)
        head, self.log_std = head_of(action, config)
        actor, critic = config.sizes(usual=())
        if not (actor or critic) and config.activation != "tanh":
            raise UsageError(f"activation={config.activation}: CnnPolicy has no hidden layers unless net_arch says so")
        self.actor = headed([encoder.size, *actor, head], 0.01, generator, config.ortho_init)
        self.critic = headed([encoder.size, *critic, 1], 1.0, generator, config.ortho_init)
        self._activate = activation(config.activation)

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Actions; the critic's head is not run."""
        return self.distribution.act(self.params(obs), noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """One pass through the convolutions for both heads."""
        x = self._encoder[0](obs)
        params = with_log_std(run(self.actor, x, self._activate), self.log_std)
        log_prob, entropy = self.distribution.evaluate(params, actions)
        return Evaluation(log_prob, entropy, run(self.critic, x, self._activate).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        """The critic's head."""
        return run(self.critic, self._encoder[0](obs), self._activate).squeeze(-1)

    def params(self, obs: Tensor) -> Tensor:
        """Of the distribution over actions."""
        return with_log_std(run(self.actor, self._encoder[0](obs), self._activate), self.log_std)


class FeaturesPolicy(ActorCritic):
    """Two towers over features of any kind; actor and critic share the extractor, or have one each."""

    def __init__(
        self,
        observation: ObservationSpace,
        action: Space,
        config: PolicyConfig,
        generator: torch.Generator,
        own: Own | None = None,
    ) -> None:
        super().__init__(observation, action)
        self.encode = build_features(observation, config, generator, own)
        is_shared = config.share_features_extractor
        self.encode_vf = None if is_shared else build_features(observation, config, generator, own)
        self.largest_tile = self.encode.largest_tile
        head, self.log_std = head_of(action, config)
        is_convolved = isinstance(self.encode, ImageEncoder)
        actor, critic = config.sizes(usual=() if is_convolved else (64, 64))
        self.actor = tower([self.encode.size, *actor, head], 0.01, generator, config.ortho_init)
        self.critic = tower([self.encode.size, *critic, 1], 1.0, generator, config.ortho_init)
        self._activate = activation(config.activation)

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """Actions; the critic is not run."""
        return self.distribution.act(self.params(obs), noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """Both towers; shared features are computed once."""
        x = self.encode(obs)
        params = with_log_std(run(self.actor, x, self._activate), self.log_std)
        log_prob, entropy = self.distribution.evaluate(params, actions)
        seen = x if self.encode_vf is None else self.encode_vf(obs)
        return Evaluation(log_prob, entropy, run(self.critic, seen, self._activate).squeeze(-1))

    def value(self, obs: Tensor) -> Tensor:
        """The critic alone."""
        encode = self.encode if self.encode_vf is None else self.encode_vf
        return run(self.critic, encode(obs), self._activate).squeeze(-1)

    def params(self, obs: Tensor) -> Tensor:
        """Of the distribution over actions."""
        return with_log_std(run(self.actor, self.encode(obs), self._activate), self.log_std)

    @property
    def summary(self) -> str:
        """What sees which array."""
        sharing = "shared by actor and critic" if self.encode_vf is None else "one extractor each for actor and critic"
        return f"{described(getattr(self.encode, 'encode', self.encode))}; {sharing}"  # behind a normalizer, or not


class MultiInputPolicy(FeaturesPolicy):
    """Of Dict and Tuple observations; an image of at least 36 x 36 goes through a CNN of its own."""


KINDS = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")


def name_for(config: PolicyConfig, observation: ObservationSpace) -> str:
    """The policy that is built: the one that was asked for, or what auto takes for these observations."""
    if config.policy != "auto":
        return config.policy
    if isinstance(observation, Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_large_image(observation, config) else "MlpPolicy"


def build_policy(
    config: PolicyConfig, observation: ObservationSpace, action: Space, seed: int, own: Own | None = None
) -> nn.Module:
    """A freshly initialised policy by name; `own` builds the user's feature extractors."""
    name = name_for(config, observation)
    if name in RECURRENT:
        from headrace.policies import recurrent  # which is built of these parts

        return recurrent.KINDS[name](observation, action, config, torch.Generator().manual_seed(seed), own)
    if name not in KINDS:
        close = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}?" if close else "a policy of your own is passed as a torch module"
        raise UsageError(f"policy: expected {', '.join(sorted({*BUILT_IN} - {'auto'}))} or auto, got {name!r}; {hint}")
    if name == "MlpPolicy" and config.cnn != "nature" and own is None:
        seen = in_short(observation)
        raise UsageError(f"cnn: auto takes MlpPolicy for {seen}, which has no convolutions; leave it out")
    generator = torch.Generator().manual_seed(seed)
    policy: nn.Module
    if name == "MultiInputPolicy":
        if not isinstance(observation, Dict):
            raise UsageError(
                f"policy MultiInputPolicy: expected Dict or Tuple observations, got {in_short(observation)}; use "
                f"MlpPolicy or auto"
            )
        policy = MultiInputPolicy(observation, action, config, generator, own)
    elif own is not None and not isinstance(observation, Dict):
        policy = FeaturesPolicy(observation, action, config, generator, own)
    elif name == "CnnPolicy" and not config.share_features_extractor:
        policy = FeaturesPolicy(_require_image(observation, config), action, config, generator)
    else:
        policy = (CnnPolicy if name == "CnnPolicy" else MlpPolicy)(observation, action, config, generator)
    require_policy(policy)
    return policy


def _require_image(observation: ObservationSpace, config: PolicyConfig) -> Space:
    """One that the convolutions of CnnPolicy take."""
    if isinstance(observation, Dict):
        raise UsageError(
            "CnnPolicy: expected uint8 images of 3 axes (height, width, channels), got a Dict; use policy "
            "MultiInputPolicy (or auto)"
        )
    if not is_image(observation):
        raise UsageError(
            f"CnnPolicy: expected uint8 images of 3 axes (height, width, channels), got {in_short(observation)}; "
            f"use policy MlpPolicy (or auto)"
        )
    plane, smallest = layout(observation)[2], CNNS[config.cnn].smallest
    if min(plane) < smallest:
        is_small = min(plane) >= CNNS["small"].smallest
        another = 'policy_kwargs={"cnn": "small"}' if is_small else "policy MlpPolicy (or auto, which chooses it)"
        raise UsageError(
            f"CnnPolicy: expected images of at least {smallest} x {smallest}, got {plane[0]} x {plane[1]}; "
            f"resize them or use {another}"
        )
    return observation


def as_policy(module: nn.Module) -> Policy:
    """The module through the policy port."""
    require_policy(module)
    return module  # type: ignore[return-value]


def head_of(action: Space, config: PolicyConfig) -> tuple[int, nn.Parameter | None]:
    """The actor's outputs, and the state-independent log standard deviation where actions are continuous."""
    distribution = distribution_for(action)
    if isinstance(distribution, DiagonalGaussian):
        size = distribution.params // 2
        return size, nn.Parameter(torch.full((size,), config.log_std_init))
    return distribution.params, None


def with_log_std(out: Tensor, log_std: Tensor | None) -> Tensor:
    """The parameters of a distribution over actions, from the actor's outputs."""
    return out if log_std is None else torch.cat([out, log_std.expand_as(out)], -1)
