"""Frame stacks, stored once: a slab keeps the newest frame of each stack, and whoever reads the slab rebuilds them.

    environment: stacks [B, k, ...] --keep--> newest frames [T, B, ...], and the k - 1 frames before row 0
    reader:      frames, steps in the episode --rebuild--> stacks [T, B, k, ...], bit for bit

A stack holds the last k frames of an episode. At the beginning of one its first frame stands for those that are missing
(`padding_type="reset"` of Gymnasium's FrameStackObservation), so the step in the episode says where each frame lies.
The policy acts on the stacks that the environment returned. While a slab is filled, each is held against the one before
it: an environment that changes a frame after it was shown does not stack what it showed (`torn`).
Does not know which spaces are stacks (spaces), nor who fills a slab.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.memory.schema import DROPPED_END, Schema
from headrace.memory.spaces import Leaves

Array = npt.NDArray[Any]


class Stacks:
    """The frame stacks of one slab's arrays."""

    def __init__(self, schema: Schema, arrays: Mapping[str, Array]) -> None:
        self._schema, self._arrays = schema, arrays
        self._shown: dict[str, list[Array]] = {}  # the stacks of two rows in turn: memory of whoever fills the slab
        for name in schema.stacked:
            past = arrays[f"past_{name}"]
            shape = (len(past), past.shape[1] + 1, *past.shape[2:])
            self._shown[name] = [np.empty(shape, past.dtype) for _ in range(2)]
        self.torn: tuple[int, int] | None = None
        """Row and environment of the first stack that does not go on from the one before it."""

    def shown(self, row: int) -> Leaves:
        """Where the environments write the stacks that row begins with, and the policy reads them."""
        return {name: both[row % 2] for name, both in self._shown.items()}

    def keep(self, row: int) -> None:
        """Store what is new in the stacks of a row; the row after the last one is that of the last observations."""
        arrays, is_first, is_last = self._arrays, row == 0, row == self._schema.n_steps
        if is_first:
            self.torn = None
        for name, both in self._shown.items():
            new, old = both[row % 2], both[(row - 1) % 2]
            if is_first:
                arrays[f"past_{name}"][...] = new[:, :-1]
            elif self.torn is None and not np.array_equal(new[:, :-1], old[:, 1:]):
                self._look_closer(row, new, old)
            (arrays[f"last_{name}"] if is_last else arrays[name][row])[...] = new[:, -1]

    def whole(self, final_count: int) -> tuple[Leaves, Leaves, Leaves]:
        """Stacks of all rows, last ones and final ones."""
        rows = self._arrays["final_row"][:final_count]
        all_obs: Leaves = {}
        last: Leaves = {}
        final: Leaves = {}
        for name in self._shown:
            obs, newest = self._rebuilt(name, 0), self._arrays[f"final_{name}"][:final_count, None]
            all_obs[name], last[name] = obs, self._last(name, obs[-1])
            final[name] = np.concatenate([obs.reshape(-1, *obs.shape[2:])[rows, 1:], newest], 1)
        return all_obs, last, final

    def last(self) -> Leaves:
        """The stacks after the last row."""
        return {name: self._last(name, self._rebuilt(name, self._schema.n_steps - 1)[0]) for name in self._shown}

    def _look_closer(self, row: int, new: Array, old: Array) -> None:
        is_going_on = ~self._has_ended(row - 1)
        differs = (new[:, :-1] != old[:, 1:]).reshape(len(new), -1).any(1) & is_going_on
        if differs.any():
            self.torn = row - 1, int(np.argmax(differs))

    def _has_ended(self, row: int) -> Array:
        arrays = self._arrays
        ended = arrays["terminated"][row] | arrays["truncated"][row] | (arrays["step"][row] == DROPPED_END)
        return np.asarray(ended)

    def _rebuilt(self, name: str, start: int) -> Array:
        """Stacks of the rows from `start` on."""
        frames, past, steps = self._arrays[name], self._arrays[f"past_{name}"], self._arrays["step"]
        n_steps, before = len(frames), past.shape[1]
        out = np.empty((n_steps - start, past.shape[0], before + 1, *past.shape[2:]), past.dtype)
        for back in range(before + 1):  # how many rows ago the frame was the newest one
            at, earliest = before - back, min(max(start, back), n_steps)
            out[earliest - start :, :, at] = frames[max(earliest - back, 0) : max(n_steps - back, 0)]
            for row in range(start, min(back, n_steps)):
                out[row - start, :, at] = past[:, before + row - back]
        t, env = np.nonzero(steps[start:] < before)
        t += start
        step = np.maximum(steps[t, env], 0)  # negative: of a dropped episode, which nobody learns from
        for at in range(before):
            is_missing = (step < before - at) & (t >= step)
            rows, envs = t[is_missing], env[is_missing]
            out[rows - start, envs, at] = frames[rows - step[is_missing], envs]
        return out

    def _last(self, name: str, of_last_row: Array) -> Array:
        newest = self._arrays[f"last_{name}"][:, None]
        last = np.concatenate([of_last_row[:, 1:], newest], 1)
        has_ended = self._has_ended(self._schema.n_steps - 1)
        last[has_ended] = newest[has_ended]
        return last
