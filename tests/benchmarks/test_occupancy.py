"""agents.py's ruler of occupancy, on engines that are played in virtual time: good ones hold, each waste is seen.

64 episodes: 50 ms away ──> waiting ──> read, eight at a time ──> a slot: a token a pass ──> away ...
"""

from __future__ import annotations

import heapq
import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.agents.engines.protocol import EngineStatistics

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
LIVE, STEP_S, SLOTS = 64, 0.05, 32


@dataclass
class Engine:
    """About what the tiny model costs; and how it wastes time, if it does."""

    slots: int = SLOTS
    is_joined: bool = True  # else a batch is answered before others are read
    rest_s: float = 0.0  # before each round
    read_s: float = 1e-3  # of a prompt
    pass_s: float = 3.5e-4  # of a token each, beside what the rows cost
    clock_s: float = 0.0
    told: EngineStatistics = field(default_factory=EngineStatistics)

    def played(self, requests: int) -> Engine:
        """It, after so many answers."""
        rng = np.random.default_rng(0)
        away, waiting, speaking = [0.0] * LIVE, 0, list[int]()
        while self.told.requests < requests:
            while away and away[0] <= self.clock_s:
                heapq.heappop(away)
                waiting += 1
            if not waiting and not speaking:
                self.clock_s = away[0]
                continue
            self.clock_s += self.rest_s
            began = self.is_joined or not speaking
            reading = min(waiting, self.slots - len(speaking)) if began else 0
            waiting -= reading
            speaking += rng.integers(1, 18, reading).tolist()
            size, round_s = len(speaking), reading * self.read_s + self.pass_s + 2.5e-5 * len(speaking)
            self.clock_s += round_s
            speaking = [left - 1 for left in speaking if left > 1]
            for _ in range(size - len(speaking)):
                heapq.heappush(away, self.clock_s + STEP_S)
            was = self.told
            self.told = replace(
                was, requests=was.requests + size - len(speaking), batches=was.batches + 1, batched=was.batched + size,
                tokens=was.tokens + size, busy_s=was.busy_s + round_s, served_s=was.served_s + size * round_s,
            )  # fmt: skip
        return self


def claims(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    agents: Any = importlib.import_module("agents")
    engine.played(2500)
    found = agents.Occupancy(engine.told, engine.clock_s, LIVE, STEP_S, SLOTS).claims("here")
    return {one.name.removeprefix("here: "): one for one in found}


@pytest.mark.parametrize("costs", [(1e-4, 3.5e-4), (1e-3, 3.5e-4), (2e-3, 3.5e-4), (1e-3, 5e-3)])
def test_an_engine_that_wastes_nothing_holds(monkeypatch: pytest.MonkeyPatch, costs: tuple[float, float]) -> None:
    read_s, pass_s = costs
    found = claims(monkeypatch, Engine(read_s=read_s, pass_s=pass_s))
    assert all(one.holds in (True, None) for one in found.values()), found
    assert found["served at one time"].ratio < 1.01, "more can't be, but for those who are in it at the end"


@pytest.mark.parametrize(
    "engine",
    [Engine(slots=1), Engine(slots=8), Engine(rest_s=3e-3), Engine(is_joined=False, pass_s=5e-3)],
    ids=["one at a time", "few slots", "rests", "nobody joins, and answers take as long as steps"],
)
def test_waste_is_seen(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    served = claims(monkeypatch, engine)["served at one time"]
    assert served.holds is False, served


def test_rests_were_not_seen_by_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it is not judged: an engine that rests has fewer passes, and larger ones."""
    found = claims(monkeypatch, Engine(rest_s=3e-3))
    assert found["mean batch, by passes"].ratio > 0.95
    assert found["mean batch, by passes"].holds is None


def test_nobody_waits_for_a_script_but_for_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    agents: Any = importlib.import_module("agents")
    told = EngineStatistics(640, 10, 640, 640, busy_s=1.14, served_s=64 * 1.14)
    mean, served, passes = agents.Occupancy(told, 1.64, LIVE, STEP_S).claims("here")
    assert (mean.value, passes.value) == (pytest.approx(64), 64)
    assert served.value == pytest.approx(64 * 1.14 / 1.64)
    assert (mean.holds, served.holds, passes.holds) == (True, None, None)
    assert served.ratio == pytest.approx(1.0), "batches of 114 ms, then steps of 50: nobody waits"
