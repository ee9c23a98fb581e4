"""How old data may be, as arithmetic. Synchronous is the value max_lag = 0, not another code path.

With W slabs per update, lease n is granted iff n < (max_lag + updates done + 1) * W: nobody can run further ahead of
the learner than max_lag updates, and so max_lag versions. Pure.
"""

from __future__ import annotations


def lease_limit(updates: int, max_lag: int, slabs_per_update: int) -> int:
    """How many leases may have been granted since the start of the run."""
    return (max_lag + updates + 1) * slabs_per_update


def lag(version_now: int, oldest_version: int) -> int:
    """How many versions old the oldest row of a slab is when it is consumed."""
    return version_now - oldest_version


def versions_kept(max_lag: int) -> int:
    """How many versions are kept for completing what they acted in."""
    return max_lag + 2


def is_too_old(version_now: int, oldest_version: int, max_lag: int, late: str) -> bool:
    """Whether a slab is passed over: older than allowed with nothing to correct for it, or its weights are gone."""
    age = lag(version_now, oldest_version)
    return age >= versions_kept(max_lag) or (late == "reject" and age > max_lag)
