"""A policy as a user writes it from the port's docstring: torch and three names of headrace's, nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import headrace as hr


class TorchPolicy(nn.Module):
    """Two small networks over CartPole's four numbers."""

    noise = hr.NoiseSpec("gumbel", 2)
    largest_tile = 64

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
            self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        logits: Tensor = self.actor(obs)
        return (logits if noise is None else logits + noise).argmax(-1)

    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        choice = torch.distributions.Categorical(logits=self.actor(obs), validate_args=False)
        return hr.Evaluation(choice.log_prob(actions), choice.entropy(), self.value(obs))

    def value(self, obs: Tensor) -> Tensor:
        value: Tensor = self.critic(obs).squeeze(-1)
        return value
