"""A worker process: it builds the shards it is given, then fills slabs as leases come in, until the parent hangs up.

    WorkerPlan -> attach to the ring's and the weights' segments -> build and seat actors -> READY
    lease record -> fill, commit word (release) -> COMMITTED record          a failure -> FAILED, and the end

Whole slabs stay in shared memory; the line carries fixed-size records. The commit word is what counts: COMMITTED only
wakes the reader and brings the times along. Does not know other workers or why a lease was granted.
"""

from __future__ import annotations

import json
import struct
import traceback
from dataclasses import dataclass

from headrace.clock import now_ns
from headrace.episodes.books import Whereabouts
from headrace.inference.threads import torch_threads
from headrace.launch.actors import CrewPlan
from headrace.launch.hand import Hand
from headrace.launch.shard import build_actor, seat
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.ring_state import Lease
from headrace.memory.segment import SharedSegment
from headrace.memory.slab import Slab, slab_bytes
from headrace.runtime.process import Line
from headrace.weights.store import WeightStore

READY, COMMITTED, FAILED = b"R", b"C", b"F"
_ORDER = struct.Struct("=6q")  # slot, shard, sequence, fence, version, offset
_DONE = struct.Struct("=5q")  # shard, env, inference, copy and idle nanoseconds


@dataclass(frozen=True)
class WorkerPlan:
    """All a worker process needs, sent to it once."""

    crew: CrewPlan
    starts: dict[int, Whereabouts | None]  # the shards it hosts, and where they stand
    ring_segment: str
    store_segment: str
    store_size: int
    store_capacity: int


@dataclass(frozen=True)
class Order:
    """A lease on its way to a worker."""

    lease: Lease
    version: int
    offset: int

    def encode(self) -> bytes:
        """As a record."""
        lease = self.lease
        return _ORDER.pack(lease.slot, lease.shard, lease.sequence, lease.fence, self.version, self.offset)

    @classmethod
    def decode(cls, data: bytes) -> Order:
        """The inverse."""
        slot, shard, sequence, fence, version, offset = _ORDER.unpack(data)
        return cls(Lease(slot, shard, sequence, fence), version, offset)


def decode_done(data: bytes) -> tuple[int, list[float]]:
    """Shard and seconds in env, inference, copy and idle of a COMMITTED record."""
    shard, *nanoseconds = _DONE.unpack(data[len(COMMITTED) :])
    return shard, [one / 1e9 for one in nanoseconds]


def run_worker(line: Line, plan: WorkerPlan) -> None:
    """A worker's life."""
    keep_freed_memory()
    actors = {}
    try:
        with torch_threads(1):
            ring = SharedSegment.attach(plan.ring_segment)
            store = WeightStore(
                plan.store_size, plan.store_capacity, SharedSegment.attach(plan.store_segment), create=False
            )
            hand = Hand(plan.crew.hand, store)
            for shard, start in plan.starts.items():
                shard_plan = plan.crew.shards[shard]
                actors[shard] = build_actor(shard_plan, plan.crew.noise)
                seat(actors[shard], start, plan.crew.hand.observation, len(shard_plan.env_indices))
            line.send(READY)
            slabs: dict[tuple[int, int], Slab] = {}
            while True:
                asked = now_ns()
                data = line.receive()
                if data is None:
                    break
                order = Order.decode(data)
                lease, idle = order.lease, now_ns() - asked
                key = (order.offset, lease.shard)
                schema = plan.crew.schemas[lease.shard]
                if key not in slabs:
                    block = ring.buffer[order.offset : order.offset + slab_bytes(schema)]
                    slabs[key] = Slab(schema, block, create=False)
                actor = actors[lease.shard]
                hand.fill(actor, slabs[key], lease.fence, order.version)
                spent, actor.spent = actor.spent, type(actor.spent)()
                line.send(COMMITTED + _DONE.pack(lease.shard, spent.env, spent.inference, spent.copy, idle))
    except BaseException as error:
        line.send(FAILED + _told(error))
    finally:
        for actor in actors.values():
            try:
                actor.close()
            except Exception as error:
                line.send(FAILED + _told(error))


def _told(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    return json.dumps({"kind": type(error).__name__, "message": str(error), "traceback": text}).encode()
