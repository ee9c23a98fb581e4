"""Hypothesis strategies, and how long a property may take: `@thorough`, `@quick`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st

from headrace.memory.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

thorough = settings(deadline=None, max_examples=150)
quick = settings(deadline=None, max_examples=40)

shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    shape = draw(shapes)
    dtype = draw(st.sampled_from(["float32", "float64", "uint8", "int64"]))
    count = draw(st.sampled_from([1, int(np.prod(shape))]))
    numbers = st.floats(allow_nan=False, width=32) if dtype.startswith("float") else st.integers(0, 255).map(float)
    bound = st.lists(numbers, min_size=count, max_size=count).map(tuple)
    return Box(shape, dtype, draw(bound), draw(bound))


@st.composite
def multi_discretes(draw: st.DrawFn) -> MultiDiscrete:
    shape = draw(shapes)
    count = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count).map(tuple))
    start = draw(st.lists(st.integers(-5, 5), min_size=count, max_size=count).map(tuple))
    return MultiDiscrete(nvec, shape, start)


spaces: st.SearchStrategy[Space] = st.one_of(
    boxes(),
    st.builds(Discrete, st.integers(1, 1000), st.integers(-10, 10)),
    multi_discretes(),
    st.builds(MultiBinary, shapes),
)


class Flags(NamedTuple):
    """Flags of [T, B] rows in the normal form; what an invalid row's other flags say must not matter."""

    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, int]:
        return self.valid.shape  # type: ignore[return-value]

    def rows(self, start: int, stop: int) -> Flags:
        return Flags(self.terminated[start:stop], self.truncated[start:stop], self.valid[start:stop])


@st.composite
def flags(draw: st.DrawFn, max_steps: int = 12, max_envs: int = 4, skips_rows: bool | None = None) -> Flags:
    """Random chains: an end of any kind at any row; after an end, sometimes a row that is none."""
    T, B = draw(st.integers(1, max_steps)), draw(st.integers(1, max_envs))
    rng = np.random.default_rng(draw(seeds))
    some_skip = draw(st.booleans()) if skips_rows is None else skips_rows
    p_end = draw(st.sampled_from([0.0, 0.15, 0.5, 0.9]))
    end = rng.random((T, B)) < p_end
    kind = rng.integers(1, 4, (T, B))  # bit 0: terminated, bit 1: truncated
    valid = np.ones((T, B), np.bool_)
    after_end = rng.random(B) < 0.3  # as if the slab before had ended with an end
    for t in range(T):
        valid[t] = ~(after_end & some_skip & (rng.random(B) < 0.7))
        after_end = end[t] & valid[t]
    noise = rng.integers(0, 4, (T, B))
    said = np.where(valid, np.where(end, kind, 0), noise)
    return Flags((said & 1).astype(np.bool_), (said & 2).astype(np.bool_), valid)


def floats_like(rng: np.random.Generator, shape: tuple[int, ...], scale: float = 0.5) -> npt.NDArray[Any]:
    """float32 numbers small enough that rounding a sum of a dozen of them stays below 1e-6."""
    return rng.uniform(-scale, scale, shape).astype(np.float32)
