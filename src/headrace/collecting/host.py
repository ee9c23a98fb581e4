"""The host: fills slabs for the shards it was given, one order after the other. The same loop in every topology.

    Order (lease, version) -> fill the slab: act, step -> commit word (release) -> done

Inline a host works in the caller's thread, with topology=threads in a thread, with processes in a worker process; what
differs is how an order reaches it. It holds a replica of the policy and loads the version an order names, or the newest
every few rows. The commit word is what counts: done only wakes the reader. Where the time went is in the slab's header.
Whoever calls it has set torch to one thread. Does not know rings, other hosts, or why a rollout was ordered.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from headrace.acting.actor import Act, Actor, Array
from headrace.clock import now_ns
from headrace.collecting.plan import HostPlan, build_actor
from headrace.episodes.standing import Standing
from headrace.errors import HeadraceError
from headrace.inference.local import LocalInference
from headrace.memory.crash_note import CrashNote
from headrace.memory.ring import Lease
from headrace.memory.slab import Slab, Word, slab_bytes
from headrace.memory.spaces import Leaves
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore

_ORDER = struct.Struct("=6q")


@dataclass(frozen=True)
class Order:
    """A lease on its way to a host: which slab to fill, and with which weights to begin."""

    lease: Lease
    version: int
    offset: int  # of the slab in the ring's segment
    versions: tuple[int, ...] | None = None  # per row, to replay a recorded schedule (inline only)

    def encode(self) -> bytes:
        """As a record of fixed size."""
        lease = self.lease
        return _ORDER.pack(lease.slot, lease.shard, lease.sequence, lease.fence, self.version, self.offset)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse."""
        slot, shard, sequence, fence, version, offset = _ORDER.unpack(data)
        return cls(Lease(slot, shard, sequence, fence), version, offset)


class Host:
    """Actors of some shards, and one replica of the policy that acts for them."""

    def __init__(
        self,
        plan: HostPlan,
        slabs: memoryview,
        store: WeightStore,
        starts: Mapping[int, Callable[[], Standing | None] | Standing | None],
        notes: Sequence[CrashNote | None] = (),
    ) -> None:
        flat = FlatParameters(copy.deepcopy(plan.module))
        self._plan, self._slabs, self._store = plan, slabs, store
        self._replica = Replica(flat)
        self._inference = LocalInference(flat.module, plan.observation, plan.action, plan.tile)
        self._views: dict[tuple[int, int], Slab] = {}
        self._actors: dict[int, Actor] = {}
        try:
            for shard, start in starts.items():
                standing = start() if callable(start) else start
                self._actors[shard] = build_actor(plan, shard, standing, notes[shard] if notes else None)
        except BaseException:
            with suppress(HeadraceError):  # something else has failed, and that is what people should hear of
                self.close()
            raise

    def serve(self, receive: Callable[[], Order | None], done: Callable[[], None]) -> None:
        """Fill what is ordered until there is nothing more to receive; say when a slab is done."""
        while True:
            asked = now_ns()
            order = receive()
            if order is None:
                return
            self.fill(order, now_ns() - asked)
            done()

    def fill(self, order: Order, idle_ns: int = 0) -> None:
        """One rollout: filled and committed."""
        lease = order.lease
        slab = self._slab(order.offset, lease.shard)
        slab.header[Word.IDLE_NS] = idle_ns
        self._actors[lease.shard].fill(slab, self._acting(order))
        slab.commit(lease.fence, now_ns())

    def close(self) -> None:
        """Close all environments, whatever the others do; the first failure is raised."""
        failed: HeadraceError | None = None
        actors, self._actors = self._actors, {}
        for actor in actors.values():
            try:
                actor.close()
            except HeadraceError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _slab(self, offset: int, shard: int) -> Slab:
        key = (offset, shard)
        if key not in self._views:
            schema = self._plan.schemas[shard]
            self._views[key] = Slab(schema, self._slabs[offset : offset + slab_bytes(schema)], create=False)
        return self._views[key]

    def _acting(self, order: Order) -> Act:
        """How this order's rows are acted on: the version it names, the newest every few rows, or recorded ones."""
        replica, store, infer = self._replica, self._store, self._inference.act
        every, versions = self._plan.pick_up_rows, order.versions

        def act(row: int, obs: Leaves, noise: Array, out: Array) -> int:
            if versions is not None:
                replica.load(store, versions[row])
            elif every:
                if row % every == 0 or replica.version is None:
                    replica.load_latest(store)
            elif (row == 0 or replica.version is None) and not replica.try_load(store, order.version):
                replica.load_latest(store)  # first come, first served: this order waited too long for its turn
            infer(obs, noise, out)
            assert replica.version is not None
            return replica.version

        return act
