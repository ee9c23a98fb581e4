"""Inline: one host for all shards, in the caller's thread.

    order: noted -> wait: fill the oldest

The simplest place to run, and for cheap environments often the fastest. A crash here can't be replaced; it reaches the
caller as it is. Replays recorded schedules of other places, since it can act with any version that is still kept.
"""

from __future__ import annotations

import os
from collections import deque
from functools import partial

from headrace.collecting.host import Host
from headrace.collecting.order import Order
from headrace.collecting.place import Replaced, Say, StartOf
from headrace.collecting.plan import HostPlan
from headrace.errors import HeadraceError
from headrace.inference.local import following
from headrace.policies.threads import torch_threads
from headrace.runtime.life import end_copy_of
from headrace.weights.store import WeightStore


class Inline:
    """All shards of a run, filled by the caller."""

    replaced = Replaced()

    def __init__(self, plan: HostPlan, slabs: memoryview, store: WeightStore) -> None:
        self._plan, self._slabs, self._store = plan, slabs, store
        self._host: Host | None = None
        self._pending: deque[Order] = deque()

    def launch(self, start_of: StartOf, say: Say) -> None:
        """Start, or bring back, all environments."""
        starts = {shard: partial(start_of, shard) for shard in range(len(self._plan.shards))}
        with torch_threads(1):
            self._host = Host(self._plan, self._slabs, following(self._plan, self._store).acting, starts)

    def replace_lost(self) -> list[int]:
        """The caller is still there."""
        return []

    def order(self, order: Order) -> None:
        """Note it."""
        self._pending.append(order)

    def wait(self) -> None:
        """Fill the next slab; only one, since the weights of the later ones may not be there yet."""
        if self._host is None or not self._pending:
            raise HeadraceError(
                "no rollout is ordered, so none can be waited for; a replay has no more than its schedule"
            )
        pid = os.getpid()
        try:
            with torch_threads(1):
                self._host.fill(self._pending.popleft())
        finally:
            end_copy_of(pid)

    def served(self) -> dict[str, float]:
        """There are no inference servers."""
        return {}

    def worker_of(self, shard: int) -> int:
        """The caller."""
        return 0

    def close(self) -> None:
        """Close all environments."""
        host, self._host = self._host, None
        self._pending.clear()
        if host is not None:
            host.close()
