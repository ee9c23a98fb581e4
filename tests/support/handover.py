"""Writers in other processes that do nothing but hand over, as fast as they can. No torch: they start quickly.

    reader: writes an order (offset, sequence, fence) into the writer's mailbox, then how many there are (release)
    writer: sees the number (acquire), fills the slab with what (shard, sequence) says, stores its commit word (release)

Filling and waiting are compiled, so that a hand-over costs microseconds and the two sides really meet. Whoever waits
spins for a moment, then sleeps, and ends by itself once its parent is gone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from headrace.compiler import compiled
from headrace.memory.atomics import Array, load_acquire, store_release
from headrace.memory.layout import HEADER_BYTES, Word
from headrace.memory.schema import Schema, rollout_schema
from headrace.memory.segment import SharedSegment
from headrace.memory.spaces import Box, Discrete

SPINS = 2_000
NAP_S = 50e-6
NAPS_BETWEEN_LOOKS = 200  # for the parent

MOST_ORDERS = 64  # in a mailbox
MAILBOX_WORDS = 8 + 4 * MOST_ORDERS  # the number of orders on a line of its own, then the orders

COMMIT = int(Word.COMMIT)


def payload_schema(words: int) -> Schema:
    """Slabs whose observations are so many int64 words; the last is the sum of the others."""
    return rollout_schema(Box((words,), "int64", (0.0,), (1.0,)), Discrete(2), n_steps=1, n_envs=1)


@compiled
def fill(words: Array, start: int, count: int, key: int) -> None:
    """Pseudo-random words from the key, and their checksum."""
    total, x = 0, key
    for i in range(start, start + count - 1):
        x = x * 6364136223846793005 + 1442695040888963407
        word = x ^ (x >> 29)
        words[i] = word
        total += word
    words[start + count - 1] = total


@compiled
def is_intact(words: Array, key: int) -> bool:
    """Whether these are the key's words and their checksum."""
    total, x, is_right = 0, key, True
    for i in range(len(words) - 1):
        x = x * 6364136223846793005 + 1442695040888963407
        is_right &= words[i] == x ^ (x >> 29)
        total += words[i]
    return is_right and words[-1] == total


def key_of(shard: int, sequence: int) -> int:
    return (shard + 1) * 2**40 + sequence


def post(mailbox: Array, posted: int, offset: int, sequence: int, fence: int) -> int:
    """The reader's side: one more order; how many there are now."""
    start = 8 + 4 * (posted % MOST_ORDERS)
    mailbox[start : start + 3] = offset, sequence, fence
    store_release(mailbox, 0, posted + 1)
    return posted + 1


@compiled
def serve(
    memory: Array, mailbox: Array, done: int, payload: int, words: int, shard: int, most: int, commit: int, spins: int
) -> int:
    """Fill and commit what is ordered until nothing was for a while; how many are done now."""
    idle = 0
    while idle < spins:
        if load_acquire(mailbox, 0) <= done:
            idle += 1
            continue
        idle = 0
        start = 8 + 4 * (done % most)
        slab = mailbox[start] // 8
        fill(memory, slab + payload, words, (shard + 1) * 2**40 + mailbox[start + 1])
        store_release(memory, slab + commit, mailbox[start + 2])
        done += 1
    return done


@dataclass(frozen=True)
class WriterPlan:
    """Plain data: where the ring and the mailboxes are, and how much there is to do."""

    shard: int
    ring: str
    mailboxes: str
    words: int
    count: int


def write(plan: WriterPlan) -> None:
    """A writer process."""
    memory = np.frombuffer(SharedSegment.attach(plan.ring).buffer, np.int64)
    mailboxes = np.frombuffer(SharedSegment.attach(plan.mailboxes).buffer, np.int64)
    mailbox = mailboxes[plan.shard * MAILBOX_WORDS :][:MAILBOX_WORDS]
    payload = (HEADER_BYTES + payload_schema(plan.words).offsets["obs"]) // 8
    waiting = Waiting()
    done = 0
    while done < plan.count:
        before = done
        done = int(serve(memory, mailbox, done, payload, plan.words, plan.shard, MOST_ORDERS, COMMIT, SPINS))
        waiting.after(done > before)


class Waiting:
    """Sleeps while nothing happens, and ends an orphan."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._naps = 0

    def after(self, something: bool) -> None:
        if something:
            self._naps = 0
            return
        self._naps += 1
        time.sleep(NAP_S)
        if self._naps % NAPS_BETWEEN_LOOKS == 0 and os.getppid() != self._parent:
            raise SystemExit("the parent is gone")
