"""A writer in another process: attaches to a segment, fills one slab through the real actor, commits with its fence.

Importable by a spawned process, which finds tests/ on the path it inherits. `fill_and_commit` is all a worker will do
for one lease; the parent runs it too, to compare.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.clock import now_ns
from headrace.envs.seeds import Purpose, leaf
from headrace.inference.local import LocalInference
from headrace.launch.shard import ShardPlan, build_actor, build_envs, seat
from headrace.memory.schema import Schema, rollout_schema
from headrace.memory.segment import SharedSegment
from headrace.memory.slab import Slab
from headrace.memory.spaces import Space
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.threads import torch_threads
from headrace.policies.tiles import default_tile


@dataclass(frozen=True)
class Order:
    """Plain data: which shard, which rollout length, under which fence, from which version on: row t is said to act
    with version + t, as when newer weights are picked up within a slab."""

    plan: ShardPlan
    observation: Space
    action: Space
    n_steps: int
    fence: int
    version: int

    @property
    def schema(self) -> Schema:
        return rollout_schema(self.observation, self.action, self.n_steps, len(self.plan.env_indices))


def order_for(plan: ShardPlan, n_steps: int, fence: int, version: int) -> Order:
    envs = build_envs(plan)
    envs.close()
    return Order(plan, envs.observation_space, envs.action_space, n_steps, fence, version)


def fill_and_commit(order: Order, slab: Slab) -> None:
    seed = leaf(order.plan.seed, Purpose.WEIGHTS)
    module = build_policy(PolicyConfig(), order.observation, order.action, seed)
    policy = as_policy(module)
    tile = default_tile(len(order.plan.env_indices), policy.largest_tile)
    actor = build_actor(order.plan, policy.noise)
    try:
        with torch_threads(1):
            inference = LocalInference(module, order.observation, order.action, tile)
            seat(actor, None, order.observation, len(order.plan.env_indices))
            actor.fill(slab, inference.act, lambda row: order.version + row)
    finally:
        actor.close()
    slab.commit(order.fence, now_ns())


def in_another_process(work: dict[str, Order]) -> None:
    """The spawned process's main, by name of segment: it creates nothing and unlinks nothing."""
    for segment_name, order in work.items():
        segment = SharedSegment.attach(segment_name)
        fill_and_commit(order, Slab(order.schema, segment.buffer, create=False))
