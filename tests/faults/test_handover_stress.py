"""Real processes over shared memory, as fast as they can: not one slab or weight vector arrives torn, lost or twice.

Two writers fill slabs with words that (shard, sequence) alone decides, and their checksum; the reader holds the ring.
One publisher overwrites versions while a reader copies them.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import numpy as np
import pytest

from headrace.memory.atomics import store_release
from headrace.memory.layout import Word
from headrace.memory.ring import Ring
from headrace.memory.segment import SharedSegment
from headrace.weights.store import Replica, WeightStore, store_bytes
from support.handover import (
    MAILBOX_WORDS,
    MOST_ORDERS,
    NAP_S,
    WriterPlan,
    fill,
    is_intact,
    key_of,
    payload_schema,
    post,
    write,
)
from support.publisher import numbers, publish_until_told

SHARDS = 2
SLABS_PER_SHARD = 8
WORDS = 64
PATIENCE_S = 60.0  # without a single slab


@contextmanager
def spawned(target: Callable[..., None], *arguments: tuple[object, ...]) -> Iterator[list[BaseProcess]]:
    """One process for every tuple of arguments; whatever happens, none is left."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=one, daemon=True) for one in arguments]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
            process.close()


def ended(processes: list[BaseProcess]) -> list[int | None]:
    for process in processes:
        process.join(PATIENCE_S)
    return [process.exitcode for process in processes]


def hand_over(per_shard: int, is_even: bool) -> None:
    """So many slabs of each shard through one ring; every one is looked at word by word."""
    schema = payload_schema(WORDS)
    assert SHARDS * SLABS_PER_SHARD <= MOST_ORDERS
    ring = Ring([schema] * SHARDS, SLABS_PER_SHARD, SharedSegment.create, is_even)
    segment = SharedSegment.create(SHARDS * MAILBOX_WORDS * 8)
    try:
        mailboxes = np.frombuffer(segment.buffer, np.int64).reshape(SHARDS, MAILBOX_WORDS)
        plans = [
            (WriterPlan(shard, str(ring.segment.name), str(segment.name), WORDS, per_shard),) for shard in range(SHARDS)
        ]
        with spawned(write, *plans) as writers:
            consumed = read(ring, mailboxes, per_shard, writers)
            assert ended(writers) == [0] * SHARDS
    finally:
        ring.close()
        segment.unlink()
    assert consumed == [per_shard] * SHARDS == ring.state.sequences
    assert ring.state.leased == SHARDS * per_shard


def read(ring: Ring, mailboxes: np.ndarray, per_shard: int, writers: list[BaseProcess]) -> list[int]:
    """The reader: orders what may be ordered, takes what is there, looks at it, gives it back."""
    posted, consumed = [0] * SHARDS, [0] * SHARDS
    last = time.monotonic()
    ring.state.grant(SHARDS * per_shard)
    while sum(consumed) < SHARDS * per_shard:
        for shard in range(SHARDS):
            while posted[shard] < per_shard and (lease := ring.lease(shard)) is not None:
                posted[shard] = post(mailboxes[shard], posted[shard], ring.offset(lease), lease.sequence, lease.fence)
        taken = ring.take()
        for one in taken:
            shard, sequence = one.lease.shard, one.lease.sequence
            assert sequence == consumed[shard], "in order, none left out, none twice"
            assert one.slab.header[Word.SEQUENCE] == sequence
            assert is_intact(one.slab.arrays["obs"].reshape(-1), key_of(shard, sequence)), (
                f"rollout {sequence} of {shard} is bad"
            )
            consumed[shard] += 1
            ring.state.release(one.lease)
        if taken:
            last = time.monotonic()
        else:
            assert time.monotonic() - last < PATIENCE_S, f"stuck at {consumed} of {posted}"
            assert not any(process.exitcode for process in writers), "a writer died"
            time.sleep(NAP_S if time.monotonic() - last < 0.01 else 20 * NAP_S)  # longer while they are starting
    return consumed


@pytest.mark.parametrize("is_even", [True, False])
def test_ten_thousand_slabs_of_each_writer_arrive_whole_and_in_order(is_even: bool) -> None:
    hand_over(10_000, is_even)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_slabs_arrive_whole_and_in_order() -> None:
    hand_over(500_000, is_even=True)


def test_the_reader_would_see_a_single_wrong_word() -> None:
    """The check that a million slabs pass can fail."""
    words = np.zeros(WORDS, np.int64)
    assert not is_intact(words, key_of(0, 0))
    around = np.zeros(3 * WORDS, np.int64)
    fill(around, WORDS, WORDS, key_of(1, 5))
    payload = around[WORDS : 2 * WORDS]
    assert not around[:WORDS].any()
    assert not around[2 * WORDS :].any()
    assert is_intact(payload, key_of(1, 5))
    assert not is_intact(payload, key_of(1, 6))
    assert not is_intact(payload, key_of(0, 5))
    for index in range(WORDS):
        payload[index] ^= 1
        assert not is_intact(payload, key_of(1, 5))
        payload[index] ^= 1


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_no_copy_of_the_weights_is_a_mixture(capacity: int) -> None:
    """20,000 reads against a publisher that never pauses. What was overwritten meanwhile is told, not handed out."""
    size, reads = 4_000, 20_000
    segment = SharedSegment.create(store_bytes(size, capacity))
    stopping = SharedSegment.create(64)
    store = WeightStore(size, capacity, segment)
    flat, followed = numbers(size), numbers(size)
    replica, whole, versions = Replica(followed), 0, set()
    try:
        with spawned(publish_until_told, (segment.name, size, capacity, stopping.name)) as publisher:
            wait_for(lambda: store.version >= 0, publisher)
            for _ in range(reads // 2):
                version = store.version
                if store.copy_into(flat.published, version):
                    whole += 1
                    assert spread(flat.vector.numpy()) == (version, version)
                latest = replica.load_latest(store)
                assert latest >= version
                assert spread(followed.vector.numpy()) == (latest, latest)
                versions.add(latest)
            store_release(np.frombuffer(stopping.buffer, np.int64), 0, 1)
            assert ended(publisher) == [0]
    finally:
        store.close()
        stopping.unlink()
    assert len(versions) > 10, "the publisher published meanwhile; how often depends on who else wants the two cores"
    print(f"{whole} of {reads // 2} copies were whole, {len(versions)} versions of {store.version} were loaded")


def spread(numbers: np.ndarray) -> tuple[int, int]:
    return int(numbers.min()), int(numbers.max())


def wait_for(condition: Callable[[], bool], processes: list[BaseProcess]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        assert not any(process.exitcode for process in processes)
        time.sleep(0.001)
