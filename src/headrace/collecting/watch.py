"""The watch over worker processes: reads their crash notes now and then, and says who shows no progress, and where.

    look_after: notes ──(changed?)──> Beat with the patience that was learnt · Tick ──> the supervisor says ──> Kill
    where: "in step() of env 3, episode 3:1, seed 5, step 4"      stack: SIGUSR1 -> faulthandler -> last words

A worker that has nothing to do is not expected to move. Limits are learnt apart for steps, for what sets environments
up and ends them, and for our own code; a new process gets a minute for its imports and compiled functions, for which
no environment is to blame. Time counts only while somebody looks: a learner that was busy, or was stopped together
with its workers, does not take them for hung. Decides nothing (runtime/supervisor_state).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

from headrace.acting.culprit import Culprit
from headrace.clock import now_s
from headrace.collecting.plan import HostPlan
from headrace.collecting.topology import WorkerLimits
from headrace.envs.seeds import Purpose
from headrace.memory.crash_note import CrashNotes, Doing, Noted, notes_bytes
from headrace.memory.segment import SharedSegment
from headrace.runtime.child import Child
from headrace.runtime.patience import Patience
from headrace.runtime.stacks import last_words, stack_of
from headrace.runtime.supervisor_state import Beat, Event, Phase, SupervisorState, Tick

_LONGEST_LOOK_S = 0.5  # more time between two looks is time in which nobody looked
_NEW_S = 60.0  # at least, for our own code in a worker that has not finished anything yet
_FIRST = "run_worker"  # of our own functions on a worker's stack
_KINDS = {Doing.NOTHING: "own", Doing.STEP: "step", Doing.REPLAY: "step"}  # all others: "setup"


class Watched(Protocol):
    """Worker processes, as far as looking after them goes."""

    watch: Watch
    state: SupervisorState
    owed: list[int]
    retiring: set[int]

    @property
    def children(self) -> Mapping[int, object]: ...

    def handle(self, event: Event) -> None: ...


class Expected(Enum):
    """What is expected of a worker."""

    NOTHING = "it has no order"
    START = "it comes up"
    FIRST = "it works at its first order"
    WORK = "it works"


class Watch:
    """The notes of all workers of a place; worker w hosts the shards `shards_of(w)`."""

    def __init__(
        self, plan: HostPlan, count: int, shards_of: Callable[[int], Sequence[int]], limits: WorkerLimits
    ) -> None:
        self._plan, self._shards = plan, [shards_of(worker) for worker in range(count)]
        sizes = [len(shard) for shard in plan.shards]
        self.notes = CrashNotes(sizes, SharedSegment.create(notes_bytes(sizes, count)))
        self._patience = Patience(limits.hang_floor_s, limits.hang_ceiling_s)
        self._is_on = limits.hang_ceiling_s > 0
        self._seen: list[tuple[bytes, Expected] | None] = [None] * count  # the note, and what was expected
        self._kinds = [""] * count  # of what it was in then
        self._since_s = [0.0] * count
        self._looked_s = now_s()
        self.clock_s = 0.0  # of all events: runs while somebody looks

    def begin(self, worker: int) -> None:
        """A process is about to be started: nothing is known of it."""
        self.notes.wipe(self._shards[worker], worker)
        self._seen[worker] = None

    def look(self, expected: dict[int, Expected]) -> Iterator[Event]:
        """What there is to say about the workers that live."""
        now = now_s()
        self.clock_s += min(now - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now
        for worker, what in expected.items():
            seen, now_seen = self._seen[worker], (self.notes.raw(self._shards[worker]), what)
            if seen == now_seen:
                continue
            if seen is not None and _teaches(self._kinds[worker], seen[1]):
                self._patience.took(self._kinds[worker], self.clock_s - self._since_s[worker])
            if what in (Expected.FIRST, Expected.WORK):
                self._patience.took("setup", 0.0)  # it came up: nothing of that was too long to be seen
            noted = self.noted(worker)
            self._kinds[worker] = _KINDS.get(noted[1].doing, "setup") if noted else "own"
            self._seen[worker], self._since_s[worker] = now_seen, self.clock_s
            yield Beat(worker, None, self._limit_s(self._kinds[worker], what))
        yield Tick()

    def _limit_s(self, kind: str, what: Expected) -> float | None:
        """How long there may be no progress; None: for ever."""
        if what is Expected.NOTHING or not self._is_on:
            return None
        if kind == "own" and not _teaches(kind, what):
            return max(_NEW_S, self._patience.limit_s("own"))
        return self._patience.limit_s(kind if self._patience.has_seen(kind) else "setup")

    def noted(self, worker: int) -> tuple[int, Noted] | None:
        """The shard whose environments it is in, and its note; None if it is in none."""
        for shard in self._shards[worker]:
            noted = self.notes.notes[shard].read()
            if noted.doing is not Doing.NOTHING:
                return shard, noted
        return None

    def place(self, worker: int) -> tuple[int, int, int] | None:
        """(env index, episode, step) that a worker was in when it ended, for a comparison."""
        noted = self.noted(worker)
        if noted is None or noted[1].doing in (Doing.MAKE, Doing.CLOSE):
            return None
        shard, note = noted
        return (self._plan.shards[shard][note.position], note.episode, note.step)

    def where(self, worker: int) -> str:
        """The same in words, to be put behind what happened; nothing if it was in no environment."""
        noted = self.noted(worker)
        if noted is None:
            return ""
        shard, (doing, position, episode, step) = noted
        indices = self._plan.shards[shard]
        named = Culprit(indices, self._plan.env.seed_of(self._plan.seed, Purpose.ENV)).named(position, episode, step)
        if doing in (Doing.MAKE, Doing.CLOSE):
            named = f"env {indices[position]}"
        if doing is Doing.RESET:
            named = named.rpartition(", step")[0]
        if self._plan.env.is_vector():
            named += " (or another one of its pool)"
        return f" in {'the replay' if doing is Doing.REPLAY else f'{doing.name.lower()}()'} of {named}"

    def stack(self, worker: int, child: Child) -> str:
        """What a worker that does not move is in: every thread's Python stack, or why there is none."""
        return stack_of(child, self.notes, worker, _FIRST)

    def last_words(self, worker: int) -> str:
        """The stack that a worker left when it crashed; nothing if it left none."""
        return last_words(self.notes, worker, _FIRST)

    def close(self) -> None:
        """Give the memory back."""
        self.notes.segment.unlink()


def look_after(workers: Watched) -> None:
    """Look at all that live; who should do something, and does not, is killed by what the supervisor says."""
    expected = {}
    for worker in workers.children:
        if workers.state.phase(worker) is Phase.STARTING:
            expected[worker] = Expected.START
        elif not workers.owed[worker] and worker not in workers.retiring:
            expected[worker] = Expected.NOTHING
        else:
            expected[worker] = Expected.WORK if workers.state.has_worked(worker) else Expected.FIRST
    for event in workers.watch.look(expected):
        workers.handle(event)


def _teaches(kind: str, what: Expected) -> bool:
    """Whether how long it took says anything: waiting does not, nor do the imports of a new process."""
    return what is Expected.WORK or (kind != "own" and what is not Expected.NOTHING)
