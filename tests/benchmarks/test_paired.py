"""paired.py's judgement: equal trees hold nearly always, slower ones do not, and noise is not taken for an answer."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("paired")


def rounds(paired: Any, rng: np.random.Generator, slower: float, noise: float = 0.005, count: int = 12) -> list[Any]:
    """Rounds whose processes and slices both vary by `noise`; new is slower by a factor."""
    played = []
    for _ in range(count):
        speeds = np.exp(noise * (rng.standard_normal((3, 1)) + rng.standard_normal((3, 8)))) * 1000.0
        speeds[1] *= 1.0 - slower
        played.append(paired.Round(*speeds.tolist()))
    return played


def share_that_holds(paired: Any, monkeypatch: pytest.MonkeyPatch, slower: float) -> float:
    factor = paired.factor(12)
    monkeypatch.setattr(paired, "factor", lambda count: factor)
    rng = np.random.default_rng(1)
    return float(np.mean([paired.Verdict.of(rounds(paired, rng, slower)).holds for _ in range(1000)]))


def test_equal_trees_hold(paired: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_that_holds(paired, monkeypatch, 0.0) > 0.985


def test_two_percent_are_seen(paired: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_that_holds(paired, monkeypatch, 0.02) < 0.05


def test_faster_holds(paired: Any) -> None:
    verdict = paired.Verdict.of(rounds(paired, np.random.default_rng(1), -0.2))
    assert verdict.holds
    assert verdict.ratio == pytest.approx(1.2, rel=0.01)


def test_a_drift_that_all_share_changes_nothing(paired: Any) -> None:
    one = paired.Round([100.0, 50.0, 200.0], [90.0, 45.0, 180.0], [100.0, 50.0, 200.0])
    assert (math.exp(one.result), one.control) == (pytest.approx(0.9), 0.0)


@pytest.mark.parametrize(("noise", "count"), [(0.2, 12), (0.005, 2)])
def test_noise_and_few_rounds_claim_nothing(paired: Any, noise: float, count: int) -> None:
    verdict = paired.Verdict.of(rounds(paired, np.random.default_rng(1), 0.3, noise, count))
    assert verdict.holds is None
    assert "none" in verdict.goal


def test_both_files_name_the_same_workloads(paired: Any) -> None:
    assert tuple(importlib.import_module("paired_workloads").WORKLOADS) == paired.WORKLOADS
    assert set(paired.IN_SMOKE) <= set(paired.WORKLOADS)


def test_a_contender_that_fails_says_why(paired: Any) -> None:
    wanted = pytest.raises(paired.ContenderError, match=r"ended: .*KeyError: 'no such workload'")
    with paired.Contender(BENCHMARKS.parent / "src", "no such workload") as one, wanted:
        one.wait_ready()
