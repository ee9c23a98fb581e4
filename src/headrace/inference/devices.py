"""Devices other than the CPU of the process that acts. Both act like `LocalInference`: rows in, actions out.

    Emulated:   reserve the device until (it is free, or now) + latency -> the real policy acts -> sleep until then
    TorchDevice: rows -> pinned staging --non-blocking--> device: tiles -> actions --non-blocking--> staging -> rows

An emulated accelerator stands in for a GPU in tests and benchmarks. Only its time is a model: 2 ms a batch and 5 us a
row, say. It has one queue, a shared word that says until when it is taken, so all processes that use it wait for one
another, as they would for a GPU. The word is changed by compare-and-exchange: a process that is killed holds nothing.
The policy must be faster on the CPU than the model says, or it is the CPU that is measured.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from headrace.clock import now_ns
from headrace.compiler import compiled
from headrace.errors import UsageError
from headrace.inference.device_names import CPU, Device, Infers, Latency, devices_of, latency_of
from headrace.inference.local import LocalInference
from headrace.inference.recurrent import inference_of
from headrace.memory.atomics import compare_exchange, load_acquire
from headrace.memory.schema import STATE
from headrace.memory.segment import HeapSegment, Segment, SharedSegment
from headrace.memory.spaces import Leaves, ObservationSpace, Space, as_seen, leaves_of, shape_of
from headrace.policies.networks import as_policy
from headrace.policies.policy import state_size_of
from headrace.policies.tiles import spans
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica

Array = npt.NDArray[Any]
_QUEUE_BYTES = 64


def open_device(name: str, is_shared: bool) -> Emulated | TorchDevice | None:
    """What acts on a device of this name; None: the CPU. `is_shared`: with other processes."""
    latency = latency_of(name)
    if latency is not None:
        return Emulated(latency, SharedSegment.create(_QUEUE_BYTES) if is_shared else HeapSegment(_QUEUE_BYTES))
    if name == CPU:
        return None
    if not torch.cuda.is_available() or torch.device(name).index not in (None, *range(torch.cuda.device_count())):
        found = torch.cuda.device_count() if torch.cuda.is_available() else "no"
        raise UsageError(
            f"inference_device={name}: torch finds {found} CUDA device here; use inference_device=cpu "
            f"(--inference-device cpu), also to load or resume a run that had a GPU"
        )
    return TorchDevice(name)


def inference_on(
    device: Device | None, replica: Replica, observation: ObservationSpace, action: Space, tile: int
) -> Infers:
    """A replica's policy, acting on a device; None: here."""
    if device is not None:
        return device.inference(replica, observation, action, tile)
    return inference_of(replica.module, observation, action, tile)


def open_devices(said: str, is_shared: bool) -> tuple[Emulated | TorchDevice | None, ...]:
    """All that `inference_device` names, in its order: an emulated one has a queue of its own each time it is named."""
    with ExitStack() as undo:
        found = []
        for name in devices_of(said):
            found.append(open_device(name, is_shared))
            undo.callback(close_devices, found[-1:])
        undo.pop_all()
    return tuple(found)


def close_devices(devices: Iterable[Emulated | TorchDevice | None]) -> None:
    """Remove what they hold; the CPU is None."""
    for device in devices:
        if device is not None:
            device.close()


class Emulated:
    """An accelerator that takes time, and nothing else. Sent to other processes, it is still the same one."""

    def __init__(self, latency: Latency, segment: Segment) -> None:
        self.latency, self._segment = latency, segment
        self._words: Array = np.frombuffer(segment.buffer, np.int64)

    def __reduce__(self) -> Any:
        return _attached, (self.latency, self._segment.name)

    def inference(self, replica: Replica, observation: ObservationSpace, action: Space, tile: int) -> Infers:
        """A policy that acts on it."""
        return _Slowed(self, inference_of(replica.module, observation, action, tile))

    def reserve(self, rows: int) -> int:
        """Queue a batch; returns when it will be done."""
        return int(_reserve(self._words, now_ns(), self.latency.of(rows)))

    def close(self) -> None:
        """Remove the queue's name."""
        self._segment.unlink()


def _attached(latency: Latency, name: str) -> Emulated:
    return Emulated(latency, SharedSegment.attach(name))


@compiled
def _reserve(words: Array, now: int, takes: int) -> int:
    while True:
        taken = load_acquire(words, 0)
        done = max(taken, now) + takes
        if compare_exchange(words, 0, taken, done):
            return done


class _Slowed:
    def __init__(self, device: Emulated, local: LocalInference) -> None:
        self._device, self._local = device, local

    def act(self, obs: Leaves, noise: Array | None, out: Array) -> None:
        """Answers at once, and keeps them until the device would be done."""
        done_ns = self._device.reserve(len(out))
        self._local.act(obs, noise, out)
        left_ns = done_ns - now_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)


class TorchDevice:
    """A device of torch's, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def inference(self, replica: Replica, observation: ObservationSpace, action: Space, tile: int) -> Infers:
        """A policy that acts on it."""
        there = copy.deepcopy(replica.module).to(self._name)
        return OnDevice(there, replica, observation, action, tile)

    def close(self) -> None:
        """Nothing is held here."""


class OnDevice:
    """`there`: a copy of a replica's policy on a device; new versions follow it there.

    What a recurrent policy remembers of a row travels with the observation, and back with the action.
    """

    def __init__(
        self, there: nn.Module, replica: Replica, observation: ObservationSpace, action: Space, tile: int
    ) -> None:
        self._replica, self._tile = replica, tile
        self._flat = FlatParameters(there)
        self._device = self._flat.vector.device
        self._policy: Any = as_policy(self._flat.module)  # which may take a state as well
        self._leaves, self._action, self._state_size = leaves_of(observation), action, state_size_of(there)
        self._version: int | None = None
        self._vector = self._host((self._flat.size,), "float32")
        self._rows = 0  # there is staging for so many

    def act(self, obs: Leaves, noise: Array | None, out: Array) -> None:
        """One copy to the device, all tiles, one copy back; waits once, at the end. States are written in place."""
        if self._version != self._replica.version:
            self._load()
        count, whole = len(out), -(-len(out) // self._tile) * self._tile
        if whole > self._rows:
            self._make_room(whole)
        for name, leaf in obs.items():
            staged = self._obs[name].numpy()
            staged[:count], staged[count:whole] = leaf, leaf[0]
        if noise is not None:
            self._noise.numpy()[:count] = noise
        with torch.inference_mode():
            self._forward(whole, noise is not None)
        self._finish()
        out[...] = self._actions[:count].numpy().reshape(out.shape)
        if self._state_size:
            obs[STATE][...] = self._after[:count].numpy()

    def _forward(self, whole: int, has_noise: bool) -> None:
        for name, leaf in self._obs.items():
            self._obs_there[name][:whole].copy_(leaf[:whole], non_blocking=True)
        self._noise_there[:whole].copy_(self._noise[:whole], non_blocking=True)
        for start, stop in spans(whole, self._tile):
            tile = {name: leaf[start:stop] for name, leaf in self._obs_there.items()}
            state, noise = tile.pop(STATE, None), self._noise_there[start:stop] if has_noise else None
            if state is None:
                actions = self._policy.act(as_seen(tile), noise)
            else:
                actions, after = self._policy.act(as_seen(tile), noise, state)
                self._after[start:stop].copy_(after, non_blocking=True)
            self._actions[start:stop].copy_(actions.reshape(self._actions[start:stop].shape), non_blocking=True)

    def _load(self) -> None:
        self._vector.copy_(self._replica.vector)
        self._flat.published.copy_(self._vector, non_blocking=True)
        self._version = self._replica.version

    def _make_room(self, rows: int) -> None:
        self._rows, width = rows, self._policy.noise.width
        self._obs = {name: self._host((rows, *shape_of(leaf)), leaf.dtype) for name, leaf in self._leaves.items()}
        if self._state_size:
            self._obs[STATE] = self._host((rows, self._state_size), "float32")
            self._after = self._host((rows, self._state_size), "float32")
        self._obs_there = {name: torch.empty_like(leaf, device=self._device) for name, leaf in self._obs.items()}
        self._noise = self._host((rows, width), "float32")
        self._noise_there = torch.empty_like(self._noise, device=self._device)
        self._actions = self._host((rows, *shape_of(self._action)), self._action.dtype)

    def _host(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """Memory of this side that a CUDA device reads and writes by itself."""
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        return torch.zeros(shape, dtype=kind, pin_memory=torch.cuda.is_available() and self._device.type == "cuda")

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
