"""CPU and memory of this process, between one look and the next.

    clock, CPU clock, /proc/self/statm ──> ProcessUsage.sample() ──> Usage

The workers' processes are not in it: what they cost shows as time in the split. This file does not know who looks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """cpu_percent counts cores: 200 is two cores busy. It is the average since the sample before."""

    cpu_percent: float
    memory_bytes: int


class ProcessUsage:
    def __init__(self, clock: Callable[[], float], cpu_clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._last_time_s = clock()
        self._last_cpu_s = cpu_clock()
        self._cpu_percent = 0.0

    def sample(self) -> Usage:
        now_s, cpu_s = self._clock(), self._cpu_clock()
        elapsed_s = now_s - self._last_time_s
        if elapsed_s > 0.0:  # two looks at one instant: the last answer still holds
            self._cpu_percent = 100.0 * (cpu_s - self._last_cpu_s) / elapsed_s
            self._last_time_s, self._last_cpu_s = now_s, cpu_s
        return Usage(self._cpu_percent, _resident_bytes())


def _resident_bytes() -> int:
    try:
        resident_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource  # no /proc: the peak is the nearest number there is

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB elsewhere
