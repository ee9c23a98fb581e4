"""How far collecting may run ahead of learning, and when data is too old: arithmetic, checked number by number."""

from __future__ import annotations

import pytest

from headrace.pace import Pace


@pytest.mark.parametrize(
    ("updates", "max_lag", "per_update", "limit"),
    [(0, 0, 1, 1), (0, 0, 4, 4), (1, 0, 4, 8), (0, 1, 4, 8), (7, 2, 3, 30), (0, 5, 2, 12)],
)
def test_limit(updates: int, max_lag: int, per_update: int, limit: int) -> None:
    """One update's rollouts, and max_lag updates' more, beyond what was trained on."""
    pace = Pace(max_lag, per_update)
    assert pace.limit(updates) == limit
    for begun in range(limit + 1):
        assert pace.room(updates, begun) == limit - begun


@pytest.mark.parametrize(
    ("lag", "max_lag", "if_strict", "if_not"),
    [
        (-1, 0, False, False),
        (0, 0, False, False),
        (1, 0, True, False),
        (2, 0, True, True),
        (0, 2, False, False),
        (2, 2, False, False),
        (3, 2, True, False),
        (4, 2, True, True),
        (99, 2, True, True),
    ],
)
def test_is_too_old(lag: int, max_lag: int, if_strict: bool, if_not: bool) -> None:
    """Refused beyond max_lag; corrected as long as the weights are kept; gone after that, whoever learns."""
    pace = Pace(max_lag, 1)
    assert pace.is_too_old(lag, is_strict=True) == if_strict
    assert pace.is_too_old(lag, is_strict=False) == if_not
    assert if_not == (lag >= pace.versions_kept)


@pytest.mark.parametrize("max_lag", range(5))
def test_what_is_trained_on_can_be_completed(max_lag: int) -> None:
    """The versions kept are the present one and those before it; nothing older gets through."""
    pace = Pace(max_lag, 3)
    for is_strict in (True, False):
        for lag in range(10):
            assert lag < pace.versions_kept or pace.is_too_old(lag, is_strict)
