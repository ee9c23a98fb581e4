"""Processes: the shards dealt out to worker processes, for environments that hold the GIL. A worker may die.

    launch: start all at once, wait for READY -> order: a record over its line -> wait: DONE, a death, a failure

What an environment raised ends its worker, which is replaced; every other failure is raised here. Inference servers are
watched together with the workers that ask them. Does not know how either is started or replaced, nor what becomes of
a worker that reports anything but DONE (workers).
"""

from __future__ import annotations

from headrace.clock import now_s
from headrace.collecting.launching import launch
from headrace.collecting.order import Order
from headrace.collecting.place import Say, StartOf
from headrace.collecting.watch import look_after
from headrace.collecting.worker import DONE
from headrace.collecting.workers import Workers
from headrace.errors import HeadraceError
from headrace.inference.servers import Servers
from headrace.runtime.death import Death
from headrace.runtime.line import Message, Woken, wait_any
from headrace.runtime.supervisor_state import Done

_PATIENCE_S = 0.05  # for something to happen
_LOOK_S = 0.2  # between looks at what the workers are at
_END_S = 1.0  # for a worker to finish its slab and close its environments


class Processes:
    """All shards of a run, in worker processes; shard s is filled by worker s mod workers."""

    def __init__(self, workers: Workers, servers: Servers | None = None) -> None:
        self.workers, self._servers, self.replaced = workers, servers, workers.replaced
        self._has_news = False  # something happened that `wait` has not returned for
        self._looked_s = 0.0

    def launch(self, start_of: StartOf, say: Say) -> None:
        """Start every worker, all at the same time, and wait until the last is ready."""
        self.workers.require_open()
        self.workers.start_of, self.workers.say = start_of, say
        try:
            launch(self.workers, self._servers, self._listen)
        except BaseException:
            self.close(0.0)  # nothing was done yet, and the error should not have to wait
            raise

    def replace_lost(self) -> list[int]:
        """Start workers in the place of those that died; returns the shards they host."""
        self.workers.require_open()
        lost = self.workers.replace() if self.workers.vacant else []
        self._listen(0.0)  # a failure of an environment that runs ahead, or a death, is noticed now
        return lost

    def order(self, order: Order) -> None:
        """A record over the line; if the worker is gone, its death will be noticed."""
        worker = self.worker_of(order.lease.shard)
        child = self.workers.children.get(worker)
        if child is not None:
            self.workers.owed[worker] += 1
            child.line.send(order.encode())

    def wait(self) -> None:
        """Until a worker reports or dies; not at all if that happened since the last wait."""
        self.workers.require_open()
        while not self._has_news and not self.workers.vacant:
            self._listen(_PATIENCE_S)
        self._has_news = False

    def served(self) -> dict[str, float]:
        """What inference servers did since the last call."""
        return {} if self._servers is None else self._servers.served()

    def worker_of(self, shard: int) -> int:
        """The number of the worker."""
        return shard % self.workers.count

    def close(self, patience_s: float = _END_S) -> None:
        """Hang up on all, then see that each has ended. Workers first: what they are at needs the servers."""
        try:
            self.workers.end(patience_s)
        finally:
            if self._servers is not None:
                self._servers.end()

    def _listen(self, timeout_s: float) -> None:
        """Deal with what happened, if anything did; now and then look at who should do something."""
        workers, servers = self.workers, self._servers
        numbers = {id(child): worker for worker, child in workers.children.items()}
        children, watched = list(workers.children.values()), workers.standby.watched
        if servers is not None:
            children += servers.children.values()
            watched = list({*watched, *servers.watched})  # both watch the resource tracker
        failure: HeadraceError | None = None
        for one in wait_any(children, timeout_s, watched):
            try:
                self._hear(one, numbers)
            except HeadraceError as error:  # what else happened is not heard again: a death may follow its failure
                failure = failure or error
        if failure is not None:
            raise failure
        if now_s() - self._looked_s >= _LOOK_S:
            look_after(workers)
            if servers is not None:
                servers.look(workers.watch.clock_s)
            if workers.ends:
                workers.see_failed_end()
            self._looked_s = now_s()

    def _hear(self, one: Message | Death | Woken, numbers: dict[int, int]) -> None:
        """One thing that happened."""
        workers, servers = self.workers, self._servers
        if isinstance(one, Woken):
            workers.standby.mend()
            if servers is not None:
                servers.mend()
            return
        if servers is not None and servers.heard(one):
            self.replaced.servers = servers.restarts
            return
        worker, self._has_news = numbers[id(one.child)], True
        if isinstance(one, Message) and one.data == DONE:
            workers.owed[worker] -= 1
            if worker not in workers.proven:
                workers.proven.add(worker)
                workers.handle(Done(worker))
            if workers.recycling is not None:
                workers.retire_if_worn(worker)
        else:
            workers.heard(worker, one)
