"""Seconds beside a run: none is lost and none is reported twice, however seldom records are written."""

from __future__ import annotations

import pytest

from headrace.telemetry.spent import Spent


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("interval", [1, 3, 10])
def test_all_seconds_are_in_the_records_that_are_written(interval: int) -> None:
    clock = Clock()
    spent, reported, pending, counted = Spent(clock), 0.0, 0, 0.0
    for update in range(1, 31):
        with spent("evaluation"):
            clock.now_s += update
        counted += update
        means, _ = spent.per_update()
        pending += 1
        if update % interval == 0:
            reported += pending * sum(means.values())
            pending = 0
            spent.written()
            with spent("log"):  # costs time after its record was made: it is in the next one
                clock.now_s += 0.5
            counted += 0.5
    assert reported == pytest.approx(counted - 0.5)


def test_the_seconds_of_one_update() -> None:
    clock = Clock()
    spent = Spent(clock)
    with spent("view"):
        clock.now_s += 2.0
    assert spent.per_update() == ({"view": 2.0}, 2.0)
    assert spent.per_update() == ({"view": 1.0}, 0.0)  # a mean of two, of which the last had none
