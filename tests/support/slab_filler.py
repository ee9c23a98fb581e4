"""A writer in another process: attaches to a segment, fills one slab through the real actor, commits with its fence.

Importable by a spawned process, which finds tests/ on the path it inherits. `fill_and_commit` is all a worker does for
one lease, without a store to take versions from; the parent runs it too, to compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.clock import now_ns
from headrace.collecting.plan import HostPlan, build_actor
from headrace.envs.building import build_envs
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.spec import EnvSpec
from headrace.inference.local import LocalInference
from headrace.memory.schema import Schema, rollout_schema
from headrace.memory.segment import SharedSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import Leaves
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.threads import torch_threads
from headrace.policies.tiles import default_tile


@dataclass(frozen=True)
class Order:
    """Plain data: the plan of one shard, under which fence, from which version on: row t is said to act with
    version + t, as when newer weights are picked up within a slab."""

    plan: HostPlan
    fence: int
    version: int

    @property
    def schema(self) -> Schema:
        return self.plan.schemas[0]


def order_for(spec: EnvSpec, env_indices: range, seed: int, n_steps: int, fence: int, version: int) -> Order:
    """A rollout of these environments, with a policy of the run's seed."""
    envs = build_envs(spec, env_indices, seed)
    envs.close()
    observation, action = envs.observation_space, envs.action_space
    module = build_policy(PolicyConfig(), observation, action, leaf(seed, Purpose.WEIGHTS))
    policy = as_policy(module)
    schema = rollout_schema(observation, action, n_steps, len(env_indices))
    tile = default_tile(len(env_indices), policy.largest_tile)
    plan = HostPlan(spec, seed, (env_indices,), (schema,), module, policy.noise, observation, action, tile, 0)
    return Order(plan, fence, version)


def fill_and_commit(order: Order, slab: Slab) -> None:
    plan = order.plan
    actor = build_actor(plan, 0, None)
    try:
        with torch_threads(1):
            inference = LocalInference(plan.module, plan.observation, plan.action, plan.tile)

            def act(row: int, obs: Leaves, noise: Any, out: Any) -> int:
                inference.act(obs, noise, out)
                return order.version + row

            actor.fill(slab, act)
    finally:
        actor.close()
    slab.commit(order.fence, now_ns())


def in_another_process(work: dict[str, Order]) -> None:
    """The spawned process's main, by name of segment: it creates nothing and unlinks nothing."""
    for segment_name, order in work.items():
        segment = SharedSegment.attach(segment_name)
        fill_and_commit(order, Slab(order.schema, segment.buffer, create=False))
