"""PPO in one page, over hr.Collector: CartPole-v1 to a mean return of at least 475.

    collector --batch--> advantages --> epochs of shuffled minibatches --publish--> collector

headrace steps the environments, in worker processes if you like, and computes log-probabilities and values. All that
is learning is on this page; change what you want. 153,600 steps take about 12 seconds:

    python examples/own_ppo.py --seed 1
"""

import argparse
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr

N_ENVS, N_STEPS, EPOCHS, MINIBATCH, UPDATES = 32, 32, 10, 256, 150
GAMMA, GAE_LAMBDA, CLIP, ENT_COEF, VF_COEF, MAX_GRAD_NORM, LEARNING_RATE = 0.99, 0.95, 0.2, 0.0, 0.5, 0.5, 1e-3


def layer(n_in: int, n_out: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(n_in, n_out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """Actor and critic. docs/guides/your-policy.md says what a policy needs; the noise makes `act` sample."""

    noise = hr.NoiseSpec("gumbel", 2)
    largest_tile = 64

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))
        self.critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        logits = self.actor(obs)
        return (logits if noise is None else logits + noise).argmax(-1)

    def evaluate(self, obs: Tensor, actions: Tensor) -> hr.Evaluation:
        chosen = torch.distributions.Categorical(logits=self.actor(obs))
        return hr.Evaluation(chosen.log_prob(actions), chosen.entropy(), self.value(obs))

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)


def advantages(batch: hr.Batch) -> np.ndarray:
    """[T, B]: generalised advantage estimation. An episode that a limit cut goes on in the value of its last state."""
    gained, following, result = np.zeros(batch.n_envs, np.float32), batch.last_value, np.empty_like(batch.reward)
    for t in reversed(range(batch.n_steps)):
        ended = batch.terminated[t] | batch.truncated[t]
        following = np.where(ended, batch.bootstrap_value[t], following)
        surprise = batch.reward[t] + GAMMA * following - batch.value[t]
        gained = surprise + GAMMA * GAE_LAMBDA * np.where(ended, 0.0, gained)
        result[t], following = gained, batch.value[t]
    return result


def update(agent: Agent, optimizer: torch.optim.Optimizer, batch: hr.Batch, clip: float) -> None:
    """Several epochs over one batch, which stays valid until the next one is asked for."""
    advantage = advantages(batch)
    obs, actions, old_log_prob, advantage, returns = (
        torch.from_numpy(array.reshape(batch.n_steps * batch.n_envs, *array.shape[2:]))
        for array in (batch.obs, batch.action, batch.log_prob, advantage, advantage + batch.value)
    )
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(actions)).split(MINIBATCH):
            now = agent.evaluate(obs[rows], actions[rows])
            weight = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            ratio = (now.log_prob - old_log_prob[rows]).exp()
            gain = torch.min(weight * ratio, weight * ratio.clamp(1 - clip, 1 + clip)).mean()
            loss = VF_COEF * (now.value - returns[rows]).square().mean() - gain - ENT_COEF * now.entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
            optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    with hr.Collector("CartPole-v1", agent, n_envs=N_ENVS, n_steps=N_STEPS, seed=seed) as rollouts:
        for number, batch in enumerate(islice(rollouts, UPDATES)):
            left = 1 - number / UPDATES  # learning rate and clipping fall to zero
            optimizer.param_groups[0]["lr"] = left * LEARNING_RATE
            update(agent, optimizer, batch, left * CLIP)
            rollouts.publish(agent)
            if number % 20 == 19 and rollouts.harvest is not None:  # the report on the rollout before this one
                print(f"update {number + 1}: mean return {rollouts.harvest.record['rollout/ep_rew_mean']:.1f}")
        mean, std = hr.evaluate_policy(rollouts, n_eval_episodes=100)  # of the weights that were published last
    print(f"mean return over 100 episodes: {mean:.1f} +/- {std:.1f}")


if __name__ == "__main__":
    main()
