"""A round trip to an inference server, measured: without the policy, from one process to a fork of it.

    warm: questions of many shards at once -> what each further shard adds to a batch
    cold: a worker's question to a server that has gone to sleep -> the round trip

The server is the real one with a policy that takes no time, and it ends with its parent. A fork has no threads but the
one that forked, so torch must run on one thread before. Knows no environments.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from headrace.clock import now_s
from headrace.errors import HeadraceError
from headrace.inference.asking import NOT_YET, WAKE, ask, begin, bits, take
from headrace.inference.batching import BatchLimits
from headrace.inference.client import Client
from headrace.inference.server import Server, ServerPlan
from headrace.inference.slots import ACTOR_SLEEPS, REPLY, Slot, Slots, SlotsPlan, slots_bytes
from headrace.launch.placement import Time
from headrace.memory.atomics import load_acquire
from headrace.memory.lease import Lease
from headrace.memory.segment import HeapSegment
from headrace.memory.spaces import Box
from headrace.memory.waiting import SLICE_S, Spin, say
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy
from headrace.weights.flat import FlatParameters
from headrace.weights.store import WeightStore

_TRIPS, _WARM_UP = 150, 30
_PATIENCE_S = 10.0  # for an answer
_WAKING = 1 / 3  # of a cold round trip is waking the worker; others than the first are woken one after the other
_NUMBER = Box((1,), "float32", (-1.0,), (1.0,))  # for a policy that is never asked
_COLD_S = 300e-6  # after so long without a question, a server sleeps


class _NoPolicy:
    """A device that answers whatever it is asked, at once."""

    def inference(self, *_: object) -> _NoPolicy:
        """Itself."""
        return self

    def act(self, obs: object, noise: object, out: object) -> None:
        """At once."""


def round_trips(plan: SlotsPlan) -> tuple[Time, Time]:
    """One shard's question to an instant server, and what each further shard adds to a batch."""
    sizes = plan.shard_sizes
    slots = Slots(plan, HeapSegment(slots_bytes(plan), is_private=False))
    with _instant_server(plan, slots):
        questions = _Questions(slots, len(sizes))
        for _ in range(_WARM_UP):
            questions.ask(len(sizes))
        one = [questions.ask(1) for _ in range(_TRIPS)]
        all_of_them = [questions.ask(len(sizes)) for _ in range(_TRIPS)] if len(sizes) > 1 else one
        cold = _cold(Client(slots, _TRIPS + 1, 0, lambda shard: None), slots.slots[0])
    asking_s = median(asking for _, asking in all_of_them) / len(sizes)
    further = max(1, len(sizes) - 1)
    slot_s = (median(took for took, _ in all_of_them) - median(took for took, _ in one)) / further - asking_s
    slot_s = max(0.0, slot_s) + _WAKING * cold.wall_s
    return cold, Time(slot_s, slot_s)


def _cold(client: Client, slot: Slot) -> Time:
    """A worker's question to a server that has gone to sleep, as it has while environments step."""
    act = client.acting(Lease(0, 0, 0, 1 << 20), 0)
    obs, noise, out = {name: leaf.copy() for name, leaf in slot.obs.items()}, slot.noise.copy(), slot.action.copy()
    times, used_s = [], 0.0
    for row in range(_TRIPS):
        time.sleep(_COLD_S)
        before_s, cpu_s = now_s(), time.process_time()
        act(row, obs, noise, out)
        times.append(now_s() - before_s)
        used_s += time.process_time() - cpu_s
    return Time(median(times), min(median(times), 2 * used_s / _TRIPS))  # the other side does about as much


class _Questions:
    """What workers ask, from one process: all of them, then all answers."""

    def __init__(self, slots: Slots, count: int) -> None:
        self._words, self._slots, self._number, self._spin = slots.words, slots.slots[:count], 1, Spin()
        self._obs = [{name: bits(leaf).copy() for name, leaf in slot.obs.items()} for slot in self._slots]
        self._noise = [slot.noise.copy() for slot in self._slots]
        self._out = [bits(slot.action).copy() for slot in self._slots]

    def ask(self, count: int) -> tuple[float, float]:
        """Seconds until all are answered, and until all were asked."""
        begun_s, n_steps = now_s(), 1 if count < len(self._slots) else 2  # of one row, the first is the last
        asked = [*zip(self._slots[:count], self._obs, self._noise, self._out, strict=False)]
        for slot, obs, noise, out in asked:
            begin(self._words, slot, self._number, n_steps, 0)
            self._number += 2  # no number is used twice
            leaf, *others = obs.items()
            for name, other in others:
                slot.obs[name][...] = other
            if ask(self._words, slot.at, 0, leaf[1], noise, out, 0) == WAKE:
                slot.rings.wake()
        asked_s = now_s()
        for slot, _, _, out in asked:
            is_there = take(self._words, slot.at, 0, out, self._spin.loops) != NOT_YET
            self._spin.paid(is_there)
            say(self._words, slot.at + ACTOR_SLEEPS, not is_there)
            seen = load_acquire(self._words, slot.at + REPLY)
            while take(self._words, slot.at, 0, out, 0) == NOT_YET:
                slot.answers.wait(int(seen), SLICE_S)
                seen = load_acquire(self._words, slot.at + REPLY)
                if now_s() - begun_s > _PATIENCE_S:
                    raise HeadraceError("no answer from the server that was tried")
            say(self._words, slot.at + ACTOR_SLEEPS, 0)
        return now_s() - begun_s, asked_s - begun_s


@contextmanager
def _instant_server(plan: SlotsPlan, slots: Slots) -> Iterator[None]:
    """In a fork of this process: memory that was mapped before is shared. It ends with its parent."""
    module = build_policy(PolicyConfig(net_arch=(4,), ortho_init=False), _NUMBER, _NUMBER, 0)  # fits any environment
    flat = FlatParameters(module)
    store = WeightStore(flat.size, 1)
    store.publish(flat.published, 0)
    parent = os.getpid()
    child = os.fork()
    if not child:
        try:
            instant = ServerPlan(0, plan, "", module, 4, BatchLimits(), "", flat.size, 1, "", _NoPolicy())
            server = Server(instant, slots, store)
            while os.getppid() == parent:
                if not server.look():
                    server.wait()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
