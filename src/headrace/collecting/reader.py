"""The reader of slabs: the source of a run over environments. Leases go out, committed slabs come back as batches.

    grant (pace) -> lease -> order to the shard's host -> wait -> take (fences compared) -> too old? rejected
        -> enough of them: entered in ledger and journal -> batch in env order, lent -> give back: settled, released

Wherever hosts run, this side is the same, and it alone writes ledger, journal and statistics, from committed slabs: a
dying worker can't tear them. A collect that is broken off has entered nothing.
Does not know what is learned from a batch, nor how hosts are started.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from headrace.clock import now_ns, now_s
from headrace.collecting.accounts import SPENT, Account
from headrace.collecting.notices import Notices
from headrace.collecting.order import Order
from headrace.collecting.place import Place, Say
from headrace.collecting.record import record_of
from headrace.collecting.schedule import Schedule, SlabUse, slab_use
from headrace.collecting.source import Harvest, Totals
from headrace.collecting.topology import Topology
from headrace.episodes import standing as standings
from headrace.episodes.entry import Entry, entry_of
from headrace.episodes.finished import Finished
from headrace.episodes.journal import Array, Entered, Journal, in_order
from headrace.errors import HeadraceError
from headrace.learning.assembly import assemble
from headrace.learning.batch import Batch
from headrace.memory.layout import Word
from headrace.memory.lease import Taken
from headrace.memory.ledger import Ledger
from headrace.memory.numbering import Numbering
from headrace.memory.ring import Ring
from headrace.weights.store import WeightStore

Open = Callable[[Topology], tuple[Ring, Place]]  # fresh memory and fresh hosts, not started yet


class Reader:
    """Slabs of all shards of a run."""

    def __init__(
        self,
        open_place: Open,
        topology: Topology,
        journal: Journal,
        store: WeightStore,
        admits_late: bool = True,
        schedule: Schedule | None = None,
    ) -> None:
        self._open, self._topology, self._store = open_place, topology, store
        self._admits_late, self._schedule = admits_late, schedule
        self.journal, self.ledger, self.numbering = journal, Ledger(), Numbering(len(topology.shards))
        self._waiting: list[deque[Taken]] = [deque() for _ in range(len(topology.shards) if topology.is_even else 1)]
        self._in_hand: list[Taken] = []  # of the batch that is being collected
        self._lent: list[Taken] = []
        self._looked = 0  # at slabs for this batch
        self._uses: list[SlabUse] = []  # those, if data may be late: an asynchronous run's schedule
        self._rejected: list[Finished] = []  # episodes that ended in slabs that were passed over
        self._ended: list[Finished] = []  # in the batch that is lent
        self._entries: list[Entry] = []  # of the journal on disk, since the last batch was given back
        self.is_recording = False  # whether there is such a journal
        self._batches = 0  # lent and given back
        self._consumed = np.zeros(len(topology.shards))  # steps of each shard, since the start of this process
        self._failure: HeadraceError | None = None  # of what ran ahead
        self._account = Account.of(topology)
        self.notices = Notices(journal, lambda text: self.say(text))
        self._is_launched = self.is_interruptible = False
        self.before_wait: Callable[[], None] = lambda: None
        self.say: Say = lambda text: None
        self.ring, self.place = open_place(topology)

    def collect(self) -> Batch:
        """One slab of every shard, or as many in the order they came: leased, filled, committed, taken, entered."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._lent:
            raise HeadraceError("collect: the last batch was not given back")
        self._launch()
        began, waited_s, account = now_s(), self._account.wait_s, self._account
        self._gather()
        taken, self._in_hand, self._looked = self._in_hand, [], 0
        self._lent = sorted(taken, key=lambda one: (one.lease.shard, one.lease.sequence))
        self._ended = in_order([self._enter(one) for one in self._lent])  # not if it was broken off
        account.age_s = (now_ns() - min(one.slab.header[Word.STARTED_NS] for one in self._lent)) / 1e9
        batch = assemble([one.slab for one in self._lent])
        account.hand_over_s += now_s() - began - (account.wait_s - waited_s)
        return batch

    def _gather(self) -> None:
        """Take slabs in hand until there are enough for a batch; broken off, it goes on where it was."""
        self._take()
        self._hand_out()
        while len(self._in_hand) < self._topology.pace.per_update:
            ready = self._next_ready()
            if ready is None:
                self._wait()
                self._take()
                self._hand_out()
            elif self._is_late(ready):
                self._reject(ready)
                self._hand_out()
            else:
                self._in_hand.append(ready)

    def give_back(self) -> Harvest:
        """The batch was learned from: its slabs are settled and go back to the hosts."""
        steps = [int(one.slab.valid.sum()) for one in self._lent]
        by_worker = [0] * self._topology.workers
        for one, count in zip(self._lent, steps, strict=True):
            self.ledger.consumed += count
            self._consumed[one.lease.shard] += count
            by_worker[self.place.worker_of(one.lease.shard)] += count
        self.journal.results.count(self._ended)
        late, uses, self._uses = self.leftovers(), tuple(self._uses), []
        ended, self._ended = self._ended, []
        record, finished = partial(record_of, self._closed()), (*late.finished, *ended)
        workers = () if self._topology.topology == "inline" else tuple(by_worker)
        harvest = Harvest(sum(steps), record, finished, uses, workers, late.entries)
        for one in self._lent:  # the batch may be the slab's own memory, but nothing fills it before the next lease
            self.ring.state.release(one.lease)
        self._batches += bool(self._lent)
        self._lent = []
        self.ledger.check()
        return harvest

    def leftovers(self) -> Harvest:
        """Episodes of rejected slabs, which are in the books already; told once, here or with the next batch."""
        finished, entries, self._rejected, self._entries = tuple(self._rejected), tuple(self._entries), [], []
        return Harvest(0, dict, finished, entries=entries)

    def run_ahead(self) -> None:
        """Hand out what the pace allows now; the batch that was learned from is whole, whatever happens here."""
        began = now_s()
        try:
            self._hand_out()
        except HeadraceError as error:
            self._failure = error.with_traceback(None)  # which would hold on to the batch
        self._account.hand_over_s += now_s() - began

    def totals(self) -> Totals:
        """What it has given so far."""
        results, replaced = self.journal.results, self.place.replaced
        mean = float(np.mean([total for total, _ in results.recent])) if results.recent else None
        return Totals(results.episodes, mean, self.ledger.encode(), replaced.restarts, replaced.env_failures)

    def reopen(self, topology: Topology) -> None:
        """Fresh memory and fresh hosts, which go on from the journal; what waited for a batch is collected again."""
        try:
            self.close()
        except HeadraceError as error:  # an environment that could not be closed: others take its place
            logging.getLogger(__name__).warning("%s", error)
        self._failure, self._is_launched, self._topology = None, False, topology
        self.ring, self.place = self._open(topology)
        self._account = Account.of(topology)
        self.ring.state.resume(self.numbering.next, self._batches)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Ledger and journal, copied."""
        state, arrays = standings.snapshot(self.journal)
        ledger = self.ledger.encode() | {"sequences": list(self.numbering.next)}
        return state | {"ledger": ledger, "batches": self._batches}, arrays

    def restore(self, state: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Go on from a snapshot, wherever hosts run now; what happened since is forgotten."""
        self._failure, self._rejected, self._entries = None, [], []
        if self._is_launched:
            self.reopen(self._topology)
        self.ledger.restore(state["ledger"])
        self.numbering.restore(state["ledger"]["sequences"])
        standings.restore(self.journal, state, arrays)
        self._batches = state["batches"]
        self.ring.state.resume(self.numbering.next, self._batches)

    def halt(self) -> None:
        """End worker processes now; memory and journal stay. Hosts of this process end with `close`."""
        if self._topology.topology == "processes":
            self.place.close()

    def close(self) -> None:
        """End the hosts, close all environments, give the memory back."""
        for queue in self._waiting:  # nothing will be learned from these: views of memory that is about to go
            queue.clear()
        self._in_hand, self._lent, self._ended, self._looked, self._uses = [], [], [], 0, []
        with closing(self.ring):
            self.place.close()

    def _launch(self) -> None:
        if not self._is_launched:
            self.is_interruptible = True
            try:
                self.before_wait()
                self.place.launch(self._standing, self.say)
            finally:
                self.is_interruptible = False
            self._is_launched = True

    def _standing(self, shard: int) -> standings.Standing | None:
        """Where a shard stands after all of its slabs that were taken."""
        ahead = [*self._in_hand, *(one for queue in self._waiting for one in queue)]
        mine = [one.slab for one in ahead if one.lease.shard == shard]
        return standings.standing(self.journal, self._topology.shards[shard], mine)

    def _hand_out(self) -> None:
        """Replace lost hosts, and order every rollout that the pace allows: that is all that keeps hosts going."""
        if not self._is_launched:
            return
        for shard in self.place.replace_lost():
            self.ring.state.revoke(shard)
        self.ring.state.grant(self._topology.pace.limit(self._batches))
        version = self._store.version
        for lease in self.ring.every_lease() if self._schedule is None else self._schedule.leases(self.ring):
            versions = None if self._schedule is None else self._schedule.versions_of(lease.shard, lease.sequence)
            self.place.order(Order(lease, version, self.ring.offset(lease), versions))

    def _wait(self) -> None:
        self.is_interruptible, began = True, now_s()
        try:
            self.before_wait()
            self.place.wait()
        finally:
            self.is_interruptible = False
            self._account.wait_s += now_s() - began

    def _take(self) -> None:
        for one in self.ring.take():
            self._waiting[one.lease.shard if self._topology.is_even else 0].append(one)

    def _next_ready(self) -> Taken | None:
        """The next slab of the batch, if it is there: one of every shard in turn, or the first that came."""
        queue = self._waiting[self._looked % len(self._waiting)]
        if not queue:
            return None
        one = queue.popleft()
        self._looked += 1
        if self._topology.max_lag:
            self._uses.append(slab_use(one.lease, one.slab.version))
        return one

    def _is_late(self, one: Taken) -> bool:
        lag = self._store.version - int(one.slab.version.min())
        return self._topology.pace.is_too_old(lag, is_strict=not self._admits_late)

    def _enter(self, one: Taken) -> Entered:
        envs = self._topology.shards[one.lease.shard]
        self.numbering.enter(one.lease.shard, one.lease.sequence)
        self.ledger.produced += int(one.slab.valid.sum())
        entered = self.journal.enter(envs, one.slab)
        self.notices.take(envs, one.slab, entered.checksums, self.ledger)
        worker = self.place.worker_of(one.lease.shard)
        if self.is_recording:
            self._entries.append(entry_of(self.journal, envs, worker, one.slab, entered.checksums))
        self._account.spent_ns[worker] += one.slab.header[SPENT]
        np.copyto(self._account.step_ns[envs.start : envs.stop], one.slab.step_ns, where=one.slab.step_ns > 0)
        return entered

    def _reject(self, one: Taken) -> None:
        """Passed over; its episodes still happened, and are reported with the next batch's."""
        ended = in_order([self._enter(one)])
        self.ledger.rejected += int(one.slab.valid.sum())
        self.journal.results.count(ended)
        self._rejected += ended
        self.ring.state.reject(one.lease)

    def _closed(self) -> Account:
        """The account of the batch that is lent; that of the next one is open."""
        account, place = self._account, self.place
        account.version = self._store.version
        account.versions = [(one.slab.schema.n_envs, one.slab.version.copy()) for one in self._lent]
        account.shares = self._consumed / [len(shard) for shard in self._topology.shards]
        account.queue_depth, account.replaced = sum(map(len, self._waiting)), replace(place.replaced)
        account.counted, account.ledger = place.served() | self.notices.counted(), self.ledger.counts()
        account.episodes, account.recent = self.journal.results.episodes, tuple(self.journal.results.recent)
        self._account = account.next()
        return account
