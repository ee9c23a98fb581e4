"""A server that dies in the middle of an answer: its successor finds the request as it was, and answers alike."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from headrace.inference.asking import ask, begin
from headrace.inference.batching import BatchLimits
from headrace.inference.recurrent import inference_of
from headrace.inference.server import Server, ServerPlan
from headrace.inference.slots import REPLY, Slots, SlotsPlan, slots_bytes
from headrace.memory.schema import STATE
from headrace.memory.segment import HeapSegment
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy
from headrace.weights.flat import FlatParameters
from headrace.weights.store import WeightStore
from support.slabs import CHOICE, VECTOR

SIZES = (3, 2)


@pytest.mark.parametrize("asking", [(0,), (0, 1)])
def test_a_request_that_is_answered_twice_is_answered_alike(asking: tuple[int, ...]) -> None:
    module: Any = build_policy(PolicyConfig("MlpLstmPolicy", lstm_hidden_size=8), VECTOR, CHOICE, 1)
    flat = FlatParameters(copy.deepcopy(module))
    store = WeightStore(flat.size, 1)
    store.publish(flat.published, 0)
    layout = SlotsPlan(SIZES, VECTOR, CHOICE, CHOICE.n, 1, module.state_size)
    slots = Slots(layout, HeapSegment(slots_bytes(layout)))
    plan = ServerPlan(0, layout, "", module, 4, BatchLimits(0, 0.0), "", flat.size, 1, "")
    rng = np.random.default_rng(2)
    for shard in asking:
        slot = slots.slots[shard]
        for array in (slot.noise, *slot.obs.values()):
            array[...] = rng.normal(size=array.shape)
        begin(slots.words, slot, 7 + shard, 2, 0)
        ask(slots.words, slot.at, 0, next(iter(slot.obs.values())).copy(), slot.noise.copy(), slot.action.copy(), 0)
    before = {shard: slots.slots[shard].obs[STATE].copy() for shard in asking}
    answers = []
    for server in (Server(copy.deepcopy(plan), slots, store) for _ in range(2)):
        while any(slots.words[slots.slots[shard].at + REPLY] != 7 + shard for shard in asking):
            server.look()
        answers.append([(slots.slots[shard].action.copy(), _after(slots, shard)) for shard in asking])
        for shard in asking:
            slots.words[slots.slots[shard].at + REPLY] = 0  # the first one died before it could say so
    for shard, (action, after), (again, and_again) in zip(asking, *answers, strict=True):
        obs = {name: leaf.copy() for name, leaf in slots.slots[shard].obs.items()}
        assert (obs[STATE] == before[shard]).all()
        assert (action == again).all()
        assert after.tobytes() == and_again.tobytes() != before[shard].tobytes()
        local = np.empty_like(action)
        inference_of(flat.module, VECTOR, CHOICE, 4).act(obs, slots.slots[shard].noise, local)
        assert (local == action).all()
        assert obs[STATE].tobytes() == after.tobytes()


def _after(slots: Slots, shard: int) -> Any:
    state = slots.slots[shard].state_after
    assert state is not None
    return state.copy()
