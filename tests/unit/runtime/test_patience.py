"""The limit follows the slowest that was seen, from the floor to the ceiling."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.patience import Patience
from support.generators import quick

seconds = st.floats(0.0, 1e4)


def test_before_anything_was_seen_the_ceiling_holds() -> None:
    patience = Patience(1.0, 60.0)
    assert patience.limit_s("step") == 60.0
    patience.took("setup", 0.1)
    assert patience.limit_s("step") == 60.0
    assert (patience.has_seen("step"), patience.has_seen("setup")) == (False, True)


def test_ten_times_the_slowest() -> None:
    patience = Patience(1.0, 60.0)
    for took_s, limit_s in ((0.01, 1.0), (0.5, 5.0), (0.2, 5.0), (3.0, 30.0), (7.0, 60.0)):
        patience.took("step", took_s)
        assert patience.limit_s("step") == limit_s


def test_kinds_are_apart() -> None:
    patience = Patience(1.0, 60.0)
    patience.took("setup", 4.0)
    patience.took("step", 0.3)
    assert (patience.limit_s("setup"), patience.limit_s("step")) == (40.0, 3.0)


@quick
@given(floor_s=st.floats(0.01, 100.0), span_s=st.floats(0.0, 1e3), took_s=st.lists(seconds, min_size=1), new_s=seconds)
def test_slow_is_not_hung(floor_s: float, span_s: float, took_s: list[float], new_s: float) -> None:
    """What takes ten times as long as the slowest is still within the limit, as far as the ceiling allows it."""
    ceiling_s = floor_s + span_s
    patience = Patience(floor_s, ceiling_s)
    for one in took_s:
        patience.took("step", one)
    limit_s = patience.limit_s("step")
    assert floor_s <= limit_s <= ceiling_s
    assert limit_s >= min(10 * max(took_s), ceiling_s)
    patience.took("step", new_s)
    assert patience.limit_s("step") >= limit_s, "it never shrinks"
