"""Slabs on the heap, and actors that fill them without a policy: every action is read off the noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.acting.actor import Actor
from headrace.acting.culprit import Culprit
from headrace.acting.stacked import Act
from headrace.acting.start import begin, go_on
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.vector_env import VectorEnv
from headrace.episodes.standing import Standing
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import Schema, rollout_schema
from headrace.memory.segment import HeapSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import Box, Discrete, Leaves
from headrace.policies.noise import CounterNoise
from headrace.policies.noise_spec import NoiseSpec

Array = npt.NDArray[Any]

VECTOR = Box((3,), "float32", (-np.inf,), (np.inf,))
CHOICE = Discrete(4)

COMPLETED = ("log_prob", "value", "bootstrap_value", "last_value")  # written by the reader, not by actors


def small_schema(n_steps: int = 5, n_envs: int = 3) -> Schema:
    return rollout_schema(VECTOR, CHOICE, n_steps, n_envs)


def heap_slab(schema: Schema) -> Slab:
    """A poisoned slab, as a fresh lease hands it over."""
    slab = Slab(schema, HeapSegment(slab_bytes(schema)).buffer)
    slab.poison()
    return slab


def slab_for(envs: VectorEnv, n_steps: int) -> Slab:
    return heap_slab(rollout_schema(envs.observation_space, envs.action_space, n_steps, envs.num_envs))


def noise_keys(env_indices: range) -> list[tuple[int, int]]:
    return [(1_000_003 * env + 17, 7_777_777 * env + 3) for env in env_indices]


def noise_for(env_indices: range, width: int = CHOICE.n) -> CounterNoise:
    return CounterNoise(NoiseSpec("gumbel", width), noise_keys(env_indices))


def act_by_noise(version: int) -> Act:
    """The policy of a test: uniform over the choices, and a function of (env, transition) alone."""

    def act(row: int, obs: Leaves, noise: Array, out: Array) -> int:
        out[:] = noise.argmax(-1)
        return version

    return act


@cache
def action_of(env_index: int, transition: int, width: int = CHOICE.n) -> int:
    """What `act_by_noise` does in that transition of that environment, whoever hosts it."""
    noise = noise_for(range(env_index, env_index + 1), width)
    return int(noise.draw(np.array([transition]), 1)[0, 0].argmax())


def noise_actor(envs: VectorEnv, env_indices: range, seed: int = 0, standing: Standing | None = None) -> Actor:
    """An actor at its environments' beginning, or where a journal says that they stand."""

    def seed_of(env_index: int, episode: int) -> int:
        return leaf(seed, Purpose.ENV, env_index, episode)

    culprit = Culprit(env_indices, seed_of)
    if standing is None:
        carry = begin(envs, culprit)
    else:
        carry = go_on(envs, culprit, standing.live, standing.last_obs, standing.noise_counter)
    return Actor(envs, noise_for(env_indices), culprit, carry)


def filled_slabs(envs: VectorEnv, env_indices: range, n_steps: int, count: int) -> list[Slab]:
    """`count` consecutive slabs of one shard, as its actor leaves them."""
    actor = noise_actor(envs, env_indices)
    slabs = [slab_for(envs, n_steps) for _ in range(count)]
    for version, slab in enumerate(slabs):
        actor.fill(slab, act_by_noise(version))
    return slabs
