"""The slab: one rollout of T rows of a shard, a struct of arrays over one contiguous block.

    leased: poisoned -> the actor writes row by row, and the observations in which episodes were cut -> commit
        -> the reader reads arrays of [T, B], frame stacks rebuilt (whole)

The commit word holds the fence of the lease that filled the slab; the reader compares it with the fence it granted, so
a writer whose lease was taken away can't pass its slab off as new.

A fresh lease is poisoned (NaN, 0xA5): a field that nobody wrote is seen at once. Final observations are not: they
are read only as far as `final_count`, and most of that memory is never touched.
Does not know where in the block things lie (layout), nor who may write: that is the ring's state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.memory.atomics import store_release
from headrace.memory.layout import Array, Word, arrays_of, header_of, rows_of
from headrace.memory.schema import STATE, Schema
from headrace.memory.spaces import Leaves
from headrace.memory.stacks import Stacks


class Slab:
    """Typed views over a block. Reading and writing never copies."""

    def __init__(self, schema: Schema, buffer: memoryview, *, create: bool = True) -> None:
        self.schema, self.header = schema, header_of(schema, buffer, create=create)
        self.arrays = arrays = arrays_of(schema, buffer)
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
        self.rows = rows_of(arrays, obs)

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
