"""Builds one shard's actor from plain data: the same call inline, in a thread or in a spawned process.

ShardPlan (picklable) --build_actor--> Actor over SerialEnvs (single environments) or GymnasiumVector (a pool)
Start (where the journal says the shard is) --seat--> the actor begins, or goes on from there
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.acting.actor import Actor
from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import VectorEnv
from headrace.episodes.books import Whereabouts
from headrace.memory.spaces import Space, shape_of
from headrace.policies.noise import CounterNoise, NoiseSpec


@dataclass(frozen=True)
class ShardPlan:
    """All an actor needs to be built anywhere."""

    spec: EnvSpec
    env_indices: range
    seed: int


def seat(actor: Actor, start: Whereabouts | None, observation: Space, n_envs: int) -> None:
    """Bring an actor to where its shard is; None: at the beginning."""
    if start is None:
        actor.begin(np.empty((n_envs, *shape_of(observation)), observation.dtype))
    else:
        actor.restore(start.live, start.last_obs, start.noise_counter)


def episode_seed(seed: int, env_index: int, episode: int) -> int:
    """The reset seed of one training episode."""
    return leaf(seed, Purpose.ENV, env_index, episode)


def build_envs(plan: ShardPlan, purpose: Purpose = Purpose.ENV) -> VectorEnv:
    """The shard's environments."""
    seed_of: Callable[[int, int], int] = partial(leaf, plan.seed, purpose)
    if plan.spec.is_vector():
        return GymnasiumVector(plan.spec.make_vector(len(plan.env_indices)), plan.env_indices, seed_of)
    return SerialEnvs(plan.spec.make, plan.env_indices, seed_of)


def build_noise(plan: ShardPlan, noise: NoiseSpec, purpose: Purpose = Purpose.NOISE) -> CounterNoise:
    """The shard's action noise: two keys per environment."""
    return CounterNoise(
        noise, [(leaf(plan.seed, purpose, env, 0), leaf(plan.seed, purpose, env, 1)) for env in plan.env_indices]
    )


def build_actor(plan: ShardPlan, noise: NoiseSpec) -> Actor:
    """The shard's actor; seat it before it fills slabs."""
    envs = build_envs(plan)
    return Actor(
        envs, build_noise(plan, noise), sender(envs.action_space), plan.env_indices, partial(episode_seed, plan.seed)
    )
