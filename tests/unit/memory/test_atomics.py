"""Ordered words: they hold what was stored, they are ordered for the machine too, and a message behind one arrives."""

from __future__ import annotations

import re
import threading

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compiler import compiled
from headrace.memory.atomics import Array, fence, load_acquire, store_release
from headrace.memory.segment import SharedSegment
from support.generators import quick

int64s = st.integers(-(2**63), 2**63 - 1)


@quick
@given(int64s, st.integers(0, 8), int64s)
def test_a_word_holds_what_was_stored_and_its_neighbours_what_they_held(value: int, index: int, before: int) -> None:
    words = np.full(9, before, np.int64)
    store_release(words, index, value)
    fence()
    assert load_acquire(words, index) == value
    assert [int(word) for word in words] == [value if i == index else before for i in range(9)]


def test_a_word_is_seen_through_every_mapping_of_a_segment() -> None:
    segment = SharedSegment.create(4096)
    try:
        ours = np.frombuffer(segment.buffer, np.int64)
        theirs = np.frombuffer(SharedSegment.attach(str(segment.name)).buffer, np.int64)
    finally:
        segment.unlink()
    for index in (0, 1, 511):
        store_release(ours, index, index - 7)
        assert load_acquire(theirs, index) == index - 7


def test_strided_words_are_found() -> None:
    words = np.zeros(24, np.int64)
    lines = words[::8]
    store_release(lines, 2, 5)
    assert load_acquire(lines, 2) == load_acquire(words, 16) == 5
    assert words.sum() == 5


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (load_acquire, (numba.int64[::1], numba.intp), r"load atomic i64,.* acquire, align 8"),
        (store_release, (numba.int64[::1], numba.intp, numba.int64), r"store atomic i64 .* release, align 8"),
        (fence, (), r"fence seq_cst"),
    ],
    ids=["load_acquire", "store_release", "fence"],
)
def test_the_order_is_in_the_machine_code(function, arguments, expected) -> None:  # type: ignore[no-untyped-def]
    """On x86 a plain move would do the same by chance, so a litmus test alone does not show that it is asked for."""
    fresh = numba.njit(function.py_func)
    fresh.compile(arguments)
    code = "\n".join(fresh.inspect_llvm().values())
    assert re.search(expected, code)


BLOCKS, BLOCK_WORDS, ROUNDS = 512, 16, 50_000
READ = 8  # the reader's word, a cache line behind the writer's


@compiled
def send(blocks: Array, words: Array, rounds: int) -> None:
    """Fill a block with the round's number and say so; wait while all blocks are full."""
    for number in range(rounds):
        while load_acquire(words, READ) <= number - len(blocks):
            pass
        blocks[number % len(blocks)] = number
        store_release(words, 0, number + 1)


@compiled
def receive(blocks: Array, words: Array, rounds: int) -> int:
    """Wait for each round; how many numbers of its block were another round's."""
    wrong = 0
    for number in range(rounds):
        while load_acquire(words, 0) <= number:
            pass
        wrong += (blocks[number % len(blocks)] != number).sum()
        store_release(words, READ, number + 1)
    return wrong


def test_what_was_written_before_the_word_is_seen_after_it() -> None:
    """Two threads without the GIL, in compiled loops: a load hoisted out of its loop would never end."""
    blocks, words = np.full((BLOCKS, BLOCK_WORDS), -1, np.int64), np.zeros(2 * READ, np.int64)
    send(blocks, words, 0)
    receive(blocks, words, 0)  # compiled before they depend on each other
    sender = threading.Thread(target=send, args=(blocks, words, ROUNDS), daemon=True)
    sender.start()
    wrong = receive(blocks, words, ROUNDS)
    sender.join()
    assert wrong == 0
    assert sorted(set(blocks.flatten().tolist())) == list(range(ROUNDS - BLOCKS, ROUNDS))
