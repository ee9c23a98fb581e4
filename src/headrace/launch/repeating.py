"""A measurement is repeated until it repeats: the two fastest of its rounds agree, or it is left with a doubt."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

_STEADY = 1.1  # the two fastest rounds differ by less than this


def repeated(measure: Callable[[], list[float]], least: int, most: int) -> tuple[list[float], float]:
    """The times of the fastest round, and the median of the second fastest over its own.

    Another program takes a core for a moment and makes a round slow, never fast.
    """
    rounds: list[list[float]] = []
    while len(rounds) < least or (len(rounds) < most and _doubt(rounds) > _STEADY):
        rounds.append(measure())
    return min(rounds, key=median), _doubt(rounds)


def _doubt(rounds: list[list[float]]) -> float:
    if len(rounds) < 2:
        return 1.0
    fastest, second = sorted(map(median, rounds))[:2]
    return second / fastest if fastest else 1.0
