"""Where the policy acts: what may be said, the emulated accelerator's one queue, and the way to a CUDA device and back.

There is no GPU here. The path to one is run on the CPU, where its answers must be local inference's, and on torch's
meta device, which has no memory: a tensor left on the wrong side raises.
"""

from __future__ import annotations

import copy
import pickle
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.clock import now_ns
from headrace.errors import UsageError
from headrace.inference.device_names import Latency, devices_of, latency_of, number_of_queues
from headrace.inference.devices import (
    Emulated,
    OnDevice,
    TorchDevice,
    _reserve,
    close_devices,
    open_device,
    open_devices,
)
from headrace.inference.local import LocalInference
from headrace.inference.recurrent import inference_of
from headrace.memory.schema import STATE, state_leaf
from headrace.memory.segment import SharedSegment
from headrace.memory.spaces import Box, Dict, Discrete, ObservationSpace, Space, made_up_leaves, shape_of
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import as_policy, build_policy
from headrace.policies.policy import state_size_of
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore
from support.generators import quick

VECTOR, FRAMES = Box((16,), "float32", (-1.0,) * 16, (1.0,) * 16), Box((36, 36, 1), "uint8", (0.0,), (255.0,))
FORCE, CHOICE = Box((2,), "float32", (-1.0, -1.0), (1.0, 1.0)), Discrete(5)
BOTH = Dict((("frames", FRAMES), ("vector", VECTOR)))
POLICIES = [("MlpPolicy", VECTOR, FORCE), ("MlpPolicy", VECTOR, CHOICE), ("CnnPolicy", FRAMES, CHOICE)]
RECURRENT = [
    ("MlpLstmPolicy", VECTOR, FORCE),
    ("MlpGruPolicy", VECTOR, CHOICE),
    ("CnnLstmPolicy", FRAMES, CHOICE),
    ("MultiInputLstmPolicy", BOTH, CHOICE),
    ("MultiInputGruPolicy", BOTH, FORCE),
]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("cpu", None),
        ("cuda", None),
        ("cuda:1", None),
        ("emulated:2ms+5us", Latency(2_000_000, 5_000)),
        ("emulated:0.5ms+0us", Latency(500_000, 0)),
    ],
)
def test_names(said: str, meant: Latency | None) -> None:
    assert latency_of(said) == meant


@pytest.mark.parametrize(
    "said", ["gpu", "", "cuda:", "cuda:x", "CPU", "emulated", "emulated:2ms", "emulated:2+5", "emulated:60s+1us"]
)
def test_other_names_are_refused(said: str) -> None:
    with pytest.raises(UsageError, match=r"^inference_device: expected .*got "):
        latency_of(said)


@pytest.mark.parametrize(
    ("said", "names", "queues"),
    [
        ("cpu", ("cpu",), 1),
        ("cuda", ("cuda",), 1),
        ("cuda:0, cuda:1", ("cuda:0", "cuda:1"), 2),
        ("cuda,cuda:0,cuda:1", ("cuda", "cuda:0", "cuda:1"), 2),  # two servers on the first GPU
        ("emulated:1ms+1us,emulated:1ms+1us", ("emulated:1ms+1us",) * 2, 2),
    ],
)
def test_several_names(said: str, names: tuple[str, ...], queues: int) -> None:
    assert (devices_of(said), number_of_queues(said)) == (names, queues)


@pytest.mark.parametrize("said", ["cpu,cuda", "cuda:0,emulated:1ms+1us", "cuda;cuda", "cuda,,cuda"])
def test_mixtures_are_refused(said: str) -> None:
    with pytest.raises(UsageError, match=r"^inference_device: expected .*got "):
        devices_of(said)


def test_emulated_devices_of_a_list_have_a_queue_each() -> None:
    """Also in the process of a server; and none is left behind."""
    first, second = open_devices("emulated:9s+1us,emulated:9s+1us", is_shared=True)
    assert isinstance(first, Emulated)
    assert isinstance(second, Emulated)
    done, begun = first.reserve(1), now_ns()
    assert second.reserve(1) < begun + 15_000_000_000, "it does not wait for the first"
    assert pickle.loads(pickle.dumps(first)).reserve(1) == done + 9_000_001_000
    close_devices((first, None, second))


def test_a_list_of_which_one_is_not_there_leaves_nothing_behind() -> None:
    with pytest.raises(UsageError, match="inference_device=cuda:98: torch finds no CUDA device here"):
        open_devices("cuda:98,cuda:99", is_shared=True)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="inference_device=cuda:99: torch finds no CUDA device here"):
        open_device("cuda:99", is_shared=False)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=20))
@quick
def test_one_queue(arrivals: list[tuple[int, int]]) -> None:
    """Batch after batch in the order of asking: each begins when the one before is done, or at once."""
    words, now, free = np.zeros(8, np.int64), 0, 0
    for later, takes in arrivals:
        now += later
        free = max(now, free) + takes
        assert _reserve(words, now, takes) == free


def test_all_processes_that_use_it_share_its_queue() -> None:
    segment = SharedSegment.create(64)
    here = Emulated(Latency(1_000_000_000, 1), segment)
    there = pickle.loads(pickle.dumps(here))
    first, second = here.reserve(1), there.reserve(3)
    assert second == first + 1_000_000_003
    here.close()


def test_it_takes_its_time_and_no_cpu() -> None:
    replica, obs, noise, out = acting("MlpPolicy", VECTOR, CHOICE, rows=8)
    device = open_device("emulated:40ms+1ms", is_shared=False)
    assert device is not None
    inference = device.inference(replica, VECTOR, CHOICE, 8)
    inference.act(obs, noise, out)  # compiles
    begun, used = now_ns(), time.process_time()
    inference.act(obs, noise, out)
    assert now_ns() - begun >= 48e6
    assert time.process_time() - used < 0.02
    expected = np.empty_like(out)
    LocalInference(replica.module, VECTOR, CHOICE, 8).act(obs, noise, expected)
    assert (out == expected).all()


@pytest.mark.parametrize(("policy", "observation", "action"), POLICIES)
def test_the_way_to_a_device_changes_no_answer(policy: str, observation: Space, action: Space) -> None:
    """With the CPU as the device: several tiles, the last one padded, and with the weights of the newest version."""
    replica, obs, noise, out = acting(policy, observation, action, rows=21)
    there = TorchDevice("cpu").inference(replica, observation, action, 8)
    expected, store = np.empty_like(out), WeightStore(replica.vector.numel(), 2)
    for version in range(2):
        store.publish(replica.vector + version, version)
        replica.load(store, version)
        for used in (noise, None):
            LocalInference(replica.module, observation, action, 8).act(obs, used, expected)
            there.act(obs, used, out)
            assert out.shape == expected.shape
            assert np.allclose(out, expected, atol=1e-6), "a compiled MLP rounds in its own order"


@pytest.mark.parametrize(("policy", "observation", "action"), POLICIES)
def test_everything_that_acts_is_on_the_device(policy: str, observation: Space, action: Space) -> None:
    """On a device without memory: torch refuses to mix it with the CPU, so nothing was left behind."""
    replica, obs, noise, out = acting(policy, observation, action, rows=21)
    there = TorchDevice("meta").inference(replica, observation, action, 8)
    assert isinstance(there, OnDevice)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):  # the actions, at the end
        there.act(obs, noise, out)
    there._noise_there = there._noise
    with pytest.raises(RuntimeError, match="on device"):  # what a tensor on the wrong side does
        there._forward(24, has_noise=True)


@pytest.mark.parametrize(("policy", "observation", "action"), RECURRENT)
def test_what_a_recurrent_policy_remembers_comes_back(
    policy: str, observation: ObservationSpace, action: Space
) -> None:
    """Step by step along episodes of 21 environments, with new weights on the way: actions and states are the same."""
    replica, obs, noise, out = acting(policy, observation, action, rows=21)
    there = TorchDevice("cpu").inference(replica, observation, action, 8)
    here = inference_of(replica.module, observation, action, 8)
    expected, store = np.empty_like(out), WeightStore(replica.vector.numel(), 2)
    size = state_size_of(replica.module)
    states = [np.zeros((21, size), np.float32) for _ in range(2)]
    for row in range(6):
        if row in (0, 3):
            store.publish(replica.vector * (1 + row), row)
            replica.load(store, row)
        for state in states:
            state[row::5] = 0.0  # where episodes start
        used = None if row == 2 else noise
        here.act(obs | {STATE: states[0]}, used, expected)
        there.act(obs | {STATE: states[1]}, used, out)
        assert np.allclose(out, expected, atol=1e-6)
        assert np.allclose(states[0], states[1], atol=1e-6)
        assert states[1].any(1).all(), "every environment's own, also of the tile that is padded"


@pytest.mark.parametrize(("policy", "observation", "action"), RECURRENT)
def test_a_recurrent_policy_is_on_the_device(policy: str, observation: ObservationSpace, action: Space) -> None:
    replica, obs, noise, out = acting(policy, observation, action, rows=21)
    obs |= state_leaf(state_size_of(replica.module), 21)
    there = TorchDevice("meta").inference(replica, observation, action, 8)
    assert isinstance(there, OnDevice)
    with pytest.raises(
        NotImplementedError, match="Cannot copy out of meta tensor"
    ):  # the states or actions, at the end
        there.act(obs, noise, out)
    there._after, there._actions = (leaf.to("meta") for leaf in (there._after, there._actions))
    there._forward(24, has_noise=True)  # nothing else is left on this side
    there._obs_there[STATE] = there._obs[STATE]
    with pytest.raises(RuntimeError, match="on device"):
        there._forward(24, has_noise=True)


class FakeCuda:
    """A GPU's rules on the CPU: what it sends is there after a synchronize, and blocking copies are counted."""

    def __init__(self, replica: Replica, patch: pytest.MonkeyPatch) -> None:
        self.sent, self.blocking, self.unpinned, self.waits = 0, 0, 0, 0
        self._pinned: list[int] = []  # storages of this side that the device reads by itself
        self._on_its_way: list[Any] = []
        self._weights = replica.vector.untyped_storage().data_ptr()
        zeros, empty_like, copy_ = torch.zeros, torch.empty_like, torch.Tensor.copy_

        def allocated(*shape: Any, pin_memory: bool | None = None, **options: Any) -> torch.Tensor:
            tensor = zeros(*shape, **options)
            if pin_memory:
                self._pinned.append(tensor.untyped_storage().data_ptr())
            self.unpinned += pin_memory is False
            return tensor

        def copied(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            is_sent, is_fetched = self._is_here(source), self._is_here(to) and not self._is_weights(source)
            self.sent += is_sent
            self.blocking += (is_sent or is_fetched) and not non_blocking
            if is_fetched and non_blocking:
                self._on_its_way.append(lambda: copy_(to, source))
                return to
            return copy_(to, source)

        patch.setattr(torch, "zeros", allocated)
        patch.setattr(torch, "empty_like", lambda like, device: empty_like(like))
        patch.setattr(torch.Tensor, "copy_", copied)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "current_stream", lambda device: self)
        patch.setattr("headrace.inference.devices.FlatParameters", self._there)

    def synchronize(self) -> None:
        """What was on its way is there."""
        self.waits += 1
        with torch.inference_mode():
            while self._on_its_way:
                self._on_its_way.pop()()

    def _there(self, module: torch.nn.Module) -> Any:
        flat, vector = FlatParameters(module), SimpleNamespace(device=torch.device("cuda:0"))
        return SimpleNamespace(size=flat.size, module=module, published=flat.published, vector=vector)

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def _is_weights(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() == self._weights


@pytest.mark.parametrize("mutation", ["", "pin_memory", "non_blocking", "synchronize"])
def test_copies_do_not_block_and_are_waited_for_once(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, observations, noise and actions; and each of the three rules is missed if it is broken."""
    replica, obs, noise, out = acting("MlpPolicy", VECTOR, CHOICE, rows=21)
    expected, store = np.empty_like(out), WeightStore(replica.vector.numel(), 1)
    store.publish(replica.vector + 1, 0)
    replica.load(store, 0)
    LocalInference(replica.module, VECTOR, CHOICE, 8).act(obs, noise, expected)
    assert len(set(expected.tolist())) > 1
    cuda = FakeCuda(replica, monkeypatch)
    broken(mutation, monkeypatch)
    there = OnDevice(copy.deepcopy(replica.module), replica, VECTOR, CHOICE, 8)
    seen = []
    for _ in range(2):
        out[...] = -1
        there.act(obs, noise, out)
        seen.append((out == expected).all())
    assert cuda.sent == (0 if mutation == "pin_memory" else 2 * 2 + 1), "observations, noise; weights once"
    assert (cuda.unpinned > 0) == (mutation == "pin_memory")
    assert (cuda.blocking > 0) == (mutation == "non_blocking")
    assert cuda.waits == (0 if mutation == "synchronize" else 2)
    assert all(seen) == (mutation != "synchronize"), "actions that are read before they are there"


def broken(mutation: str, patch: pytest.MonkeyPatch) -> None:
    """One rule less in what OnDevice asks of torch."""
    zeros, copy_ = torch.zeros, torch.Tensor.copy_
    if mutation == "pin_memory":
        patch.setattr(torch, "zeros", lambda *shape, pin_memory, **more: zeros(*shape, pin_memory=False, **more))
    if mutation == "non_blocking":
        patch.setattr(torch.Tensor, "copy_", lambda to, source, non_blocking=False: copy_(to, source))
    if mutation == "synchronize":
        patch.setattr(OnDevice, "_finish", lambda self: None)


def acting(policy: str, observation: ObservationSpace, action: Space, rows: int) -> tuple[Replica, Any, Any, Any]:
    rng = np.random.default_rng(0)
    module = build_policy(PolicyConfig(policy), observation, action, 1)
    obs = made_up_leaves(observation, rng, rows)
    noise = rng.random((rows, as_policy(module).noise.width), np.float32)
    return Replica(FlatParameters(module)), obs, noise, np.zeros((rows, *shape_of(action)), action.dtype)
