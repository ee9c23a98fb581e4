"""A worker process: it builds the shards it is given, then fills slabs as orders come in, until the parent hangs up.

    WorkerPlan -> attach to the ring's segment, and to the weights' or the slots' -> host -> READY
    order record -> host.fill -> DONE          a failure -> FAILED, and the end      RETIRE -> the end

Whole slabs stay in shared memory; the line carries fixed-size records. What it is at is in its crash notes, and so is
its Python stack once it crashes or is asked for it (SIGUSR1). Whether the policy runs here or in a server is what the
plan brings along (`inference`); this file imports no torch. Does not know other workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headrace.collecting.host import Acting, Host
from headrace.collecting.order import Order
from headrace.collecting.plan import HostPlan
from headrace.collecting.turns import serve_in_turns
from headrace.episodes.standing import Standing
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.crash_note import WAITS
from headrace.memory.segment import SharedSegment
from headrace.runtime.failures import report
from headrace.runtime.line import Line
from headrace.runtime.stacks import keep_notes

READY, DONE, FAILED, NOT_CLOSED = b"R", b"D", b"F", b"C"
RETIRE = b""  # in the place of an order: there are no more


class Opened(Protocol):
    """What acts for a host's actors; if it is to wait, it pauses first."""

    pause: Callable[[], None] | None

    @property
    def acting(self) -> Acting: ...


class Inference(Protocol):
    """Where the policy runs for a worker, as data; opened there."""

    def open(self, waits: Callable[[int], None]) -> Opened: ...


@dataclass(frozen=True)
class WorkerPlan:
    """All a worker process needs, sent to it once."""

    host: HostPlan
    starts: dict[int, Standing | None]  # the shards it hosts, and where they stand
    ring_segment: str
    inference: Inference
    notes_segment: str
    worker: int  # its number
    in_turns: bool = False  # it steps one shard while another one waits for the policy


def run_worker(line: Line, plan: WorkerPlan) -> None:
    """A worker's life."""
    keep_freed_memory()
    host: Host | None = None

    def receive() -> Order | None:
        data = line.receive()
        return Order.decode(data) if data else None

    try:
        notes = keep_notes([len(shard) for shard in plan.host.shards], plan.notes_segment, plan.worker)

        def waits(shard: int) -> None:
            notes.notes[shard].words[WAITS] += 1

        slabs = SharedSegment.attach(plan.ring_segment).buffer
        opened = plan.inference.open(waits)
        host = Host(plan.host, slabs, opened.acting, plan.starts, notes.notes)
        line.send(READY)
        serve = partial(serve_in_turns, host, opened, partial(line.connection.poll, 0)) if plan.in_turns else host.serve
        serve(receive, partial(line.send, DONE))
    except BaseException as error:
        line.send(FAILED + report(error))
    finally:
        try:
            if host is not None:
                host.close()
        except Exception as error:
            line.send(NOT_CLOSED + report(error))
