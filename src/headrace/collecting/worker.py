"""A worker process: it builds the shards it is given, then fills slabs as orders come in, until the parent hangs up.

    WorkerPlan -> attach to the ring's and the weights' segments -> host -> READY
    order record -> host.fill -> DONE          a failure -> FAILED, and the end      RETIRE -> the end

Whole slabs stay in shared memory; the line carries fixed-size records. What it is at is in its crash notes, and so is
its Python stack once it crashes or is asked for it (SIGUSR1). Does not know other workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headrace.collecting.host import Host, Order
from headrace.collecting.plan import HostPlan
from headrace.episodes.standing import Standing
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.segment import SharedSegment
from headrace.policies.threads import torch_threads
from headrace.runtime.failures import report
from headrace.runtime.line import Line
from headrace.runtime.stacks import keep_notes
from headrace.weights.store import WeightStore

READY, DONE, FAILED, NOT_CLOSED = b"R", b"D", b"F", b"C"
RETIRE = b""  # in the place of an order: there are no more


@dataclass(frozen=True)
class WorkerPlan:
    """All a worker process needs, sent to it once."""

    host: HostPlan
    starts: dict[int, Standing | None]  # the shards it hosts, and where they stand
    ring_segment: str
    store_segment: str
    store_size: int
    store_capacity: int
    notes_segment: str
    worker: int  # its number


def run_worker(line: Line, plan: WorkerPlan) -> None:
    """A worker's life."""
    keep_freed_memory()
    host: Host | None = None

    def receive() -> Order | None:
        data = line.receive()
        return Order.decode(data) if data else None

    try:
        with torch_threads(1):
            notes = keep_notes([len(shard) for shard in plan.host.shards], plan.notes_segment, plan.worker)
            slabs = SharedSegment.attach(plan.ring_segment).buffer
            segment = SharedSegment.attach(plan.store_segment)
            store = WeightStore(plan.store_size, plan.store_capacity, segment, create=False)
            host = Host(plan.host, slabs, store, plan.starts, notes.notes)
            line.send(READY)
            host.serve(receive, partial(line.send, DONE))
    except BaseException as error:
        line.send(FAILED + report(error))
    finally:
        try:
            if host is not None:
                host.close()
        except Exception as error:
            line.send(NOT_CLOSED + report(error))
