"""The worker processes of a run: started, replaced when they die, ended. What to do about a death is the supervisor's.

    start_all -> a Child each, with where its shards stand     died -> replaced, or an error that names the environments

A death is mended at `replace`: by then the reader has taken what the worker had committed, so its other orders are void
and a new process goes on from the journal. Their slabs are free again only now that the old process has been reaped.
Does not know orders or slabs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from headrace import errors
from headrace.clock import now_s
from headrace.collecting.place import StartOf
from headrace.collecting.plan import HostPlan
from headrace.collecting.worker import WorkerPlan, run_worker
from headrace.episodes.journal import Standing
from headrace.errors import HeadraceError
from headrace.runtime.child import Child
from headrace.runtime.supervisor_state import Event, GiveUp, Lost, Phase, Start, SupervisorState

_PRELOAD = ("headrace.collecting.worker", "headrace.envs.serial")

logger = logging.getLogger(__name__)


class Workers:
    """Processes 0 to n-1; worker w hosts the shards w, w + n, w + 2n ..."""

    def __init__(
        self,
        plan: HostPlan,
        make_plan: Callable[[dict[int, Standing | None]], WorkerPlan],
        count: int,
        method: str,
    ) -> None:
        self._plan, self._make_plan, self._method = plan, make_plan, method
        self.count = count
        self.state = SupervisorState(count)
        self.children: dict[int, Child] = {}
        self.vacant: list[int] = []  # workers to be started again
        self.start_of: StartOf = lambda shard: None
        self.restarts = 0  # workers that were lost and replaced; one that can't be is not among them
        self._is_ended = False

    @property
    def num_starting(self) -> int:
        """Workers that are not ready yet."""
        return len(self.state.in_phase(Phase.STARTING))

    def start_all(self) -> None:
        """All at the same time."""
        for one in self.state.launch(now_s()):
            self._start(one.worker)

    def replace(self) -> list[int]:
        """Start those that are to be started again; returns the shards they host."""
        vacant, self.vacant = self.vacant, []
        for worker in vacant:
            self._start(worker)
            self.restarts += 1
        return [shard for worker in vacant for shard in self._shards(worker)]

    def handle(self, event: Event) -> None:
        """Carry out what the supervisor says; a Start waits for `replace`."""
        for instruction in self.state.handle(event, now_s()):
            if isinstance(instruction, Start):
                self.vacant.append(instruction.worker)
            elif isinstance(instruction, Lost):
                self._lost(instruction)
            elif isinstance(instruction, GiveUp):
                assert instruction.worker is not None
                raise HeadraceError(
                    f"{instruction.why} ({self._environments(instruction.worker)}); look at the environment's own log "
                    f"or run with topology=inline"
                )

    def end(self, patience_s: float) -> None:
        """Hang up on all, then see that each has ended."""
        children, self.children = list(self.children.values()), {}
        self.vacant, self._is_ended = [], True
        for child in children:
            child.hang_up()
        deadline = now_s() + patience_s
        for child in children:
            child.end(max(0.0, deadline - now_s()))

    def require_open(self) -> None:
        """Raise if they were ended."""
        if self._is_ended:
            raise HeadraceError("the workers of this run were ended; make another run or load its last checkpoint")

    def _start(self, worker: int) -> None:
        plan = self._make_plan({shard: self.start_of(shard) for shard in self._shards(worker)})
        self.children[worker] = Child.start(f"headrace-worker-{worker}", run_worker, plan, self._method, _PRELOAD)

    def _lost(self, lost: Lost) -> None:
        envs = self._environments(lost.worker)
        if self._plan.env.is_vector():
            raise HeadraceError(
                f"worker {lost.worker} ({envs}) died: {lost.how}; its environments are a pool that resets itself "
                f"(class B): episodes can't be replayed. Train on from the last checkpoint with weights_only=True"
            )
        logger.warning("worker %d (%s) died: %s; replaying its episodes", lost.worker, envs, lost.how)

    def _shards(self, worker: int) -> range:
        return range(worker, len(self._plan.shards), self.count)

    def _environments(self, worker: int) -> str:
        ranges = [self._plan.shards[shard] for shard in self._shards(worker)]
        return "environments " + ", ".join(f"{one.start}-{one.stop - 1}" for one in ranges)


def failure_of(worker: str, data: bytes) -> HeadraceError:
    """What a worker reported, as the error it was, with its whole traceback."""
    report: dict[str, Any] = json.loads(data)
    kind = getattr(errors, report["kind"], None)
    if isinstance(kind, type) and issubclass(kind, HeadraceError):
        failure = kind(report["message"])
    else:
        failure = HeadraceError(f"{worker}: {report['kind']}: {report['message']}")
    failure.add_note(f"In {worker}:\n{report['traceback']}")
    return failure
