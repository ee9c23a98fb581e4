"""Central inference, seen from an actor: it asks a server for the actions of every row, and holds no policy.

    obs, noise --slot--> server: one batch for many actors --slot--> actions, and the version that acted

The same port as local inference. While it waits it leaves a sign of life now and then: how long the server takes is not
this process's fault, and the server is watched by itself. Imports no torch, so a worker that only asks needs none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from headrace.errors import HeadraceError
from headrace.inference.slots import (
    ACTOR_SLEEPS,
    ERROR_BYTES,
    LATEST,
    REPLY,
    VERSION,
    WAKE,
    Slot,
    Slots,
    SlotsPlan,
    ask,
)
from headrace.memory.atomics import load_acquire
from headrace.memory.ring import Lease
from headrace.memory.schema import STATE
from headrace.memory.segment import SharedSegment
from headrace.memory.spaces import Leaves
from headrace.memory.waiting import SLICE_S, Spin, say, spin_until

Array = npt.NDArray[Any]
Act = Callable[[int, Leaves, Array, Array], int]


@dataclass(frozen=True)
class CentralInference:
    """All that a worker process needs to ask."""

    plan: SlotsPlan
    segment: str
    n_steps: int
    pick_up_rows: int

    def open(self, waits: Callable[[int], None]) -> Client:
        """Attach to the slots; `waits(shard)` is called now and then while an answer takes long."""
        _one_torch_thread()
        return Client(Slots(self.plan, SharedSegment.attach(self.segment)), self.n_steps, self.pick_up_rows, waits)


class Client:
    """The slots of a run, for the actors of one thread."""

    def __init__(self, slots: Slots, n_steps: int, pick_up_rows: int, waits: Callable[[int], None]) -> None:
        self._slots, self._n_steps, self._waits = slots, n_steps, waits
        self._is_free = pick_up_rows > 0  # the server picks newer versions up whenever there are some
        self._spin = Spin()
        self.pause: Callable[[], None] | None = None
        """Called between a question and the wait for its answer: other shards of this thread may have a turn."""

    def acting(self, lease: Lease, version: int, versions: Sequence[int] | None = None) -> Act:
        """How the rows of a rollout are acted on: with the version its order names, or with the server's newest."""
        assert versions is None, "recorded versions are replayed inline"
        words, slot, spin = self._slots.words, self._slots.slots[lease.shard], self._spin
        first, wanted = lease.fence * self._n_steps, LATEST if self._is_free else version
        last, pause = self._n_steps - 1, self.pause

        def act(row: int, obs: Leaves, noise: Array, out: Array) -> int:
            for name, leaf in obs.items():
                slot.obs[name][...] = leaf
            slot.noise[...] = noise
            number = first + row
            # With another shard to turn to, the wait comes after its turn.
            loops = spin.loops if pause is None else 0
            is_there = ask(words, slot.at, slot.bell, number, wanted, row == last, loops)
            if is_there == WAKE:
                slot.rings.wake()
            if pause is not None:
                pause()
            if is_there == WAKE or pause is not None:
                is_there = spin_until(words, slot.at + REPLY, number, spin.loops)
            spin.paid(bool(is_there))
            if not is_there:
                self._sleep(slot, number, lease.shard)
            if words[slot.at + ERROR_BYTES]:
                raise _failure(bytes(slot.error[: words[slot.at + ERROR_BYTES]]))
            out[...] = slot.action
            if slot.state_after is not None:
                obs[STATE][...] = slot.state_after
            return int(words[slot.at + VERSION])

        return act

    def _sleep(self, slot: Slot, number: int, shard: int) -> None:
        """Until the answer is there."""
        words = self._slots.words
        say(words, slot.at + ACTOR_SLEEPS, 1)
        while (seen := load_acquire(words, slot.at + REPLY)) != number:
            slot.answers.wait(int(seen), SLICE_S)
            self._waits(shard)
        say(words, slot.at + ACTOR_SLEEPS, 0)


def _one_torch_thread() -> None:
    """For environments that use torch themselves: they find it as they would beside local inference."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when it is imported


def _failure(text: bytes) -> HeadraceError:
    """What the policy raised in the server: what it said, with the whole traceback as a note."""
    said, _, traceback = text.decode(errors="replace").partition("\n")
    error = HeadraceError(f"the policy failed in the inference server: {said}")
    error.add_note(f"In the inference server:\n{traceback}")
    return error
