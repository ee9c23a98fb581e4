"""What all points share: how often things are tried, what a point returns, and a busy machine.

    point(scale) -> Shown(number, title, what was done, claims, what is not built)

A figure is a harness.Claim. Knows nothing of headrace.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Claim

BENCHMARKS = Path(__file__).resolve().parents[1]
BURN = """
import os, sys
from burn import burn
while os.getppid() == int(sys.argv[1]):
    burn(100_000)
"""


@dataclass(frozen=True)
class Scale:
    """How often and how long."""

    name: str
    times: int  # a fault is tried
    rounds: int  # of calm and disturbed runs in turn
    seconds: float  # of one of these runs
    every_s: float  # between two kills
    share: float  # of the fuzz cases
    is_busy_too: bool  # the same again beside burning processes
    slow_s: float  # of a run with a slow side


SMOKE = Scale("smoke", 1, 1, 2.0, 1.0, 0.02, False, 3.0)
QUICK = Scale("quick", 2, 2, 12.0, 4.0, 0.2, True, 10.0)
FULL = Scale("full", 5, 3, 20.0, 5.0, 1.0, True, 20.0)


@dataclass(frozen=True)
class Shown:
    """What a point comes to."""

    number: str
    title: str
    done: str
    claims: list[Claim]
    missing: list[str] = field(default_factory=list)  # parts of it that are not built yet
    extra: dict[str, Any] = field(default_factory=dict)


Point = Callable[[Scale], Shown]


def at_most(name: str, value: float, limit: float, unit: str = "s") -> Claim:
    return Claim(name, value, unit, None, None, f"<= {limit:g} {unit}", value <= limit)


def below(name: str, value: float, limit: float, unit: str) -> Claim:
    return Claim(name, value, unit, None, None, f"< {limit:g} {unit}", value < limit)


def all_of(name: str, value: int, whole: int, unit: str) -> Claim:
    """So many of so many: a ratio of 1 is the goal."""
    return Claim(name, value, unit, whole, value / whole if whole else None, "all", value == whole and whole > 0)


def none_of(name: str, value: int, whole: int, unit: str) -> Claim:
    """How often the bad thing happened; a whole of 0 would prove nothing."""
    return Claim(name, value, unit, None, None, f"0 of {whole:,}", value == 0 and whole > 0)


def equal(name: str, value: int, wanted: int, unit: str) -> Claim:
    """A count that must be met; 0 of 0 would prove nothing."""
    return Claim(name, value, unit, wanted, value / wanted if wanted else None, "equal", value == wanted and wanted > 0)


def say(text: str) -> None:
    """Progress, at once."""
    print(f"    {text}", flush=True)


def wait_until(reached: Callable[[], bool], timeout_s: float = 200.0) -> float:
    """Poll; the seconds it took."""
    begun = time.monotonic()
    while not reached():
        if time.monotonic() > begun + timeout_s:
            raise TimeoutError(f"did not happen within {timeout_s:g} s")
        time.sleep(0.002)
    return time.monotonic() - begun


@contextmanager
def busy(count: int = 3) -> Iterator[None]:
    """Processes that burn, one more than this machine's two cores; they end with this process, however that ends."""
    burners = [subprocess.Popen(python("-c", BURN, str(os.getpid())), cwd=BENCHMARKS) for _ in range(count)]
    try:
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


def machines(scale: Scale) -> Sequence[str]:
    """The machine as it is, and a busy one."""
    return ("as it is", "busy") if scale.is_busy_too else ("as it is",)


@contextmanager
def machine(kind: str) -> Iterator[None]:
    """One of these."""
    if kind == "busy":
        with busy():
            yield
    else:
        yield


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
