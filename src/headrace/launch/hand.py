"""A hand acts for the shards it is given: its own replica of the policy, and the versions it runs.

    HandPlan (picklable) --Hand--> fill(actor, slab, Order) : the weights of the order, or the newest every few rows

One per thread that acts, whether that thread is the caller's, one of several, or a worker process's.
Does not know rings or where orders come from.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from headrace.acting.actor import Actor, VersionAt
from headrace.clock import now_ns
from headrace.inference.local import LocalInference
from headrace.memory.slab import Slab
from headrace.memory.spaces import Space
from headrace.policies.policy import Module
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore


@dataclass(frozen=True)
class HandPlan:
    """All a hand needs to be built anywhere."""

    module: Module
    observation: Space
    action: Space
    tile: int
    pick_up_rows: int
    """Rows after which newer weights are looked for; 0: only at a slab's border, the version the lease names."""


class Hand:
    """One replica that acts."""

    def __init__(self, plan: HandPlan, store: WeightStore) -> None:
        flat = FlatParameters(copy.deepcopy(plan.module))
        self._replica = Replica(flat)
        self._store = store
        self._inference = LocalInference(flat.module, plan.observation, plan.action, plan.tile)
        self._rows = plan.pick_up_rows

    def self_test(self) -> None:
        """Raise unless rows come out the same at any place in a tile."""
        self._inference.self_test()

    def fill(self, actor: Actor, slab: Slab, fence: int, version: int, versions: list[int] | None = None) -> None:
        """Fill and commit a leased slab; `versions` per row replay a recorded schedule."""
        actor.fill(slab, self._inference.act, self._version_at(version, versions))
        slab.commit(fence, now_ns())

    def forget(self) -> None:
        """The weights of the present version were replaced: load them again."""
        self._replica.forget()

    def _version_at(self, version: int, versions: list[int] | None) -> VersionAt:
        replica, store, rows = self._replica, self._store, self._rows

        def fixed(row: int) -> int:
            if row and replica.version is not None:
                return replica.version
            if replica.try_load(store, version):
                return version
            return replica.load_latest(store)  # first come, first served: this lease waited too long for its turn

        def newest(row: int) -> int:
            if row % rows and replica.version is not None:
                return replica.version
            return replica.load_latest(store)

        def recorded(row: int) -> int:
            assert versions is not None
            replica.load(store, versions[row])
            return versions[row]

        return recorded if versions is not None else newest if rows else fixed
