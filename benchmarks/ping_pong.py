"""Pairs of processes that answer each other through two words of shared memory, and wait as headrace does.

    ping: its word = turn ─────> pong: sees it, its word = turn ─────> ping: sees it; one round trip

Nothing is computed and, without `--carry`, nothing is carried: what is left is the waiting. `--carry` copies what a
worker asks and a server answers: 8 observations of 4 numbers, their noise, 8 actions. `--spin` says how a waiter
begins: `adaptive` (headrace's), `always` (it spins before every sleep) or `never` (it sleeps at once). With more pairs
than cores a spin may keep the process that it waits for from running; with `--cores 1` it always does: a waiter
believes in two cores, as it would in a container that shows many and grants one. Prints one JSON object: round trips
of all pairs per second, and per second of CPU time; the times of the first pair.
"""

import argparse
import json
import os
import signal
import sys
import time
from multiprocessing import shared_memory

import numpy as np

from headrace.memory.atomics import load_acquire
from headrace.memory.waiting import SLICE_S, Futex, Spin, say, spin_until

BEGIN, LINE, CARRIED, PAIR = 0, 16, 32, 96  # words: the start of all; one side's distance from the other; the arrays
WARM_S = 0.3


class Always(Spin):
    def paid(self, is_over: bool) -> None:
        pass


class Never(Always):
    def __init__(self, cores: int) -> None:
        super().__init__(cores)
        self.loops = 0


SPINS = {"adaptive": Spin, "always": Always, "never": Never}


class Player:
    """One side: its own word and the other's, each with a note beside it that its waiter sleeps."""

    def __init__(self, words: np.ndarray, mine: int, theirs: int, spin: Spin) -> None:
        self._words, self._mine, self._theirs = words, mine, theirs
        self._wakes, self._sleeps, self._spin = Futex(words, mine), Futex(words, theirs), spin

    def tell(self, turn: int) -> None:
        say(self._words, self._mine, turn)
        if load_acquire(self._words, self._mine + 1):
            self._wakes.wake()

    def wait(self, turn: int) -> None:
        words, theirs, spin = self._words, self._theirs, self._spin
        is_there = spin_until(words, theirs, turn, spin.loops)
        spin.paid(is_there)
        if not is_there:
            say(words, theirs + 1, 1)
            while (seen := load_acquire(words, theirs)) != turn:
                self._sleeps.wait(seen, SLICE_S)
            say(words, theirs + 1, 0)


class Cargo:
    """A request and its answer, here and in shared memory."""

    def __init__(self, words: np.ndarray, first: int) -> None:
        lines = words[first + CARRIED : first + PAIR]
        self._shared = [lines[:16].view(np.float32), lines[16:24].view(np.float32), lines[24:32]]
        self._own = [np.zeros_like(array) for array in self._shared]

    def load(self) -> None:
        self._shared[0][...] = self._own[0]
        self._shared[1][...] = self._own[1]

    def unload(self) -> None:
        self._own[2][...] = self._shared[2]


def play(words: np.ndarray, pair: int, is_ping: bool, spin: Spin, is_laden: bool, seconds: float) -> np.ndarray:
    """Until the time is over; the nanoseconds of the round trips after the warm-up."""
    first = PAIR * (pair + 1)
    cargo = Cargo(words, first) if is_laden else None
    mine, theirs = (first, first + LINE) if is_ping else (first + LINE, first)
    player, turn = Player(words, mine, theirs, spin), 1
    times = np.empty(2_000_000, np.int64)
    count = 0
    while not words[BEGIN]:
        time.sleep(0.001)
    begun, over = time.perf_counter_ns(), 0
    warm, end = begun + int(WARM_S * 1e9), begun + int((WARM_S + seconds) * 1e9)
    while is_ping and over < end:
        before = time.perf_counter_ns()
        if cargo:
            cargo.load()
        player.tell(turn)
        player.wait(turn)
        if cargo:
            cargo.unload()
        over = time.perf_counter_ns()
        turn += 1
        if before > warm and count < len(times):
            times[count] = over - before
            count += 1
    while not is_ping:  # it is killed
        player.wait(turn)
        player.tell(turn)
        turn += 1
    return times[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--spin", choices=SPINS, default="adaptive")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--pinned", action="store_true", help="pings on one core, pongs on another")
    parser.add_argument("--cores", type=int, help="run on so many cores, not on all")
    parser.add_argument("--carry", action="store_true", help="copy a request and an answer")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    memory = shared_memory.SharedMemory(create=True, size=8 * PAIR * (arguments.pairs + 1))
    words = np.frombuffer(memory.buf, np.int64)
    spin_until(words, 1, 1, 1), say(words, 1, 0), load_acquire(words, 1)  # compiled before the fork
    children, ends = [], []
    for pair in range(arguments.pairs):
        for is_ping in (True, False):
            end, start = os.pipe()
            child = os.fork()
            if not child:
                spin = SPINS[arguments.spin](cores=2)
                if arguments.pinned:
                    os.sched_setaffinity(0, {(min if is_ping else max)(os.sched_getaffinity(0))})
                times = play(words, pair, is_ping, spin, arguments.carry, arguments.seconds)
                row = [len(times), *(np.percentile(times, (50, 99)) / 1e3)]
                os.write(start, json.dumps(row).encode())
                os._exit(0)
            os.close(start)
            children.append(child)
            ends.append(end)
    words[BEGIN] = 1
    rows = [json.loads(os.read(end, 1 << 12)) for end in ends[::2]]
    for child in children[1::2]:
        os.kill(child, signal.SIGKILL)
    usage = [os.wait4(child, 0)[2] for child in children]
    computed_s = sum(one.ru_utime + one.ru_stime for one in usage)
    del words
    memory.close()
    memory.unlink()
    per_s = sum(row[0] for row in rows) / arguments.seconds
    per_cpu_s = per_s * (arguments.seconds + WARM_S) / computed_s
    print(json.dumps({"per_s": per_s, "per_cpu_s": per_cpu_s, "p50_us": rows[0][1], "p99_us": rows[0][2]}))


if __name__ == "__main__":
    sys.exit(main())
