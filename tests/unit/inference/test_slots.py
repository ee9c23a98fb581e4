"""A slot: a shard's request and its answer, on the heap, with both sides in this process."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from headrace.errors import HeadraceError
from headrace.inference.answering import ASKED, AT_ONCE, ENDS, NEW, NOBODY, NUMBER, answer, look, nothing_seen
from headrace.inference.client import Client
from headrace.inference.slots import LATEST, REPLY, REQUEST, WANTED, Slots, SlotsPlan, slots_bytes
from headrace.memory.lease import Lease
from headrace.memory.segment import HeapSegment
from headrace.memory.spaces import Box, Dict, Discrete, Space
from support.waiting import wait_until

PLAN = SlotsPlan((3, 2, 2), Box((4,), "float32", (-1.0,), (1.0,)), Discrete(5), 5, 2)
T = 16


def slots() -> Slots:
    return Slots(PLAN, HeapSegment(slots_bytes(PLAN)))


class Asking:
    """A row of a rollout, asked for in a thread."""

    def __init__(self, here: Slots, lease: Lease, version: int = 0, row: int = 0, pick_up_rows: int = 0) -> None:
        size = PLAN.shard_sizes[lease.shard]
        self.obs = {"obs": np.full((size, 4), lease.fence, np.float32)}
        self.out, self.waits, self.result = np.zeros(size, np.int64), 0, None
        self._act = Client(here, T, pick_up_rows, self._waited).acting(lease, version)
        self._noise, self._row = np.full((size, 5), 0.5, np.float32), row
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _waited(self, shard: int) -> None:
        self.waits += 1

    def _ask(self) -> None:
        try:
            self.result: Any = self._act(self._row, self.obs, self._noise, self.out)
        except HeadraceError as error:
            self.result = error


def asked(here: Slots, shard: int) -> int:
    """The number of a request, once it is there."""
    words, at = here.words, here.slots[shard].at
    wait_until(lambda: bool(words[at + REQUEST] != words[at + REPLY]))
    return int(words[at + REQUEST])


def reply(here: Slots, shard: int, number: int, action: int, version: int = 7, error: bytes = b"") -> None:
    slot = here.slots[shard]
    slot.action[...] = action
    slot.error[: len(error)] = error
    seen = nothing_seen([slot])
    seen[0, NUMBER] = number
    if answer(here.words, seen, 0, version, len(error)):
        slot.answers.wake()


def test_no_two_arrays_overlap() -> None:
    here = slots()
    arrays = [array for slot in here.slots for array in (*slot.obs.values(), slot.noise, slot.action)]
    spans = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert all(start % 64 == 0 for start, _ in spans)
    assert [list(PLAN.shards_of(server)) for server in range(2)] == [[0, 2], [1]]


def test_asked_and_answered() -> None:
    here = slots()
    one = Asking(here, Lease(0, 1, 0, 9), version=3, row=2)
    number = asked(here, 1)
    slot = here.slots[1]
    assert (slot.obs["obs"] == 9).all()
    assert (slot.noise == 0.5).all()
    assert here.words[slot.at + WANTED] == 3
    reply(here, 1, number, 4)
    one.thread.join()
    assert (one.result, one.out.tolist()) == (7, [4, 4])


def test_a_server_may_choose_the_version() -> None:
    here = slots()
    one = Asking(here, Lease(0, 0, 0, 1), version=3, pick_up_rows=8)
    number = asked(here, 0)
    assert here.words[here.slots[0].at + WANTED] == LATEST
    reply(here, 0, number, 1, version=12)
    one.thread.join()
    assert one.result == 12


def test_the_answer_to_a_dead_actor_is_not_taken() -> None:
    """Its successor asks under another fence. It leaves signs of life while it waits."""
    here = slots()
    here.words[here.slots[0].at + REQUEST] = dead = 5 * T + 3  # it asked, and is gone
    one = Asking(here, Lease(0, 0, 0, 6), row=3)
    wait_until(lambda: bool(here.words[here.slots[0].at + REQUEST] != dead))
    number = asked(here, 0)
    assert number != dead
    reply(here, 0, dead, 1, version=1)
    before = one.waits
    wait_until(lambda: one.waits > before + 1)
    assert one.thread.is_alive(), "it would have taken an answer that is not its own"
    reply(here, 0, number, 2, version=2)
    one.thread.join()
    assert (one.result, one.out.tolist()) == (2, [2, 2, 2])


def test_numbers_are_never_used_twice() -> None:
    numbers = {fence * T + row for fence in range(1, 50) for row in range(T)}
    assert len(numbers) == 49 * T
    assert 0 not in numbers, "0 is what a fresh slot holds"


def test_what_waits_is_found() -> None:
    """Once: a request that was seen is not new. A server that takes another's place finds it all the same."""
    here = slots()
    seen, successors = (nothing_seen([here.slots[shard] for shard in PLAN.shards_of(0)]) for _ in range(2))
    assert look(here.words, 0, seen, 0) == NOBODY
    one = Asking(here, Lease(0, 2, 0, 1), version=5, row=T - 1)
    number = asked(here, 2)
    assert look(here.words, 0, seen, 0) == 1
    assert seen[1, [NUMBER, ASKED, ENDS]].tolist() == [number, 5, 1]
    assert look(here.words, 0, seen, 0) == NOBODY
    assert look(here.words, 0, successors, 0) == 1
    reply(here, 2, number, 0)
    one.thread.join()
    assert look(here.words, 0, seen, 1_000_000) == NOBODY
    assert not seen[0, AT_ONCE]
    beats = here.beat_of(0)
    one = Asking(here, Lease(0, 0, 0, 2), version=6)
    while (found := look(here.words, 0, seen, 1_000_000)) == NOBODY:
        pass
    assert (found, seen[0, [NUMBER, ASKED, ENDS]].tolist()) == (0, [2 * T, 6, 0])
    assert here.beat_of(0) > beats
    other = Asking(here, Lease(0, 2, 0, 3))
    asked(here, 2)
    assert look(here.words, 0, successors, 0) == -2
    assert successors[:, NEW].tolist() == [0, 1]
    assert successors[0, AT_ONCE]
    reply(here, 0, 2 * T, 0)
    reply(here, 2, 3 * T, 0)
    one.thread.join()
    other.thread.join()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
@pytest.mark.parametrize("action", [Box((2,), "float16", (-1.0,), (1.0,)), Discrete(5)])
def test_every_array_arrives_whatever_its_dtype(dtype: str, action: Space) -> None:
    """Two arrays of observations: one travels in the call, the other by itself."""
    box = Box((4,), dtype, (0.0,), (1.0,))
    plan = SlotsPlan((3,), Dict((("a", box), ("b", box))), action, 5, 1)
    here = Slots(plan, HeapSegment(slots_bytes(plan)))
    slot, rng = here.slots[0], np.random.default_rng(1)
    obs = {name: rng.integers(0, 9, leaf.shape).astype(dtype) for name, leaf in slot.obs.items()}
    noise, out = rng.normal(size=(3, 5)).astype(np.float32), np.zeros_like(slot.action)
    client = Client(here, T, 0, lambda shard: None)
    client.pause = lambda: reply(here, 0, T, 3)  # another shard's turn: by then the server has answered
    assert client.acting(Lease(0, 0, 0, 1), 0)(0, obs, noise, out) == 7
    assert all((slot.obs[name] == leaf).all() for name, leaf in obs.items())
    assert (slot.noise == noise).all()
    assert (out == 3).all()


@pytest.mark.parametrize("which", range(3))
def test_arrays_of_another_size_are_refused(which: int) -> None:
    """They would be written over what lies beside them."""
    here = slots()
    arrays = [np.zeros((3, 4), np.float32), np.zeros((3, 5), np.float32), np.zeros(3, np.int64)]
    arrays[which] = arrays[which][:2]
    with pytest.raises(ValueError, match="as large as their places"):
        Client(here, T, 0, lambda shard: None).acting(Lease(0, 0, 0, 1), 0)(0, {"obs": arrays[0]}, *arrays[1:])
    assert not here.words[here.slots[0].at + REQUEST], "nothing was asked"


def test_what_the_policy_raised_is_raised_by_who_asked() -> None:
    here = slots()
    one = Asking(here, Lease(0, 0, 0, 1))
    reply(here, 0, asked(here, 0), 0, error=b"ValueError: no\nTraceback ...\nValueError: no")
    one.thread.join()
    with pytest.raises(HeadraceError, match="the policy failed in the inference server: ValueError: no") as caught:
        raise one.result
    assert caught.value.__notes__ == ["In the inference server:\nTraceback ...\nValueError: no"]
