"""What a host is built from: plain data that can be sent to another thread or process.

    HostPlan --build_actor(shard, start)--> Actor over SerialEnvs (single environments) or GymnasiumVector (a pool)

One call serves the first start, a replaced worker, a resume, and moving to another topology: `start` says where the
shard stands (None: at its beginning).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace.acting.actor import Actor
from headrace.acting.culprit import Culprit
from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSpec
from headrace.envs.vector_env import VectorEnv
from headrace.episodes.journal import Standing
from headrace.memory.schema import Schema
from headrace.memory.spaces import Space
from headrace.policies.noise import CounterNoise, NoiseSpec
from headrace.policies.policy import Module


@dataclass(frozen=True)
class HostPlan:
    """All that hosts of a run need to be built anywhere."""

    env: EnvSpec
    seed: int
    shards: tuple[range, ...]
    schemas: tuple[Schema, ...]
    module: Module
    noise: NoiseSpec
    observation: Space
    action: Space
    tile: int
    pick_up_rows: int
    """Rows after which newer weights are looked for; 0: only at a slab's border, the version that the order names."""


def build_envs(spec: EnvSpec, env_indices: range, seed: int, purpose: Purpose = Purpose.ENV) -> VectorEnv:
    """The environments with these indices."""
    seed_of: Callable[[int, int], int] = partial(leaf, seed, purpose)
    if spec.is_vector():
        return GymnasiumVector(spec.make_vector(len(env_indices)), env_indices, seed_of)
    return SerialEnvs(spec.make, env_indices, seed_of)


def build_noise(noise: NoiseSpec, env_indices: range, seed: int, purpose: Purpose = Purpose.NOISE) -> CounterNoise:
    """Their action noise: two keys per environment."""
    return CounterNoise(noise, [(leaf(seed, purpose, env, 0), leaf(seed, purpose, env, 1)) for env in env_indices])


def build_actor(plan: HostPlan, shard: int, start: Standing | None) -> Actor:
    """A shard's actor, brought to where the shard stands."""
    indices = plan.shards[shard]
    envs = build_envs(plan.env, indices, plan.seed)
    actor = Actor(
        envs, build_noise(plan.noise, indices, plan.seed), Culprit(indices, partial(leaf, plan.seed, Purpose.ENV))
    )
    try:
        if start is None:
            actor.begin()
        else:
            actor.restore(start.live, start.last_obs, start.noise_counter)
    except BaseException:
        actor.close()
        raise
    return actor
