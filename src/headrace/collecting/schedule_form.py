"""The form of a schedule.jsonl, checked before anything is sized by it.

The number of shards and the age of the oldest version decide how much memory a replay keeps, so both are bounded.
Raises ValueError.
"""

from __future__ import annotations

from typing import Any

MAX_SHARDS, MAX_AGE = 1 << 16, 1 << 12


def require_lines(lines: list[Any], n_steps: int) -> None:
    """Raise unless every line is an update that a run of these rows could have recorded."""
    for number, line in enumerate(lines):
        if not isinstance(line, dict) or not isinstance(line.get("slabs"), list):
            raise ValueError(f"line {number + 1}: expected version, shards and slabs")
        _require(line.get("version"), 0, 1 << 62, f"line {number + 1}: version")
        _require(line.get("shards"), 1, MAX_SHARDS, f"line {number + 1}: shards")
        for slab in line["slabs"]:
            _require_slab(slab, line, n_steps, f"line {number + 1}: slab")


def _require_slab(slab: Any, line: dict[str, Any], n_steps: int, where: str) -> None:
    if not isinstance(slab, list) or len(slab) != 3 or not isinstance(slab[2], list) or not slab[2]:
        raise ValueError(f"{where}: expected shard, sequence and versions")
    _require(slab[0], 0, line["shards"] - 1, f"{where}: shard")
    _require(slab[1], 0, 1 << 62, f"{where}: sequence")
    next_row = 0
    for run in slab[2]:
        if not isinstance(run, list) or len(run) != 2:
            raise ValueError(f"{where}: expected [first row, version], got something else")
        _require(run[0], next_row, n_steps - 1 if next_row else 0, f"{where}: first row")
        _require(run[1], max(0, line["version"] - MAX_AGE), 1 << 62, f"{where}: version of a row")
        next_row = run[0] + 1


def _require(value: Any, least: int, most: int, where: str) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{where}: expected a whole number from {least} to {most}, got {str(value)[:80]}")
