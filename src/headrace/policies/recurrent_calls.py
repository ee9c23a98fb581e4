"""The port of a policy that remembers, and sb3-contrib's calls of the built-in ones on top of it.

    act(obs, noise, state) -> actions, state
    evaluate(obs, actions, state) -> Evaluation, state      value(obs, state) -> [N]

It is the port of any policy, with the state going in and out; one call is one row of every environment. A state is
[N, state_size], all 0 where an episode starts; for users, None is that of a new episode. Training uses none of the
calls: there, noise comes from the run's seed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.policies.actor_critic import ActionDistribution, ActorCritic, as_sent, drawn
from headrace.policies.policy import Evaluation
from headrace.policies.sequences import Split


class RecurrentActorCritic(ActorCritic):
    """A policy whose actor gives the parameters of a distribution over actions, by what it remembers."""

    state_size: int

    def params(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The distribution's parameters [N, P], and what is remembered after the row."""
        raise NotImplementedError

    def act(self, obs: Any, noise: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        """Actions, and what is remembered after them."""
        params, after = self.params(obs, state)
        return self.distribution.act(params, noise), after

    def evaluate(  # type: ignore[override]
        self, obs: Any, actions: Tensor, state: Tensor
    ) -> tuple[Evaluation, Tensor]:
        """One row: log-probability, entropy and value, and what is remembered after it."""
        raise NotImplementedError

    def value(self, obs: Any, state: Tensor) -> Tensor:  # type: ignore[override]
        """[N]."""
        raise NotImplementedError

    def evaluate_sequences(self, obs: Any, actions: Tensor, split: Split, state: Tensor) -> Evaluation:
        """Rows of whole sequences at once, [T * N] by row, then environment; state [N, S] is that before the first."""
        raise NotImplementedError

    def follow(self, obs: Any, split: Split, state: Tensor) -> Tensor:
        """What is remembered after every row, [T, N, S]."""
        raise NotImplementedError

    def forward(  # type: ignore[override]
        self, obs: Any, state: Tensor | None = None, episode_starts: Any = None, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions, values [N, 1], log-probabilities [N] and the next state."""
        state = self.started(_rows_of(obs), state, episode_starts)
        actions, _ = self.act(obs, None if deterministic else drawn(self.noise, state), state)
        evaluation, after = self.evaluate(obs, actions, state)
        return actions, evaluation.value.unsqueeze(-1), evaluation.log_prob, after

    def evaluate_actions(
        self, obs: Any, actions: Tensor, state: Tensor | None = None, episode_starts: Any = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values [N, 1], log-probabilities [N] and entropies [N] of one row of N environments."""
        (log_prob, entropy, value), _ = self.evaluate(obs, actions, self.started(_rows_of(obs), state, episode_starts))
        return value.unsqueeze(-1), log_prob, entropy

    def predict_values(self, obs: Any, state: Tensor | None = None, episode_starts: Any = None) -> Tensor:
        """Values [N, 1]."""
        return self.value(obs, self.started(_rows_of(obs), state, episode_starts)).unsqueeze(-1)

    def get_distribution(  # type: ignore[override]
        self, obs: Any, state: Tensor | None = None, episode_starts: Any = None
    ) -> tuple[ActionDistribution, Tensor]:
        """The distribution over actions, and the next state of the actor's and the critic's memory."""
        params, after = self.params(obs, self.started(_rows_of(obs), state, episode_starts))
        return ActionDistribution(self, params), after

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Actions for the environment and the next state, as arrays, of one observation or a batch."""
        obs, is_batch = self.obs_to_tensor(observation)
        with torch.no_grad():
            before = self.started(_rows_of(obs), state, episode_start)
            actions, after = self.act(obs, None if deterministic else drawn(self.noise, before), before)
        sent = as_sent(self._spaces[1], actions.cpu()).numpy()
        return (sent if is_batch else sent[0]), after.cpu().numpy()

    def started(self, rows: int, state: Any, episode_starts: Any) -> Tensor:
        """A state, where the parameters are, with 0 where an episode starts."""
        device = next(self.parameters()).device
        if state is None:
            return torch.zeros(rows, self.state_size, device=device)
        before: Tensor = torch.as_tensor(state, device=device)
        if episode_starts is None:
            return before
        going_on = ~torch.as_tensor(episode_starts, dtype=torch.bool, device=device).reshape(rows, 1)
        return torch.where(going_on, before, 0.0)


def _rows_of(obs: Any) -> int:
    return len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
