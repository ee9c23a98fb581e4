"""The schema: every array of a rollout, declared once.

    spaces, T, B --rollout_schema--> Schema --layout--> byte offsets --> slab views, file columns, wire format

A field has axes: "TB" one entry a step, "T" one a row, "B" one an environment, "F" one a recorded final observation.
Two sides that disagree get an error that names the field (`explain_difference`).
Knows bytes and shapes; does not know who fills them or what they mean to a learner.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.memory.spaces import Leaves, ObservationSpace, Space, leaves_of, shape_of, stack_of, stored_shape

DROPPED_END, DROPPED = -1, -2
"""`step` of the invalid rows of a dropped episode: of its last row, and of those before it. Others count from 0."""
STATE = "/state"  # what a recurrent policy remembers, at the first row; of no observation, as names hold no empty part
ALIGNMENT = 64  # one cache line: no field shares a line with another one's writer


@dataclass(frozen=True)
class Field:
    """One array of a slab: `axes` come first, then `shape`."""

    name: str
    axes: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Schema:
    """All fields of a slab of T rows and B environments."""

    n_steps: int
    n_envs: int
    fields: tuple[Field, ...]
    leaves: tuple[str, ...]
    """The fields that together are an observation; each has a last_ and a final_ field beside it."""
    stacked: tuple[str, ...] = ()
    """Those of which the newest frame of a stack is stored; each has a past_ field too (stacks)."""

    def full_shape(self, field: Field) -> tuple[int, ...]:
        """The array's shape, axes included. F is T * B: every row of a slab may end in a truncation."""
        sizes = {"T": self.n_steps, "B": self.n_envs, "F": self.n_steps * self.n_envs}
        return tuple(sizes[axis] for axis in field.axes) + field.shape

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of every field, each on a cache line of its own."""
        offsets, position = {}, 0
        for field in self.fields:
            offsets[field.name] = position
            size = math.prod(self.full_shape(field)) * np.dtype(field.dtype).itemsize
            position += -(-size // ALIGNMENT) * ALIGNMENT
        offsets[""] = position
        return offsets

    @property
    def size_bytes(self) -> int:
        """Bytes of all fields together."""
        return self.offsets[""]

    @cached_property
    def state_size(self) -> int:
        """How many numbers a recurrent policy remembers of an environment; 0 if it is none."""
        return sum(field.shape[0] for field in self.fields if field.name == STATE)

    @cached_property
    def fingerprint(self) -> int:
        """63 bits that two sides compare before they share a slab."""
        text = json.dumps([self.n_steps, self.n_envs, [list(vars(f).values()) for f in self.fields]])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def rollout_schema(
    observation: ObservationSpace, action: Space, n_steps: int, n_envs: int, state_size: int = 0
) -> Schema:
    """The schema of a rollout: raw observations and rewards, what the policy did, how episodes ran."""
    leaves = [(name, stored_shape(leaf), leaf.dtype) for name, leaf in leaves_of(observation).items()]
    stacks = {name: stack_of(leaf) for name, leaf in leaves_of(observation).items() if stack_of(leaf)}
    return Schema(
        n_steps,
        n_envs,
        (
            # Written by the actor.
            *(Field(name, "TB", shape, dtype) for name, shape, dtype in leaves),
            Field("action", "TB", shape_of(action), action.dtype),
            Field("reward", "TB", (), "float32"),
            Field("terminated", "TB", (), "bool"),
            Field("truncated", "TB", (), "bool"),
            Field("valid", "TB", (), "bool"),
            Field("episode", "TB", (), "int64"),
            Field("step", "TB", (), "int32"),
            Field("version", "T", (), "int64"),
            *(Field(f"last_{name}", "B", shape, dtype) for name, shape, dtype in leaves),
            *(
                Field(f"past_{name}", "B", (stacks[name] - 1, *shape), dtype)
                for name, shape, dtype in leaves
                if name in stacks
            ),
            *(Field(name, "B", (state_size,), "float32") for name in (STATE, f"last_{STATE}") if state_size),
            Field("noise_counter", "B", (), "int64"),
            Field("step_ns", "B", (), "int64"),  # that a step takes, on average of a few rows; 0: not known
            Field("final_row", "F", (), "int64"),  # t * B + b of each recorded final observation
            *(Field(f"final_{name}", "F", shape, dtype) for name, shape, dtype in leaves),
            # Written by the reader's completion pass.
            Field("log_prob", "TB", (), "float32"),
            Field("value", "TB", (), "float32"),
            Field("bootstrap_value", "TB", (), "float32"),
            Field("last_value", "B", (), "float32"),
        ),
        tuple(leaves_of(observation)),
        tuple(stacks),
    )


def state_leaf(state_size: int, *axes: int) -> Leaves:
    """Memory for what a recurrent policy remembers with these leading axes, at the start of an episode; by its name."""
    return {STATE: np.zeros((*axes, state_size), np.float32)} if state_size else {}


def explain_difference(ours: Schema, theirs: Schema) -> str | None:
    """The first thing in which two schemas differ, in words; None if they agree."""
    for name in ("n_steps", "n_envs"):
        if getattr(ours, name) != getattr(theirs, name):
            return f"{name}: expected {getattr(ours, name)}, got {getattr(theirs, name)}"
    mine, other = {f.name: f for f in ours.fields}, {f.name: f for f in theirs.fields}
    for name in mine | other:
        if name not in other:
            return f"field '{name}': expected {mine[name]}, got none"
        if name not in mine:
            return f"field '{name}': expected none, got {other[name]}"
        if mine[name] != other[name]:
            return f"field '{name}': expected {mine[name]}, got {other[name]}"
    if ours != theirs:
        return "the order of the fields"
    return None
