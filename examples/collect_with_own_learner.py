"""A learner of your own over hr.Collector: advantage actor-critic on CartPole-v1, in one page.

    collector --batch--> returns, loss, one gradient step --publish--> collector

Takes a few seconds: python examples/collect_with_own_learner.py
"""

from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr

GAMMA, ENTROPY_COEFFICIENT, UPDATES = 0.98, 0.01, 60


class ActorCritic(nn.Module):
    """One hidden layer for each head. The port is described in docs/guides/your-policy.md."""

    noise = hr.NoiseSpec("gumbel", 2)
    largest_tile = 64

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        logits = self.actor(obs)
        return (logits if noise is None else logits + noise).argmax(-1)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Any:
        log_p = torch.log_softmax(self.actor(obs), -1)
        log_prob = log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        return hr.Evaluation(log_prob, -(log_p.exp() * log_p).sum(-1), self.value(obs))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)


def discounted_returns(batch: Any) -> np.ndarray:
    """[T, B]: cut where an episode ends, with the value of its final observation where a limit cut it off."""
    running = batch.last_value
    returns = np.empty_like(batch.reward)
    for t in reversed(range(batch.n_steps)):
        ended = batch.terminated[t] | batch.truncated[t]
        running = batch.reward[t] + GAMMA * np.where(ended, batch.bootstrap_value[t], running)
        returns[t] = running
    return returns


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    policy = ActorCritic()
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    with hr.Collector("CartPole-v1", policy=policy, n_envs=32, n_steps=32, seed=1) as rollouts:
        for update, batch in enumerate(islice(rollouts, UPDATES), 1):
            returns = torch.from_numpy(discounted_returns(batch).reshape(-1))
            obs = torch.from_numpy(batch.obs.reshape(-1, 4))
            result = policy.evaluate(obs, torch.from_numpy(batch.action.reshape(-1)))
            advantage = returns - result.value
            normalised = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            loss = (
                -(result.log_prob * normalised.detach()).mean()
                + 0.5 * advantage.square().mean()
                - ENTROPY_COEFFICIENT * result.entropy.mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rollouts.publish(policy)
            if update % 15 == 0:
                ended = int((batch.terminated | batch.truncated).sum())
                print(f"update {update}: {ended} of {batch.steps} steps ended an episode")


if __name__ == "__main__":
    main()
