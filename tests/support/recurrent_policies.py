"""A policy of a user's own that remembers; and batches of one, as acting leaves them, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.learning.batch import Batch
from headrace.memory.spaces import Dict, MultiBinary, Space, choices_of
from headrace.policies.config import PolicyConfig
from headrace.policies.distributions import distribution_for
from headrace.policies.masks import MaskedRecurrentPolicy, built
from headrace.policies.networks import VectorEncoder
from headrace.policies.noise_spec import NoiseSpec
from headrace.policies.policy import Evaluation
from support.ppo_rows import mixed_batch, shaken, spaces_named


class Counting(nn.Module):
    """A leaky sum of what was seen, with a tower on it; written with the port's three methods alone."""

    largest_tile, state_size = 16, 16

    def __init__(self, observation: Space, action: Space) -> None:
        super().__init__()
        self.encode, self.distribution = VectorEncoder(observation), distribution_for(action)
        self.noise: NoiseSpec = self.distribution.noise
        self.into = nn.Linear(self.encode.size, self.state_size)
        self.head = nn.Linear(self.state_size, self.distribution.params + 1)

    def act(self, obs: Tensor, noise: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        out, state = self._outputs(obs, state)
        return self.distribution.act(out[:, :-1], noise), state

    def evaluate(self, obs: Tensor, actions: Tensor, state: Tensor) -> tuple[Evaluation, Tensor]:
        out, state = self._outputs(obs, state)
        return Evaluation(*self.distribution.evaluate(out[:, :-1], actions), out[:, -1]), state

    def value(self, obs: Tensor, state: Tensor) -> Tensor:
        return self._outputs(obs, state)[0][:, -1]

    def _outputs(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = 0.7 * state + torch.tanh(self.into(self.encode(obs)))
        return self.head(state), state


class Doing(Counting):
    """The same, and the first number of its state is what it did last: choices alone."""

    def act(self, obs: Tensor, noise: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
        actions, state = super().act(obs, noise, state)
        return actions, _done(state, actions)

    def evaluate(self, obs: Tensor, actions: Tensor, state: Tensor) -> tuple[Evaluation, Tensor]:
        said, state = super().evaluate(obs, actions, state)
        return said, _done(state, actions)


def _done(state: Tensor, actions: Tensor) -> Tensor:
    return torch.cat([actions.unsqueeze(-1).to(state.dtype), state[:, 1:]], -1)


def counting(observation: Space, action: Space, seed: int = 0, kind: type[Counting] = Counting) -> Counting:
    """Initialised from a seed, without leaving a trace in torch's global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(observation, action)


def recurrent_policy(name: str, observation: str, action: str, seed: int, **options: Any) -> Any:
    """A policy with weights that matter; "own" and "doing" are a user's."""
    spaces = spaces_named(observation, action)
    if name in ("own", "doing"):
        return counting(*spaces, seed, Doing if name == "doing" else Counting)
    config = PolicyConfig(name, (8,), lstm_hidden_size=8, **options)
    if config.action_masks:
        mask = MultiBinary((sum(choices_of(spaces[1])),))
        spaces = Dict((("action_mask", mask), ("observation", spaces[0]))), spaces[1]  # type: ignore[assignment]
    return shaken(built(config, *spaces, seed), seed)


def recurrent_batch(versions: dict[int, Any], version: Any, observation: str, action: Space, seed: int) -> Batch:
    """A batch before completion, with ends and resets that take a row; actions are drawn from the noise alone."""
    stand_in = _Uniform(action)
    batch = mixed_batch(dict.fromkeys(versions, stand_in), version, observation, action, seed, invalid=0.0)
    for t, env in np.argwhere((batch.terminated | batch.truncated)[:-1]).tolist()[::3]:
        t += 1  # some sources need a row for a reset
        batch.valid[t, env] = False
        batch.terminated[t, env] = batch.truncated[t, env] = False
    kept = np.isin(batch.final_row, np.flatnonzero(batch.truncated & batch.valid))
    batch.final_row = batch.final_row[kept]
    batch.final_leaves = {name: leaf[kept] for name, leaf in batch.final_leaves.items()}
    if isinstance(next(iter(versions.values())), MaskedRecurrentPolicy):
        _mask(batch, choices_of(action), seed)
    size = next(iter(versions.values())).state_size
    batch.state = np.random.default_rng(seed + 7).normal(size=(batch.n_envs, size)).astype(np.float32)
    batch.state[::2] = 0.0
    return batch


def _mask(batch: Batch, counts: tuple[int, ...], seed: int) -> None:
    """Masks for one choice: half of it is allowed, and so is what was taken, but the last one never."""
    (count,), rng = counts, np.random.default_rng(seed + 9)
    batch.action %= count - 1
    for leaves in (batch.leaves, batch.last_leaves, batch.final_leaves):
        obs = leaves.pop("obs")
        mask = (rng.random((*obs.shape[: 2 if leaves is batch.leaves else 1], count)) < 0.5).astype(np.int8)
        if leaves is batch.leaves:
            np.put_along_axis(mask, batch.action[..., None], 1, -1)
        mask[..., -1] = 0
        leaves.update({"obs/action_mask": mask, "obs/observation": obs})


class _Uniform(nn.Module):
    largest_tile = 4

    def __init__(self, action: Space) -> None:
        super().__init__()
        self.distribution = distribution_for(action)
        self.noise = self.distribution.noise

    def act(self, obs: Tensor, noise: Tensor) -> Tensor:
        return self.distribution.act(torch.zeros(len(obs), self.distribution.params), noise)

    def evaluate(self, obs: Tensor, actions: Tensor) -> Evaluation:
        raise NotImplementedError

    def value(self, obs: Tensor) -> Tensor:
        raise NotImplementedError
