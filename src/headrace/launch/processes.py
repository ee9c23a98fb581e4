"""Processes: the shards dealt out to worker processes, for environments that hold the GIL. A worker may die.

    launch: start all at once, wait for READY -> lease: records over each line -> wait: COMMITTED, a death, a failure

A death is noticed by the sentinel, named, and mended at the next `lease`: by then the reader has taken what the worker
had committed, so its other leases are revoked and a new process goes on from the journal. The slabs of the lost leases
are free again only now that the old process has been reaped. What an environment raised is no death: it is raised here.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any

from headrace import errors
from headrace.clock import now_s
from headrace.errors import HeadraceError
from headrace.launch.actors import CrewPlan, Spent, StartOf, Tell, every_lease
from headrace.launch.worker import COMMITTED, FAILED, READY, Order, WorkerPlan, decode_done, run_worker
from headrace.memory.ring import Ring
from headrace.runtime.process import Child, Death, wait_any

_PRELOAD = ("headrace.launch.worker", "headrace.envs.serial")
_PATIENCE_S = 0.05  # between looks while nothing happens
_TELL_S = 1.0  # between two lines about workers that are not ready yet
_END_S = 1.0  # for a worker to finish its slab and close its environments
_MOST_RESTARTS_IN_A_ROW = 5  # of one worker without a single slab: it would never come up

logger = logging.getLogger(__name__)


class ProcessActors:
    """All actors of a run, in `workers` processes; shard s is filled by worker s mod workers."""

    def __init__(self, plan: CrewPlan, make_plan: partial[WorkerPlan], workers: int, method: str) -> None:
        self._plan = plan
        self._make_plan = make_plan
        self._method = method
        self._children: list[Child | None] = [None] * workers
        self._hosted = [list(range(index, len(plan.shards), workers)) for index in range(workers)]
        self._fruitless = [0] * workers  # restarts since the last slab
        self._starting: set[int] = set()
        self._start_of: StartOf = lambda shard: None
        self._spent = Spent()
        self._is_ended = False
        self._has_news = False  # something was said that `wait` has not told of
        self.restarts = 0

    @property
    def pids(self) -> list[int]:
        """The living workers' process ids."""
        return [child.pid for child in self._children if child is not None]

    def launch(self, start_of: StartOf, tell: Tell) -> None:
        """Start every worker, all at the same time, and wait until the last is ready."""
        self._require_open()
        self._start_of = start_of
        workers, begun, told = len(self._children), now_s(), now_s()
        try:
            for index in range(len(self._children)):
                self._start(index)
            while self._starting:
                self._listen(_PATIENCE_S)
                ready, now = workers - len(self._starting), now_s()
                if ready < workers and now - told >= _TELL_S:
                    told = now
                    tell(f"{ready} of {workers} workers are ready after {now - begun:.1f} s")
                if None in self._children:
                    index = self._children.index(None)
                    raise HeadraceError(f"worker {index} died before its environments were ready; the log says how")
            tell(f"{workers} of {workers} workers are ready after {now_s() - begun:.1f} s")
        except BaseException:
            self._end(0.0)  # nobody has done anything yet, and whoever waits for the error should have it
            raise

    def lease(self, ring: Ring, version: int) -> None:
        """Replace those known to be dead, send every lease that the pace allows, and look who else has died."""
        self._require_open()
        for index, child in enumerate(self._children):
            if child is None:
                for shard in self._hosted[index]:
                    ring.revoke(shard)
                self._start(index)
                self.restarts += 1
        for lease in every_lease(ring, range(len(self._plan.shards))):
            child = self._children[lease.shard % len(self._children)]
            if child is not None:
                child.send(Order(lease, version, ring.offset(lease)).encode())
        self._has_news = self._listen(0.0) or self._has_news

    def wait(self) -> None:
        """Until a worker says something or dies; not at all if that happened since the last wait."""
        self._require_open()
        while not self._has_news and None not in self._children:
            self._has_news = self._listen(_PATIENCE_S)
        self._has_news = False

    def _listen(self, timeout_s: float) -> bool:
        """Deal with what happened, if anything did."""
        happened = wait_any([child for child in self._children if child is not None], timeout_s)
        for one in happened:
            index = next(i for i, child in enumerate(self._children) if child is one.child)
            if isinstance(one, Death):
                self._lost(index, one)
            elif one.data.startswith(COMMITTED):
                self._fruitless[index] = 0
                _, seconds = decode_done(one.data)
                for name, value in zip(("env", "inference", "copy", "idle"), seconds, strict=True):
                    setattr(self._spent, name, getattr(self._spent, name) + value)
            elif one.data == READY:
                self._starting.discard(index)
                logger.info("worker %d is ready (process %d), %d to come", index, one.child.pid, len(self._starting))
            elif one.data.startswith(FAILED):
                raise _failure(one.child.name, json.loads(one.data[len(FAILED) :]))
        return bool(happened)

    def spent(self) -> Spent:
        """Where the workers' time went since the last call."""
        spent, self._spent = self._spent, Spent()
        return spent

    def close(self) -> None:
        """Hang up on all, then see that each has ended."""
        self._end(_END_S)

    def _end(self, patience_s: float) -> None:
        children, self._children = [child for child in self._children if child is not None], []
        self._starting.clear()
        self._is_ended = True
        for child in children:
            child.hang_up()
        deadline = now_s() + patience_s
        for child in children:
            child.end(max(0.0, deadline - now_s()))

    def _require_open(self) -> None:
        if self._is_ended:
            raise HeadraceError("the workers of this run were ended; make another run or load its last checkpoint")

    def _start(self, index: int) -> None:
        starts = {shard: self._start_of(shard) for shard in self._hosted[index]}
        child = Child.start(
            f"headrace-worker-{index}", run_worker, self._make_plan(starts=starts), self._method, _PRELOAD
        )
        self._children[index] = child
        self._starting.add(index)

    def _lost(self, index: int, death: Death) -> None:
        how = f"killed by signal {-death.exit_code}" if death.exit_code < 0 else f"exit code {death.exit_code}"
        envs = ", ".join(
            f"{self._plan.shards[s].env_indices.start}-{self._plan.shards[s].env_indices.stop - 1}"
            for s in self._hosted[index]
        )
        self._fruitless[index] += 1
        if self._fruitless[index] > _MOST_RESTARTS_IN_A_ROW:
            raise HeadraceError(
                f"worker {index} (environments {envs}) died {self._fruitless[index]} times without a rollout, "
                f"last {how}; look at the environment's own log or run with topology=inline"
            )
        if self._plan.shards[0].spec.is_vector():
            raise HeadraceError(
                f"worker {index} (environments {envs}) died, {how}; its environments are a pool that resets itself "
                f"(class B), so their episodes can't be replayed. Resume from the last checkpoint"
            )
        logger.warning("worker %d (environments %s) died: %s; replaying its episodes", index, envs, how)
        self._children[index] = None
        self._starting.discard(index)


def _failure(worker: str, told: dict[str, Any]) -> HeadraceError:
    kind = getattr(errors, told["kind"], None)
    if isinstance(kind, type) and issubclass(kind, HeadraceError):
        failure = kind(told["message"])
    else:
        failure = HeadraceError(f"{worker}: {told['kind']}: {told['message']}")
    failure.add_note(f"In {worker}:\n{told['traceback']}")
    return failure
