"""The slots: where actors ask an inference server, and where it answers. One slot per shard, in one shared segment.

    [ server 0: bell | beat ] [ server 1 ... ]
    [ slot 0: request | reply | note | observations | noise | actions | error ] [ slot 1 ... ]

    actor:  observations, noise, wanted version -> REQUEST = number (release) -> bell -> waits for REPLY == number
    server: REQUEST (acquire) != REPLY -> gathers, acts -> actions, version -> REPLY = number (release)

One writer per word: the request line and the note are the actor's, the reply line the server's. The bell holds the
number of a request that rang it; any change wakes a server that sleeps, so it does not matter whose number stays. A
number is made of the fence of the lease and the row. It is never used twice, so an actor takes no answer that was meant
for a dead one. What was asked stays here until it is answered: a server that takes another's place finds it. Answers
are not written into slabs: a server that was stopped and goes on could write into another rollout. What a recurrent
policy remembers goes in with the observations and comes out beside the actions, in memory of its own: so a request that
is answered twice is answered alike.
Knows no processes and no policy; imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.schema import ALIGNMENT, STATE
from headrace.memory.segment import Segment
from headrace.memory.spaces import Leaves, ObservationSpace, Space, leaves_of, shape_of
from headrace.memory.waiting import Futex

Array = npt.NDArray[Any]

LATEST = -1  # in the place of a wanted version: the server's choice
_LINE = ALIGNMENT // 8  # words
BELL, SERVER_SLEEPS, BEAT = 0, 1, _LINE  # words of a server's two lines; the second is its own:
BATCHES, ROWS, CPU_NS = _LINE + 1, _LINE + 2, _LINE + 3  # what it did, and the CPU time that it took,
TIMED, TIMED_NS = _LINE + 4, _LINE + 5  # and how long some of it took
REQUEST, WANTED, IS_LAST, ACTOR_SLEEPS = 0, 1, 2, 3  # words of a slot: the actor's line,
REPLY, VERSION, ERROR_BYTES = _LINE, _LINE + 1, _LINE + 2  # the server's,
NOTE = 2 * _LINE  # and two lines for what the actor notes of its rollout
_ERROR_ROOM = 1 << 14


@dataclass(frozen=True)
class SlotsPlan:
    """What both sides build the same view of the memory from."""

    shard_sizes: tuple[int, ...]
    observation: ObservationSpace
    action: Space
    noise_width: int
    num_servers: int
    state_size: int = 0  # what a recurrent policy remembers of an environment

    def shards_of(self, server: int) -> range:
        """The shards that ask a server."""
        return range(server, len(self.shard_sizes), self.num_servers)


class Slot:
    """One shard's: views of its memory. `at` is where its words begin. `spans`: at which byte the first leaf begins and
    how many it has, the same of the noise and the actions."""

    def __init__(self, plan: SlotsPlan, shard: int, words: Array, buffer: memoryview, start: int) -> None:
        n_envs = plan.shard_sizes[shard]
        self.at, self.bell = start // 8, 2 * _LINE * (shard % plan.num_servers)
        self.rings, self.answers = Futex(words, self.bell + BELL), Futex(words, self.at + REPLY)
        position = start + 4 * ALIGNMENT
        arrays: dict[str, Array] = {}
        spans: dict[str, tuple[int, int]] = {}
        for name, shape, dtype in _arrays(plan, n_envs):
            arrays[name] = np.ndarray(shape, dtype, buffer, position)
            spans[name] = (position, arrays[name].nbytes)
            position += _lines(arrays[name].nbytes)
        self.spans = (*next(iter(spans.values())), *spans["noise"], *spans["action"])
        self.noise, self.action, error = arrays.pop("noise"), arrays.pop("action"), arrays.pop("error")
        self.error = error.data
        self.state_after: Array | None = arrays.pop("state after", None)
        self.obs: Leaves = {name.removeprefix("obs "): array for name, array in arrays.items()}


class Slots:
    """All slots of a run."""

    def __init__(self, plan: SlotsPlan, segment: Segment) -> None:
        self.segment = segment
        self.words: Array = np.frombuffer(segment.buffer, np.int64)
        self.slots: list[Slot] = []
        start = 2 * ALIGNMENT * plan.num_servers
        for shard, n_envs in enumerate(plan.shard_sizes):
            self.slots.append(Slot(plan, shard, self.words, segment.buffer, start))
            start += _slot_bytes(plan, n_envs)

    def done_by(self, server: int) -> Array:
        """Batches and rows that a server acted for, its CPU time; how many it timed, and what they took; in ns."""
        start = 2 * _LINE * server
        return np.array(self.words[start + BATCHES : start + TIMED_NS + 1])

    def beat_of(self, server: int) -> int:
        """A number that changes while a server lives."""
        return int(self.words[2 * _LINE * server + BEAT])


def slots_bytes(plan: SlotsPlan) -> int:
    """Of all slots."""
    return 2 * ALIGNMENT * plan.num_servers + sum(_slot_bytes(plan, n_envs) for n_envs in plan.shard_sizes)


def _arrays(plan: SlotsPlan, n_envs: int) -> Sequence[tuple[str, tuple[int, ...], str]]:
    leaves = leaves_of(plan.observation).items()
    return [
        *((f"obs {name}", (n_envs, *shape_of(leaf)), leaf.dtype) for name, leaf in leaves),
        ("noise", (n_envs, plan.noise_width), "float32"),
        ("action", (n_envs, *shape_of(plan.action)), plan.action.dtype),
        ("error", (_ERROR_ROOM,), "uint8"),
        *((name, (n_envs, plan.state_size), "float32") for name in (f"obs {STATE}", "state after") if plan.state_size),
    ]


def _slot_bytes(plan: SlotsPlan, n_envs: int) -> int:
    arrays = _arrays(plan, n_envs)
    return 4 * ALIGNMENT + sum(_lines(prod(shape) * np.dtype(dtype).itemsize) for _, shape, dtype in arrays)


def _lines(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
