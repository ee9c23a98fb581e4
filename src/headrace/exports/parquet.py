"""Steps as a Parquet file, a step a row. Row groups are written as they fill, so memory does not grow with the file.

    Episode or rows of a batch --columns--> table --some MiB of them--> a row group --finish--> renamed to its name

    env_index · episode · step · seed · version · observation · action · policy_action · reward · terminated ·
    truncated · log_prob · value · final_observation

Arrays are lists of fixed size, images are bytes; the file's metadata has the spaces, with their shapes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.actions import sender
from headrace.errors import UsageError
from headrace.exports.episode import Episode, writing
from headrace.memory.spaces import Box, Leaves, ObservationSpace, Space, encode, in_words, leaves_of, shape_of

Array = npt.NDArray[Any]

FORMAT = 1
METADATA_KEY = b"headrace"
_GROUP_BYTES, _GROUP_ROWS = 32 << 20, 1 << 16


class ParquetFile:
    """One file."""

    def __init__(self, path: Path, observation: ObservationSpace, action: Space, about: Mapping[str, Any]) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise UsageError(f"{path}: Parquet needs pyarrow: pip install 'headrace[parquet]'") from error
        self._pa, self._path = pa, path
        self._observation, self._action, self._send = leaves_of(observation), action, sender(action)
        spaces = {"observation_space": encode(observation), "action_space": encode(action)}
        described = json.dumps({"format": FORMAT, **about, **spaces})
        self._schema = pa.schema(self._fields(), metadata={METADATA_KEY: described})
        self._waiting: list[Any] = []
        self._rows = self._bytes = 0
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        with writing(str(path)):
            self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd")

    def add(self, episode: Episode) -> None:
        """Its steps, one after the other."""
        count = episode.length
        terminated, truncated = episode.flags
        columns = {
            "env_index": np.full(count, episode.env_index),
            "episode": np.full(count, episode.episode),
            "step": np.arange(count),
            "seed": np.full(count, episode.seed),
            "version": episode.version,
            "action": episode.action,
            "reward": episode.reward,
            "terminated": terminated,
            "truncated": truncated,
            "log_prob": episode.log_prob,
            "value": episode.value,
        }
        before = {name: leaf[:-1] for name, leaf in episode.leaves.items()}
        final = {name: leaf[-1:] for name, leaf in episode.leaves.items()}
        self.add_rows(columns, before, np.array([count - 1]), final)

    def add_rows(self, columns: Mapping[str, Array | None], leaves: Leaves, final_row: Array, final: Leaves) -> None:
        """Any steps, by column; `final` are the observations after the rows `final_row`, where episodes ended."""
        pa = self._pa
        count = len(next(iter(leaves.values())))
        action = columns["action"]
        assert action is not None
        found = {**columns, "action": self._send(action)}
        if isinstance(self._action, Box):
            found["policy_action"] = action
        places: list[int | None] = [None] * count
        for number, row in enumerate(final_row.tolist()):
            places[row] = number
        arrays = {
            **{name: self._array(name, array, count) for name, array in found.items()},
            **{self._column(name): self._array(self._column(name), leaf, count) for name, leaf in leaves.items()},
            **{
                f"final_{column}": self._array(column, leaf, len(leaf)).take(pa.array(places, pa.int32()))
                for column, leaf in ((self._column(name), leaf) for name, leaf in final.items())
            },
        }
        table = pa.Table.from_arrays([arrays[field.name] for field in self._schema], schema=self._schema)
        self._waiting.append(table)
        self._rows, self._bytes = self._rows + count, self._bytes + table.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Let it appear under its name."""
        self._write_group()
        with writing(str(self._path)):
            self._writer.close()
            os.replace(self._temporary, self._path)

    def discard(self) -> None:
        """Leave nothing."""
        self._waiting = []
        with suppress(OSError):  # of what could not be written before either
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def _write_group(self) -> None:
        if self._waiting:
            with writing(str(self._path)):
                self._writer.write_table(self._pa.concat_tables(self._waiting))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def _column(self, leaf: str) -> str:
        """The column of an observation's leaf: observation, or observation/NAME of a Dict."""
        return in_words(leaf)

    def _fields(self) -> list[Any]:
        pa = self._pa
        whole, flag, number = pa.int64(), pa.bool_(), pa.float32()
        seen = {self._column(name): self._type(space) for name, space in self._observation.items()}
        action = self._type(self._action)
        return [
            pa.field("env_index", pa.int32(), nullable=False),
            *(pa.field(name, whole, nullable=False) for name in ("episode", "step", "seed", "version")),
            *(pa.field(name, kind, nullable=False) for name, kind in seen.items()),
            pa.field("action", action, nullable=False),
            *([pa.field("policy_action", action, nullable=False)] if isinstance(self._action, Box) else []),
            pa.field("reward", number, nullable=False),
            pa.field("terminated", flag, nullable=False),
            pa.field("truncated", flag, nullable=False),
            pa.field("log_prob", number),
            pa.field("value", number),
            *(pa.field(f"final_{name}", kind) for name, kind in seen.items()),
        ]

    def _type(self, space: Space) -> Any:
        pa, shape, dtype = self._pa, shape_of(space), np.dtype(space.dtype)
        if not shape:
            return pa.from_numpy_dtype(dtype)
        size = math.prod(shape)
        return pa.binary(size) if dtype == np.uint8 and len(shape) > 1 else pa.list_(pa.from_numpy_dtype(dtype), size)

    def _array(self, name: str, values: Array | None, count: int) -> Any:
        """A column of `count` rows as its type wants it."""
        pa, kind = self._pa, self._schema.field(name).type
        if values is None:
            return pa.nulls(count, kind)
        if pa.types.is_fixed_size_binary(kind):
            held = pa.py_buffer(np.ascontiguousarray(values).tobytes())  # a copy: a batch's memory is reused
            return pa.FixedSizeBinaryArray.from_buffers(kind, count, [None, held])
        if pa.types.is_fixed_size_list(kind):
            flat = pa.array(np.array(values).reshape(-1), kind.value_type)
            return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
        return pa.array(np.array(values), kind)
