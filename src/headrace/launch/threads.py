"""Threads: the shards dealt out to a few threads of this process, for environments that release the GIL.

    lease: orders into each thread's queue -> the thread fills and commits -> a word into the common queue -> wait

Memory is shared anyway, so slabs and weights lie on the heap. A failure is handed over and raised by `wait`; a thread
can't be killed, so there is nothing to replace.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from headrace.clock import now_ns
from headrace.episodes.books import Whereabouts
from headrace.errors import HeadraceError
from headrace.inference.threads import torch_threads
from headrace.launch.actors import CrewPlan, Spent, StartOf, Tell, every_lease
from headrace.launch.hand import Hand
from headrace.launch.shard import build_actor, seat
from headrace.memory.ring import Ring
from headrace.memory.ring_state import Lease
from headrace.weights.store import WeightStore

Order = tuple[Ring, Lease, int]


class ThreadActors:
    """All actors of a run, in `workers` threads; shard s is filled by thread s mod workers."""

    restarts = 0

    def __init__(self, plan: CrewPlan, store: WeightStore, workers: int) -> None:
        self._plan = plan
        self._store = store
        self._workers = workers
        self._orders: list[SimpleQueue[Order | None]] = [SimpleQueue() for _ in range(workers)]
        self._words: SimpleQueue[BaseException | Spent] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._close_errors: list[HeadraceError] = []
        self._is_closing = False
        self._spent = Spent()

    def launch(self, start_of: StartOf, tell: Tell) -> None:
        """Start the threads; each builds its own shards."""
        starts = [start_of(shard) for shard in range(len(self._plan.shards))]
        for index in range(self._workers):
            thread = threading.Thread(target=self._work, args=(index, starts), name=f"actor-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()
        for _ in self._threads:
            self.wait()

    def lease(self, ring: Ring, version: int) -> None:
        """Every lease that the pace allows, to the thread of its shard."""
        for lease in every_lease(ring, range(len(self._plan.shards))):
            self._orders[lease.shard % self._workers].put((ring, lease, version))

    def wait(self) -> None:
        """Until a thread has something to say."""
        word = self._words.get()
        if isinstance(word, BaseException):
            raise word
        self._add(word)

    def spent(self) -> Spent:
        """Where the threads' time went since the last call."""
        spent, self._spent = self._spent, Spent()
        return spent

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

    def _add(self, part: Spent) -> None:
        for name, value in vars(part).items():
            setattr(self._spent, name, getattr(self._spent, name) + value)

    def _work(self, index: int, starts: list[Whereabouts | None]) -> None:
        actors = {}
        try:
            with torch_threads(1):
                hand = Hand(self._plan.hand, self._store)
                for shard in range(index, len(self._plan.shards), self._workers):
                    plan = self._plan.shards[shard]
                    actors[shard] = build_actor(plan, self._plan.noise)
                    seat(actors[shard], starts[shard], self._plan.hand.observation, len(plan.env_indices))
                self._words.put(Spent())
                while True:
                    asked = now_ns()
                    order = self._orders[index].get()
                    if order is None or self._is_closing:
                        break
                    ring, lease, version = order
                    actor, idle = actors[lease.shard], (now_ns() - asked) / 1e9
                    hand.fill(actor, ring.slab(lease), lease.fence, version)
                    spent, actor.spent = actor.spent, type(actor.spent)()
                    self._words.put(Spent(spent.env / 1e9, spent.inference / 1e9, spent.copy / 1e9, idle))
        except BaseException as error:
            self._words.put(error)
        finally:
            for actor in actors.values():
                try:
                    actor.close()
                except HeadraceError as error:
                    self._close_errors.append(error)
