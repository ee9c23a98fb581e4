"""The watch on a clock of its own: who counts as hung, who does not, and what is said about where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.collecting import watch as watching
from headrace.collecting.topology import Topology, WorkerLimits, split
from headrace.collecting.watch import Expected, Watch
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.spec import EnvSpec
from headrace.memory.crash_note import DOING, POSITION, Doing
from headrace.runtime.supervisor_state import Died, Kill, Ready, RestartLimits, SupervisorState
from support.stages import NOISY, SEED, plan_for

LOOK_S = 0.25


class Room:
    """Two workers, the second with two shards, their notes, a clock, and the supervisor that is told about them."""

    def __init__(self, patch: pytest.MonkeyPatch, env: EnvSpec = NOISY, floor_s: float = 1.0, ceiling_s: float = 20.0):
        self.now_s = 1000.0
        patch.setattr(watching, "now_s", lambda: self.now_s)
        plan = plan_for(env, Topology("processes", "local", 0, tuple(split(5, 3)), (), 2), 6)
        self.watch = Watch(plan, 2, lambda worker: [[1], [0, 2]][worker], WorkerLimits(floor_s, ceiling_s))
        self.state = SupervisorState(2, RestartLimits(first_starts=9))
        self.state.launch(self.watch.clock_s)
        self.expected = dict.fromkeys(range(2), Expected.START)

    def close(self) -> None:
        self.watch.close()
        del self.watch  # pytest holds on to a fixture, and so to its memory

    def ready(self, what: Expected = Expected.WORK) -> None:
        for worker in range(2):
            self.state.handle(Ready(worker), self.watch.clock_s)
            self.expected[worker] = what

    def note(self, shard: int, doing: Doing, position: int = 0, episode: int = 0, step: int = 0) -> None:
        note = self.watch.notes.notes[shard]
        note.words[DOING], note.words[POSITION] = doing, position
        note.episode[position], note.step[position] = episode, step

    def look(self, after_s: float = LOOK_S) -> list[int]:
        """Who is to be killed."""
        self.now_s += after_s
        said = [one for event in self.watch.look(self.expected) for one in self.state.handle(event, self.watch.clock_s)]
        return [one.worker for one in said if isinstance(one, Kill)]

    def until_killed(self, most_s: float, moves: int | None = None) -> tuple[list[int], float]:
        """Look again and again, while one shard's environments go on; who was killed, and after how long."""
        begun_s, steps = self.now_s, 0
        while self.now_s - begun_s < most_s:
            if moves is not None:
                self.note(moves, Doing.STEP, step=(steps := steps + 1))
            if killed := self.look():
                return killed, self.now_s - begun_s
        return [], most_s

    def at_work(self) -> None:
        """Both have worked for a while, quickly."""
        self.look()
        self.ready()
        for step in range(1, 9):
            for shard in range(3):
                self.note(shard, Doing.STEP, step=step)
            self.note(0 if step % 2 else 2, Doing.NOTHING)
            assert self.look() == []
        for shard in range(3):
            self.note(shard, Doing.NOTHING)
        self.look()


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    room = Room(monkeypatch)
    yield room
    room.close()


def test_who_does_not_move_is_killed_at_its_limit(room: Room) -> None:
    room.at_work()
    room.note(1, Doing.STEP, step=20)
    killed, after_s = room.until_killed(60.0, moves=2)
    assert killed == [0], "the other one moved"
    assert 10 * LOOK_S <= after_s <= 10 * LOOK_S + 2 * LOOK_S, "ten times what was seen, which is a look's time"


def test_a_worker_of_two_shards_moves_if_one_of_them_does(room: Room) -> None:
    room.at_work()
    room.expected[0] = Expected.NOTHING
    assert room.until_killed(60.0, moves=2) == ([], 60.0)


def test_who_has_nothing_to_do_need_not_move(room: Room) -> None:
    room.at_work()
    room.expected = dict.fromkeys(range(2), Expected.NOTHING)
    assert room.until_killed(600.0)[0] == []
    room.expected[1] = Expected.WORK
    killed, after_s = room.until_killed(60.0)
    assert killed == [1], "an order that is not taken up"
    assert after_s <= 10 * LOOK_S + 2 * LOOK_S, "counted from the order on"


def test_time_in_which_nobody_looked_does_not_count(room: Room) -> None:
    """The learner learned for an hour, or was stopped together with its workers."""
    room.at_work()
    room.note(1, Doing.STEP, step=20)
    room.expected[1] = Expected.NOTHING
    for _ in range(3):
        assert room.look(after_s=3600.0) == []
    assert room.until_killed(60.0, moves=0)[0] == [0], "but it is still hung"


def test_slow_steps_raise_the_limit(room: Room) -> None:
    room.at_work()
    for step in range(30, 33):
        room.note(1, Doing.STEP, step=step)
        room.note(2, Doing.STEP, step=step)
        for _ in range(6):
            assert room.look() == []
    room.note(1, Doing.STEP, step=40)
    killed, after_s = room.until_killed(60.0, moves=2)
    assert killed == [0]
    assert 14.0 < after_s < 17.0, "1.5 s a step, ten times that"


def test_the_ceiling_is_the_end_of_patience(room: Room) -> None:
    room.at_work()
    for step in (30, 31):
        room.note(1, Doing.STEP, step=step)
        room.note(2, Doing.STEP, step=step)
        for _ in range(9):
            assert room.look() == []
    room.note(1, Doing.STEP, step=40)
    assert 20.0 < room.until_killed(60.0, moves=2)[1] < 21.0


@pytest.mark.parametrize("doing", [Doing.MAKE, Doing.RESET, Doing.REPLAY])
def test_before_anything_was_seen_the_ceiling_holds(room: Room, doing: Doing) -> None:
    room.note(1, doing)
    killed, after_s = room.until_killed(60.0, moves=2)
    assert killed == [0]
    assert 20.0 < after_s < 21.0


def test_our_own_imports_and_compilers_get_a_minute(room: Room) -> None:
    """In a process that has not finished anything: no environment is to blame. Later they do not."""
    killed, after_s = room.until_killed(200.0)
    assert killed == [0, 1]
    assert 60.0 < after_s < 61.0


def test_nor_do_they_teach_how_long_a_step_takes(room: Room) -> None:
    room.look()
    room.ready(Expected.FIRST)
    assert room.until_killed(30.0)[0] == []
    room.at_work()
    room.note(1, Doing.STEP, step=99)
    assert room.until_killed(60.0, moves=2)[1] < 4.0


def test_a_first_step_is_held_to_what_start_ups_took(room: Room) -> None:
    room.look()
    room.ready(Expected.FIRST)
    room.note(1, Doing.STEP, step=1)
    killed, after_s = room.until_killed(60.0, moves=2)
    assert (killed, after_s < 2.0) == ([0], True), "resets took no time, so the floor holds"


def test_a_new_process_begins_anew(room: Room) -> None:
    room.at_work()
    room.note(1, Doing.STEP, step=20)
    room.look()
    room.watch.begin(0)
    room.expected[0] = Expected.START
    assert not any(room.watch.notes.raw([1]))
    assert room.until_killed(30.0, moves=2)[0] == []


def test_the_successor_of_one_that_never_came_up_is_watched_too(room: Room) -> None:
    """Its notes look like those of the one before."""
    assert room.until_killed(200.0)[0] == [0, 1]
    for _ in range(2):
        room.state.handle(Died(0, "killed by signal 9"), room.watch.clock_s)
        room.watch.begin(0)
        killed, after_s = room.until_killed(200.0)
        assert (killed, 60.0 < after_s < 61.0) == ([0], True)


def test_watching_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, ceiling_s=0.0)
    try:
        room.at_work()
        assert room.until_killed(5000.0)[0] == []
    finally:
        room.close()


# ---------------------------------------------------------------------------------------------------------------- where


@pytest.mark.parametrize(
    ("doing", "where", "place"),
    [
        (Doing.NOTHING, "", None),
        (Doing.MAKE, " in make() of env 4", None),
        (Doing.RESET, " in reset() of env 4, episode 4:3, seed SEED", (4, 3, 8)),
        (Doing.STEP, " in step() of env 4, episode 4:3, seed SEED, step 7", (4, 3, 7)),
        (Doing.REPLAY, " in the replay of env 4, episode 4:3, seed SEED, step 8", (4, 3, 8)),
        (Doing.CLOSE, " in close() of env 4", None),
    ],
)
def test_where(room: Room, doing: Doing, where: str, place: tuple[int, int, int] | None) -> None:
    """Shard 2 holds env 4 alone."""
    room.note(2, doing, 0, 3, 8)
    assert room.watch.where(1) == where.replace("SEED", str(leaf(SEED, Purpose.ENV, 4, 3)))
    assert room.watch.place(1) == place
    assert room.watch.where(0) == ""


def test_a_pool_does_not_say_which_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(monkeypatch, EnvSpec("support.worker_envs:pool"))
    try:
        room.note(1, Doing.STEP, 0, 2, 6)
        assert room.watch.where(0).startswith(" in step() of env 2, episode 2:2, seed ")
        assert room.watch.where(0).endswith(", step 5 (or another one of its pool)")
    finally:
        room.close()
