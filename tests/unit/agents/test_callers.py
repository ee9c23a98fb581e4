"""Threads with a limit: used again, at most so many, and one that hangs is given up for another."""

from __future__ import annotations

import threading

import pytest

from headrace.agents.callers import Callers


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
    callers.give_up(hung, closed.set)
    assert behind.result(5) == "done"
    assert not closed.is_set(), "it is still in there"
    gate.set()
    assert closed.wait(5), "closed by its own thread, when it came back"
    callers.close()


def test_a_call_that_has_not_begun_is_cancelled() -> None:
    callers, gate, closed = Callers(most=1), threading.Event(), threading.Event()
    first = callers.submit(lambda: gate.wait(20))
    second = callers.submit(lambda: "never")
    callers.give_up(second, closed.set)
    assert closed.is_set()
    gate.set()
    assert first.result(5)
    assert second.cancelled()
    callers.close()
