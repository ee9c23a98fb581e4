"""Policies that remember: LSTM and GRU behind the features of an observation.

    obs --encode--> features --memory--> latent --actor--> params -> distribution     --critic--> value

A memory is `state_size` numbers of an environment, all 0 where an episode starts. The port of such a policy is in
policies/recurrent_calls; the learner has whole sequences (policies/sequences). Does not know slabs, tiles or where a
state is kept.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.memory.spaces import Dict, ObservationSpace, Space, in_short
from headrace.policies.activations import activation
from headrace.policies.config import RECURRENT, PolicyConfig
from headrace.policies.features import Features, Own, VectorEncoder, build_features, is_large_image
from headrace.policies.layers import run, tower
from headrace.policies.memories import Memory
from headrace.policies.networks import head_of, with_log_std
from headrace.policies.policy import Evaluation
from headrace.policies.recurrent_calls import RecurrentActorCritic
from headrace.policies.sequences import Split


class RecurrentPolicy(RecurrentActorCritic):
    """A memory for the actor; one for the critic, the actor's, or a layer in its place; then a tower each.

    Its subclasses are the policies that there are: a name says which extractor and which kind of memory it has.
    """

    def __init__(
        self,
        observation: ObservationSpace,
        action: Space,
        config: PolicyConfig,
        generator: torch.Generator,
        own: Own | None = None,
    ) -> None:
        super().__init__(observation, action)
        if config.shared_lstm and config.enable_critic_lstm:
            raise UsageError(
                "shared_lstm=True: the critic uses the actor's memory, so give enable_critic_lstm=False as well"
            )
        name = type(self).__name__
        kind = "gru" if name.endswith("GruPolicy") else "lstm"
        self.encode = _features(name, observation, config, generator, own)
        self.largest_tile = self.encode.largest_tile
        size, width, layers = self.encode.size, config.lstm_hidden_size, config.n_lstm_layers
        self.lstm_actor = Memory(kind, size, width, layers, generator)
        self.lstm_critic = Memory(kind, size, width, layers, generator) if config.enable_critic_lstm else None
        self.critic_layer: nn.Linear | None = None
        if not (config.enable_critic_lstm or config.shared_lstm):
            self.critic_layer = nn.Linear(size, width)
            for parameter in self.critic_layer.parameters():
                nn.init.uniform_(parameter, -1 / math.sqrt(size), 1 / math.sqrt(size), generator)
        self._sizes = [self.lstm_actor.state_size, 0 if self.lstm_critic is None else self.lstm_critic.state_size]
        self.state_size = sum(self._sizes)
        head, self.log_std = head_of(action, config)
        actor, critic = config.sizes(usual=() if name.startswith("Cnn") else (64, 64))
        self.actor = tower([width, *actor, head], 0.01, generator, config.ortho_init)
        self.critic = tower([width, *critic, 1], 1.0, generator, config.ortho_init)
        self._activate = activation(config.activation)

    def params(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Of the distribution over actions, and what is remembered then; the critic's memory goes along, no tower."""
        x, (mine, critics) = self.encode(obs), self._parts(state)
        latent, mine = self.lstm_actor.step(x, mine)
        if self.lstm_critic is not None:
            _, critics = self.lstm_critic.step(x, critics)
        return self._params(latent), torch.cat([mine, critics], -1)

    def evaluate(  # type: ignore[override]
        self, obs: Any, actions: Tensor, state: Tensor
    ) -> tuple[Evaluation, Tensor]:
        """One row: log-probability, entropy and value, and what is remembered after it."""
        x, (mine, critics) = self.encode(obs), self._parts(state)
        latent, mine = self.lstm_actor.step(x, mine)
        of_critic = None
        if self.lstm_critic is not None:
            of_critic, critics = self.lstm_critic.step(x, critics)
        return self._evaluation(x, latent, of_critic, actions), torch.cat([mine, critics], -1)

    def value(self, obs: Any, state: Tensor) -> Tensor:  # type: ignore[override]
        """The critic alone."""
        x, (mine, critics) = self.encode(obs), self._parts(state)
        latent = None if self.critic_layer is not None or self.lstm_critic is not None else mine
        if latent is not None:
            latent, _ = self.lstm_actor.step(x, mine)
        elif self.lstm_critic is not None:
            latent, _ = self.lstm_critic.step(x, critics)
        return self._value(x, latent)

    def evaluate_sequences(self, obs: Any, actions: Tensor, split: Split, state: Tensor) -> Evaluation:
        """Rows of whole sequences at once, [T * N] by row, then environment; state [N, S] is that before the first."""
        x, (mine, critics) = self.encode(obs), self._parts(state)
        latent = self.lstm_actor.sequences(x, split, mine)
        of_critic = None if self.lstm_critic is None else self.lstm_critic.sequences(x, split, critics)
        return self._evaluation(x, latent, of_critic, actions)

    def follow(self, obs: Any, split: Split, state: Tensor) -> Tensor:
        """What is remembered after every row, [T, N, S]."""
        x, (mine, critics) = self.encode(obs), self._parts(state)
        states = [self.lstm_actor.follow(x, split, mine)]
        if self.lstm_critic is not None:
            states.append(self.lstm_critic.follow(x, split, critics))
        return torch.cat(states, -1)

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mine, critics = state.split(self._sizes, -1)
        return mine, critics

    def _params(self, latent: Tensor) -> Tensor:
        return with_log_std(run(self.actor, latent, self._activate), self.log_std)

    def _evaluation(self, x: Tensor, latent: Tensor, of_critic: Tensor | None, actions: Tensor) -> Evaluation:
        log_prob, entropy = self.distribution.evaluate(self._params(latent), actions)
        return Evaluation(log_prob, entropy, self._value(x, latent if of_critic is None else of_critic))

    def _value(self, x: Tensor, latent: Tensor | None) -> Tensor:
        if self.critic_layer is not None:
            latent = self.critic_layer(x)
        assert latent is not None
        if self.lstm_critic is None and self.critic_layer is None:
            latent = latent.detach()  # a shared memory learns from the actor alone, as sb3-contrib has it
        return run(self.critic, latent, self._activate).squeeze(-1)


class MlpLstmPolicy(RecurrentPolicy):
    """An LSTM behind a flat observation."""


class CnnLstmPolicy(RecurrentPolicy):
    """An LSTM behind convolutions."""


class MultiInputLstmPolicy(RecurrentPolicy):
    """An LSTM behind the features of a Dict."""


class MlpGruPolicy(RecurrentPolicy):
    """A GRU behind a flat observation."""


class CnnGruPolicy(RecurrentPolicy):
    """A GRU behind convolutions."""


class MultiInputGruPolicy(RecurrentPolicy):
    """A GRU behind the features of a Dict."""


KINDS: dict[str, type[RecurrentPolicy]] = {kind.__name__: kind for kind in RecurrentPolicy.__subclasses__()}
assert tuple(KINDS) == RECURRENT


def _features(
    name: str, observation: ObservationSpace, config: PolicyConfig, generator: torch.Generator, own: Own | None
) -> Features:
    """The extractor that a policy's name asks for."""
    stem = name.removesuffix("LstmPolicy").removesuffix("GruPolicy")
    fitting = "MultiInput" if isinstance(observation, Dict) else "Cnn" if is_large_image(observation, config) else "Mlp"
    if stem == fitting or (stem == "Mlp" and fitting == "Cnn"):
        if not config.share_features_extractor:
            raise UsageError(f"share_features_extractor=False: {name} has one extractor for actor and critic")
        if isinstance(observation, Dict) or stem == "Cnn" or own is not None:
            return build_features(observation, config, generator, own)
        return VectorEncoder(observation, config.normalize_images)
    got = "a Dict or Tuple" if isinstance(observation, Dict) else in_short(observation)
    wanted = {"Mlp": "one array", "Cnn": "uint8 images that the convolutions fit into", "MultiInput": "a Dict or Tuple"}
    raise UsageError(
        f"{name}: expected observations of {wanted[stem]}, got {got}; use {fitting}{name.removeprefix(stem)}"
    )
