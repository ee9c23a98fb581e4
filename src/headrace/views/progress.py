"""What a running view remembers of the records so far, and what it says about them.

    record ──> Progress.add ──> latest numbers · recent speed and time split · remaining time · trace of the return
                                     └──> plain_line: one line of text for logs

Pure: no clock, no terminal. Times are those the records carry. This file does not know how often anything is drawn.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from headrace.telemetry.sinks import STEP_TAG, Record
from headrace.views.number_format import decimal, whole
from headrace.views.time_split import PHASES, time_shares, whole_percentages

# One update's speed and split jump about; the last ten seconds are steady and still current.
RECENT_S = 10.0

_ELAPSED_TAG = "time/time_elapsed"
_RETURN_TAG = "rollout/ep_rew_mean"
_ALWAYS_SAID = ("env", "inference", "sgd")
_WORTH_SAYING_PERCENT = 10


class Curve:
    """The whole course of one number in bounded memory: when it is full, neighbours are averaged in pairs."""

    def __init__(self, max_points: int = 512) -> None:
        self._max_points = max_points
        self._points: list[float] = []
        self._stride = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self._stride:
            return
        self._points.append(_mean(self._pending))
        self._pending.clear()
        if len(self._points) == self._max_points:
            self._points = [_mean(self._points[i : i + 2]) for i in range(0, self._max_points, 2)]
            self._stride *= 2

    def resampled(self, num_points: int) -> list[float]:
        """At most num_points averages, oldest first."""
        points = self._points + ([_mean(self._pending)] if self._pending else [])
        if len(points) <= num_points:
            return points
        edges = [round(i * len(points) / num_points) for i in range(num_points + 1)]
        return [_mean(points[start:stop]) for start, stop in pairwise(edges)]


class Progress:
    """The state of a run as its records tell it."""

    def __init__(self, total_timesteps: int) -> None:
        self.total_timesteps = total_timesteps
        self.latest: Record = {}  # of every tag the last value seen; rollout/* and eval/* are not in every record
        self.returns = Curve()
        self._recent: deque[Record] = deque()

    def add(self, record: Record) -> None:
        self.latest.update(record)
        self.returns.add(record.get(_RETURN_TAG, math.nan))
        self._recent.append(record)
        newest_s = record.get(_ELAPSED_TAG, 0.0)
        while len(self._recent) > 2 and newest_s - self._recent[1].get(_ELAPSED_TAG, 0.0) >= RECENT_S:
            self._recent.popleft()

    @property
    def steps(self) -> int:
        return int(self.latest.get(STEP_TAG, 0))

    @property
    def fraction(self) -> float:
        return min(1.0, self.steps / self.total_timesteps) if self.total_timesteps > 0 else 1.0

    @property
    def sps(self) -> float | None:
        """Steps per second over the recent updates; of the only update, while there is one."""
        if len(self._recent) >= 2:
            first, last = self._recent[0], self._recent[-1]
            elapsed_s = last.get(_ELAPSED_TAG, 0.0) - first.get(_ELAPSED_TAG, 0.0)
            if elapsed_s > 0.0:
                return (last.get(STEP_TAG, 0) - first.get(STEP_TAG, 0)) / elapsed_s
        return self.latest.get("headrace/sps", self.latest.get("time/fps"))

    @property
    def remaining_s(self) -> float | None:
        sps = self.sps
        if sps is None or not sps > 0.0:
            return None
        return max(0, self.total_timesteps - self.steps) / sps

    @property
    def percentages(self) -> dict[str, int]:
        """Phase name -> whole percentage of the recent time; they add to 100, or there are none."""
        return whole_percentages(time_shares(self._recent))

    def plain_line(self) -> str:
        """`step 20480/150000 (14%)  ret 43.1  len 43.1  sps 41,230  kl 0.008  env 54% inference 7% sgd 33%`"""
        parts = [f"step {self.steps}/{self.total_timesteps} ({self.fraction:.0%})"]
        for label, tag in (("ret", _RETURN_TAG), ("len", "rollout/ep_len_mean"), ("eval", "eval/mean_reward")):
            if tag in self.latest:
                parts.append(f"{label} {decimal(self.latest[tag])}")
        parts.append(f"sps {whole(self.sps)}")
        if "train/approx_kl" in self.latest:
            parts.append(f"kl {self.latest['train/approx_kl']:.3f}")
        percentages = self.percentages
        said = [
            f"{phase.name} {percentages[phase.name]}%"
            for phase in PHASES
            if percentages and (phase.name in _ALWAYS_SAID or percentages[phase.name] >= _WORTH_SAYING_PERCENT)
        ]
        if said:
            parts.append(" ".join(said))
        return "  ".join(parts)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
