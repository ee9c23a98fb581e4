"""The form of a frame of the journal on disk, held against its bytes before anything is made of it.

    head (JSON), body (bytes) --require_frame--> arrays, or a ValueError that names the entry

A CRC proves that a frame is as it was written, not that its numbers make sense: whoever writes a file writes its CRC as
well. Every length must agree with the bytes that are there. Does not know files or episodes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MOST = (1 << 62) - 1
_WHOLE = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8")  # as numpy spells them, little-endian
_ACTIONS = (*_WHOLE, "<f2", "<f4", "<f8", "|b1")
_DTYPES = {
    "episode": ("<u4",),
    "step": ("<u4",),
    "checksum": ("<u8",),
    "action": _ACTIONS,
    "invalid": ("<u4",),
    "end": ("<u4",),
    "end_flags": ("|u1",),
    "end_checksum": ("<u8",),
    "total_reward": ("<f8",),
}
_STARTS = {"start": ("<u4",), "start_digest": ("<u8",)}
_HEAD = {"update", "steps", "env_start", "worker", "action_dtype", "versions", "arrays"}


def require_frame(head: dict[str, Any], body: memoryview, has_starts: bool = True) -> dict[str, Array]:
    """The arrays of a frame; raises ValueError unless all of it fits together. Without starts, it has none of them."""
    if head.keys() != _HEAD:
        raise ValueError(f"expected {', '.join(sorted(_HEAD))} in a frame's head")
    for name in ("update", "steps", "env_start", "worker"):
        _require_whole(head[name], name)
    if head["action_dtype"] not in _ACTIONS:
        raise ValueError(f"action_dtype: expected a dtype of actions, got {str(head['action_dtype'])[:80]}")
    arrays = _arrays(head["arrays"], body, _DTYPES | _STARTS if has_starts else _DTYPES)
    if not has_starts:
        arrays |= {"start": np.empty(0, np.uint32), "start_digest": np.empty(0, np.uint64)}
    action = arrays["action"]
    if action.ndim < 2 or not action.size:
        raise ValueError("action: expected steps and environments")
    n_steps, n_envs = action.shape[:2]
    for name in ("episode", "step", "checksum"):
        if arrays[name].shape != (n_envs,):
            raise ValueError(f"{name}: expected {n_envs:,} numbers, got {arrays[name].shape}")
    num_ends = len(arrays["end"])
    for name in ("end", "end_flags", "end_checksum", "total_reward"):
        if arrays[name].shape != (num_ends,):
            raise ValueError(f"{name}: expected {num_ends:,} numbers, got {arrays[name].shape}")
    if arrays["start"].shape != arrays["start_digest"].shape:
        raise ValueError(f"start_digest: expected {arrays['start'].shape}, got {arrays['start_digest'].shape}")
    for name in ("end", "invalid", "start"):
        places = arrays[name]
        if places.ndim != 1 or (places.size and places.max() >= n_steps * n_envs):
            raise ValueError(f"{name}: expected rows of the rollout")
        if (places[1:] <= places[:-1]).any():
            raise ValueError(f"{name}: expected rows in order")
    if not np.isin(arrays["end_flags"], (1, 2, 3)).all() or np.isin(arrays["end"], arrays["invalid"]).any():
        raise ValueError("end_flags: expected terminated, truncated or both, in valid rows")
    _require_versions(head["versions"], n_steps)
    return arrays


def _arrays(listed: Any, body: memoryview, wanted: dict[str, tuple[str, ...]]) -> dict[str, Array]:
    if not isinstance(listed, list) or len(listed) != len(wanted):
        raise ValueError(f"arrays: expected {', '.join(wanted)}")
    arrays, start = {}, 0
    for one, (name, dtypes) in zip(listed, wanted.items(), strict=True):
        if not isinstance(one, list) or len(one) != 3 or one[0] != name or one[1] not in dtypes:
            raise ValueError(f"arrays: expected {name} as {' or '.join(dtypes)}, got {str(one)[:80]}")
        _, dtype, shape = one
        if not isinstance(shape, list) or not 1 <= len(shape) <= 16:
            raise ValueError(f"{name}: expected a shape, got {str(shape)[:80]}")
        for size in shape:
            _require_whole(size, f"{name}, its shape")
        count = math.prod(shape)
        size_bytes = count * np.dtype(dtype).itemsize
        if start + size_bytes > len(body):
            raise ValueError(f"{name}: expected {size_bytes:,} bytes, found {len(body) - start:,}")
        data = body[start : start + size_bytes]
        arrays[name] = np.frombuffer(data, dtype).reshape(shape) if count else np.empty(shape, dtype)
        start += size_bytes
    if start != len(body):
        raise ValueError(f"expected {start:,} bytes of arrays, found {len(body):,}")
    return arrays


def _require_versions(runs: Any, n_steps: int) -> None:
    if not isinstance(runs, list) or not runs or not all(isinstance(one, list) and len(one) == 2 for one in runs):
        raise ValueError("versions: expected [first row, version] pairs")
    last = -1
    for row, version in runs:
        _require_whole(version, "versions")
        if type(row) is not int or not last < row < n_steps or (last == -1 and row != 0):
            raise ValueError(f"versions: expected rows in order, got {str(row)[:80]}")
        last = row


def _require_whole(value: Any, name: str) -> None:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{name}: expected a whole number of at least 0, got {str(value)[:80]}")
