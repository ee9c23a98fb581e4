"""The worker processes of a run: started, replaced when they die, hang or have grown too large, ended.

    start_all -> a Child each, with where its shards stand     died -> replaced, or an error that names the environments
    the watch (look_after) says who hangs -> stack, SIGKILL -> died     worn out -> retired: ends in order, replaced
    its environment raised -> it reports that (failed), closes its environments and ends -> died

What to do about a death is the supervisor's. It is mended at `replace`: by then the reader has taken what the worker
had committed, so its other orders are void and a new process goes on from the journal. Their slabs are free again only
now that the old process has been reaped. Processes come from
`runtime/standby`, which keeps a warm spare. Does not know orders or slabs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait

from headrace.clock import now_s
from headrace.collecting.ends import End, given_up, pool_is_lost, raised_end
from headrace.collecting.place import Replaced, Say, StartOf
from headrace.collecting.plan import HostPlan
from headrace.collecting.recycling import Recycling
from headrace.collecting.topology import WorkerLimits
from headrace.collecting.watch import Watch
from headrace.collecting.worker import FAILED, NOT_CLOSED, READY, RETIRE, WorkerPlan, run_worker
from headrace.episodes.standing import Standing
from headrace.errors import EnvRaised, HeadraceError, again
from headrace.memory.crash_note import Doing
from headrace.runtime.child import Child
from headrace.runtime.death import Death
from headrace.runtime.failures import failure_of
from headrace.runtime.line import Message
from headrace.runtime.standby import Standby
from headrace.runtime.supervisor_state import (
    Died,
    Event,
    GiveUp,
    Kill,
    Lost,
    Phase,
    Ready,
    RestartLimits,
    Retired,
    Start,
    SupervisorState,
)

PRELOAD = (
    "headrace.collecting.worker", "headrace.collecting.warm_up", "headrace.envs.serial", "headrace.inference.server",
)  # fmt: skip
LIGHT_PRELOAD = ("headrace.collecting.worker", "headrace.inference.client", "headrace.envs.serial")  # no torch
_START_UPS = RestartLimits(fruitless=5, first_starts=5)  # in a row without a committed slab
_ENDED = "the workers of this run were ended; make another run or load its last checkpoint"
_CLOSE_S = 3.0  # for environments that are being closed, beyond the patience that all workers have to end

logger = logging.getLogger(__name__)

MakePlan = Callable[[dict[int, Standing | None], str, int], WorkerPlan]
"""(where its shards stand, the segment of the crash notes, its number) -> what a worker is sent."""


class Workers:
    """Processes 0 to n-1; worker w hosts the shards w, w + n, w + 2n ..."""

    def __init__(
        self,
        plan: HostPlan,
        make_plan: MakePlan,
        count: int,
        standby: Standby,
        limits: WorkerLimits,
        replaced: Replaced | None = None,
    ) -> None:
        self._plan, self._make_plan, self._limits = plan, make_plan, limits
        self.standby = standby
        self.count = count
        self.recycling = Recycling.of(limits, plan.env.is_vector())  # None: no worker is ever worn out
        self.watch = Watch(plan, count, self._shards, limits)
        self.state = SupervisorState(count, replace(_START_UPS, failures=limits.env_retries))
        self.children: dict[int, Child] = {}
        self.vacant: list[int] = []  # workers to be started again
        self.owed = [0] * count  # orders that a worker has not reported as done
        self.start_of: StartOf = lambda shard: None
        self.say: Say = lambda text: None
        self.replaced = replaced or Replaced()  # one that can't be replaced is not among them
        self.retiring: set[int] = set()
        self.proven: set[int] = set()  # workers that have finished a rollout since they were started
        self._replaying: set[int] = set()  # workers that did not begin at the beginning
        self._reported: set[int] = set()  # workers whose failure was raised: their end is no news
        self.ends: dict[int, End] = {}  # of workers that are to be replaced, or are being killed
        self._end: HeadraceError | None = None  # what whoever needs them is told, once they were ended or given up

    @property
    def pids(self) -> list[int]:
        """Process ids of those that live."""
        return [child.pid for _, child in sorted(self.children.items())]

    @property
    def num_starting(self) -> int:
        """Workers that are not ready yet."""
        return len(self.state.in_phase(Phase.STARTING))

    def start_all(self) -> None:
        """All at the same time."""
        self._start([one.worker for one in self.state.launch(self.watch.clock_s)])

    def replace(self) -> list[int]:
        """Start those that are to be started again; returns the shards they host."""
        vacant = self.vacant
        self._start(vacant)
        self.vacant = []
        for worker in vacant:
            end = self.ends.pop(worker, None)
            self.replaced.restarts += end is not None
            self.replaced.env_failures += end is not None and end.raised is not None
            self.replaced.recycled += end is None
        return [shard for worker in vacant for shard in self._shards(worker)]

    def retire_if_worn(self, worker: int) -> None:
        """At a slab's border: end a worker in order if it has had enough. It fills first what it was ordered to."""
        assert self.recycling is not None
        child = self.children[worker]
        reason = None if worker in self.retiring else self.recycling.reason(worker, child.pid, self._episodes(worker))
        if reason is not None:
            logger.info("worker %d (%s) is replaced by a fresh one: %s", worker, self._environments(worker), reason)
            self.retiring.add(worker)
            child.line.send(RETIRE)

    def heard(self, worker: int, one: Message | Death) -> None:
        """What a worker said, other than that a slab is done, or its end."""
        if isinstance(one, Death):
            self._died(worker, one)
        elif one.data == READY:
            self._ready(worker)
        elif one.data.startswith(FAILED):
            self._failed(worker, failure_of(one.child.name, one.data[len(FAILED) :]))
        elif one.data.startswith(NOT_CLOSED):  # of a worker that retires: nothing is lost
            logger.warning("worker %d: %s", worker, failure_of(one.child.name, one.data[len(NOT_CLOSED) :]))

    def _ready(self, worker: int) -> None:
        """It has come up: from now on its memory and its episodes are its own."""
        pid = self.children[worker].pid
        if self.recycling is not None:
            has_replayed = worker in self._replaying
            self.recycling.begin(worker, pid, self._episodes(worker), has_replayed, self._warn)
        self.handle(Ready(worker))
        logger.info("worker %d is ready (process %d), %d to come", worker, pid, self.num_starting)

    def _died(self, worker: int, death: Death) -> None:
        """A process has been reaped."""
        self.proven.discard(worker)
        del self.children[worker]
        is_done = death.exit_code == 0 or (death.exit_code is None and not self.owed[worker])  # None: it is not known
        self.owed[worker] = 0
        is_retired = worker in self.retiring and is_done and worker not in self.ends
        self.retiring.discard(worker)
        if is_retired:
            self.handle(Retired(worker))
            return
        watch = self.watch
        if worker not in self.ends:
            how, stack = f"{death.how}{watch.where(worker)}", watch.last_words(worker)
            self.ends[worker] = End(how, watch.place(worker), stack)
        end = self.ends[worker]
        self.handle(Died(worker, end.how, end.place, end.raised is not None))

    def _failed(self, worker: int, failure: HeadraceError) -> None:
        """A worker reports a failure, and ends. It is raised here, unless it is one that a fresh process may mend.

        That is what the code of an environment raised. Malformed returns, NaN and a replay that differs are bugs of
        the environment, and would be the same again.
        """
        if not isinstance(failure, EnvRaised) or not self._limits.env_retries or self._plan.env.is_vector():
            self._reported.add(worker)
            raise failure
        self.ends[worker] = raised_end(failure, self.watch.clock_s)

    def see_failed_end(self) -> None:
        """End those that reported a failure, and then do not come back from closing their environments."""
        for worker, end in self.ends.items():
            child = self.children.get(worker)
            if child is not None and end.raised is not None and self.watch.clock_s > end.since_s + _CLOSE_S:
                child.kill()

    def handle(self, event: Event) -> None:
        """Carry out what the supervisor says; a Start waits for `replace`."""
        for instruction in self.state.handle(event, self.watch.clock_s):
            if isinstance(instruction, Start):
                self.vacant.append(instruction.worker)
            elif isinstance(instruction, Kill):
                self._kill(instruction)
            elif isinstance(instruction, Lost):
                self._lost(instruction)
            elif isinstance(instruction, GiveUp):
                assert instruction.worker is not None
                worker, why = instruction.worker, instruction.why
                self._end = given_up(why, worker, self._environments(worker), self.ends[worker])
                raise self._end
        if isinstance(event, Ready) and not self.num_starting:
            self.standby.mend()  # not earlier: a spare that comes up would slow down those that are waited for

    def end(self, patience_s: float) -> None:
        """Hang up on all, then see that each has ended; called again, it goes on where a signal broke it off.

        One that hangs in close() is named. Raises the first error of an environment that could not be closed.
        """
        failed: HeadraceError | None = None
        self.vacant, self._end = [], self._end or HeadraceError(_ENDED)
        for child in self.children.values():
            child.hang_up()
        deadline = now_s() + patience_s
        self.standby.end()
        while self.children:
            worker, child = next(iter(self.children.items()))
            wait([child.sentinel], max(0.0, deadline - now_s()))
            if patience_s and not child.has_ended:
                self._see_it_close(worker, child, deadline + _CLOSE_S)
            failed = failed or _not_closed(child)
            child.end(0.0)
            del self.children[worker]
        self.watch.close()
        if failed is not None and patience_s:
            raise failed

    def require_open(self) -> None:
        """Raise if they were ended, or given up."""
        if self._end is not None:
            raise again(self._end)

    def _start(self, workers: list[int]) -> None:
        taken: dict[int, Child] = {}
        try:
            for worker in workers:
                self.watch.begin(worker)
                taken[worker] = self.standby.take(f"headrace-worker-{worker}")
            for worker in workers:  # once all are on their way: a long plan is sent only as fast as it is read
                starts = {shard: self.start_of(shard) for shard in self._shards(worker)}
                self._replaying.discard(worker)
                if any(start is not None for start in starts.values()):
                    self._replaying.add(worker)
                taken[worker].assign(run_worker, self._make_plan(starts, str(self.watch.notes.segment.name), worker))
        except BaseException:
            for child in taken.values():
                child.end(0.0)
            raise
        self.children |= taken

    def _kill(self, kill: Kill) -> None:
        """Its stack is taken first; it may go on for a moment when it is asked for it, so its place is, too."""
        child = self.children.get(kill.worker)
        if child is not None and kill.worker not in self.ends:
            where = self.watch.where(kill.worker) or " outside of its environments"
            how, place = f"hung{where}: it {kill.why}", self.watch.place(kill.worker)
            self.ends[kill.worker] = End(how, place, self.watch.stack(kill.worker, child), is_hung=True)
            child.kill()

    def _lost(self, lost: Lost) -> None:
        end, envs = self.ends[lost.worker], self._environments(lost.worker)
        what = f"worker {lost.worker} ({envs}) {'' if end.is_hung else 'died: '}{lost.how}"
        if end.raised is not None:
            self._report_raised(f"worker {lost.worker} ({envs}): {lost.how}", end.stack)
            return
        if self._plan.env.is_vector():
            raise pool_is_lost(what, lost.worker, end)
        if lost.worker in self._reported:
            self._reported.discard(lost.worker)
            return
        text = f"{what}; replaying its episodes"
        logger.warning("%s%s", text, f"\n{end.stack}" if end.stack else "")
        self.say(f"warning: {text}{'; its Python stack is in the log' if end.stack else ''}")

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.say(f"warning: {text}")

    def _report_raised(self, what: str, traceback: str) -> None:
        """On the terminal the first comes with its traceback, all later ones are lines: there may be many."""
        count, limit = self.state.failures, self._limits.env_retries
        text = f"{what}; a fresh worker replays its episodes (replacement {count} of env_retries={limit})"
        logger.warning("%s\n%s", text, traceback)
        self.say(f"warning: {text}\n{traceback}" if count == 1 else f"warning: {text}; its traceback is in the log")

    def _see_it_close(self, worker: int, child: Child, deadline_s: float) -> None:
        noted = self.watch.noted(worker)
        if noted is None or noted[1].doing is not Doing.CLOSE:
            return
        wait([child.sentinel], max(0.0, deadline_s - now_s()))
        if not child.has_ended:
            envs, where = self._environments(worker), self.watch.where(worker)
            stack = self.watch.stack(worker, child)
            logger.warning("worker %d (%s) hung%s and was ended\n%s", worker, envs, where, stack)

    def _episodes(self, worker: int) -> int:
        """How many have ended in its environments since the beginning of the run."""
        return sum(int(self.watch.notes.notes[shard].episode.sum()) for shard in self._shards(worker))

    def _shards(self, worker: int) -> range:
        return range(worker, len(self._plan.shards), self.count)

    def _environments(self, worker: int) -> str:
        ranges = [self._plan.shards[shard] for shard in self._shards(worker)]
        return "environments " + ", ".join(f"{one.start}-{one.stop - 1}" for one in ranges)


def _not_closed(child: Child) -> HeadraceError | None:
    """What a worker that has ended said of environments that could not be closed."""
    while child.has_ended and (data := child.line.receive_nowait()):
        if data.startswith(NOT_CLOSED):
            return failure_of(child.name, data[len(NOT_CLOSED) :])
    return None
