"""Waiting for a word: woken when it changes, never asleep over a change; a spin gives up where it does not pay."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np

from headrace.clock import now_s
from headrace.memory.atomics import load_acquire, store_release
from headrace.memory.segment import SharedSegment
from headrace.memory.waiting import Futex, Spin, say, spin_until

LONG_S = 60.0


def test_a_word_that_has_changed_is_not_slept_on() -> None:
    words = np.array([0, 5], np.int64)
    begun = now_s()
    Futex(words, 1).wait(4, LONG_S)
    assert now_s() - begun < LONG_S / 2


def test_sleep_ends_with_its_time() -> None:
    words = np.array([7, 2**40 + 3], np.int64)
    begun = now_s()
    Futex(words, 1).wait(2**40 + 3, 0.02)
    assert now_s() - begun >= 0.019


def pong(name: str, rounds: int) -> None:
    words = np.frombuffer(SharedSegment.attach(name).buffer, np.int64)
    play(words, 0, 8, rounds, 1)


def play(words: np.ndarray, mine: int, theirs: int, rounds: int, first: int) -> None:
    """Answer every change of one word with a change of the other; asleep in between."""
    wakes, sleeps = Futex(words, mine), Futex(words, theirs)
    for turn in range(1, rounds + 1):
        if not first:
            say(words, mine, turn)
            if words[theirs + 1]:
                wakes.wake()
        say(words, mine + 1, 1)
        while (seen := load_acquire(words, theirs)) != turn:
            sleeps.wait(int(seen), LONG_S)
        say(words, mine + 1, 0)
        if first:
            say(words, mine, turn)
            if words[theirs + 1]:
                wakes.wake()


def test_no_wake_is_lost_between_two_processes() -> None:
    """A sleep is a minute long here: one lost wake in a thousand would show."""
    segment = SharedSegment.create(128)
    words = np.frombuffer(segment.buffer, np.int64)
    other = multiprocessing.get_context("spawn").Process(target=pong, args=(segment.name, 1000))
    other.start()
    begun = now_s()
    play(words, 8, 0, 1000, 0)
    other.join()
    other.close()
    segment.unlink()
    assert now_s() - begun < LONG_S / 2


def test_a_spin_sees_the_word_change() -> None:
    words = np.zeros(2, np.int64)
    assert not spin_until(words, 1, 3, 100)
    thread = threading.Thread(target=store_release, args=(words, 1, 3))
    thread.start()
    while not spin_until(words, 1, 3, 100_000):
        pass
    thread.join()


def test_a_spin_that_never_pays_is_given_up_and_tried_again_now_and_then() -> None:
    spin, spun = Spin(cores=4), []
    for _ in range(1000):
        spun.append(spin.loops)
        spin.paid(False)
    most = spun[0]
    assert most > 0
    assert sum(spun[100:]) < 0.05 * most * len(spun[100:]), "on average next to nothing"
    assert most in spun[100:], "but it is tried"


def test_a_spin_that_pays_half_of_the_time_is_given_up_and_tried_ever_more_seldom() -> None:
    """One that fails costs more than one that pays gains."""
    spin, spun = Spin(cores=4), []
    for turn in range(20_000):
        spun.append(spin.loops > 0)
        spin.paid(turn % 2 == 0)
    assert 2 <= sum(spun[1000:]) < 40


def test_a_spin_that_pays_again_is_kept() -> None:
    spin = Spin(cores=4)
    most = spin.loops
    while spin.loops:
        spin.paid(False)
    while not spin.loops:
        spin.paid(False)
    spin.paid(True)
    assert spin.loops == most


def test_a_sure_spin_need_not_be_told_that_it_paid() -> None:
    """At the start, after failures, while it is given up, and when it pays again."""
    spin, was_sure = Spin(cores=4), []
    for is_over in [True] * 3 + [False] * 400 + [True] * 1000:
        was_sure.append(spin.is_sure)
        before = vars(spin).copy()
        spin.paid(is_over)
        assert not (was_sure[-1] and is_over) or vars(spin) == before
    assert was_sure[0]
    assert not any(was_sure[4:403])
    assert spin.is_sure


def test_one_core_never_spins() -> None:
    spin = Spin(cores=1)
    for _ in range(200):
        assert spin.loops == 0
        assert not spin.is_sure
        spin.paid(False)
