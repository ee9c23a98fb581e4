"""What an actor looks at before it commits a slab: numbers that are finite, observations that lie within their space.

    slab --Inspection--> NaN or infinity -> NumericsError · outside of its Box -> EnvError, or a word in the header
                         dropped episodes: all of their rows in this slab are invalid · what was mended -> the header

The header's words say what happened, and the reader reports it once (collecting/notices). Looks at whole slabs with a
few array operations. Does not know policies, nor how anything is mended (envs/mended).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.acting.culprit import Culprit, is_finite
from headrace.envs.mended import Mended, Notes
from headrace.envs.vector_env import VectorEnv
from headrace.errors import EnvError
from headrace.memory.layout import Word
from headrace.memory.schema import DROPPED, DROPPED_END
from headrace.memory.slab import Slab
from headrace.memory.spaces import Box, ObservationSpace, Space, bounds, in_words, leaves_of

Array = npt.NDArray[Any]


class Inspection:
    """Looks at the slabs of one shard."""

    def __init__(self, culprit: Culprit, envs: VectorEnv, out_of_bounds: str = "warn") -> None:
        self._culprit, self._refuses = culprit, out_of_bounds == "refuse"
        self._outside = Outside(None if out_of_bounds == "ignore" else envs.observation_space)
        self._mended = envs if isinstance(envs, Mended) else None

    def __call__(self, slab: Slab) -> None:
        """Refuse a slab, or note what there is to say of it."""
        if self._mended is not None or not is_finite(slab, self._outside.finite) or self._outside.any(slab):
            self._look_closer(slab)

    def _look_closer(self, slab: Slab) -> None:
        if self._mended is not None:
            notes, self._mended.notes = self._mended.notes, Notes()
            drop_whole_episodes(slab)
            position, episode, step = notes.place or (0, 0, 0)
            dropped = int(np.isin(slab.step, (DROPPED, DROPPED_END)).sum())
            slab.header[Word.CLAMPED : Word.OUTSIDE] = notes.clamped, notes.dropped, dropped, position, episode, step
        if not is_finite(slab):
            raise self._culprit.not_finite(slab, slab.schema.n_steps)
        if self._outside.any(slab):
            if self._refuses:
                raise EnvError(self._outside.text(slab, self._culprit))
            slab.header[Word.OUTSIDE] = 1
            self._outside = Outside(None)  # one warning is enough


class Outside:
    """Observations that lie outside of their Box; of no space, none do. Choices are looked at in every row."""

    def __init__(self, space: ObservationSpace | None) -> None:
        leaves = {} if space is None else leaves_of(space)
        found = {name: _bounds_to_check(leaf) for name, leaf in leaves.items()}
        self._bounds = [(name, *both) for name, both in found.items() if both is not None]
        single = {name: low.ndim == high.ndim == 0 for name, low, high in self._bounds}
        self._looks = [
            (_beyond_one if single[name] else _beyond_each, name, low, high) for name, low, high in self._bounds
        ]
        self.finite = [name for name, *both in self._bounds if single[name] and np.isfinite(both).all()]
        """Leaves in which `any` finds a NaN or an infinity, too, so nothing else has to look for one."""

    def any(self, slab: Slab) -> bool:
        """Whether one does."""
        return any(is_beyond(slab.shown(name), low, high) for is_beyond, name, low, high in self._looks)

    def text(self, slab: Slab, culprit: Culprit) -> str:
        """The first one, in words: with the step that returned it."""
        for name, low, high in self._bounds:
            for where, leaf in _placed(slab, name, culprit):
                is_bad = (leaf < low) | (leaf > high)
                if is_bad.any():
                    index, *entry = np.argwhere(is_bad)[0].tolist()
                    least, most = (np.broadcast_to(one, leaf.shape[1:])[tuple(entry)] for one in (low, high))
                    at = f"entry {', '.join(map(str, entry))} is" if entry else "it is"
                    got = leaf[(index, *entry)]
                    return f"{where(index)} lies outside of its space: {at} {got}, expected {least} to {most}"
        raise AssertionError("called for a slab in which none does")


def drop_whole_episodes(slab: Slab) -> None:
    """Mark all rows of a dropped episode in this slab, not only that of its bad step."""
    ends = np.argwhere(slab.step == DROPPED_END)
    for t, env in ends.tolist():
        number = slab.episode[t, env]
        rows = np.flatnonzero(slab.episode[:t, env] == number)
        slab.valid[rows, env], slab.step[rows, env], slab.reward[rows, env] = False, DROPPED, 0.0
    if len(ends) and slab.final_count:
        keep = slab.valid.reshape(-1)[slab.final_row]
        for name in ("final_row", *(f"final_{leaf}" for leaf in slab.schema.leaves)):
            kept = slab.arrays[name][: len(keep)][keep]
            slab.arrays[name][: len(kept)] = kept
        slab.header[Word.FINAL_COUNT] = keep.sum()


def _beyond_each(arrays: list[Array], low: Array, high: Array) -> bool:
    return any((x < low).any() or (x > high).any() for x in arrays)


def _beyond_one(arrays: list[Array], low: Array, high: Array) -> bool:
    return not all(low <= x.min() and x.max() <= high for x in arrays)  # half the time; a NaN is beyond


def _placed(slab: Slab, name: str, culprit: Culprit) -> Iterator[tuple[Callable[[int], str], Array]]:
    """All observations of a slab, and how to name the place of one by its index."""
    what = in_words(name)
    yield lambda env: f"{culprit.place(env, slab, 0)}: the {what} before this step", slab.obs[name][0]
    for t, row in enumerate(slab.rows):
        yield partial(culprit.followed, slab=slab, t=t, name=name), row.next_obs[name]
    t_env = [divmod(row, slab.schema.n_envs) for row in slab.final_row.tolist()]
    yield lambda i: f"{culprit.place(t_env[i][1], slab, t_env[i][0])}: the final {what}", slab.final_obs[name]


def _bounds_to_check(space: Space) -> tuple[Array, Array] | None:
    """The bounds of a Box, as few numbers as say it all; None if its dtype can't hold anything outside."""
    if not isinstance(space, Box):
        return None
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "fiu":
        return None
    low, high = bounds(space)
    limits = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if (low <= limits[0]).all() and (high >= limits[1]).all():
        return None
    if len(space.low) == 1 and len(space.high) == 1 and low.size:
        return low.reshape(-1)[:1].reshape(()), high.reshape(-1)[:1].reshape(())
    return low, high
