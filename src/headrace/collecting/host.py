"""The host: fills slabs for the shards it was given, one order after the other. The same loop in every topology.

    Order (lease, version) -> fill the slab: act, step -> commit word (release) -> done

Inline a host works in the caller's thread, with topology=threads in a thread, with processes in a worker process; what
differs is how an order reaches it. The commit word is what counts: done only wakes the reader. Where the time went is
in the slab's header. Does not know where the policy runs (inference/local, client), nor rings. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

from headrace.acting.actor import Actor
from headrace.acting.stacked import Act
from headrace.clock import now_ns
from headrace.collecting.order import Order
from headrace.collecting.plan import HostPlan, build_actor
from headrace.episodes.standing import Standing
from headrace.errors import HeadraceError
from headrace.memory.crash_note import CrashNote
from headrace.memory.layout import Word, slab_bytes
from headrace.memory.lease import Lease
from headrace.memory.slab import Slab

Acting = Callable[[Lease, int, tuple[int, ...] | None], Act]  # version of the order; recorded ones, per row


class Host:
    """Actors of some shards, and what acts for them."""

    def __init__(
        self,
        plan: HostPlan,
        slabs: memoryview,
        acting: Acting,
        starts: Mapping[int, Callable[[], Standing | None] | Standing | None],
        notes: Sequence[CrashNote | None] = (),
    ) -> None:
        self._plan, self._slabs, self._acting = plan, slabs, acting
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
        self._actors[lease.shard].fill(slab, self._acting(lease, order.version, order.versions))
        slab.commit(lease.fence, now_ns())

    def close(self) -> None:
        """Close all environments, last shard first, whatever the others do; the first shard's failure is raised."""
        actors, self._actors = self._actors, {}
        with ExitStack() as every:
            for actor in actors.values():
                every.callback(actor.close)

    def _slab(self, offset: int, shard: int) -> Slab:
        key = (offset, shard)
        if key not in self._views:
            schema = self._plan.schemas[shard]
            self._views[key] = Slab(schema, self._slabs[offset : offset + slab_bytes(schema)], create=False)
        return self._views[key]
