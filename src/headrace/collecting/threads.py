"""Threads: the shards dealt out to a few threads of this process, for environments that release the GIL.

    order: into the queue of the shard's thread -> its host fills and commits -> Done into the common queue -> wait

Memory is shared anyway, so slabs and weights lie on the heap. A failure is handed over and raised by `wait`; a thread
can't be killed, so there is nothing to replace.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from headrace.collecting.host import Done, Host, Order, Spent
from headrace.collecting.place import Say, StartOf
from headrace.collecting.plan import HostPlan
from headrace.episodes.journal import Standing
from headrace.errors import HeadraceError
from headrace.policies.threads import torch_threads
from headrace.weights.store import WeightStore


class Threads:
    """All shards of a run, in `workers` threads; shard s is filled by thread s mod workers."""

    restarts = 0

    def __init__(self, plan: HostPlan, slabs: memoryview, store: WeightStore, workers: int) -> None:
        self._plan, self._slabs, self._store, self._workers = plan, slabs, store, workers
        self._orders: list[SimpleQueue[Order | None]] = [SimpleQueue() for _ in range(workers)]
        self._reports: SimpleQueue[BaseException | Done | None] = SimpleQueue()  # None: a thread is ready
        self._threads: list[threading.Thread] = []
        self._close_errors: list[HeadraceError] = []
        self._is_closing = False
        self.spent = Spent()

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
        """Until a thread has something to report."""
        report = self._reports.get()
        if isinstance(report, BaseException):
            raise report
        if report is not None:
            self.spent.add(report)

    def worker_of(self, shard: int) -> int:
        """The number of the thread."""
        return shard % self._workers

    def close(self) -> None:
        """End the threads after the slab they are at; each closes its environments."""
        self._is_closing = True
        for orders in self._orders:
            orders.put(None)
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        errors, self._close_errors = self._close_errors, []
        if errors:
            raise errors[0]

    def _work(self, index: int, starts: dict[int, Standing | None]) -> None:
        host: Host | None = None

        def receive() -> Order | None:
            order = self._orders[index].get()
            return None if self._is_closing else order

        try:
            with torch_threads(1):
                host = Host(self._plan, self._slabs, self._store, starts)
                self._reports.put(None)
                host.serve(receive, self._reports.put)
        except BaseException as error:
            self._reports.put(error)
        finally:
            try:
                if host is not None:
                    host.close()
            except HeadraceError as error:
                self._close_errors.append(error)
