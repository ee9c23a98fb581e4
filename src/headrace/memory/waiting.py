"""Waiting until a word of shared memory changes: a short spin, then sleep until it is woken or a slice of time is over.

    waiter: spin (some microseconds, if that paid lately) -> say that it sleeps -> Futex.wait, 50 ms at most -> look
    writer: store_release(word) -> fence -> the waiter says that it sleeps? -> Futex.wake

The kernel sleeps only if the word still holds what the waiter saw, so a change between its look and its sleep wakes it
at once. Two fences make that complete: the writer looks whether somebody sleeps after its store is visible, the waiter
looks at the word after its own note is. Nothing is held while waiting: killed, a waiter or a writer leaves nothing.
A spin that fails costs a core that the awaited process may need. `Spin` remembers whether spinning paid: on a busy
machine it soon sleeps at once, and tries again ever more seldom. Linux only; a word's low half comes first in memory
there.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.clock import now_s
from headrace.compiler import compiled
from headrace.memory.atomics import fence, load_acquire, store_release

Array = npt.NDArray[Any]

SLICE_S = 0.05  # of sleep at a time
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)  # the system call's number
_WAIT, _WAKE = 0, 1
_SPIN_S = 40e-6  # about what it costs to put a process to sleep and wake it on an idle core
_CREDIT, _LOSS = 16, 4  # at most so much trust in spinning: a spin that paid adds 1, one that did not takes 4
_FIRST_PROBE, _LAST_PROBE = 64, 4096  # after so many waits without a spin, one is tried; doubled when it does not pay


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Timespec), ctypes.c_void_p,
    ctypes.c_int,
)  # fmt: skip


class Futex:
    """One word that processes sleep on."""

    def __init__(self, words: Array, index: int) -> None:
        self._words = words  # keeps the memory mapped
        self._address = words.ctypes.data + 8 * index

    def wait(self, seen: int, timeout_s: float) -> None:
        """Sleep while the word is what was seen; may return earlier, so look again."""
        time = _Timespec(int(timeout_s), int(timeout_s % 1.0 * 1e9))
        _syscall(_FUTEX, self._address, _WAIT, seen & 0xFFFFFFFF, ctypes.byref(time), None, 0)

    def wake(self) -> None:
        """Wake whoever sleeps on it."""
        _syscall(_FUTEX, self._address, _WAKE, 0x7FFFFFFF, None, None, 0)


class Spin:
    """How long to spin before sleeping: not at all while it does not pay."""

    def __init__(self, cores: int | None = None) -> None:
        self._most = _loops_in(_SPIN_S) if (cores or len(os.sched_getaffinity(0))) > 1 else 0
        self.loops = self._most
        self._credit, self._without, self._probe = _CREDIT, 0, _FIRST_PROBE
        self.is_sure = self._most > 0
        """One more spin that pays changes nothing: then `paid(True)` may be left out."""

    def paid(self, is_over: bool) -> None:
        """A wait that began with `loops` of spinning was over by then, or was not."""
        if not self.loops:
            self._without += 1
            if self._without >= self._probe:
                self.loops = self._most
        elif is_over:
            if self._credit < _CREDIT:
                self._credit += 1
            else:
                self._probe, self.is_sure = _FIRST_PROBE, True
        else:
            self.is_sure = False
            self._credit -= _LOSS
            if self._credit <= 0:
                self._probe = min(2 * self._probe, _LAST_PROBE)
                self.loops = self._without = self._credit = 0


@compiled
def spin_until(words: Array, index: int, value: int, loops: int) -> bool:
    """Look at a word so many times; whether it came to hold the value."""
    for _ in range(loops):
        if load_acquire(words, index) == value:
            return True
    return bool(load_acquire(words, index) == value)


@compiled
def say(words: Array, index: int, value: int) -> None:
    """Store a word, and see that it is visible before anything else is looked at."""
    store_release(words, index, value)
    fence()


@cache
def _loops_in(seconds: float) -> int:
    """How many looks at a word take so long here."""
    word, took_s = np.zeros(1, np.int64), []
    for _ in range(4):  # the first one compiles
        begun = now_s()
        spin_until(word, 0, 1, 20_000)
        took_s.append(now_s() - begun)
    return int(20_000 * seconds / min(took_s))
