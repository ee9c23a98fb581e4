"""Places of actors on a stage of their own: a plan, weights, a ring and one place, without reader or learner.

    stage(kind, env) -> Stage: launch -> order -> collect: wait and take -> Taken ... -> bits: what a slab holds

Every kind of place is in PLACES; a new one is added to `build.open_place` and here, and meets the whole contract.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.build import open_place
from headrace.collecting.order import Order
from headrace.collecting.place import Place, Replaced, StartOf
from headrace.collecting.plan import HostPlan
from headrace.collecting.topology import Topology, WorkerLimits, split
from headrace.envs.building import build_envs
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.spec import EnvSpec
from headrace.errors import HeadraceError
from headrace.memory.lease import Lease, Taken
from headrace.memory.ring import Ring
from headrace.memory.schema import rollout_schema
from headrace.memory.segment import HeapSegment, SharedSegment
from headrace.memory.slab import Slab
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.tiles import default_tile
from headrace.weights.flat import FlatParameters
from headrace.weights.store import WeightStore, store_bytes
from support.slabs import COMPLETED

PLACES = ("inline", "threads", "processes", "central")  # the last: worker processes that ask an inference server
SEED = 7
NOISY = EnvSpec("support.bit_envs:Noisy")


@dataclass
class Stage:
    """A place and what it needs."""

    plan: HostPlan
    topology: Topology
    flat: FlatParameters
    store: WeightStore
    ring: Ring
    place: Place
    said: list[str] = field(default_factory=list)

    def launch(self, start_of: StartOf = lambda shard: None) -> None:
        """Every host up."""
        self.place.launch(start_of, self.said.append)

    def publish(self, change: float = 0.0) -> int:
        """Other weights, as the next version."""
        with torch.no_grad():
            self.flat.vector.add_(change * torch.sin(torch.arange(len(self.flat.vector))))
        self.store.publish(self.flat.published, self.store.version + 1)
        return self.store.version

    def order(self, shards: Sequence[int] | None = None, version: int | None = None) -> list[Lease]:
        """A rollout of every shard, or of these."""
        leases = []
        for shard in range(len(self.plan.shards)) if shards is None else shards:
            self.ring.state.grant(10**9)
            lease = self.ring.lease(shard)
            assert lease is not None, "no slab is free"
            self.place.order(Order(lease, self.store.version if version is None else version, self.ring.offset(lease)))
            leases.append(lease)
        return leases

    def collect(self, count: int | None = None) -> list[Taken]:
        """So many committed slabs, by shard and sequence; one of every shard if nothing is said."""
        taken: list[Taken] = []
        while len(taken) < (len(self.plan.shards) if count is None else count):
            self.place.wait()
            taken += self.ring.take()
        return sorted(taken, key=lambda one: (one.lease.shard, one.lease.sequence))

    def release(self, taken: Sequence[Taken]) -> None:
        """The slabs may be filled again."""
        for one in taken:
            self.ring.state.release(one.lease)

    def rollout(self) -> dict[int, dict[str, bytes]]:
        """One of every shard: ordered, collected, copied out, released."""
        self.order()
        taken = self.collect()
        bits = {one.lease.shard: bits_of(one.slab) for one in taken}
        self.release(taken)
        return bits


def bits_of(slab: Slab) -> dict[str, bytes]:
    """What an actor writes, by field; of final observations as many as there are."""
    finals = {"final_row": slab.final_row} | {f"final_{name}": leaf for name, leaf in slab.final_obs.items()}
    return {name: finals.get(name, array).tobytes() for name, array in slab.arrays.items() if name not in COMPLETED}


@contextmanager
def stage(
    kind: str,
    env: EnvSpec = NOISY,
    n_envs: int = 5,
    n_shards: int = 3,
    n_steps: int = 6,
    workers: int = 2,
    max_lag: int = 1,
    pick_up_rows: int = 0,
) -> Iterator[Stage]:
    """Five environments in three uneven shards, two hosts where there can be two; closed at the end.

    What an environment raises is raised by the place, everywhere: nothing is tried again.
    """
    workers = 1 if kind == "inline" else workers
    shards, limits = tuple(split(n_envs, n_shards)), WorkerLimits(env_retries=0)
    place, inference = ("processes", "central") if kind == "central" else (kind, "local")
    topology = Topology(
        place, inference, max_lag, shards, (), workers, pick_up_rows=pick_up_rows, limits=limits, servers=1
    )
    plan = plan_for(env, topology, n_steps)
    flat = FlatParameters(copy.deepcopy(plan.module))
    make = SharedSegment.create if place == "processes" else HeapSegment
    capacity = topology.pace.versions_kept
    store = WeightStore(flat.size, capacity, make(store_bytes(flat.size, capacity)))
    try:
        store.publish(flat.published, 0)
        ring, hosts = open_place(plan, store, flat.size, capacity, Replaced(), topology)
        try:
            yield Stage(plan, topology, flat, store, ring, hosts)
        finally:
            with suppress(HeadraceError):  # what a test expects of a close, it asks for itself
                hosts.close()
            ring.close()
    finally:
        store.close()


def plan_for(env: EnvSpec, topology: Topology, n_steps: int) -> HostPlan:
    """A small policy over these environments."""
    envs = build_envs(env, range(1), SEED)
    observation, action = envs.observation_space, envs.action_space
    envs.close()
    seed: Any = leaf(SEED, Purpose.WEIGHTS)
    module = build_policy(PolicyConfig(net_arch=(8,)), observation, action, seed)
    policy = as_policy(module)
    schemas = tuple(rollout_schema(observation, action, n_steps, len(shard)) for shard in topology.shards)
    tile = default_tile(topology.shards[-1].stop, policy.largest_tile)
    return HostPlan(
        env, SEED, topology.shards, schemas, module, policy.noise, observation, action, tile, topology.pick_up_rows
    )
