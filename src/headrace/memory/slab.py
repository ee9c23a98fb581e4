"""The slab: one rollout of T rows of a shard, a struct of arrays over one contiguous block.

    [ header: 4 cache lines ][ field ][ field ] ...       the same bytes on the heap and in shared memory

The header has one writer per word: line 0 (what lies here) and line 1 (for whom) are written by the owner of the ring
when it leases the slab, lines 2 and 3 by the actor that fills it. The commit word holds the fence of the lease that
filled the slab; the reader compares it with the fence it granted, so a writer whose lease was taken away can't pass its
slab off as new.

A fresh lease is poisoned (NaN, 0xA5): a field that nobody wrote is seen at once. Final observations are not: they
are read only as far as `final_count`, and most of that memory is never touched.
Does not know who may write: that is the ring's state.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import SchemaError
from headrace.memory.atomics import store_release
from headrace.memory.schema import ALIGNMENT, STATE, Schema
from headrace.memory.spaces import Leaves
from headrace.memory.stacks import Stacks

Array = npt.NDArray[Any]

MAGIC = 0x6865616472616365 & (2**63 - 1)  # "headrace"
_WORDS_PER_LINE = ALIGNMENT // 8


class Word(IntEnum):
    """Positions of the header's int64 words."""

    MAGIC = 0
    FINGERPRINT = 1
    FENCE = _WORDS_PER_LINE
    SHARD = _WORDS_PER_LINE + 1
    SEQUENCE = _WORDS_PER_LINE + 2
    COMMIT = 2 * _WORDS_PER_LINE
    FINAL_COUNT = 2 * _WORDS_PER_LINE + 1
    STARTED_NS = 2 * _WORDS_PER_LINE + 2
    COMMITTED_NS = 2 * _WORDS_PER_LINE + 3
    ENV_NS = 2 * _WORDS_PER_LINE + 4  # where the actor's time went: environments, inference, copying,
    INFERENCE_NS = 2 * _WORDS_PER_LINE + 5
    COPY_NS = 2 * _WORDS_PER_LINE + 6
    IDLE_NS = 2 * _WORDS_PER_LINE + 7  # and waiting for the order
    CLAMPED = 3 * _WORDS_PER_LINE  # what there is to report of the environments: steps that were clamped,
    DROPPED_EPISODES = 3 * _WORDS_PER_LINE + 1
    DROPPED_STEPS = 3 * _WORDS_PER_LINE + 2
    MENDED_ENV = 3 * _WORDS_PER_LINE + 3  # the first of these places: position in the shard, episode, step
    MENDED_EPISODE = 3 * _WORDS_PER_LINE + 4
    MENDED_STEP = 3 * _WORDS_PER_LINE + 5
    OUTSIDE = 3 * _WORDS_PER_LINE + 6  # whether an observation lies outside of its space
    CPU_NS = 3 * _WORDS_PER_LINE + 7  # of the actor's thread, while it filled the slab


HEADER_BYTES = 4 * ALIGNMENT


class Row(NamedTuple):
    """Views of one time index, made once per slab: the hot loop writes through them."""

    obs: Leaves
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    episode: Array
    step: Array
    next_obs: Leaves
    next_flat: dict[str, Any]  # memoryviews of the same: a write of another dtype or length is refused, not converted


class Slab:
    """Typed views over a block. Reading and writing never copies."""

    def __init__(self, schema: Schema, buffer: memoryview, *, create: bool = True) -> None:
        if len(buffer) < slab_bytes(schema):
            raise SchemaError(f"a slab of this schema needs {slab_bytes(schema)} bytes, got {len(buffer)}")
        self.schema = schema
        self.header: npt.NDArray[np.int64] = np.frombuffer(buffer, np.int64, HEADER_BYTES // 8)
        if create:
            self.header[:] = 0
            self.header[Word.MAGIC] = MAGIC
            self.header[Word.FINGERPRINT] = schema.fingerprint
        elif self.header[Word.MAGIC] != MAGIC or self.header[Word.FINGERPRINT] != schema.fingerprint:
            raise SchemaError(
                f"the block is no slab of this schema: expected fingerprint {schema.fingerprint:x}, "
                f"got {int(self.header[Word.FINGERPRINT]):x}; both sides must be built from the same configuration"
            )
        arrays = {
            field.name: np.ndarray(
                schema.full_shape(field), field.dtype, buffer, HEADER_BYTES + schema.offsets[field.name]
            )
            for field in schema.fields
        }
        self.arrays: dict[str, Array] = arrays
        self.obs: Leaves = {name: arrays[name] for name in schema.leaves}
        self.last_obs: Leaves = {name: arrays[f"last_{name}"] for name in schema.leaves}
        self.action, self.reward = arrays["action"], arrays["reward"]
        self.terminated, self.truncated, self.valid = arrays["terminated"], arrays["truncated"], arrays["valid"]
        self.episode, self.step, self.version = arrays["episode"], arrays["step"], arrays["version"]
        self.noise_counter, self.step_ns = arrays["noise_counter"], arrays["step_ns"]
        self._kept: Leaves = {STATE: arrays[f"last_{STATE}"]} if STATE in arrays else {}
        obs = [{name: leaf[t] for name, leaf in self.obs.items()} for t in range(schema.n_steps)] + [self.last_obs]
        self.stacks = Stacks(schema, arrays) if schema.stacked else None
        if self.stacks is not None:
            obs = [one | self.stacks.shown(t) for t, one in enumerate(obs)]
        per_row = {name: arrays[name] for name in Row._fields[1:-2]}  # all but the observations
        self.rows = [
            Row(
                obs=obs[t],
                next_obs=obs[t + 1],
                next_flat=flat(obs[t + 1]),
                **{name: array[t] for name, array in per_row.items()},
            )
            for t in range(schema.n_steps)
        ]

    def word(self, word: Word) -> int:
        """One header word."""
        return int(self.header[word])

    @property
    def final_count(self) -> int:
        """How many final observations of truncated episodes the slab holds."""
        return int(self.header[Word.FINAL_COUNT])

    @property
    def final_row(self) -> Array:
        """t * B + b of each recorded final observation."""
        return self.arrays["final_row"][: self.final_count]

    @property
    def final_obs(self) -> Leaves:
        """The observations in which episodes were truncated, in the order of `final_row`."""
        return {name: self.arrays[f"final_{name}"][: self.final_count] for name in self.schema.leaves}

    def shown(self, name: str) -> list[Array]:
        """All observations of one leaf."""
        return [leaves[name] for leaves in (self.obs, self.last_obs, self.final_obs) if leaves[name].size]

    def record_final(self, t: int, env: int, obs: dict[str, Any]) -> None:
        """Keep the real last observation of an episode that was cut at row t."""
        count = self.header[Word.FINAL_COUNT]
        self.arrays["final_row"][count] = t * self.schema.n_envs + env
        for name, leaf in obs.items():
            self.arrays[f"final_{name}"][count] = leaf[-1] if name in self.schema.stacked else leaf
        self.header[Word.FINAL_COUNT] = count + 1

    def whole(self) -> tuple[Leaves, Leaves, Leaves]:
        """Observations, last and final ones as the environments returned them: frame stacks are rebuilt."""
        if self.stacks is None:
            return self.obs, self.last_obs, self.final_obs
        obs, last, final = self.stacks.whole(self.final_count)
        return self.obs | obs, self.last_obs | last, self.final_obs | final

    def whole_last(self) -> Leaves:
        """The last observations alone, and what a recurrent policy remembers then."""
        return self._kept | (self.last_obs if self.stacks is None else self.last_obs | self.stacks.last())

    def poison(self) -> None:
        """Fill with what no actor writes, so that reading an unwritten field is seen."""
        for field in self.schema.fields:
            if field.axes == "F":
                continue
            array = self.arrays[field.name]
            if array.dtype.kind == "f":
                array.fill(np.nan)
            else:
                array.reshape(-1).view(np.uint8).fill(0xA5)
        self.header[Word.FINAL_COUNT] = 0
        self.header[Word.CLAMPED :] = 0

    def commit(self, fence: int, committed_ns: int) -> None:
        """The actor's last word: everything before it was written under the lease with this fence."""
        self.header[Word.COMMITTED_NS] = committed_ns
        store_release(self.header, Word.COMMIT.value, fence)


def flat(leaves: Leaves) -> dict[str, Any]:
    """Their memory as one axis."""
    return {name: leaf.reshape(-1).data for name, leaf in leaves.items()}


def slab_bytes(schema: Schema) -> int:
    """Bytes of one slab, header included."""
    return HEADER_BYTES + schema.size_bytes
