"""Bytes, rates and shapes as people write them: 28KB, 10GB, 25Gbit, 84x84x4:uint8. Units are powers of 1,000."""

from __future__ import annotations

import math
import re

import numpy as np

from headrace.errors import UsageError
from headrace.planning.checks import positive
from headrace.planning.cost import MachineType

_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?P<kind>B|bit|b)?(?:/s|ps)?", re.IGNORECASE)
_SHAPE = re.compile(r"(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>[a-z]+\d*))?")
OTHERS = 27  # bytes of a transition beside the observation: an action, a reward, three flags, episode, step
_COMPLETED = (
    20  # what a rollout in memory has beside them: two values, a log-probability, the row of a final observation
)


def parse_bytes(name: str, text: str) -> float:
    """Bytes."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{name}: expected bytes, as in 28224, 28KB or 10GB, got {text!r}")
    if found["kind"] == "b":  # of a size it is usually meant as bytes, and eight times too little would pass unseen
        raise UsageError(f"{name}: {text.strip()!r} may be bits or bytes; write B for bytes, as in 28KB, or bit")
    return _in_bytes(found)


def _in_bytes(found: re.Match[str]) -> float:
    in_bits = (found["kind"] or "B") != "B"
    return float(found["number"]) * _UNITS[found["unit"].upper()] / (8 if in_bits else 1)


def parse_rate(name: str, text: str) -> float:
    """Bytes per second, 0 for an empty text. A number alone could be GB as well as Gbit."""
    if not text:
        return 0.0
    found = _QUANTITY.fullmatch(text.strip())
    if found is not None and not found["kind"]:
        raise UsageError(f"{name}: expected a unit, as in 10GB or 25Gbit (per second), got {text!r}")
    return positive(name, parse_bytes(name, text) if found is None else _in_bytes(found))


def observation_bytes(text: str) -> float:
    """Bytes of an observation of this shape and dtype; 0 for an empty text."""
    if not text:
        return 0.0
    found = _SHAPE.fullmatch(text.strip())
    try:
        assert found is not None
        dtype = np.dtype(found["dtype"] or "float32")
        assert dtype.kind in "biuf"
    except (AssertionError, TypeError) as error:
        raise UsageError(
            f"--observation: expected a shape and a dtype, as in 84x84x4:uint8 or 17:float32, got {text!r}"
        ) from error
    return positive("--observation", float(math.prod(map(int, found["shape"].split("x")))) * dtype.itemsize)


def memory_bytes(observation: float) -> float:
    """Bytes of a transition in a buffer of rollouts: with room for a final observation at every step."""
    return 2 * observation + OTHERS + _COMPLETED


def parse_machine(text: str) -> MachineType:
    """NAME=PRICE:STEPS/S, or NAME=PRICE:STEPS/S:AT_MOST of a kind that is scarce."""
    name, _, numbers = text.partition("=")
    try:
        price, sps, *most = (float(number) for number in numbers.split(":"))
    except ValueError:
        price, sps, most = -1.0, 0.0, []
    is_count = len(most) < 2 and all(one >= 1 and one.is_integer() for one in most)
    if not (name and math.isfinite(price + sps) and price >= 0 and sps > 0 and is_count):
        raise UsageError(
            f"--machines: expected NAME=PRICE_PER_HOUR:STEPS_PER_SECOND, as in small=0.05:900, or large=0.3:7000:3 "
            f"for 3 at most, got {text!r}"
        )
    return MachineType(name, price, sps, *map(int, most))


def with_unit(number: float, unit: str) -> str:
    """28.2 MB, 10 GB."""
    rounded = float(f"{number:.3g}")  # 999.6 KB are 1 MB
    prefix, factor = next(((one, size) for one, size in reversed(_UNITS.items()) if rounded >= size), ("", 1.0))
    return f"{counted(rounded / factor)} {prefix}{unit}"


def counted(number: float) -> str:
    """64,000; 0.4: whole from 100 on, three digits of what is smaller."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def with_digits(number: float, digits: int) -> str:
    """With so many digits, or with more if little would be left of it."""
    return f"{number:.3g}" if 0 < number < 10.0 ** (1 - digits) else f"{number:,.{digits}f}"


def price_of(per_hour: float, per_million: float) -> str:
    """What machines cost."""
    return f"{with_digits(per_hour, 2)} an hour, {with_digits(per_million, 4)} a million steps"
