"""A worker process: it builds the shards it is given, then fills slabs as orders come in, until the parent hangs up.

    WorkerPlan -> attach to the ring's and the weights' segments -> host -> READY
    order record -> host.fill -> DONE record          a failure -> FAILED, and the end

Whole slabs stay in shared memory; the line carries fixed-size records. Does not know other workers.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass

from headrace.collecting.host import Done, Host, Order
from headrace.collecting.plan import HostPlan
from headrace.episodes.journal import Standing
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.segment import SharedSegment
from headrace.policies.threads import torch_threads
from headrace.runtime.line import Line
from headrace.weights.store import WeightStore

READY, DONE, FAILED = b"R", b"D", b"F"


@dataclass(frozen=True)
class WorkerPlan:
    """All a worker process needs, sent to it once."""

    host: HostPlan
    starts: dict[int, Standing | None]  # the shards it hosts, and where they stand
    ring_segment: str
    store_segment: str
    store_size: int
    store_capacity: int


def run_worker(line: Line, plan: WorkerPlan) -> None:
    """A worker's life."""
    keep_freed_memory()
    host: Host | None = None

    def receive() -> Order | None:
        data = line.receive()
        return None if data is None else Order.decode(data)

    def report(done: Done) -> None:
        line.send(DONE + done.encode())

    try:
        with torch_threads(1):
            slabs = SharedSegment.attach(plan.ring_segment).buffer
            segment = SharedSegment.attach(plan.store_segment)
            store = WeightStore(plan.store_size, plan.store_capacity, segment, create=False)
            host = Host(plan.host, slabs, store, plan.starts)
            line.send(READY)
            host.serve(receive, report)
    except BaseException as error:
        line.send(FAILED + _report(error))
    finally:
        try:
            if host is not None:
                host.close()
        except Exception as error:
            line.send(FAILED + _report(error))


def _report(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    return json.dumps({"kind": type(error).__name__, "message": str(error), "traceback": text}).encode()
