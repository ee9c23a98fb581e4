"""Threads with a limit: used again, at most so many, and one that hangs is given up for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest

from headrace.agents.callers import Callers, Outcome, most_useful


def test_threads_are_used_again() -> None:
    callers = Callers()
    names = {callers.submit(threading.get_ident).result(5) for _ in range(20)}
    assert len(names) <= 2
    assert callers.close() == 0


def test_as_many_threads_as_calls() -> None:
    callers = Callers()
    together = threading.Barrier(6)
    futures = [callers.submit(lambda: together.wait(5)) for _ in range(6)]
    assert sorted(one.result(5) for one in futures) == list(range(6))
    assert callers.close() == 0


def test_one_thread_keeps_the_order() -> None:
    callers, seen = Callers(most=1), list[int]()
    for one in [callers.submit(lambda at=at: seen.append(at)) for at in range(50)]:
        one.result(5)
    assert seen == list(range(50))
    callers.close()


def test_what_a_call_raises_comes_back() -> None:
    callers = Callers()
    with pytest.raises(ZeroDivisionError):
        callers.submit(lambda: 1 // 0).result(5)
    assert callers.submit(lambda: 3).result(5) == 3
    callers.close()


def test_a_hung_call_is_given_up_and_the_others_go_on() -> None:
    callers, gate, closed = Callers(most=1), threading.Event(), threading.Event()
    hung = callers.submit(lambda: gate.wait(20))
    behind = callers.submit(lambda: "done")
    with pytest.raises(TimeoutError):
        behind.result(0.1)
    assert callers.give_up(hung, closed.set)
    assert behind.result(5) == "done"
    assert not closed.is_set(), "it is still in there"
    gate.set()
    assert closed.wait(5), "closed by its own thread, when it came back"
    callers.close()


def test_a_call_that_has_not_begun_is_cancelled() -> None:
    callers, gate, closed = Callers(most=1), threading.Event(), threading.Event()
    first = callers.submit(lambda: gate.wait(20))
    second = callers.submit(lambda: "never")
    assert not callers.give_up(second, closed.set)
    assert second.cancelled()
    gate.set()
    assert first.result(5)
    assert not callers.give_up(first, closed.set), "it is over"
    callers.close()
    assert not closed.is_set(), "what comes after it is for whoever asks"


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has none left, those who are there do the work."""
    callers, started = Callers(), threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "env-caller":
            raise RuntimeError("can't start new thread")
        started(self)

    gate = threading.Event()
    first = callers.submit(lambda: gate.wait(20))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    rest = [callers.submit(lambda count=count: count) for count in range(5)]
    gate.set()
    assert first.result(5)
    assert [one.result(5) for one in rest] == [0, 1, 2, 3, 4]
    monkeypatch.undo()
    assert callers.submit(lambda: "again").result(5) == "again"
    assert callers.close() == 0


def test_quick_calls_share_a_few_threads() -> None:
    callers, seen = Callers(), set[int]()
    for _ in range(30):
        calls: list[tuple[Callable[[], None], Future[None]]] = [
            (lambda: seen.add(threading.get_ident()), Future()) for _ in range(200)
        ]
        callers.submit_all(calls)
        for _, future in calls:
            future.result(5)
    assert len(seen) < 60, "not a thread each"
    assert callers.close() == 0


def test_calls_that_wait_do_not_wait_for_each_other() -> None:
    """After quick calls, twenty that come back only when all of them have begun."""
    callers = Callers()
    for one in [callers.submit(lambda: None) for _ in range(50)]:
        one.result(5)
    for _ in range(2):
        together = threading.Barrier(20)
        for one in [callers.submit(lambda together=together: together.wait(30)) for _ in range(20)]:
            one.result(60)
    callers.close()


def test_what_is_learned_on_the_way_brings_more_threads() -> None:
    """After quick calls, two hundred of 2 ms in one go: never long enough for the queue to look stuck."""
    callers, threads = Callers(), set[int]()

    def wait() -> None:
        threads.add(threading.get_ident())
        time.sleep(0.002)

    for one in [callers.submit(lambda: None) for _ in range(50)]:
        one.result(5)
    calls: list[tuple[Callable[[], None], Future[None]]] = [(wait, Future()) for _ in range(200)]
    callers.submit_all(calls)
    for _, future in calls:
        future.result(60)
    assert len(threads) > 2
    callers.close()


def test_threads_that_the_interpreter_can_serve() -> None:
    """A call that computes a tenth of its time leaves room for ten others; those that only wait get a thread each."""
    assert most_useful(1e-4, 1e-5) == 1, "over in no time"
    assert 15 <= most_useful(1e-3, 5e-5) <= 30
    assert most_useful(0.05, 5e-5) > 500
    assert most_useful(0.05, 0.05) <= 4


def test_an_outcome_is_for_the_one_that_is_called() -> None:
    """It ends in the thread of its call; cancelled before, it never begins; given up, it never ends."""
    callers, gate, ended, closed = Callers(most=1), threading.Event(), list[object](), threading.Event()
    is_over = threading.Event()

    def note(one: Outcome) -> None:
        ended.append((one.result(), one.exception(), threading.current_thread().name))
        is_over.set()

    held, cancelled, quick, bad = (Outcome(note) for _ in range(4))
    callers.submit_all([(lambda: gate.wait(20), held), (lambda: "never", cancelled), (lambda: 3, quick)])
    assert cancelled.cancel()
    assert cancelled.cancelled()
    while callers.begun_s(held) is None:
        time.sleep(0)
    assert not held.cancel(), "it has begun"
    assert callers.give_up(held, closed.set)
    assert is_over.wait(5)
    assert ended == [(3, None, "env-caller")]
    gate.set()
    assert closed.wait(5)
    is_over.clear()
    error = ValueError("bad")

    def fail() -> None:
        raise error

    callers.submit_all([(fail, bad)])
    assert is_over.wait(5)
    callers.close()
    assert ended[1:] == [(None, error, "env-caller")]


def test_nothing_is_left_in_the_queue() -> None:
    """Calls that come one by one while threads go to sleep: every one is taken, by somebody."""
    callers = Callers()
    for count in range(2000):
        assert callers.submit(lambda count=count: count).result(5) == count
    callers.close()


def test_giving_up_what_ends_at_that_moment() -> None:
    """Whoever wins, the environment is closed exactly once, and not while the call runs."""
    for pause_s in np.linspace(0.0, 0.002, 60):
        callers, closed, is_running = Callers(), list[bool](), threading.Event()

        def call(is_running: threading.Event = is_running) -> None:
            is_running.set()
            time.sleep(0.001)
            is_running.clear()

        future = callers.submit(call)
        time.sleep(pause_s)
        close = lambda closed=closed, is_running=is_running: closed.append(is_running.is_set())  # noqa: E731
        if not callers.give_up(future, close):
            callers.submit(close)
        callers.close()
        deadline = time.monotonic() + 5
        while not closed and time.monotonic() < deadline:
            time.sleep(0.0005)
        assert closed == [False]
