"""What lies where in a slab's bytes: the words of its header, its fields as arrays, and its rows as views of them.

    [ header: 4 cache lines ][ field ][ field ] ...       the same bytes on the heap and in shared memory

The header has one writer per word: line 0 (what lies here) and line 1 (for whom) are written by the owner of the ring
when it leases the slab, lines 2 and 3 by the actor that fills it.
Used when a slab is created or attached to; rows are all that environments see of one. Does not know what is done with
a slab, nor who may write it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import SchemaError
from headrace.memory.schema import ALIGNMENT, Schema
from headrace.memory.spaces import Leaves

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


def slab_bytes(schema: Schema) -> int:
    """Bytes of one slab, header included."""
    return HEADER_BYTES + schema.size_bytes


def header_of(schema: Schema, buffer: memoryview, *, create: bool) -> npt.NDArray[np.int64]:
    """The header's words: written, or refused if they are not those of a slab of this schema."""
    if len(buffer) < slab_bytes(schema):
        raise SchemaError(f"a slab of this schema needs {slab_bytes(schema)} bytes, got {len(buffer)}")
    header: npt.NDArray[np.int64] = np.frombuffer(buffer, np.int64, HEADER_BYTES // 8)
    if create:
        header[:] = 0
        header[Word.MAGIC] = MAGIC
        header[Word.FINGERPRINT] = schema.fingerprint
    elif header[Word.MAGIC] != MAGIC or header[Word.FINGERPRINT] != schema.fingerprint:
        raise SchemaError(
            f"the block is no slab of this schema: expected fingerprint {schema.fingerprint:x}, "
            f"got {int(header[Word.FINGERPRINT]):x}; both sides must be built from the same configuration"
        )
    return header


def arrays_of(schema: Schema, buffer: memoryview) -> dict[str, Array]:
    """Every field as a view of the block."""
    return {
        field.name: np.ndarray(schema.full_shape(field), field.dtype, buffer, HEADER_BYTES + schema.offsets[field.name])
        for field in schema.fields
    }


def rows_of(arrays: dict[str, Array], obs: list[Leaves]) -> list[Row]:
    """The rows between each observation and the next."""
    fields = {name: arrays[name] for name in Row._fields[1:-2]}  # all but the observations
    return [
        Row(
            obs=obs[t],
            next_obs=obs[t + 1],
            next_flat=flat(obs[t + 1]),
            **{name: array[t] for name, array in fields.items()},
        )
        for t in range(len(obs) - 1)
    ]


def flat(leaves: Leaves) -> dict[str, Any]:
    """Their memory as one axis."""
    return {name: leaf.reshape(-1).data for name, leaf in leaves.items()}
