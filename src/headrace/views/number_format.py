"""Numbers as people read them: 41,230 and 1.5M, 1m 02s, 312 MB, 0.0081. Pure text, one rule per kind of number.

A missing or undefined number is a dash, never a crash. This file does not know tags, colours or widths.
"""

from __future__ import annotations

import math

MISSING = "-"


def decimal(value: float | None) -> str:
    """About three significant digits, no exponent for everyday magnitudes, the same width most of the time."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0.0:
        return "0"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    if size >= 0.1:
        return f"{value:.3f}"
    if size >= 0.0005:
        return f"{value:.4f}"
    return f"{value:.1e}"


def whole(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}"


def count(value: float | None) -> str:
    """Exact below a million, then in seven cells at most: 999,999 and 1.843M."""
    if value is None or not math.isfinite(value) or abs(value) < 1e6:
        return whole(value)
    return compact(value, num_digits=4)


def compact(value: float, num_digits: int = 3) -> str:
    """Steps on an axis: 0, 500, 20k, 1.5M, 2B."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.{num_digits}g}{suffix}"
    return f"{value:.{num_digits}g}"


def duration(seconds: float | None) -> str:
    """The two units that matter: 31ms, 12s, 1m 02s, 3h 05m, 2d 04h."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if 0.0005 <= seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    whole_seconds = max(0, round(seconds))
    minutes, second = divmod(whole_seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}h"
    if hours:
        return f"{hours}h {minute:02d}m"
    if minutes:
        return f"{minutes}m {second:02d}s"
    return f"{second}s"


def size(num_bytes: float | None) -> str:
    if num_bytes is None or not math.isfinite(num_bytes):
        return MISSING
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.0f} MB"
