"""When the model of this process waits for episodes that come back soon, by hand, and when that would be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.agents.engines import in_process as room
from headrace.agents.engines.away import Away
from headrace.agents.engines.in_process import InProcessEngine
from headrace.agents.engines.passes import READERS
from headrace.agents.engines.tiny import tiny_codec, tiny_model

SLOTS = 8
SPEAKS: Any = object()  # a request with a slot: the rules count them, and ask nothing more of them
READS: Any = object()  # one whose prompt is not read yet


def known(mean_s: float) -> Away:
    """Episodes stay away for so long, as one has shown."""
    away = Away()
    away.leave("first", 0.0)
    away.back("first", mean_s)
    return away


# ------------------------------------------------------------------------------------------------------ who is away


def test_before_one_came_back_nobody_knows_when() -> None:
    away = Away()
    away.back("stranger", 5.0)  # its first question: it was not away
    away.leave("a", 0.0)
    assert away.count(1e6) == 1
    assert away.left_s(1e6) == float("inf")


def test_the_last_one_is_waited_for_and_not_for_ever() -> None:
    away = known(2.0)
    away.leave("a", 10.0)
    away.leave("b", 11.0)
    assert away.left_s(11.5) == pytest.approx(1.5), "b is due at 13"
    assert away.left_s(12.9) == pytest.approx(0.5), "a quarter of the mean at least, also just before it is due"
    assert away.count(14.0) == 2, "a is due at 12, and late from 14 on"
    assert away.count(14.1) == 1
    assert away.count(15.1) == 0
    away.back("a", 20.0)  # given up: what it took says nothing of the others
    away.leave("c", 30.0)
    assert away.left_s(30.0) == pytest.approx(2.0)


def test_the_mean_follows_slowly() -> None:
    away = known(2.0)
    away.leave("a", 10.0)
    away.back("a", 14.0)
    away.leave("b", 20.0)
    assert away.left_s(20.0) == pytest.approx(2.2), "a tenth of the way from 2 to 4"


def test_the_oldest_answer_goes_first_also_of_those_that_were_answered_twice() -> None:
    away = known(1.0)
    away.leave("a", 0.0)
    away.leave("b", 1.0)
    away.leave("a", 2.0)
    assert away.left_s(2.5) == pytest.approx(0.5)
    assert away.count(3.5) == 1, "b is late since 3, a is not before 4"


# ------------------------------------------------------------------------------------------------- whether to wait


@pytest.fixture(scope="module")
def built() -> Iterator[InProcessEngine]:
    codec = tiny_codec(["one two"], 300)
    one = InProcessEngine(tiny_model(codec.vocabulary, 3), codec, slots=SLOTS, max_context=64)
    yield one
    one.close()


@pytest.fixture
def engine(built: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> InProcessEngine:
    """At 100 s: two speak, in passes of 7 ms; three are away since 1 ms, and stay for 10 ms as a rule."""
    at(100.0, monkeypatch)
    built._speaking, built._reading = [SPEAKS] * 2, []
    built._held, built._has_read_ahead, built._pass_s, built._came_s = 0, False, 0.007, 99.0
    built.expect(64)
    built.drain(False)
    built._away = away_now(3)
    return built


def at(now_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "now_s", lambda: now_s)


def away_now(count: int) -> Away:
    away = known(0.010)
    for number in range(count):
        away.leave(str(number), 99.999)
    return away


def test_two_wait_for_three_that_come_soon(engine: InProcessEngine) -> None:
    """They lose 2 * 9 ms; three passes of 7 ms are saved."""
    assert engine._patience_s() == pytest.approx(0.009)


def test_who_speaks_does_not_wait_where_that_costs_more(
    engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine._speaking = [SPEAKS] * 3  # 27 ms for 21
    assert engine._patience_s() == 0
    engine._speaking, engine._pass_s = [SPEAKS] * 2, 0.005  # 18 ms for 15
    assert engine._patience_s() == 0
    engine._pass_s, engine._away = 0.007, away_now(2)  # 18 ms for 14
    assert engine._patience_s() == 0
    engine._away = away_now(0)
    assert engine._patience_s() == 0
    engine._away = Away()
    engine._away.leave("a", 99.999)  # nobody knows when it comes back
    assert engine._patience_s() == 0
    engine._away = away_now(3)
    at(100.020, monkeypatch)  # they are late: after twice as long as others they may never come
    assert engine._patience_s() == 0


def test_nobody_waits_for_more_than_may_come(engine: InProcessEngine) -> None:
    engine.expect(5)  # two speak and three are away
    assert engine._patience_s() > 0
    engine.expect(4)  # one of those away is over: 18 ms for 14
    assert engine._patience_s() == 0
    engine.expect(1)  # less than are here
    assert engine._patience_s() == 0


def test_at_the_end_time_is_for_those_that_are_here(engine: InProcessEngine) -> None:
    engine.drain(True)
    assert engine._patience_s() == 0
    engine.drain(False)
    assert engine._patience_s() == pytest.approx(0.009)


def test_an_idle_engine_gathers_for_a_moment(engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine._speaking, engine._reading, engine._came_s = [], [READS], 100.0
    at(100.001, monkeypatch)
    assert engine._patience_s() == pytest.approx(0.001), "2 ms after the last one, while others are away"
    engine._away = Away()
    assert engine._patience_s() == pytest.approx(0.004), "5 ms where episodes begin"
    engine.drain(True)
    assert engine._patience_s() == pytest.approx(0.004), "nobody here loses anything by it"
    engine.expect(1)
    assert engine._patience_s() == 0, "all that can come are here"
    engine.expect(64)
    at(100.006, monkeypatch)
    assert engine._patience_s() <= 0, "the moment is over"


def test_a_full_reading_pass_waits_for_nobody(engine: InProcessEngine) -> None:
    engine._reading = [READS] * READERS
    assert engine._patience_s() == 0
    engine._reading = [READS] * (READERS - 1)
    assert engine._patience_s() > 0


# ----------------------------------------------------------------------------------------------- whether to read


@pytest.mark.parametrize(
    ("reading", "speaking", "held", "has_read_ahead", "is_worth_it"),
    [
        (READERS, 4, 0, False, True),
        (READERS, 4, 0, True, True),  # slots are free
        (READERS, SLOTS, 0, False, True),  # ahead, once ...
        (READERS, SLOTS, 0, True, False),  # ... and not again before the slots have spoken
        (3, 4, 1, False, False),  # prompts have waited for one pass; half a pass of four that speak costs two
        (3, 4, 2, False, True),
        (3, 0, 9, False, False),  # nobody speaks: how long to gather is another rule
        (0, 4, 9, False, False),  # nothing to read
    ],
)
def test_prompts_are_read_when_waiting_costs_more(
    engine: InProcessEngine, reading: int, speaking: int, held: int, has_read_ahead: bool, is_worth_it: bool
) -> None:
    engine._reading, engine._speaking = [READS] * reading, [SPEAKS] * speaking
    engine._held, engine._has_read_ahead = held, has_read_ahead
    assert engine._is_worth_reading() is is_worth_it
