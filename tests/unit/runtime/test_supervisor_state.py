"""The supervisor's decisions, one rule at a time: who is started, who is lost, who is killed, and when it is enough."""

from __future__ import annotations

import pytest

from headrace.runtime.supervisor_state import (
    Beat,
    Died,
    Done,
    Event,
    GiveUp,
    Instruction,
    Kill,
    Left,
    Lost,
    Phase,
    Ready,
    RestartLimits,
    Retired,
    Start,
    SupervisorState,
    Tick,
)

HOW = "killed by signal 9"


def silent(quiet_s: float, limit_s: float) -> str:
    return f"gave no sign of life for {quiet_s:.1f} s (limit {limit_s:g} s)"


def launched(num_workers: int = 1, *, ready: bool = True, **limits: float | None) -> SupervisorState:
    """Workers that were started at time 0, and are ready."""
    state = SupervisorState(num_workers, RestartLimits(**limits))  # type: ignore[arg-type]
    assert state.launch(0.0) == [Start(worker) for worker in range(num_workers)]
    if ready:
        fed(state, *(Ready(worker) for worker in range(num_workers)))
    return state


def fed(state: SupervisorState, *events: Event, at_s: float = 0.0) -> list[Instruction]:
    """All that comes back of these events."""
    return [instruction for event in events for instruction in state.handle(event, at_s)]


def died(state: SupervisorState, times: int, worker: int = 0, *between: Event) -> list[Instruction]:
    """A worker dies again and again; what is said the last time."""
    said: list[Instruction] = []
    for _ in range(times):
        said = fed(state, Died(worker, HOW))
        fed(state, *between)
    return said


# ---------------------------------------------------------------------------------------------------- one worker's life


def test_a_worker_is_starting_until_it_is_ready() -> None:
    state = SupervisorState(2)
    assert state.in_phase(Phase.GONE) == [0, 1], "nothing was asked for yet"
    state.launch(0.0)
    assert state.in_phase(Phase.STARTING) == [0, 1]
    assert not state.has_begun
    assert fed(state, Ready(1)) == []
    assert (state.phase(0), state.phase(1)) == (Phase.STARTING, Phase.READY)
    assert (state.has_been_ready(0), state.has_been_ready(1)) == (False, True)
    assert state.has_begun


def test_a_death_loses_the_work_and_starts_the_worker_again() -> None:
    state = launched(3)
    assert fed(state, Died(1, HOW)) == [Lost(1, HOW), Start(1)]
    assert (state.phase(1), state.restarts) == (Phase.STARTING, 1)
    assert state.in_phase(Phase.READY) == [0, 2], "the others go on"


def test_what_a_worker_was_at_is_handed_back_once() -> None:
    state = launched()
    fed(state, Beat(0, "episode 7"), Beat(0, "episode 8"))
    assert state.note(0) == "episode 8"
    assert fed(state, Died(0, HOW))[0] == Lost(0, HOW, "episode 8")
    assert state.note(0) is None
    assert fed(state, Ready(0), Died(0, HOW))[0] == Lost(0, HOW, None), "not the note of the one before"


def test_a_worker_that_left_is_not_started_again() -> None:
    state = launched(2)
    assert fed(state, Left(0), Died(0, "exit code 0"), Beat(0, "late"), Done(0), Ready(0)) == []
    assert (state.phase(0), state.note(0), state.restarts) == (Phase.GONE, None, 0)
    assert fed(state, Died(1, HOW)) == [Lost(1, HOW), Start(1)]


# --------------------------------------------------------------------------------------------------- when it is enough


@pytest.mark.parametrize("fruitless", [1, 2, 5])
def test_a_worker_that_never_gets_anything_done_is_given_up(fruitless: int) -> None:
    state = launched(2, fruitless=fruitless)
    if fruitless > 1:
        said = died(state, fruitless - 1, 1, Ready(1), Beat(1))
        assert said == [Lost(1, HOW), Start(1)], "signs of life are no results"
    said = died(state, 1, 1)
    assert said == [GiveUp(1, f"worker 1 was started {fruitless} times in a row without a result, last: {HOW}")]
    assert state.restarts == fruitless - 1


def test_a_result_makes_up_for_all_deaths_before_it() -> None:
    state = launched(fruitless=2)
    for _ in range(20):
        assert died(state, 1, 0, Ready(0)) == [Lost(0, HOW), Start(0)]
        assert fed(state, Done(0), Died(0, HOW), Ready(0)) == [Lost(0, HOW), Start(0)]
    assert state.restarts == 40


def test_the_life_that_had_a_result_is_not_counted() -> None:
    """Five start-ups without one, and not four of them and the death of one that worked."""
    state = launched(fruitless=2)
    assert fed(state, Done(0), Died(0, HOW), Ready(0), Died(0, HOW))[-1] == Start(0)
    assert isinstance(fed(state, Ready(0), Died(0, HOW))[-1], GiveUp)


def test_deaths_of_others_do_not_count() -> None:
    state = launched(3, fruitless=3)
    for worker in range(3):
        assert died(state, 2, worker, Ready(worker)) == [Lost(worker, HOW), Start(worker)]
    assert fed(state, Done(0), Died(1, HOW))[0] == GiveUp(
        1, f"worker 1 was started 3 times in a row without a result, last: {HOW}"
    )


def test_without_a_limit_nothing_is_too_much() -> None:
    state = launched(fruitless=None)
    assert died(state, 100, 0) == [Lost(0, HOW), Start(0)]


@pytest.mark.parametrize("first_starts", [1, 3])
def test_a_worker_that_does_not_come_up_for_the_first_time_is_given_up(first_starts: int) -> None:
    state = launched(2, ready=False, first_starts=first_starts)
    fed(state, Ready(0))
    said = died(state, first_starts, 1)
    assert said == [GiveUp(1, f"worker 1 died before it was ready: {HOW}", has_begun=True)]
    assert state.restarts == first_starts - 1


def test_nothing_has_begun_if_no_worker_ever_came_up() -> None:
    assert fed(launched(2, ready=False), Died(0, HOW)) == [
        GiveUp(0, f"worker 0 died before it was ready: {HOW}", has_begun=False)
    ]


def test_one_that_came_up_before_may_fail_to_come_up_again() -> None:
    state = launched(first_starts=1, fruitless=5)
    assert died(state, 4, 0) == [Lost(0, HOW), Start(0)]
    assert isinstance(died(state, 1, 0)[0], GiveUp)


def test_deaths_at_the_same_place_are_a_loop_whatever_else_is_done() -> None:
    """Results of other work do not make up for it, and deaths elsewhere do not count."""
    state = launched(2, same_place=3)
    for place in ("a", "b", "a", "b"):
        said = fed(state, Done(0), Died(0, HOW, place), Ready(0))
        assert said == [Lost(0, HOW), Start(0)]
    assert fed(state, Done(0), Died(0, HOW, "a")) == [
        GiveUp(0, f"worker 0 was lost 3 times at the same place, last: {HOW}")
    ]


def test_deaths_at_no_place_are_no_loop() -> None:
    state = launched(same_place=3)
    for _ in range(20):
        assert fed(state, Done(0), Died(0, HOW), Ready(0)) == [Lost(0, HOW), Start(0)]


def test_deaths_of_a_worker_that_starts_are_at_no_place() -> None:
    """It replays the same steps every time it starts, so kills at random may well meet it there."""
    state = launched(same_place=3)
    for _ in range(20):
        assert fed(state, Done(0), Died(0, HOW), Died(0, HOW, "a"), Ready(0))[-1] == Start(0)


def test_a_retired_worker_is_started_again_and_nothing_is_lost() -> None:
    state = launched(2, fruitless=1, restarts=0)
    for _ in range(20):
        assert fed(state, Done(1), Beat(1, "x"), Retired(1)) == [Start(1)]
        assert (state.phase(1), state.note(1), state.has_worked(1), state.restarts) == (Phase.STARTING, None, False, 0)
        fed(state, Ready(1))
    assert fed(state, Left(1), Retired(1)) == [], "one that left has left"


def test_restarts_are_limited_over_all_workers() -> None:
    state = launched(3, restarts=4, fruitless=None)
    for worker in (0, 1, 2, 0):
        assert fed(state, Died(worker, HOW), Ready(worker), Done(worker)) == [Lost(worker, HOW), Start(worker)]
    assert fed(state, Died(2, HOW)) == [GiveUp(2, "workers keep dying: 4 were started again")]


@pytest.mark.parametrize("limits", [{"restarts": 0}, {"fruitless": 0}])
def test_a_limit_of_nought_allows_no_death(limits: dict[str, int]) -> None:
    assert isinstance(fed(launched(**limits), Died(0, HOW))[0], GiveUp)


def test_after_giving_up_nothing_more_is_said() -> None:
    state = launched(2, restarts=0, silent_s=1.0, start_s=1.0)
    assert isinstance(fed(state, Died(0, HOW))[0], GiveUp)
    assert fed(state, Died(1, HOW), Tick(), Ready(0), Done(1), Beat(1), Left(1), at_s=99.0) == []
    assert state.restarts == 0


# ----------------------------------------------------------------------------------------------------------------- time


def test_if_no_worker_comes_up_in_time_it_is_given_up() -> None:
    state = launched(2, ready=False, start_s=10.0)
    assert fed(state, Tick(), at_s=10.0) == []
    assert fed(state, Tick(), at_s=10.1) == [GiveUp(None, "no worker came up within 10 s", has_begun=False)]


def test_the_first_that_comes_up_in_time_is_enough() -> None:
    state = launched(2, ready=False, start_s=10.0)
    fed(state, Ready(1), at_s=9.0)
    assert fed(state, Tick(), at_s=99.0) == []


def test_time_counts_from_the_launch() -> None:
    state = SupervisorState(1, RestartLimits(start_s=10.0))
    state.launch(1000.0)
    assert fed(state, Tick(), at_s=1009.0) == []
    assert isinstance(fed(state, Tick(), at_s=1011.0)[0], GiveUp)


def test_a_worker_that_gives_no_sign_of_life_is_killed_once() -> None:
    state = launched(2, silent_s=5.0)
    fed(state, Beat(0), at_s=4.0)
    assert fed(state, Tick(), at_s=5.0) == []
    assert fed(state, Tick(), at_s=8.0) == [Kill(1, silent(8.0, 5.0))]
    assert fed(state, Tick(), Tick(), at_s=8.5) == [], "it was said"
    assert fed(state, Died(1, HOW), at_s=9.0) == [Lost(1, HOW), Start(1)], "Kill is no loss yet; its Died is"
    assert fed(state, Tick(), at_s=9.0) == []


@pytest.mark.parametrize("event", [Beat(0), Done(0), Ready(0)])
def test_every_word_of_a_worker_is_a_sign_of_life(event: Event) -> None:
    state = launched(silent_s=5.0)
    fed(state, event, at_s=4.0)
    assert fed(state, Tick(), at_s=9.0) == []
    assert fed(state, Tick(), at_s=9.1) == [Kill(0, silent(5.1, 5.0))]


def test_a_replaced_worker_may_be_killed_again() -> None:
    state = launched(silent_s=5.0)
    for round_s in (10.0, 20.0, 30.0):
        assert fed(state, Tick(), at_s=round_s) == [Kill(0, silent(10.0, 5.0))]
        fed(state, Died(0, HOW), at_s=round_s)
        assert fed(state, Tick(), at_s=round_s + 9.0) == [], "one that is starting is given time"
        fed(state, Ready(0), Done(0), at_s=round_s)


def test_a_sign_of_life_may_say_how_long_the_next_will_take() -> None:
    state = launched(2, silent_s=5.0)
    fed(state, Beat(0, None, 60.0), Beat(1, None, 2.0))
    assert fed(state, Tick(), at_s=2.5) == [Kill(1, silent(2.5, 2.0))]
    assert fed(state, Tick(), at_s=60.0) == []
    assert fed(state, Beat(0), Tick(), at_s=60.0) == []
    assert fed(state, Tick(), at_s=66.0) == [Kill(0, silent(6.0, 5.0))], "nothing was said, so the limits hold"


def test_one_that_starts_is_killed_if_it_said_how_long_it_takes() -> None:
    state = launched(2, ready=False, silent_s=1.0, first_starts=3)
    fed(state, Beat(0, None, 4.0))
    assert fed(state, Tick(), at_s=4.0) == []
    assert fed(state, Tick(), at_s=4.5) == [Kill(0, silent(4.5, 4.0))]
    assert fed(state, Ready(0), Tick(), at_s=99.0) == [], "its death is on the way"
    assert fed(state, Died(0, HOW), Tick(), at_s=199.0) == [Lost(0, HOW), Start(0)], "the next has said nothing yet"


def test_one_that_left_is_not_expected_to_say_anything() -> None:
    state = launched(2, silent_s=5.0)
    fed(state, Left(0))
    assert fed(state, Tick(), at_s=6.0) == [Kill(1, silent(6.0, 5.0))]


def test_without_a_limit_silence_is_fine() -> None:
    assert fed(launched(), Tick(), at_s=1e9) == []
