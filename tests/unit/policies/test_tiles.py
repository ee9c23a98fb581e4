"""Tiles cover every row once, and their size does not depend on who hosts the environments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.tiles import SMALLEST_TILE, default_tile, spans
from support.generators import thorough


@thorough
@given(st.integers(0, 500), st.integers(1, 70))
def test_spans_cover_every_row_once_and_only_the_last_may_be_short(n_rows: int, tile: int) -> None:
    found = spans(n_rows, tile)
    assert [row for start, stop in found for row in range(start, stop)] == list(range(n_rows))
    assert all(stop - start == tile for start, stop in found[:-1])
    assert all(0 < stop - start <= tile for start, stop in found)


@thorough
@given(st.integers(1, 10_000), st.sampled_from([4, 8, 16, 64, 256]))
def test_the_default_tile_is_a_power_of_two_within_its_limits(n_envs: int, largest: int) -> None:
    tile = default_tile(n_envs, largest)
    assert tile & (tile - 1) == 0
    assert SMALLEST_TILE <= tile <= max(largest, SMALLEST_TILE)
    assert tile >= min(n_envs, largest), "one tile holds all environments where the policy allows it"
    assert tile == SMALLEST_TILE or tile // 2 < n_envs, "and no larger than that"


@pytest.mark.parametrize(("n_envs", "largest", "tile"), [(1, 64, 4), (8, 64, 8), (9, 64, 16), (64, 64, 64), (64, 8, 8)])
def test_some_defaults(n_envs: int, largest: int, tile: int) -> None:
    assert default_tile(n_envs, largest) == tile
