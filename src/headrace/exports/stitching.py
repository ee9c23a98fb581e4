"""Whole episodes from the batches of a collector: rows are kept per environment until their episode ends.

    batch [T, B] --take--> per environment, rows of its episode --it ends--> Stitched, without its last observation

Holds one unfinished episode per environment. An episode whose beginning was not seen is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.spaces import Leaves

Array = npt.NDArray[Any]
_COLUMNS = ("action", "reward", "version", "log_prob", "value")


@dataclass(frozen=True)
class Stitched:
    """An episode as batches hold it: observations of its T steps, and the last one only if a limit cut it off."""

    env_index: int
    episode: int
    terminated: bool
    truncated: bool
    leaves: Leaves
    columns: dict[str, Array]
    final: Leaves | None


class Stitching:
    """Batches of one collector, in their order."""

    def __init__(self) -> None:
        self._parts: dict[int, list[dict[str, Array]]] = {}

    def take(self, batch: Any) -> Iterator[Stitched]:
        """The episodes that end in this batch, environment after environment."""
        ended = (batch.terminated | batch.truncated) & batch.valid
        for env in range(batch.n_envs):
            start = 0
            for row in np.flatnonzero(ended[:, env]).tolist():
                self._keep(batch, env, start, row + 1)
                start = row + 1
                parts = self._parts.pop(env, [])
                if parts and parts[0]["step"][0] == 0:
                    yield _stitched(batch, env, row, parts)
            self._keep(batch, env, start, batch.n_steps)

    def _keep(self, batch: Any, env: int, start: int, stop: int) -> None:
        rows = start + np.flatnonzero(batch.valid[start:stop, env])
        if len(rows):
            arrays = {"step": batch.step, **{name: getattr(batch, name) for name in _COLUMNS}}
            arrays |= {f"leaf {name}": leaf for name, leaf in batch.leaves.items()}
            self._parts.setdefault(env, []).append({name: array[rows, env] for name, array in arrays.items()})  # copies


def _stitched(batch: Any, env: int, row: int, parts: list[dict[str, Array]]) -> Stitched:
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    number = np.flatnonzero(batch.final_row == row * batch.n_envs + env)
    final = {name: leaf[number[0]].copy() for name, leaf in batch.final_leaves.items()} if len(number) else None
    leaves = {name: joined[f"leaf {name}"] for name in batch.leaves}
    return Stitched(
        env, int(batch.episode[row, env]), bool(batch.terminated[row, env]), bool(batch.truncated[row, env]), leaves,
        {name: joined[name] for name in _COLUMNS}, final,
    )  # fmt: skip
