"""An inference server: a process that runs the policy for the actors of many shards, in one batch.

    slots that ask ──Batching──> gathered [N, ...] ──the policy, on tiles──> actions, version ──> their slots

It acts with the same code as local inference, so a row's action has the same bits. The version is what the request
names; a request that leaves it open, or names one that is gone, is answered with the newest. What the policy raises for
a batch is tried again for each shard alone and goes to the shard that it was raised for. It keeps no state of its own:
killed at any moment, another one finds the same requests. Does not know environments, slabs or who asks.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.clock import now_ns, now_s, thread_cpu_ns
from headrace.inference.answering import ASKED, AT_ONCE, ENDS, NEW, NOBODY, answer, look, nothing_seen
from headrace.inference.batching import Batching, BatchLimits
from headrace.inference.device_names import Device
from headrace.inference.devices import inference_on
from headrace.inference.slots import (
    BATCHES,
    BELL,
    CPU_NS,
    LATEST,
    ROWS,
    SERVER_SLEEPS,
    TIMED,
    TIMED_NS,
    Slots,
    SlotsPlan,
)
from headrace.memory.allocator import keep_freed_memory
from headrace.memory.atomics import load_acquire
from headrace.memory.schema import STATE, state_leaf
from headrace.memory.segment import SharedSegment
from headrace.memory.spaces import empty_leaves, shape_of
from headrace.memory.waiting import SLICE_S, Futex, Spin, say
from headrace.plain_text import MAX_MESSAGE, message_of, shortened
from headrace.policies.policy import Module
from headrace.runtime.failures import report
from headrace.runtime.line import Line
from headrace.runtime.stacks import keep_notes
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore

Array = npt.NDArray[Any]
READY, WORKED, FAILED = b"R", b"W", b"F"
_TIMED_EVERY = 8  # batches: reading the clock for each of them would be felt


@dataclass(frozen=True)
class ServerPlan:
    """All that a server process needs, sent to it once."""

    number: int
    slots: SlotsPlan
    slots_segment: str
    module: Module
    tile: int
    limits: BatchLimits
    store_segment: str
    store_size: int
    store_capacity: int
    notes_segment: str
    device: Device | None = None  # the CPU
    turns: tuple[int, ...] = ()  # of every shard, if workers take turns with theirs


def run_server(line: Line, plan: ServerPlan) -> None:
    """A server's life: until it is killed. It has nothing to close."""
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        keep_notes((), plan.notes_segment, plan.number)
        slots = Slots(plan.slots, SharedSegment.attach(plan.slots_segment))
        segment = SharedSegment.attach(plan.store_segment)
        server = Server(plan, slots, WeightStore(plan.store_size, plan.store_capacity, segment, create=False))
        line.send(READY)
        while not server.look():
            server.wait()
        line.send(WORKED)
        while True:
            if not server.look():
                server.wait()
    except BaseException as error:
        line.send(FAILED + report(error))


class Server:
    """One replica of the policy, and the slots that it answers."""

    def __init__(self, plan: ServerPlan, slots: Slots, store: WeightStore) -> None:
        flat = FlatParameters(plan.module)
        layout, shards = plan.slots, plan.slots.shards_of(plan.number)
        self._slots, self._words = [slots.slots[shard] for shard in shards], slots.words
        self._store, self._replica = store, Replica(flat)
        self.inference = inference_on(plan.device, self._replica, layout.observation, layout.action, plan.tile)
        rows = [layout.shard_sizes[shard] for shard in shards]
        turns = [plan.turns[shard] for shard in shards] if plan.turns else None
        self._batching = Batching(rows, plan.limits, turns)
        self._rows = rows
        self._obs = empty_leaves(layout.observation, sum(rows)) | state_leaf(layout.state_size, sum(rows))
        self._noise = np.empty((sum(rows), layout.noise_width), np.float32)
        self._action = np.empty((sum(rows), *shape_of(layout.action)), layout.action.dtype)
        self._seen = nothing_seen(self._slots)
        self._at = self._slots[0].bell
        self._bell, self._spin = Futex(self._words, self._at + BELL), Spin()
        self._batches = self._batch_rows = 0  # since they were last written down
        self._cpu_ns = thread_cpu_ns()
        say(self._words, self._at + SERVER_SLEEPS, 0)  # one that was killed in its sleep can't say so

    def look(self) -> bool:
        """Take note of who asks, now or within a spin, and answer a batch if one is due; whether one was."""
        batching, seen = self._batching, self._seen
        wait_s = batching.wait_s
        found = look(self._words, self._at, seen, 0 if wait_s == 0.0 else self._spin.loops)
        is_alone = found == batching.lone or (found >= 0 and batching.is_alone(found))
        if is_alone:  # answered first: somebody waits, and the books do not
            self._serve((found,))
            batching.served_alone(found, seen.item(found, ENDS) != 0, now_s())
        if wait_s is None and not seen.item(0, AT_ONCE):  # how long a batch waits for others says nothing of the cores
            self._spin.paid(found != NOBODY)
        return is_alone or self._serve_what_is_due(found)

    def wait(self) -> None:
        """Sleep until somebody asks, the batch is due, or a slice of time is over."""
        say(self._words, self._at + SERVER_SLEEPS, 1)
        rung = load_acquire(self._words, self._at + BELL)
        found = look(self._words, self._at, self._seen, 0)
        self._note(found)
        if found == NOBODY:
            left_s = self._batching.wait_s
            self._bell.wait(rung, SLICE_S if left_s is None else min(left_s, SLICE_S))
        say(self._words, self._at + SERVER_SLEEPS, 0)

    def _serve_what_is_due(self, found: int) -> bool:
        self._note(found)
        batch = self._batching.due(now_s())
        if batch:
            self._serve(batch)
            now = now_s()
            for i in batch:
                self._batching.answered(i, now)
        return bool(batch)

    def _note(self, found: int) -> None:
        """Hand on what a look found."""
        if found != NOBODY:
            now = now_s()
            for i in (found,) if found >= 0 else self._seen[:-found, NEW].tolist():
                self._batching.asked(i, self._seen.item(i, ASKED), now, self._seen.item(i, ENDS) != 0)

    def _serve(self, batch: Sequence[int]) -> None:
        wanted = self._seen.item(batch[0], ASKED)
        version = wanted if wanted == self._replica.version else self._version(wanted)
        began = now_ns() if self._batches >= _TIMED_EVERY else 0
        try:
            self._act(batch)
        except Exception as error:
            for i in batch if len(batch) > 1 else ():
                self._serve((i,))
            if len(batch) == 1:
                self._fail(batch[0], error)
            return
        took_ns = now_ns() - began if began else 0
        for i in batch:
            if answer(self._words, self._seen, i, version, 0):
                self._slots[i].answers.wake()
        self._batches += 1
        self._batch_rows += sum([self._rows[i] for i in batch]) if len(batch) > 1 else self._rows[batch[0]]
        if began:
            self._write_down(took_ns)

    def _write_down(self, took_ns: int) -> None:
        """What it did lately, for whoever logs it; after the answers, which are waited for."""
        words, at = self._words, self._at
        words[at + BATCHES] += self._batches
        words[at + ROWS] += self._batch_rows
        words[at + TIMED] += 1
        words[at + TIMED_NS] += took_ns
        cpu_ns, self._cpu_ns = self._cpu_ns, thread_cpu_ns()
        words[at + CPU_NS] += self._cpu_ns - cpu_ns
        self._batches = self._batch_rows = 0

    def _act(self, batch: Sequence[int]) -> None:
        """Gather, act, hand out."""
        if len(batch) == 1 and STATE not in self._obs:  # a state is written in its place: a request stays as it is
            slot = self._slots[batch[0]]
            self.inference.act(slot.obs, slot.noise, slot.action)
            return
        stop = 0
        for i in batch:
            slot, start, stop = self._slots[i], stop, stop + self._rows[i]
            for name, leaf in slot.obs.items():
                self._obs[name][start:stop] = leaf
            self._noise[start:stop] = slot.noise
        obs = {name: leaf[:stop] for name, leaf in self._obs.items()}
        self.inference.act(obs, self._noise[:stop], self._action[:stop])
        stop = 0
        for i in batch:
            start, stop = stop, stop + self._rows[i]
            self._slots[i].action[...] = self._action[start:stop]
            if (after := self._slots[i].state_after) is not None:
                after[...] = self._obs[STATE][start:stop]

    def _version(self, wanted: int) -> int:
        if wanted == LATEST or not self._replica.try_load(self._store, wanted):
            return self._replica.load_latest(self._store)
        return wanted

    def _fail(self, i: int, error: Exception) -> None:
        first = message_of(error).partition("\n")[0]
        text = f"{type(error).__name__}: {first}\n{''.join(traceback.format_exception(error))}"
        data = shortened(text, MAX_MESSAGE).encode(errors="replace")[: len(self._slots[i].error)]
        self._slots[i].error[: len(data)] = data
        if answer(self._words, self._seen, i, 0, len(data)):
            self._slots[i].answers.wake()
