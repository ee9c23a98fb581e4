"""A single-file PPO over EnvPool, as CleanRL has it. Run by `harness.run_peer("envpool_cleanrl", ...)`.

train_sps: one update to warm up, then N timed updates; prints one JSON object as its last line. Steps are transitions:
EnvPool's steps that only reset an environment are trained on, as in CleanRL, and not counted.
Rollouts stay in torch tensors, minibatches are random permutations, and log-probabilities and values come from the pass
that acted: the form in which CleanRL's ppo_atari_envpool.py and ppo_continuous_action.py are written.
"""

import argparse
import json
import os
import time
from typing import Any

import envpool
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

TASKS: dict[str, dict[str, Any]] = {
    "hopper": {"id": "Hopper-v4", "n_envs": 64, "n_steps": 32, "batch_size": 512},
    "breakout": {"id": "Breakout-v5", "n_envs": 8, "n_steps": 128, "batch_size": 256},
}
EPOCHS, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE = 4, 0.99, 0.95, 0.2, 0.01, 0.5


def layer(module: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Continuous(nn.Module):
    """Separate 64x64 tanh networks for mean and value."""

    def __init__(self, n_obs: int, n_actions: int) -> None:
        super().__init__()

        def network(n_out: int, gain: float) -> nn.Module:
            sizes = (layer(nn.Linear(n_obs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh())
            return nn.Sequential(*sizes, layer(nn.Linear(64, n_out), gain))

        self.mean, self.critic = network(n_actions, 0.01), network(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(1, n_actions))

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean = self.mean(obs)
        chosen = Normal(mean, self.log_std.exp().expand_as(mean))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action).sum(1), chosen.entropy().sum(1), self.critic(obs).squeeze(1)


class Pixels(nn.Module):
    """The CNN of Nature DQN, shared by actor and critic."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1))
        parts = [part for one in convolutions for part in (layer(one), nn.ReLU())]
        self.features = nn.Sequential(*parts, nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU())
        self.actor, self.critic = layer(nn.Linear(512, n_actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        hidden = self.features(obs.float() / 255.0)
        chosen = Categorical(logits=self.actor(hidden))
        action = chosen.sample() if action is None else action
        return action, chosen.log_prob(action), chosen.entropy(), self.critic(hidden).squeeze(1)


class Trainer:
    """One task: its pool, its network, its optimiser."""

    def __init__(self, task: str, is_pinned: bool) -> None:
        self.job, self.transitions = TASKS[task], 0
        self.pool = envpool.make(
            self.job["id"], env_type="gymnasium", num_envs=self.job["n_envs"], seed=1,
            num_threads=len(os.sched_getaffinity(0)), thread_affinity_offset=0 if is_pinned else -1,
        )  # fmt: skip
        space = self.pool.action_space
        is_pixels = task == "breakout"
        self.agent: Any = Pixels(int(space.n)) if is_pixels else Continuous(11, int(space.shape[0]))
        self.dtype = torch.uint8 if is_pixels else torch.float32
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=2.5e-4, eps=1e-5)
        self.obs, self.done = self._tensor(self.pool.reset()[0]), torch.zeros(self.job["n_envs"])

    def _tensor(self, obs: Any) -> Tensor:
        return torch.as_tensor(np.asarray(obs)).to(self.dtype)

    def update(self) -> None:
        """One rollout, one pass of PPO over it."""
        n_steps, n_envs = self.job["n_steps"], self.job["n_envs"]
        obs, actions, log_probs, rewards, dones, values = [], [], [], [], [], []
        for _ in range(n_steps):
            with torch.no_grad():
                action, log_prob, _, value = self.agent(self.obs)
            for kept, new in ((obs, self.obs), (actions, action), (log_probs, log_prob), (values, value)):
                kept.append(new)
            dones.append(self.done)
            sent = action.numpy().astype(np.int32 if action.dtype == torch.int64 else np.float64)
            following, reward, terminated, truncated, _ = self.pool.step(
                np.clip(sent, -1, 1) if sent.ndim > 1 else sent
            )
            self.transitions += n_envs - int(self.done.sum())  # the step after an end only resets
            rewards.append(torch.as_tensor(np.asarray(reward, np.float32)))
            self.obs = self._tensor(following)
            self.done = torch.as_tensor(np.logical_or(terminated, truncated)).float()
        with torch.no_grad():
            last_value = self.agent(self.obs)[3]
        advantages, running = torch.zeros(n_steps, n_envs), torch.zeros(n_envs)
        for t in reversed(range(n_steps)):
            is_last = t == n_steps - 1
            goes_on = 1.0 - (self.done if is_last else dones[t + 1])
            delta = rewards[t] + GAMMA * goes_on * (last_value if is_last else values[t + 1]) - values[t]
            advantages[t] = running = delta + GAMMA * LAMBDA * goes_on * running
        flat = [torch.cat(part) for part in (obs, actions, log_probs)]
        gains, targets = advantages.reshape(-1), (advantages + torch.stack(values)).reshape(-1)
        for _ in range(EPOCHS):
            for index in torch.randperm(n_steps * n_envs).split(self.job["batch_size"]):
                self._step(*(part[index] for part in (*flat, gains, targets)))

    def _step(self, obs: Tensor, actions: Tensor, old: Tensor, gain: Tensor, target: Tensor) -> None:
        _, log_prob, entropy, value = self.agent(obs, actions)
        ratio, gain = (log_prob - old).exp(), (gain - gain.mean()) / (gain.std() + 1e-8)
        policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        loss = policy_loss - ENTROPY * entropy.mean() + VALUE * (value - target).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), 0.5)
        self.optimizer.step()


def train_sps(task: str, updates: int, is_pinned: bool) -> dict[str, Any]:
    trainer = Trainer(task, is_pinned)
    trainer.update()
    before, start = trainer.transitions, time.perf_counter()
    for _ in range(updates):
        trainer.update()
    seconds, steps = time.perf_counter() - start, trainer.transitions - before
    return {"sps": steps / seconds, "steps": steps, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("train_sps")
    speed.add_argument("--updates", type=int, required=True)
    speed.add_argument("--task", choices=TASKS, required=True)
    speed.add_argument("--threads", type=int, default=1, help="of torch")
    speed.add_argument("--pinned", action="store_true", help="EnvPool's threads stay on their cores")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    result = train_sps(arguments.task, arguments.updates, arguments.pinned)
    print(json.dumps({**result, "version": envpool.__version__}))


if __name__ == "__main__":
    main()
