"""How often independent draws agree at most: bounds behind the verdict on correlated actions. Pure.

    entropy of a policy ──most_agreement──> the largest chance that two independent draws of it are equal
    number of rows, of tests ──slack──> how far a mean may stray above its expectation, with a chance of FALSE_ALARM

Two environments draw from p and q, whatever their states. The chance that they agree is sum(p q), at most the mean of
sum(p^2) and sum(q^2). Of all distributions over n choices with one entropy, sum(p^2) is largest where one choice is
likely and the others share the rest. States differ, and only the mean of their entropies is known, so the bound is the
smallest concave function above that curve. A policy that hardly draws at all may agree always: the bound is 1 there.
The slack is Azuma and Hoeffding's: rows may depend on those before them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FALSE_ALARM = 1e-3  # of a whole verdict, all pairs of environments together
_POINTS = 2_000


def most_agreement(entropy: float, num_choices: int) -> float:
    """The largest mean agreement of independent draws over `num_choices` whose mean entropy, in nats, is this."""
    if num_choices < 2 or entropy <= 0:
        return 1.0
    entropies, agreements = _hull(num_choices)
    return float(np.interp(entropy, entropies, agreements))


def least_entropy(mean: float, num_envs: int, part: int, num_choices: int) -> float:
    """What is left for some environments of all whose mean entropy is known, if the others have all they can have."""
    most = math.log(num_choices)
    return max(0.0, (num_envs * min(mean, most) - (num_envs - part) * most) / part)


def slack(num_rows: int, num_tests: int) -> float:
    """So far above its expectation does a mean of numbers between 0 and 1 get with a chance of FALSE_ALARM at most."""
    return math.sqrt(math.log(max(1, num_tests) / FALSE_ALARM) / (2 * num_rows))


def log_chance(matches: int, tries: int, chance: float) -> float:
    """Chernoff's bound: the logarithm of the chance of so many matches or more, each with a chance of its own."""
    share = matches / tries
    if share <= chance:
        return 0.0
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return -tries * (share * math.log(share / chance) + rest)


@lru_cache(maxsize=16)
def _hull(num_choices: int) -> tuple[Array, Array]:
    """The upper concave hull of (entropy, agreement) over all distributions with one likely choice."""
    rest = np.linspace(0.0, 1.0, _POINTS) ** 2 * (num_choices - 1) / num_choices  # finer near 0, where it is steep
    top, each = 1.0 - rest, rest / (num_choices - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies = -np.nan_to_num(top * np.log(top)) - np.nan_to_num(rest * np.log(each))
    agreements = top**2 + rest * each
    hull: list[tuple[float, float]] = []
    for x, y in zip(entropies.tolist(), agreements.tolist(), strict=True):
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    xs, ys = zip(*hull, strict=True)
    return np.array(xs), np.array(ys)


def _is_below(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or below the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])
