"""A race of candidates within a time: who is tried next, who is out, who has won, and why. Pure: time comes in.

    predictions ──next──> candidate ──(somebody tries it)──> add / fail ──next──> ... ──> None ──verdict──> the choice

First those are tried that promise most, places that were not tried yet before others, as long as what was measured so
far says that they could win. Then the fastest ones are tried again in turns, fewer and fewer of them, until the lead is
clear or the time is used. A single trial says little on a busy machine: those that differ are repeated, the median
counts, and what can't be told apart goes to the simplest. Knows no runs and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

from headrace.launch.tuning import Candidate

_EXPLORING = 0.6  # of the time, at most: then the best ones are compared
_HOPELESS, _HOPELESS_NEW = 0.85, 0.6  # of the best so far: what is expected to reach less is not tried; of new places
_NEW = 1.2  # what a place that was not tried yet may be better than its prediction
_RIVALS = {1: (6, 0.75), 2: (4, 0.85), 3: (3, 0.92)}  # trials so far: so many stay, that reach so much of the leader
_LAST_RIVALS = 2, 0.95
_MOST_DOUBT = 0.5  # by which these shares are lowered, if trials of one candidate differ so much
_MOST_TRIALS = 8
_LEAST_MARGIN, _LARGEST_MARGIN = 0.04, 0.07  # within which the simpler one is chosen
_USUAL, _START_S = 0.03, 0.5  # share of the time that a trial takes, until one was made; and of each process to start
_AS_GOOD = 0.9  # of the largest hope: those are tried in the order of what a trial costs


@dataclass(frozen=True)
class Row:
    """What was tried, and what came of it."""

    candidate: Candidate
    trials: tuple[float, ...]
    """Steps per second of each."""
    failure: str = ""

    @property
    def typical(self) -> float:
        """Steps per second."""
        return median(self.trials) if self.trials else 0.0

    @property
    def spread(self) -> float:
        """How far the middle trials are apart."""
        if len(self.trials) < 2:
            return 0.0
        middle = sorted(self.trials)[1:-1] if len(self.trials) > 3 else self.trials
        return (max(middle) - min(middle)) / self.typical


@dataclass(frozen=True)
class Verdict:
    """The choice, and why; None if nothing could be measured."""

    choice: Candidate | None
    sps: float
    why: str


class Race:
    """`first` is tried first and is what the others are compared with."""

    def __init__(self, predictions: Mapping[Candidate, float], first: Candidate, seconds: float) -> None:
        self._predictions, self._first, self._seconds = dict(predictions), first, seconds
        self._trials: dict[Candidate, list[float]] = {}
        self._failures: dict[Candidate, str] = {}
        self._took_s: dict[Candidate, list[float]] = {}
        self._again_s: dict[Candidate, float] = {}

    def next(self, elapsed_s: float) -> Candidate | None:
        """Who is to be tried now; None: it is over."""
        left_s = self._seconds - elapsed_s
        if not self._trials and not self._failures:
            return self._first if left_s > 0 else None
        if elapsed_s < _EXPLORING * self._seconds or not self._trials:
            untried = self._untried(left_s)
            if untried is not None:
                return untried
        rivals = self._rivals()
        if len(rivals) == 1 and len(self._trials[rivals[0]]) > 1:
            return None  # the lead is clear
        fitting = [one for one in rivals if self._cost_s(one) <= left_s]
        fewest = min(fitting, key=lambda one: len(self._trials[one]), default=None)  # the faster one of several
        return None if fewest is None or len(self._trials[fewest]) >= _MOST_TRIALS else fewest

    def add(self, one: Candidate, sps: float, took_s: float, again_s: float | None = None) -> None:
        """A trial that was made: what it reached, and the seconds that it took with all its preparations.

        `again_s`: what another one will take, if less, since a run that stays open is not started again.
        """
        self._trials.setdefault(one, []).append(sps)
        self._took_s.setdefault(one, []).append(took_s)
        self._again_s[one] = took_s if again_s is None else again_s

    def fail(self, one: Candidate, why: str) -> None:
        """A trial that came to nothing: this candidate is out."""
        self._failures[one] = why
        self._trials.pop(one, None)

    @property
    def racing(self) -> Collection[Candidate]:
        """Those that may be tried again."""
        return self._rivals()

    def expected(self, one: Candidate) -> float:
        """Steps per second: measured, or else predicted and corrected by how far its place was off."""
        if one in self._trials:
            return median(self._trials[one])
        return self._predictions[one] * (self._off(self._tried_at(one)) or self._off(list(self._trials)) or 1.0)

    def rows(self) -> list[Row]:
        """The fastest first, then what failed."""
        tried = [Row(one, tuple(trials)) for one, trials in self._trials.items()]
        tried.sort(key=lambda row: -row.typical)
        return tried + [Row(one, (), why) for one, why in self._failures.items()]

    def verdict(self) -> Verdict:
        """The simplest of those that can't be told apart from the fastest; `first` is always among the compared."""
        rows = [row for row in self.rows() if row.trials]
        if not rows:
            return Verdict(None, 0.0, "nothing could be measured in this time; give --tune-seconds more")
        most = max(len(row.trials) for row in rows)
        compared = [row for row in rows if len(row.trials) >= min(2, most) or row.candidate == self._first]
        best = max(compared, key=lambda row: row.typical)
        margin = min(max(best.spread / 2, _LEAST_MARGIN), _LARGEST_MARGIN)
        close = [row for row in compared if row.typical >= (1 - margin) * best.typical]
        chosen = min(close, key=lambda row: row.candidate.simplicity(self._first))
        why, seen_once = self._why(chosen, best), rows[0]  # the fastest, if no second trial of it could be made
        if seen_once.typical > best.typical:
            more = f"{_words(seen_once.candidate)} reached {seen_once.typical / chosen.typical:.2f}x of it"
            why += f"; {more} in a single trial, which does not count: give --tune-seconds more"
        return Verdict(chosen.candidate, chosen.typical, why)

    def _why(self, chosen: Row, best: Row) -> str:
        first = self._trials.get(self._first)
        if chosen.candidate == self._first:
            text = self._why_first()
        elif first is None:
            text = "the fastest of those that could be measured"
        else:
            text = f"{chosen.typical / median(first):.2f}x of {_words(self._first)}"
        if chosen is best:
            return text
        return f"{text}; {_words(best.candidate)} is not clearly faster ({best.typical / chosen.typical:.2f}x)"

    def _why_first(self) -> str:
        if len(self._trials) > 1:
            return "nothing that was tried is faster than what you would have had"
        if self._untried(math.inf) is not None:
            return "no other one could be tried in this time; give --tune-seconds more"
        return "it is what you would have had, and no other one that can be run promises to be faster"

    def _untried(self, left_s: float) -> Candidate | None:
        """What is expected to be fastest, with hope for places that were not tried, and beside the leader."""
        best = max((median(trials) for trials in self._trials.values()), default=0.0)
        hopes = {}
        for one in self._predictions:
            if one in self._trials or one in self._failures or self._cost_s(one) > left_s:
                continue
            is_new = not self._tried_at(one) and not self._failed_at(one)
            expected = self.expected(one)
            if expected >= (_HOPELESS_NEW if is_new else _HOPELESS) * best or self._is_beside_leader(one):
                hopes[one] = expected * (_NEW if is_new else 1.0)
        good = [one for one in hopes if hopes[one] >= _AS_GOOD * max(hopes.values())]
        return min(good, key=lambda one: (self._cost_s(one), -hopes[one]), default=None)

    def _rivals(self) -> list[Candidate]:
        """Those that could still be the fastest, the leader first: the more trials, the fewer of them."""
        order = sorted(self._trials, key=lambda one: -median(self._trials[one]))
        stay: list[Candidate] = []
        trust = 1.0 - self._doubt()
        for one in order:
            trials = self._trials[one]
            most, share = _RIVALS.get(min(len(trials), len(self._trials[order[0]])), _LAST_RIVALS)
            if len(stay) < most and median(trials) >= trust * share * median(self._trials[order[0]]):
                stay.append(one)
        return stay

    def _is_beside_leader(self, one: Candidate) -> bool:
        """The same place with twice or half as many environments: a prediction may miss where a curve bends."""
        leader = max(self._trials, key=lambda other: median(self._trials[other]), default=None)
        return (
            leader is not None
            and _place(leader) == _place(one)
            and one.n_envs
            in (
                2 * leader.n_envs,
                leader.n_envs // 2,
            )
        )

    def _doubt(self) -> float:
        """How far trials of one candidate are apart, typically."""
        repeated = [trials for trials in self._trials.values() if len(trials) > 1]
        apart = [(max(trials) - min(trials)) / max(trials) for trials in repeated]
        return min(median(apart), _MOST_DOUBT) if apart else 0.0

    def _tried_at(self, one: Candidate) -> list[Candidate]:
        """The same place with other numbers of environments."""
        return [other for other in self._trials if _place(other) == _place(one)]

    def _failed_at(self, one: Candidate) -> bool:
        return any(_place(other) == _place(one) for other in self._failures)

    def _off(self, ones: list[Candidate]) -> float | None:
        """What was measured over what was predicted."""
        ratios = [median(self._trials[one]) / self._predictions[one] for one in ones if self._predictions.get(one)]
        return median(ratios) if ratios else None

    def _cost_s(self, one: Candidate) -> float:
        """Seconds that a trial of it will take: as it said, or as at places with as many workers."""
        if one in self._again_s:
            return self._again_s[one]
        known = [
            took
            for other, all_ in self._took_s.items()
            if (other.topology, other.workers, other.inference) == (one.topology, one.workers, one.inference)
            for took in all_
        ]
        start_s = _START_S * (one.workers + (one.inference == "central")) if one.topology == "processes" else 0.0
        return median(known) if known else start_s + _USUAL * self._seconds


def _place(one: Candidate) -> tuple[object, ...]:
    return one.topology, one.workers, one.inference, one.turns, one.max_lag


def _words(one: Candidate) -> str:
    return f"n_envs {one.n_envs}, {one.place}"
