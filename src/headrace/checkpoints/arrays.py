"""Array files that may come from elsewhere, looked at before an array is made of them.

    *.safetensors --read_tensors--> arrays      evaluations.npz --read_columns--> three lists

A header says how large an array is; here it must agree with the bytes that are there, so that a small file can't ask
for gigabytes. Raises ValueError and OSError with a reason. Does not know what the arrays mean.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from headrace.files import parse_object, read_regular

Array = npt.NDArray[Any]

_ITEM_BYTES = {
    "BOOL": 1, "I8": 1, "U8": 1, "I16": 2, "U16": 2, "F16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_MAX_HEADER_BYTES = 16 << 20
_MAX_EVALUATION_BYTES = 64 << 20


def read_tensors(data: bytes) -> dict[str, Array]:
    """The arrays of a safetensors file whose header fits its bytes."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"its header claims {length:,} bytes, the file has {max(0, len(data) - 8):,} after its length")
    header = parse_object(data[8 : 8 + length])
    header.pop("__metadata__", None)
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: _start(item[1])):
        end = _require_entry(name, entry, end)
    if end != len(data) - 8 - length:
        raise ValueError(f"its header describes {end:,} bytes of arrays, the file has {len(data) - 8 - length:,}")
    try:
        return load_arrays(data)
    except (SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _start(entry: Any) -> int:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(one) is int for one in offsets):
        raise ValueError("its header has an array without a place")
    return int(offsets[0])


def _require_entry(name: str, entry: dict[str, Any], expected_start: int) -> int:
    (start, end), dtype, shape = entry["data_offsets"], entry.get("dtype"), entry.get("shape")
    is_shape = isinstance(shape, list) and len(shape) <= 16 and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES or not is_shape:
        raise ValueError(f"array {name[:80]!r}: expected a known dtype and a shape, got {str((dtype, shape))[:80]}")
    if start != expected_start or end - start != math.prod(shape or []) * _ITEM_BYTES[dtype]:
        raise ValueError(f"array {name[:80]!r}: its place [{start}, {end}] does not fit its shape")
    return int(end)


def read_columns(path: Path) -> list[list[Any]]:
    """timesteps, results and ep_lengths of an evaluations.npz; as many rows of each."""
    data = read_regular(path, _MAX_EVALUATION_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            columns = [_column(archive, f"{name}.npy", len(data)) for name in ("timesteps", "results", "ep_lengths")]
    except (KeyError, NotImplementedError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    timesteps, results, lengths = columns
    if timesteps.ndim != 1 or results.ndim != 2 or results.shape != lengths.shape or len(results) != len(timesteps):
        raise ValueError("expected a row of results and of ep_lengths for each of the timesteps")
    if timesteps.dtype.kind not in "iu" or lengths.dtype.kind not in "iu" or not np.isfinite(results).all():
        raise ValueError("expected whole numbers, finite in results")
    return [column.tolist() for column in columns]


def _column(archive: zipfile.ZipFile, name: str, file_bytes: int) -> Array:
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > file_bytes:
        raise ValueError(f"{name}: expected it stored as it is, as numpy.savez does")
    member = io.BytesIO(archive.read(entry))
    version = np.lib.format.read_magic(member)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name}: unknown version {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(member)
    rest = member.read()
    if is_fortran or dtype.kind not in "iuf" or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"{name}: its header does not fit its bytes")
    return np.frombuffer(rest, dtype).reshape(shape)
