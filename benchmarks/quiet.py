"""Measurements in moments in which other programs leave the machine alone.

    quiet_moments(measure, count) -> measure again and again; those beside which others were busy do not count

A prediction and a run can only be compared if both have the machine to themselves. How much others took is known from
the kernel: the time that all cores were busy, less that of this process and its living descendants.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from headrace.runtime.leftovers import descendants

CALM = 0.12  # of one core, by others
_TICKS = os.sysconf("SC_CLK_TCK")


def quiet_moments(measure: Callable[[], float], count: int, limit_s: float) -> tuple[list[float], float]:
    """The values of `count` calm measurements, or of the calmest after a time; and what others took in the worst."""
    seen: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while True:
        before, start = _busy_s() - _own_s(), time.perf_counter()
        value = measure()
        share = (_busy_s() - _own_s() - before) / (time.perf_counter() - start)
        seen.append((max(0.0, share), value))
        calm = sorted(seen)[:count]
        if len(calm) == count and (calm[-1][0] <= CALM or time.perf_counter() - begun > limit_s):
            return [value for _, value in calm], calm[-1][0]


def _busy_s() -> float:
    """Of all cores."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS  # idle, iowait


def _own_s() -> float:
    """Of this process, its children that ended, and its descendants that live."""
    return sum(os.times()[:4]) + sum(_cpu_s(pid) for pid in descendants(os.getpid()))


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # it has ended
        return 0.0
    return sum(map(int, words[11:15])) / _TICKS  # its own and its children's, in and out of the kernel
