"""Keeps malloc from giving large blocks back to the system after every use.

glibc maps blocks above a threshold anew each time and unmaps them when they are freed, so every tensor of half a
megabyte costs page faults: measured, they were half of the completion pass. Both thresholds are raised once per
process; the price is that freed memory stays with the process. Where there is no mallopt, nothing happens.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT_BYTES = 64 * 2**20


@cache
def keep_freed_memory() -> bool:
    """Raise the thresholds; whether it could be done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES) and mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST_KEPT_BYTES))
