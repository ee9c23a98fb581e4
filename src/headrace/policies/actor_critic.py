"""What the built-in policies have in common: SB3's calls of a policy, on top of act, evaluate and value.

    policy(obs) --> actions, values, log_prob        predict(obs) --> actions for the environment

Training uses none of them: there, noise comes from the run's seed. Here it comes from torch's own generator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Distribution as TorchDistribution
from torch.distributions import Normal

from headrace.errors import SchemaError
from headrace.memory.in_hand import as_rows
from headrace.memory.spaces import Box, Discrete, MultiDiscrete, ObservationSpace, Space, as_seen, bounds
from headrace.policies.distributions import Bernoulli, Categorical, MultiCategorical, distribution_for
from headrace.policies.noise_spec import NoiseSpec
from headrace.policies.policy import Evaluation


class ActorCritic(nn.Module):
    """A policy whose actor gives the parameters of a distribution over actions."""

    def __init__(self, observation: ObservationSpace, action: Space) -> None:
        super().__init__()
        self._spaces = observation, action
        self.distribution = distribution_for(action)
        self.noise = self.distribution.noise

    def params(self, obs: Tensor) -> Tensor:
        """The distribution's parameters [N, P]."""
        raise NotImplementedError

    def value(self, obs: Tensor) -> Tensor:
        """[N]."""
        raise NotImplementedError

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        """Log-probability, entropy and value, [N] each."""
        raise NotImplementedError

    def forward(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Actions [N, ...], values [N, 1] and log-probabilities [N] of observations [N, ...], as SB3's policies do.

        Actions are not clipped, and choices count from 0.
        """
        params = self.params(obs)
        noise = None if deterministic else drawn(self.noise, params)
        actions = self.distribution.act(params, noise)
        return actions, self.predict_values(obs), self.distribution.evaluate(params, actions)[0]

    def evaluate_actions(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values [N, 1], log-probabilities [N] and entropies [N]."""
        log_prob, entropy, value = self.evaluate(obs, actions)
        return value.unsqueeze(-1), log_prob, entropy

    def predict_values(self, obs: Tensor) -> Tensor:
        """Values [N, 1]."""
        return self.value(obs).unsqueeze(-1)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Actions for the environment, of one observation or a batch, as arrays; `state` comes back as it was given."""
        tensor, is_batch = self.obs_to_tensor(observation)
        params = self.params(tensor).detach()
        actions = self.distribution.act(params, None if deterministic else drawn(self.noise, params))
        sent = as_sent(self._spaces[1], actions.cpu()).numpy()
        return (sent if is_batch else sent[0]), state

    def obs_to_tensor(self, observation: Any) -> tuple[Any, bool]:
        """Rows [N, ...] of one observation or a batch of them, and whether it was a batch."""
        try:
            rows, is_one = as_rows(self._spaces[0], observation)
        except SchemaError as error:
            raise SchemaError(f"policy: {error}") from error
        device = next(self.parameters()).device
        return as_seen({name: torch.from_numpy(leaf.copy()).to(device) for name, leaf in rows.items()}), not is_one

    def get_distribution(self, obs: Tensor) -> ActionDistribution:
        """The distribution over actions, with torch's own behind it."""
        return ActionDistribution(self, self.params(obs))

    def set_training_mode(self, mode: bool) -> None:
        """The same as train(mode)."""
        self.train(mode)


class ActionDistribution:
    """The distributions over actions of some observations. `distribution` is torch's; a list for several choices."""

    def __init__(self, policy: ActorCritic, params: Tensor) -> None:
        self._own, self._noise, self._params = policy.distribution, policy.noise, params
        self.distribution: TorchDistribution | list[TorchCategorical]
        match policy.distribution:
            case Categorical():
                self.distribution = TorchCategorical(logits=params)
            case MultiCategorical():
                self.distribution = [TorchCategorical(logits=part) for part in policy.distribution.parts(params)]
            case Bernoulli():
                self.distribution = TorchBernoulli(logits=params)
            case _:
                mean, log_std = params.chunk(2, -1)
                self.distribution = Normal(mean, log_std.exp())

    def sample(self) -> Tensor:
        """Actions, by torch's generator."""
        return self._own.act(self._params, drawn(self._noise, self._params))

    def mode(self) -> Tensor:
        """The most likely actions."""
        return self._own.act(self._params, None)

    def get_actions(self, deterministic: bool = False) -> Tensor:
        """One of both."""
        return self.mode() if deterministic else self.sample()

    def log_prob(self, actions: Tensor) -> Tensor:
        """[N]."""
        return self._own.evaluate(self._params, actions)[0]

    def entropy(self) -> Tensor:
        """[N]."""
        return self._own.evaluate(self._params, self.mode())[1]


def drawn(spec: NoiseSpec, params: Tensor) -> Tensor:
    """Noise [N, width] by torch's own generator, where the parameters [N, P] are."""
    rows, device = len(params), params.device
    if spec.kind == "normal":
        return torch.randn(rows, spec.width, device=device)
    uniform = torch.rand(rows, spec.width, device=device).clamp(min=1e-38)
    return -(-uniform.log()).log() if spec.kind == "gumbel" else uniform.log() - torch.log1p(-uniform)


def as_sent(space: Space, actions: Tensor) -> Tensor:
    """Actions as an environment is sent them: boxes clipped, choices from where they start, in the space's dtype."""
    match space:
        case Box():
            low, high = (torch.from_numpy(bound.copy()) for bound in bounds(space))
            return torch.clamp(actions.to(low.dtype), low, high)
        case Discrete():
            sent = actions + space.start
        case MultiDiscrete():
            sent = actions + torch.tensor(space.start).reshape(space.shape)
        case _:
            sent = actions
    return sent.to(getattr(torch, space.dtype))
