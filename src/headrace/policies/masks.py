"""Policies that obey action masks: forbidden choices get probability 0, no gradient, and no part in the entropy.

    {"observation": obs, "action_mask": mask} --the policy without the mask--> logits --masked--> distribution

The policy inside is any built-in one; it sees the observation without the mask and gives its logits away. Actor,
completion and training mask alike, so the first ratio is 1. One that remembers is masked row by row, also within whole
sequences. A policy of the user's own masks by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import UsageError
from headrace.memory.spaces import MASK, Box, Dict, ObservationSpace, Space
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.config import PolicyConfig
from headrace.policies.distributions import Bernoulli, Distribution
from headrace.policies.features import Own
from headrace.policies.networks import build_policy
from headrace.policies.noise_spec import NoiseSpec
from headrace.policies.policy import Evaluation, state_size_of
from headrace.policies.recurrent_calls import RecurrentActorCritic
from headrace.policies.sequences import Split

_NEVER = -1e8  # finite, so that nothing becomes NaN; its probability is 0 in float32


class MaskedPolicy(ActorCritic):
    """A built-in policy behind a mask; `policy` is that one."""

    def __init__(self, observation: Dict, action: Space, policy: Any) -> None:
        super().__init__(observation, action)
        self.encode = _Rest(observation)
        self.policy, self.largest_tile = policy, policy.largest_tile
        self.log_std = None
        policy.distribution = _Logits(policy.distribution)

    def act(self, obs: dict[str, Tensor], noise: Tensor | None) -> Tensor:
        """Actions that are allowed."""
        return self.distribution.act(self.params(obs), noise)

    def params(self, obs: dict[str, Tensor]) -> Tensor:  # type: ignore[override]  # always several arrays
        """Logits of the allowed choices, and hardly any of the others."""
        return masked(self.distribution, self.policy.act(self.encode(obs), None), obs[MASK])

    def evaluate(self, obs: dict[str, Tensor], actions: Tensor) -> Evaluation:  # type: ignore[override]
        """One pass through the policy inside."""
        seen = self.policy.evaluate(self.encode(obs), actions)
        params = masked(self.distribution, seen.log_prob, obs[MASK])
        return Evaluation(*self.distribution.evaluate(params, actions), seen.value)

    def value(self, obs: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        """The critic alone; it does not see the mask."""
        value: Tensor = self.policy.value(self.encode(obs))
        return value


class MaskedRecurrentPolicy(RecurrentActorCritic):
    """The same of one that remembers. What it remembers is that of the policy inside: masks are not remembered."""

    def __init__(self, observation: Dict, action: Space, policy: Any) -> None:
        super().__init__(observation, action)
        self.encode = _Rest(observation)
        self.policy, self.largest_tile, self.state_size = policy, policy.largest_tile, policy.state_size
        self.log_std = None
        policy.distribution = _Logits(policy.distribution)

    def params(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Logits of the allowed choices, and hardly any of the others."""
        logits, after = self.policy.params(self.encode(obs), state)
        return masked(self.distribution, logits, obs[MASK]), after

    def evaluate(  # type: ignore[override]
        self, obs: dict[str, Tensor], actions: Tensor, state: Tensor
    ) -> tuple[Evaluation, Tensor]:
        """One row."""
        seen, after = self.policy.evaluate(self.encode(obs), actions, state)
        return self._obeyed(seen, obs[MASK], actions), after

    def value(self, obs: dict[str, Tensor], state: Tensor) -> Tensor:  # type: ignore[override]
        """The critic alone; it does not see the mask."""
        value: Tensor = self.policy.value(self.encode(obs), state)
        return value

    def evaluate_sequences(self, obs: dict[str, Tensor], actions: Tensor, split: Split, state: Tensor) -> Evaluation:
        """Rows of whole sequences at once; each has a mask of its own."""
        seen = self.policy.evaluate_sequences(self.encode(obs), actions, split, state)
        return self._obeyed(seen, obs[MASK], actions)

    def follow(self, obs: dict[str, Tensor], split: Split, state: Tensor) -> Tensor:
        """What is remembered after every row."""
        states: Tensor = self.policy.follow(self.encode(obs), split, state)
        return states

    def _obeyed(self, seen: Evaluation, mask: Tensor, actions: Tensor) -> Evaluation:
        params = masked(self.distribution, seen.log_prob, mask)
        return Evaluation(*self.distribution.evaluate(params, actions), seen.value)


class _Rest(nn.Module):
    """An observation without its mask: the one array that is left, or all others by name."""

    def __init__(self, observation: Dict) -> None:
        super().__init__()
        self._is_one = not isinstance(rest_of(observation), Dict)

    def forward(self, obs: dict[str, Tensor]) -> Any:
        rest = {name: leaf for name, leaf in obs.items() if name != MASK}
        return next(iter(rest.values())) if self._is_one else rest


class _Logits:
    """In the place of a distribution: the parameters themselves are what comes out."""

    def __init__(self, own: Distribution) -> None:
        self.params, self.noise = own.params, NoiseSpec(own.noise.kind, own.noise.width)

    def act(self, params: Tensor, noise: Tensor | None) -> Tensor:
        return params

    def evaluate(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        return params, params


def masked(distribution: Distribution, params: Tensor, mask: Tensor) -> Tensor:
    """Logits [N, P] with those of forbidden choices out of reach; gradients do not get there."""
    if not isinstance(distribution, Bernoulli):
        return torch.where(mask > 0, params, _NEVER)
    may_be_0, may_be_1 = (mask.unflatten(-1, (-1, 2)) > 0).unbind(-1)
    return torch.where(may_be_1, torch.where(may_be_0, params, -_NEVER), _NEVER)


def built(
    config: PolicyConfig, observation: ObservationSpace, action: Space, seed: int, own: Own | None = None
) -> nn.Module:
    """A freshly initialised built-in policy, masked if the configuration says so."""
    if not config.action_masks:
        return build_policy(config, observation, action, seed, own)
    if isinstance(action, Box) or not isinstance(observation, Dict) or MASK not in dict(observation.leaves):
        raise UsageError(
            f"action_masks: expected observations with {MASK} and choices as actions; leave action_masks out"
        )
    if len(observation.leaves) == 1:
        raise UsageError(f"action_masks: expected observations beside {MASK}, got none; add what the policy shall see")
    policy = build_policy(config, rest_of(observation), action, seed, own)
    kind = MaskedRecurrentPolicy if state_size_of(policy) else MaskedPolicy
    return kind(observation, action, policy)


def rest_of(observation: Dict) -> ObservationSpace:
    """The observation space without the mask."""
    rest = tuple((name, leaf) for name, leaf in observation.leaves if name != MASK)
    return rest[0][1] if [name for name, _ in rest] == ["observation"] else Dict(rest, observation.left_out)
