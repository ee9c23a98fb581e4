"""The micro-batcher: how long a batch is held, as arithmetic, and that each caller gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any

import pytest

from headrace.agents.codec import ByteCodec
from headrace.agents.engines.batching import Batched, Batching, Hold
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.records import EpisodeError
from headrace.errors import UsageError

BOUNDS = Batching(max_batch=8, max_wait_s=0.02)


def until(size: int, last_s: float, live: int, batch_s: float, free_s: float = 5.0, **more: Any) -> float:
    return Hold(size, last_s, free_s, live, batch_s, **more).until(BOUNDS)


def test_a_full_batch_goes_at_once() -> None:
    assert until(8, 5.0, live=100, batch_s=1.0) == float("-inf")


def test_a_batch_of_everybody_goes_at_once() -> None:
    assert until(3, 5.0, live=3, batch_s=1.0) == float("-inf")


def test_it_is_held_as_long_as_waiting_costs_less() -> None:
    assert until(4, 5.001, live=8, batch_s=0.04) == pytest.approx(5.011)
    assert until(1, 5.0, live=8, batch_s=9.0) == pytest.approx(5.02), "at most max_wait_s"
    assert until(1, 5.0, live=8, batch_s=0.0) == 5.0, "a quick model need not wait"


def test_those_who_come_back_soon_are_waited_for() -> None:
    """Four wait since 4.9, four were answered at 5.0 and come back within 2 ms: they go together from now on."""
    assert until(4, 4.9, live=8, batch_s=0.06, answered=4, return_s=0.002) == pytest.approx(5.004)
    assert until(4, 4.9, live=8, batch_s=0.06, answered=4, return_s=0.04) < 5.0, "too long for what it brings"
    assert until(4, 4.9, live=8, batch_s=0.06, answered=1, return_s=0.01) < 5.0, "too few"


def test_two_halves_that_take_turns_find_together() -> None:
    """Players who think for a moment, in two halves that are out of step: soon all of them are in every batch."""
    model = Slow()
    engine = Batched(model, Batching(64, 0.05))
    engine.expect(8)

    def play(number: int) -> None:
        if number % 2:
            threading.Event().wait(0.01)
        for turn in range(8):
            engine.submit(Request(number, 0, turn, [1], 4, 0)).result(10)
            threading.Event().wait(0.001)

    players = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for one in players:
        one.start()
    for one in players:
        one.join()
    engine.close()
    assert model.sizes.count(8) >= 5, model.sizes


class Echo:
    """Answers with the last id of the prompt."""

    codec = ByteCodec()
    version = 0

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.sizes: list[int] = []
        self._gate = gate
        self.is_closed = False

    def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        self.sizes.append(len(requests))
        if self._gate is not None:
            self._gate.wait(10)
        return [Completion([one.ids[-1]], [-1.0], [self.version], "x") for one in requests]

    def publish(self, weights: Any) -> int:
        self.version += 1
        return self.version

    def close(self) -> None:
        self.is_closed = True


class Slow(Echo):
    """Takes 20 ms."""

    def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        threading.Event().wait(0.02)
        return super().run(requests)


def asked(number: int) -> Request:
    return Request(number, 0, 0, [number], 4, 0)


def test_who_comes_while_a_batch_runs_is_in_the_next_one() -> None:
    gate = threading.Event()
    model = Echo(gate)
    engine = Batched(model, Batching(64, 0.0))
    first = engine.submit(asked(1))
    while not model.sizes:
        pass
    others = [engine.submit(asked(number)) for number in range(2, 12)]
    gate.set()
    wait([first, *others], 10)
    assert [one.result().ids for one in (first, *others)] == [[number] for number in range(1, 12)]
    assert model.sizes == [1, 10]
    told = engine.statistics()
    assert told.batch_mean == pytest.approx(5.5)
    assert 1.0 <= told.batch_by_time <= 10.0
    assert told.served_s >= told.busy_s > 0.0
    engine.close()
    assert model.is_closed


def test_a_batch_is_never_larger_than_it_may_be() -> None:
    model = Echo()
    engine = Batched(model, Batching(4, 0.05))
    engine.expect(100)
    wait([engine.submit(asked(number)) for number in range(10)], 10)
    assert max(model.sizes) <= 4
    assert len(engine.generate([asked(number) for number in range(9)])) == 9
    assert max(model.sizes) <= 4
    engine.close()


def test_closing_tells_those_who_wait() -> None:
    gate = threading.Event()
    model = Echo(gate)
    engine = Batched(model, Batching(1, 0.0))
    running, waiting = engine.submit(asked(1)), engine.submit(asked(2))
    while not model.sizes:
        pass
    threading.Timer(0.1, gate.set).start()
    engine.close()
    assert running.result(5).ids == [1]
    with pytest.raises(EpisodeError, match="the engine was closed"):
        waiting.result(5)
    with pytest.raises(EpisodeError, match="the engine was closed"):
        engine.submit(asked(3)).result(5)
    engine.close()


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (Completion([1, 2], [-1.0], [0, 0], "x"), "2 token ids with 1 log-probabilities"),
        (Completion([], [], [], ""), "0 token ids; expected 1 to max_tokens = 4"),
        (Completion([1] * 5, [-1.0] * 5, [0] * 5, "x"), "5 token ids"),
        (Completion([999], [-1.0], [0], "x"), "token id 999; expected 0 to 257"),
        (Completion([-1], [-1.0], [0], "x"), "token id -1"),
        (Completion([1], [float("nan")], [0], "x"), "log-probability nan"),
        (Completion([1], [0.5], [0], "x"), "log-probability 0.5"),
    ],
)
def test_what_makes_no_sense_fails_one_request_only(bad: Completion, told: str) -> None:
    class Half(Echo):
        def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
            return [bad, *super().run(requests[1:])]

    engine = Batched(Half())
    failed, fine = engine.generate([asked(1), asked(2)])
    engine.close()
    assert isinstance(failed, EpisodeError)
    assert told in str(failed)
    assert isinstance(fine, Completion)


def test_a_model_that_raises_fails_its_batch_and_goes_on() -> None:
    class Once(Echo):
        def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
            if not self.sizes:
                self.sizes.append(0)
                raise ValueError("out of paper")
            return super().run(requests)

    engine = Batched(Once())
    (failed,) = engine.generate([asked(1)])
    assert isinstance(failed, EpisodeError)
    assert "ValueError: out of paper" in str(failed)
    assert engine.submit(asked(7)).result(5).ids == [7]
    engine.close()


def test_bounds_are_checked() -> None:
    with pytest.raises(UsageError, match="max_batch: expected at least 1, got 0"):
        Batching(0)
    with pytest.raises(UsageError, match="max_wait_s"):
        Batching(1, -1.0)
    with pytest.raises(UsageError, match="max_wait_s: expected 0 or more, got nan"):
        Batching(1, float("nan"))
