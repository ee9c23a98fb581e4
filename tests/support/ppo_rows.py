"""Minibatches and batches without a run, and PPO once more: slow, plain, as Stable-Baselines3 2.x writes it.

spaces by name (bit_envs) -> policy -> rows / batch            sb3_terms: the loss in float64 numpy
                                                               sb3_train: its epochs, clipping and Adam in torch
                                                               slow_vtrace: V-trace by its definition
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation
from headrace.learning.assembly import complete
from headrace.learning.batch import Batch
from headrace.learning.config import PpoConfig
from headrace.learning.ppo_loss import Coefficients, Rows
from headrace.memory.spaces import Space
from headrace.policies.networks import as_policy
from support.bit_envs import ACTIONS, OBSERVATIONS

Array = npt.NDArray[Any]


def spaces_named(observation: str, action: str) -> tuple[Space, Space]:
    """Two spaces of bit_envs as headrace describes them."""
    return describe_observation(OBSERVATIONS[observation], "test"), describe_action(ACTIONS[action], "test")


def observations(name: str, count: int, seed: int) -> Array:
    """Random members of an observation space."""
    space = copy.deepcopy(OBSERVATIONS[name])
    space.seed(seed)
    return np.stack([space.sample() for _ in range(count)])


def noise_for(module: nn.Module, count: int, rng: np.random.Generator) -> Tensor:
    """Noise as `act` wants it; its distribution matters little here."""
    return torch.from_numpy(rng.gumbel(size=(count, as_policy(module).noise.width)).astype(np.float32))


def shaken(module: nn.Module, seed: int, scale: float = 1.0) -> nn.Module:
    """Away from the initialisation, where heads are nearly zero, but with outputs that still are of the order of 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return module


def everyone(rows: Rows) -> Tensor:
    """The index that picks every row."""
    return torch.arange(len(rows.action))


def random_rows(module: nn.Module, observation: str, count: int, seed: int, moved: float = 0.3) -> Rows:
    """A minibatch after some epochs: ratios off 1 by about `moved`, values off what they were."""
    rng = np.random.default_rng(seed)
    obs = torch.from_numpy(observations(observation, count, seed))
    with torch.no_grad():
        action = as_policy(module).act(obs, noise_for(module, count, rng))
        now = as_policy(module).evaluate(obs, action)

    def normal(scale: float) -> Tensor:
        return torch.from_numpy(rng.normal(0, scale, count).astype(np.float32))

    numbers = (now.log_prob + normal(moved), now.value + normal(moved), normal(1.0), normal(2.0))
    return Rows(obs, action, *numbers, row_weights(count, rng, seed))


def row_weights(count: int, rng: np.random.Generator, seed: int) -> Tensor:
    """All 1 for every other seed, as without late data; else what weighting late rows may give."""
    weights = rng.uniform(0, 1.5, count) if seed % 2 else np.ones(count)
    return torch.from_numpy(weights.astype(np.float32))


def completed_batch(
    module: nn.Module, observation: str, action: Space, n_steps: int, n_envs: int, seed: int, invalid: float = 0.0
) -> Batch:
    """A batch as it reaches the learner: acted and completed by `module`, with some ends and some invalid rows."""
    version = np.zeros((n_steps, n_envs), np.int64)
    batch = mixed_batch({0: module}, version, observation, action, seed, invalid)
    complete(batch, lambda _: as_policy(module))
    return batch


def mixed_batch(
    modules: dict[int, nn.Module], version: Array, observation: str, action: Space, seed: int, invalid: float = 0.0
) -> Batch:
    """A batch before completion, each row acted by the module of its version."""
    rng = np.random.default_rng(seed)
    n_steps, n_envs = version.shape
    n = n_steps * n_envs
    obs = observations(observation, n, seed)
    noise = noise_for(next(iter(modules.values())), n, rng)
    actions = np.zeros((), action.dtype)
    for number, module in modules.items():
        acted = as_policy(module).act(torch.from_numpy(obs), noise).detach().numpy()
        is_its = (version.reshape(-1) == number).reshape(n, *[1] * (acted.ndim - 1))
        actions = np.where(is_its, acted, actions)
    ended = rng.random((n_steps, n_envs))
    zeros = np.zeros((n_steps, n_envs), np.float32)
    truncated = (ended > 0.1) & (ended < 0.2)
    finals = observations(observation, max(1, int(truncated.sum())), seed + 2)[: int(truncated.sum())]
    return Batch(
        leaves={"obs": obs.reshape(n_steps, n_envs, *obs.shape[1:])},
        action=actions.reshape(n_steps, n_envs, *actions.shape[1:]).astype(action.dtype),
        reward=rng.normal(size=(n_steps, n_envs)).astype(np.float32),
        terminated=ended < 0.1,
        truncated=truncated,
        valid=rng.random((n_steps, n_envs)) >= invalid,
        version=version,
        episode=zeros.astype(np.int64),
        step=zeros.astype(np.int32),
        last_leaves={"obs": observations(observation, n_envs, seed + 1)},
        final_row=np.flatnonzero(truncated),
        final_leaves={"obs": finals},
        log_prob=zeros.copy(),
        value=zeros.copy(),
        bootstrap_value=zeros.copy(),
        last_value=zeros[0].copy(),
    )


def sb3_terms(log_prob: Array, entropy: Array, value: Array, rows: Rows, c: Coefficients) -> dict[str, float]:
    """stable_baselines3/ppo/ppo.py, PPO.train, one minibatch, word for word but in float64 numpy and with weights."""
    old_log_prob, old_value, advantages, returns, weights = (tensor.numpy().astype(np.float64) for tensor in rows[2:])
    if c.normalize_advantage and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    advantages = advantages * weights  # ours: 1 but for late rows
    ratio = np.exp(log_prob - old_log_prob)
    policy_loss_1 = advantages * ratio
    policy_loss_2 = advantages * np.clip(ratio, 1 - c.clip_range, 1 + c.clip_range)
    policy_loss = -np.minimum(policy_loss_1, policy_loss_2).mean()
    values_pred = value
    if c.clip_range_vf is not None:
        values_pred = old_value + np.clip(value - old_value, -c.clip_range_vf, c.clip_range_vf)
    value_loss = np.mean((returns - values_pred) ** 2)
    entropy_loss = -np.mean(entropy)
    log_ratio = log_prob - old_log_prob
    return {
        "loss": policy_loss + c.ent_coef * entropy_loss + c.vf_coef * value_loss,
        "policy_gradient_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "approx_kl": np.mean((np.exp(log_ratio) - 1) - log_ratio),
        "old_approx_kl": np.mean(-log_ratio),  # CleanRL's
        "clip_fraction": np.mean(np.abs(ratio - 1) > c.clip_range),
        "ratio_error": np.abs(ratio - 1).max(),  # ours
    }


def sb3_train(
    module: nn.Module,
    rows: Rows,
    valid: Array,
    config: PpoConfig,
    c: Coefficients,
    learning_rate: float,
    generator: np.random.Generator,
) -> list[list[int]]:
    """SB3's epochs over a batch, on the module's own parameters. Returns the rows of each minibatch looked at."""
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate, eps=1e-5)
    looked_at = []
    for _ in range(config.n_epochs):
        order = generator.permutation(valid)
        for start in range(0, len(order), config.batch_size):
            part = Rows(*(tensor[order[start : start + config.batch_size]] for tensor in rows))
            looked_at.append(order[start : start + config.batch_size].tolist())
            advantages = part.advantage
            if c.normalize_advantage and len(advantages) > 1:
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            advantages = advantages * part.weight  # ours: 1 but for late rows
            log_prob, entropy, value = as_policy(module).evaluate(part.obs, part.action)
            ratio = torch.exp(log_prob - part.log_prob)
            clipped = torch.clamp(ratio, 1 - c.clip_range, 1 + c.clip_range)
            policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
            if c.clip_range_vf is not None:
                value = part.value + torch.clamp(value - part.value, -c.clip_range_vf, c.clip_range_vf)
            loss = policy_loss - c.ent_coef * entropy.mean() + c.vf_coef * nn.functional.mse_loss(part.returns, value)
            with torch.no_grad():
                log_ratio = log_prob - part.log_prob
                approx_kl = float(torch.mean((torch.exp(log_ratio) - 1) - log_ratio))
            if config.target_kl is not None and approx_kl > 1.5 * config.target_kl:
                return looked_at
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), config.max_grad_norm)
            optimizer.step()
    return looked_at


def slow_vtrace(
    reward: Array,
    value: Array,
    bootstrap_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    last_value: Array,
    gamma: float,
    gae_lambda: float,
    log_ratio: Array,
    clip: float,
) -> tuple[Array, Array]:
    """Espeholt et al. 2018, equation (1), one environment and one episode after the other, as the sum it is.

    v_s = V(x_s) + sum over t >= s of gamma^(t-s) * c_s ... c_{t-1} * rho_t * (r_t + gamma V(x_{t+1}) - V(x_t))
    """
    T, B = reward.shape
    advantage, target = np.zeros((T, B)), value.astype(np.float64)
    for b in range(B):
        episode: list[int] = []
        for t in range(T):
            if not valid[t, b]:
                assert not episode, "an invalid row follows an end"
                continue
            episode.append(t)
            if not (terminated[t, b] or truncated[t, b] or t == T - 1):
                continue
            after = float(last_value[b])
            if terminated[t, b]:
                after = 0.0
            elif truncated[t, b]:
                after = float(bootstrap_value[t, b])
            ratios = [math.exp(float(log_ratio[t, b])) for t in episode]
            values = [*(float(value[t, b]) for t in episode), after]
            targets = [0.0] * len(episode) + [after]
            for s in range(len(episode)):
                total, passed_on = values[s], 1.0
                for k in range(s, len(episode)):
                    delta = float(reward[episode[k], b]) + gamma * values[k + 1] - values[k]
                    total += passed_on * min(clip, ratios[k]) * delta
                    passed_on *= gamma * gae_lambda * min(1.0, ratios[k])
                targets[s] = total
            for s, row in enumerate(episode):
                gain = float(reward[row, b]) + gamma * targets[s + 1] - values[s]
                advantage[row, b], target[row, b] = min(clip, ratios[s]) * gain, targets[s]
            episode = []
    return advantage, target
