"""What `inference_device` may say: cpu, cuda, cuda:1, a latency model, or several. And the port of what acts on one.

    "emulated:2ms+5us"  ->  2 ms for a batch and 5 us for each of its rows
    "cuda:0,cuda:1"     ->  server number i acts on device i modulo 2

The emulated accelerator is for tests and benchmarks: it takes the time of a device, and computes on the CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from headrace.errors import UsageError
from headrace.memory.spaces import Leaves, ObservationSpace, Space

if TYPE_CHECKING:
    from headrace.weights.store import Replica  # which imports torch

Array = npt.NDArray[Any]

CPU = "cpu"
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
_TIME = r"(\d+(?:\.\d+)?)(us|ms|s)"
_EMULATED = re.compile(f"emulated:{_TIME}\\+{_TIME}")
_CUDA = re.compile(r"cuda(?::\d{1,3})?")
_LONGEST_NS = 10e9


class Infers(Protocol):
    """Acts, somewhere."""

    def act(self, obs: Leaves, noise: Array | None, out: Array) -> None: ...


class Device(Protocol):
    """Where else than here a policy may act."""

    def inference(self, replica: Replica, observation: ObservationSpace, action: Space, tile: int) -> Infers: ...


@dataclass(frozen=True)
class Latency:
    """How long an emulated accelerator takes."""

    batch_ns: int
    row_ns: int

    def of(self, rows: int) -> int:
        """Nanoseconds for one batch."""
        return self.batch_ns + self.row_ns * rows


def devices_of(said: str) -> tuple[str, ...]:
    """The devices that are named, with commas between them. Refuses what is none, and a mixture."""
    names = tuple(name.strip() for name in said.split(","))
    if len({"emulated" if latency_of(name) else name.partition(":")[0] for name in names}) > 1:
        raise UsageError(
            f"inference_device: expected devices of one kind, as in cuda:0,cuda:1, got {said!r}; each kind "
            f"rounds in its own way, and an action may not depend on the server that is asked"
        )
    return names


def number_of_queues(said: str) -> int:
    """Devices that can act at the same time: a GPU that is named twice is one, emulated ones are as many as named."""
    names = devices_of(said)
    return len(names) if latency_of(names[0]) else len({"cuda" if name == "cuda:0" else name for name in names})


def latency_of(device: str) -> Latency | None:
    """The model of an emulated accelerator; None if the device is a real one. Refuses what is neither."""
    if device == CPU or _CUDA.fullmatch(device):
        return None
    found = _EMULATED.fullmatch(device)
    if found is None:
        raise UsageError(
            f"inference_device: expected cpu, cuda, cuda:N or, for tests, emulated:2ms+5us "
            f"(time of a batch, and of each row), got {device!r}"
        )
    batch_ns, row_ns = (float(found[i]) * _NS[found[i + 1]] for i in (1, 3))
    if max(batch_ns, row_ns) > _LONGEST_NS:
        raise UsageError(f"inference_device: expected at most 10s for a batch and for a row, got {device!r}")
    return Latency(round(batch_ns), round(row_ns))
