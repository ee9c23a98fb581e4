"""Builds one shard's actor from plain data: the same call inline, in a thread or in a spawned process.

ShardPlan (picklable) --build_actor--> Actor over SerialEnvs (single environments) or GymnasiumVector (a pool)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace.acting.actor import Actor
from headrace.envs.actions import sender
from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import VectorEnv
from headrace.policies.noise import CounterNoise, NoiseSpec


@dataclass(frozen=True)
class ShardPlan:
    """All an actor needs to be built anywhere."""

    spec: EnvSpec
    env_indices: range
    seed: int


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
    """The shard's actor; begin or restore it before it fills slabs."""
    return actor_of(plan, build_envs(plan), noise)


def actor_of(plan: ShardPlan, envs: VectorEnv, noise: NoiseSpec) -> Actor:
    """The actor over environments that are already there."""
    return Actor(
        envs, build_noise(plan, noise), sender(envs.action_space), plan.env_indices, partial(episode_seed, plan.seed)
    )
