"""How old data may be, as arithmetic. Synchronous is the value max_lag = 0, not another code path.

With W slabs per update, lease n is granted iff n < (max_lag + version + 1) * W, where `version` counts updates done:
nobody can run further ahead of the learner than max_lag versions. Pure.
"""

from __future__ import annotations


def lease_limit(version: int, max_lag: int, slabs_per_update: int) -> int:
    """How many leases may have been granted since the start of the run."""
    return (max_lag + version + 1) * slabs_per_update


def lag(version_now: int, oldest_version: int) -> int:
    """How many versions old the oldest row of a slab is when it is consumed."""
    return version_now - oldest_version
