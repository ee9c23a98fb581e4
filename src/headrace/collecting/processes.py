"""Processes: the shards dealt out to worker processes, for environments that hold the GIL. A worker may die.

    launch: start all at once, wait for READY -> order: a record over its line -> wait: DONE, a death, a failure

What happens to a worker goes into the supervisor's state, which says what to do about it. A death is mended at the next
`replace_lost`: by then the reader has taken what the worker had committed, so its other orders are void and a new
process goes on from the journal. Their slabs are free again only now that the old process has been reaped. What an
environment raised is no death: it is raised here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from headrace import errors
from headrace.clock import now_s
from headrace.collecting.host import Done, Order, Spent
from headrace.collecting.place import Say, StartOf
from headrace.collecting.plan import HostPlan
from headrace.collecting.worker import DONE, FAILED, READY, WorkerPlan, run_worker
from headrace.episodes.journal import Standing
from headrace.errors import HeadraceError
from headrace.runtime import supervisor_state as supervisor
from headrace.runtime.child import Child
from headrace.runtime.line import Death, wait_any
from headrace.runtime.supervisor_state import GiveUp, Lost, Phase, Start, SupervisorState

_PRELOAD = ("headrace.collecting.worker", "headrace.envs.serial")
_PATIENCE_S = 0.05  # between looks while nothing happens
_SAY_S = 1.0  # between two lines about workers that are not ready yet
_END_S = 1.0  # for a worker to finish its slab and close its environments

logger = logging.getLogger(__name__)


class Processes:
    """All shards of a run, in `workers` processes; shard s is filled by worker s mod workers."""

    def __init__(
        self, plan: HostPlan, make_plan: Callable[[dict[int, Standing | None]], WorkerPlan], workers: int, method: str
    ) -> None:
        self._plan, self._make_plan, self._method = plan, make_plan, method
        self._workers = workers
        self._state = SupervisorState(workers)
        self._children: dict[int, Child] = {}
        self._vacant: list[int] = []  # workers to be started again
        self._proven: set[int] = set()  # those that have finished a rollout since they were started
        self._start_of: StartOf = lambda shard: None
        self._is_ended = False
        self._has_news = False  # something happened that `wait` has not returned for
        self.spent = Spent()

    @property
    def restarts(self) -> int:
        """Workers that were lost and replaced."""
        return self._state.restarts - len(self._vacant)

    @property
    def pids(self) -> list[int]:
        """The living workers' process ids."""
        return [self._children[worker].pid for worker in sorted(self._children)]

    def launch(self, start_of: StartOf, say: Say) -> None:
        """Start every worker, all at the same time, and wait until the last is ready."""
        self._require_open()
        self._start_of = start_of
        begun = said = now_s()
        try:
            for one in self._state.launch(begun):
                self._start(one.worker)
            while missing := len(self._state.in_phase(Phase.STARTING)):
                self._listen(_PATIENCE_S)
                self.replace_lost()
                if missing and now_s() - said >= _SAY_S:
                    said = now_s()
                    say(f"{self._workers - missing} of {self._workers} workers are ready after {said - begun:.1f} s")
            say(f"{self._workers} of {self._workers} workers are ready after {now_s() - begun:.1f} s")
        except BaseException:
            self._end(0.0)  # nothing was done yet, and the error should not have to wait
            raise

    def replace_lost(self) -> list[int]:
        """Start the workers that are to be started again; returns the shards they host."""
        self._require_open()
        vacant, self._vacant = self._vacant, []
        for worker in vacant:
            self._start(worker)
        self._listen(0.0)  # a failure of an environment that runs ahead, or a death, is noticed now
        return [shard for worker in vacant for shard in self._shards(worker)]

    def order(self, order: Order) -> None:
        """A record over the line; if the worker is gone, its death will be noticed."""
        child = self._children.get(self.worker_of(order.lease.shard))
        if child is not None:
            child.line.send(order.encode())

    def wait(self) -> None:
        """Until a worker reports or dies; not at all if that happened since the last wait."""
        self._require_open()
        while not self._has_news and not self._vacant:
            self._listen(_PATIENCE_S)
        self._has_news = False

    def worker_of(self, shard: int) -> int:
        """The number of the worker."""
        return shard % self._workers

    def close(self) -> None:
        """Hang up on all, then see that each has ended."""
        self._end(_END_S)

    def _listen(self, timeout_s: float) -> None:
        """Deal with what happened, if anything did."""
        workers = {id(child): worker for worker, child in self._children.items()}
        for one in wait_any(list(self._children.values()), timeout_s):
            worker, self._has_news = workers[id(one.child)], True
            if isinstance(one, Death):
                del self._children[worker]
                self._proven.discard(worker)
                self._handle(supervisor.Died(worker, one.how))
            elif one.data.startswith(DONE):
                self.spent.add(Done.decode(one.data[len(DONE) :]))
                if worker not in self._proven:
                    self._proven.add(worker)
                    self._handle(supervisor.Done(worker))
            elif one.data == READY:
                self._handle(supervisor.Ready(worker))
                left = len(self._state.in_phase(Phase.STARTING))
                logger.info("worker %d is ready (process %d), %d to come", worker, one.child.pid, left)
            elif one.data.startswith(FAILED):
                raise _failure(one.child.name, json.loads(one.data[len(FAILED) :]))

    def _handle(self, event: supervisor.Event) -> None:
        """Carry out what the supervisor says; a Start waits for `replace_lost`."""
        for instruction in self._state.handle(event, now_s()):
            if isinstance(instruction, Start):
                self._vacant.append(instruction.worker)
            elif isinstance(instruction, Lost):
                self._require_replayable(instruction)
                envs = self._environments(instruction.worker)
                how = (instruction.worker, envs, instruction.how)
                logger.warning("worker %d (%s) died: %s; replaying its episodes", *how)
            elif isinstance(instruction, GiveUp):
                assert instruction.worker is not None
                raise HeadraceError(
                    f"{instruction.why} ({self._environments(instruction.worker)}); look at the environment's own log "
                    f"or run with topology=inline"
                )

    def _require_replayable(self, lost: Lost) -> None:
        if self._plan.env.is_vector():
            raise HeadraceError(
                f"worker {lost.worker} ({self._environments(lost.worker)}) died: {lost.how}; its environments are "
                f"a pool that resets itself (class B): episodes can't be replayed. Resume from the last checkpoint"
            )

    def _start(self, worker: int) -> None:
        starts = {shard: self._start_of(shard) for shard in self._shards(worker)}
        plan = self._make_plan(starts)
        self._children[worker] = Child.start(f"headrace-worker-{worker}", run_worker, plan, self._method, _PRELOAD)

    def _shards(self, worker: int) -> range:
        return range(worker, len(self._plan.shards), self._workers)

    def _environments(self, worker: int) -> str:
        ranges = [self._plan.shards[shard] for shard in self._shards(worker)]
        return "environments " + ", ".join(f"{one.start}-{one.stop - 1}" for one in ranges)

    def _end(self, patience_s: float) -> None:
        children, self._children = list(self._children.values()), {}
        self._vacant, self._is_ended = [], True
        for child in children:
            child.hang_up()
        deadline = now_s() + patience_s
        for child in children:
            child.end(max(0.0, deadline - now_s()))

    def _require_open(self) -> None:
        if self._is_ended:
            raise HeadraceError("the workers of this run were ended; make another run or load its last checkpoint")


def _failure(worker: str, report: dict[str, Any]) -> HeadraceError:
    kind = getattr(errors, report["kind"], None)
    if isinstance(kind, type) and issubclass(kind, HeadraceError):
        failure = kind(report["message"])
    else:
        failure = HeadraceError(f"{worker}: {report['kind']}: {report['message']}")
    failure.add_note(f"In {worker}:\n{report['traceback']}")
    return failure
