"""Each environment's time, from a row now and then."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.envs import step_times
from headrace.envs.step_times import StepTimes


def test_a_timed_row_returns_what_it_did_and_leaves_means(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0]
    monkeypatch.setattr(step_times, "now_ns", lambda: clock[0])

    def taking(ns: int) -> step_times.Step:
        def step(action: int) -> int:
            clock[0] += ns
            return action + ns

        return step

    times, out = StepTimes([taking(5), taking(70)]), np.full(2, -1)
    times.take(out)
    assert out.tolist() == [0, 0], "no row was timed yet"
    for _ in range(3):
        assert [step(1) for step in times.timed_row()] == [6, 71]
    times.take(out)
    assert out.tolist() == [5, 70]
    times.take(out)
    assert out.tolist() == [0, 0], "they are taken once"
