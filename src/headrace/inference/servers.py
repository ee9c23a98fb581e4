"""The inference servers of a run, seen from its parent: started, watched, replaced when they die or hang, ended.

    launch -> a Child each -> heard: READY · WORKED · a death -> another one      look: beats -> the supervisor -> Kill

A server that takes another's place needs nothing but the slots: requests that were not answered are still there. It is
started at once, and only after the old one has been reaped: a slot has one server. What to do about a death is the
supervisor's. Does not know workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.errors import HeadraceError
from headrace.inference.server import FAILED, READY, WORKED, ServerPlan, run_server
from headrace.inference.slots import Slots
from headrace.memory.crash_note import CrashNotes, notes_bytes
from headrace.memory.segment import SharedSegment
from headrace.runtime.child import Child
from headrace.runtime.death import Death
from headrace.runtime.failures import failure_of
from headrace.runtime.line import Message
from headrace.runtime.patience import Patience
from headrace.runtime.stacks import last_words, stack_of
from headrace.runtime.standby import Standby
from headrace.runtime.supervisor_state import (
    Beat,
    Died,
    Done,
    Event,
    GiveUp,
    Kill,
    Lost,
    Phase,
    Ready,
    RestartLimits,
    Start,
    SupervisorState,
    Tick,
)

_START_UPS = RestartLimits(fruitless=5, first_starts=5)  # in a row without a batch
_NEW_S = 60.0  # at least, for the imports and the first batch of a server
_BATCH = "batch"

logger = logging.getLogger(__name__)

MakePlan = Callable[[int, str], ServerPlan]
"""(its number, the segment of its last words) -> what a server is sent."""


@dataclass
class _Seen:
    """A server's beat, and since when it is that."""

    beat: int = -1
    since_s: float = 0.0


class Servers:
    """Processes 0 to n-1; server s answers the shards s, s + n, s + 2n ..."""

    def __init__(
        self,
        slots: Slots,
        count: int,
        make_plan: MakePlan,
        standby: Standby,
        hang_floor_s: float,
        hang_ceiling_s: float,
    ) -> None:
        self._slots, self._make_plan, self._standby = slots, make_plan, standby
        self._notes = CrashNotes((), SharedSegment.create(notes_bytes((), count)))
        self._state = SupervisorState(count, _START_UPS)
        self._patience = Patience(hang_floor_s, hang_ceiling_s)
        self._is_on = hang_ceiling_s > 0
        self._seen = [_Seen() for _ in range(count)]
        self._ends: dict[int, str] = {}  # how a server that is being killed came to hang
        self._clock_s = 0.0
        self.children: dict[int, Child] = {}
        self.restarts = 0
        self._reported = np.zeros((count, 5), np.int64)
        self.say: Callable[[str], None] = lambda text: None

    @property
    def num_starting(self) -> int:
        """Servers that are not ready yet."""
        return len(self._state.in_phase(Phase.STARTING))

    @property
    def watched(self) -> list[int]:
        """Descriptors that are ready when there is something to mend."""
        return self._standby.watched

    def launch(self) -> None:
        """Start all; does not wait."""
        for start in self._state.launch(self._clock_s):
            self._start(start.worker)

    def heard(self, one: Message | Death) -> bool:
        """Deal with what happened, if it happened to a server."""
        server = next((number for number, child in self.children.items() if child is one.child), None)
        if server is None:
            return False
        if isinstance(one, Death):
            del self.children[server]
            how = self._ends.pop(server, f"died: {one.how}")
            stack = last_words(self._notes, server, run_server.__name__)
            self._handle(Died(server, f"{how}\n{stack}" if stack else how))
        elif one.data == READY:
            self._handle(Ready(server))
            if not self.num_starting:
                self.mend()
        elif one.data == WORKED:
            self._handle(Done(server))
        elif one.data.startswith(FAILED):
            raise failure_of(one.child.name, one.data[len(FAILED) :])
        return True

    def look(self, clock_s: float) -> None:
        """Who gives no sign of life is killed by what the supervisor says."""
        self._clock_s = clock_s
        for server in self.children:
            beat, seen = self._slots.beat_of(server), self._seen[server]
            if beat == seen.beat:
                continue
            has_worked = self._state.has_worked(server)
            if has_worked and seen.beat >= 0:
                self._patience.took(_BATCH, clock_s - seen.since_s)
            limit_s = self._patience.limit_s(_BATCH)
            limit_s = limit_s if has_worked else max(_NEW_S, limit_s)
            self._seen[server] = _Seen(beat, clock_s)
            self._handle(Beat(server, None, limit_s if self._is_on else None))
        self._handle(Tick())

    def served(self) -> dict[str, float]:
        """What they did since the last call: time of the busiest one's policy, CPU of all, batches, rows in a batch."""
        done = np.array([self._slots.done_by(server) for server in range(len(self._seen))])
        new, self._reported = done - self._reported, done
        batches, rows, cpu_ns, timed, timed_ns = new.T
        acted_s = batches * timed_ns / np.maximum(timed, 1) / 1e9
        return {
            "headrace/inference/act_s": float(acted_s.max()),
            "headrace/inference/cpu_s": float(cpu_ns.sum() / 1e9),
            "headrace/inference/batches": float(batches.sum()),
            "headrace/inference/rows": float(rows.sum() / max(batches.sum(), 1)),
        }

    def mend(self) -> None:
        """Replace what stands by and has died."""
        self._standby.mend()

    def end(self) -> None:
        """Kill them: there is nothing that a server would have to finish once no worker asks."""
        self._standby.end()
        while self.children:
            _, child = self.children.popitem()
            child.end(0.0)
        self._notes.segment.unlink()
        self._slots.segment.unlink()

    def _start(self, server: int) -> None:
        self._notes.wipe((), server)
        self._seen[server] = _Seen()  # the next look counts as a beat: from then on it has to come up
        child = self._standby.take(f"headrace-inference-{server}")
        self.children[server] = child
        child.assign(run_server, self._make_plan(server, str(self._notes.segment.name)))

    def _handle(self, event: Event) -> None:
        for instruction in self._state.handle(event, self._clock_s):
            if isinstance(instruction, Start):
                self.restarts += 1
                self._start(instruction.worker)
            elif isinstance(instruction, Kill):
                self._kill(instruction)
            elif isinstance(instruction, Lost):
                first, _, stack = instruction.how.partition("\n")
                text = f"inference server {instruction.worker} {first}; another one takes its place"
                logger.warning("%s%s", text, f"\n{stack}" if stack else "")
                self.say(f"warning: {text}")
            elif isinstance(instruction, GiveUp):
                raise _given_up(instruction)

    def _kill(self, kill: Kill) -> None:
        child = self.children.get(kill.worker)
        if child is not None:
            stack_of(child, self._notes, kill.worker, run_server.__name__)  # it writes it where `heard` reads it
            self._ends[kill.worker] = f"hung: it {kill.why}"
            child.kill()


def _given_up(given_up: GiveUp) -> HeadraceError:
    why, _, stack = given_up.why.replace("worker", "inference server", 1).partition("\n")
    error = HeadraceError(f"{why}; look at the policy, or run with inference=local")
    if stack:
        error.add_note(f"In headrace-inference-{given_up.worker}:\n{stack}")
    return error
