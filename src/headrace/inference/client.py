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

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError
from headrace.inference.asking import FAILED, NOT_YET, WAKE, ask, begin, bits, take
from headrace.inference.slots import ACTOR_SLEEPS, ERROR_BYTES, LATEST, REPLY, Slot, Slots, SlotsPlan
from headrace.memory.atomics import load_acquire
from headrace.memory.lease import Lease
from headrace.memory.schema import STATE
from headrace.memory.segment import SharedSegment
from headrace.memory.spaces import Leaves
from headrace.memory.waiting import SLICE_S, Spin, say

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
        begin(words, slot, lease.fence * self._n_steps, self._n_steps, LATEST if self._is_free else version)
        (name, leaf), *others = slot.obs.items()
        at, state_after, pause = slot.at, slot.state_after, self.pause

        def act(row: int, obs: Leaves, noise: Array, out: Array) -> int:
            for other, place in others:
                place[...] = obs[other]
            # With another shard to turn to, the wait comes after its turn.
            acted = ask(words, at, row, obs[name], noise, out, spin.loops if pause is None else 0)
            if acted < 0 or pause is not None:
                acted = self._wait(acted, slot, row, out, lease.shard)
            elif not spin.is_sure:
                spin.paid(True)
            if state_after is not None:
                obs[STATE][...] = state_after
            return acted

        if np.float16 in (leaf.dtype, slot.action.dtype):
            return lambda row, obs, noise, out: act(row, obs | {name: bits(obs[name])}, noise, bits(out))
        return act

    def _wait(self, acted: int, slot: Slot, row: int, out: Array, shard: int) -> int:
        """Until the answer is there, after a question that was not answered within a spin, or without one."""
        if acted == WAKE:
            slot.rings.wake()
        if self.pause is not None:
            self.pause()
        if acted == WAKE or (acted == NOT_YET and self.pause is not None):
            acted = take(self._slots.words, slot.at, row, out, self._spin.loops)
        self._spin.paid(acted != NOT_YET)
        if acted == NOT_YET:
            acted = self._sleep(slot, row, out, shard)
        if acted == FAILED:
            raise _failure(bytes(slot.error[: self._slots.words[slot.at + ERROR_BYTES]]))
        return acted

    def _sleep(self, slot: Slot, row: int, out: Array, shard: int) -> int:
        """Until the answer is there; what `take` says then."""
        words = self._slots.words
        say(words, slot.at + ACTOR_SLEEPS, 1)
        seen = load_acquire(words, slot.at + REPLY)
        while (acted := take(words, slot.at, row, out, 0)) == NOT_YET:
            slot.answers.wait(int(seen), SLICE_S)
            self._waits(shard)
            seen = load_acquire(words, slot.at + REPLY)
        say(words, slot.at + ACTOR_SLEEPS, 0)
        return acted


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
