"""Threads: the shards dealt out to a few threads of this process, for environments that release the GIL.

    order: into the queue of the shard's thread -> its host fills and commits -> a report into the common queue -> wait

Memory is shared anyway, so slabs and weights lie on the heap. A failure is handed over and raised by `wait`; a thread
can't be killed, so there is nothing to replace, and one that hangs in an environment is left behind.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from queue import SimpleQueue

from headrace.clock import now_s
from headrace.collecting.host import Host
from headrace.collecting.order import Order
from headrace.collecting.place import Replaced, Say, StartOf
from headrace.collecting.plan import HostPlan
from headrace.episodes.standing import Standing
from headrace.errors import HeadraceError
from headrace.inference.local import following
from headrace.policies.threads import torch_threads
from headrace.runtime.life import end_copy_of
from headrace.weights.store import WeightStore

logger = logging.getLogger(__name__)

_END_S = 5.0  # for a thread to finish its slab and close its environments; one that hangs must not keep the process


class Threads:
    """All shards of a run, in `workers` threads; shard s is filled by thread s mod workers."""

    replaced = Replaced()

    def __init__(self, plan: HostPlan, slabs: memoryview, store: WeightStore, workers: int) -> None:
        self._plan, self._slabs, self._store, self._workers = plan, slabs, store, workers
        self._orders: list[SimpleQueue[Order | None]] = [SimpleQueue() for _ in range(workers)]
        self._reports: SimpleQueue[BaseException | None] = SimpleQueue()  # None: a thread is ready, a slab is done
        self._failure: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._close_errors: list[HeadraceError] = []
        self._is_closing = False

    def launch(self, start_of: StartOf, say: Say) -> None:
        """Start the threads; each builds its own shards."""
        for index in range(self._workers):
            starts = {shard: start_of(shard) for shard in range(index, len(self._plan.shards), self._workers)}
            thread = threading.Thread(target=self._work, args=(index, starts), name=f"host-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in self._threads:
            self.wait()

    def replace_lost(self) -> list[int]:
        """A thread can't be lost."""
        return []

    def order(self, order: Order) -> None:
        """To the thread of its shard."""
        self._orders[self.worker_of(order.lease.shard)].put(order)

    def wait(self) -> None:
        """Until a thread has something to report; one that has failed is gone, and reports no more."""
        self._failure = self._failure or self._reports.get()
        if self._failure is not None:
            raise self._failure

    def served(self) -> dict[str, float]:
        """There are no inference servers."""
        return {}

    def worker_of(self, shard: int) -> int:
        """The number of the thread."""
        return shard % self._workers

    def close(self) -> None:
        """End the threads after the slab they are at; each closes its environments, if it comes back from them."""
        self._is_closing = True
        for orders in self._orders:
            orders.put(None)
        threads, self._threads = self._threads, []
        deadline = now_s() + _END_S
        for thread in threads:
            thread.join(max(0.0, deadline - now_s()))
        left = ", ".join(thread.name for thread in threads if thread.is_alive())
        if left:
            logger.warning("left behind after %.0f s in an environment: %s; it closes when it returns", _END_S, left)
        errors, self._close_errors = self._close_errors, []
        if errors:
            raise errors[0]

    def _work(self, index: int, starts: dict[int, Standing | None]) -> None:
        host: Host | None = None
        pid = os.getpid()

        def receive() -> Order | None:
            end_copy_of(pid)
            order = self._orders[index].get()
            return None if self._is_closing else order

        try:
            with torch_threads(1):
                host = Host(self._plan, self._slabs, following(self._plan, self._store).acting, starts)
                self._reports.put(None)
                host.serve(receive, partial(self._reports.put, None))
        except BaseException as error:
            end_copy_of(pid)
            self._reports.put(error)
        finally:
            try:
                if host is not None:
                    host.close()
            except HeadraceError as error:
                self._close_errors.append(error)
