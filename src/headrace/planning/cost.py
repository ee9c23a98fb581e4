"""What steps cost, and the cheapest fleet that meets a demand.

    (machines x price per hour + the learner's) / 3,600 / steps per second x 1,000,000 = price of a million steps

Pure. Prices are the user's numbers, in any currency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import UsageError
from headrace.planning.checks import positive

_MOST_FLEETS = 200_000  # that `cheapest` looks at


@dataclass(frozen=True)
class MachineType:
    """Something that can be rented: its price per hour and the steps per second of the actors on it."""

    name: str
    price_per_hour: float
    sps: float
    at_most: int = 1 << 30


@dataclass(frozen=True)
class Fleet:
    """How many of each machine, what they cost an hour and what they produce."""

    machines: dict[str, int]
    price_per_hour: float
    sps: float


def per_million_steps(price_per_hour: float, sps: float) -> float:
    """The price of a million environment steps."""
    return positive("price", price_per_hour, may_be_zero=True) / 3600 / positive("steps per second", sps) * 1e6


def cheapest(demanded: float, kinds: Sequence[MachineType]) -> Fleet:
    """The fleet of least price that produces at least so many steps per second; of equal prices the larger supply."""
    positive("demand", demanded)
    for kind in kinds:
        positive(f"steps per second of {kind.name}", kind.sps)
        positive(f"price of {kind.name}", kind.price_per_hour, may_be_zero=True)
    if not kinds or sum(kind.sps * min(kind.at_most, math.ceil(demanded / kind.sps)) for kind in kinds) < demanded:
        raise UsageError(f"no fleet of these machines produces {demanded:,.0f} steps per second; add machines")
    best: Fleet | None = None
    budget = [_MOST_FLEETS]

    def search(index: int, counts: tuple[int, ...], price: float, sps: float) -> None:
        nonlocal best
        budget[0] -= 1
        if budget[0] < 0:
            raise UsageError(
                f"the cheapest of {len(kinds)} kinds of machines: too many fleets to try; name fewer kinds"
            )
        # What is missing costs at least what it costs of the best bargain left. If that is the price of the best
        # fleet, it is so without any surplus: no better one.
        least = price + (demanded - sps) * kinds[index].price_per_hour / kinds[index].sps
        if best is not None and sps < demanded and least >= best.price_per_hour * (1 - 1e-12):
            return
        if index == len(kinds) - 1 or sps >= demanded:
            last = 0
            if sps < demanded:
                kind = kinds[index]
                last = math.ceil((demanded - sps) / kind.sps - 1e-9)
                if last > kind.at_most:
                    return
                price, sps, counts = price + last * kind.price_per_hour, sps + last * kind.sps, (*counts, last)
            if best is None or (price, -sps) < (best.price_per_hour, -best.sps):
                best = Fleet({kind.name: n for kind, n in zip(kinds, counts, strict=False) if n}, price, sps)
            return
        kind = kinds[index]
        most = min(kind.at_most, math.ceil((demanded - sps) / kind.sps - 1e-9))
        for count in range(most, -1, -1):
            search(index + 1, (*counts, count), price + count * kind.price_per_hour, sps + count * kind.sps)

    kinds = sorted(kinds, key=lambda kind: kind.price_per_hour / kind.sps)  # good bargains first: they cut the search
    search(0, (), 0.0, 0.0)
    assert best is not None
    return best
