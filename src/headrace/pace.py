"""How old data may be, as arithmetic. Synchronous is the value max_lag = 0, not another code path.

With W rollouts (slabs of environments, or groups of LLM episodes) per update, rollout n may begin iff
n < (max_lag + updates done + 1) * W: nothing runs further ahead of the learner than max_lag updates, and so max_lag
versions. Environments and LLM agents use this one file. Pure; knows no slab, no group and no learner.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """How far collecting may run ahead of learning."""

    max_lag: int
    per_update: int
    """W: slabs or groups that one update learns from."""

    def limit(self, updates: int) -> int:
        """How many rollouts may have begun since the start of the run."""
        return (self.max_lag + updates + 1) * self.per_update

    def room(self, updates: int, begun: int) -> int:
        """How many more may begin, beside those that have."""
        return self.limit(updates) - begun

    @property
    def versions_kept(self) -> int:
        """How many versions of the weights are kept for completing what they acted in."""
        return self.max_lag + 2

    def is_too_old(self, lag: int, is_strict: bool) -> bool:
        """Whether a rollout is passed over: its weights are gone, or it is older than max_lag and that is refused.

        Its lag is how many versions old its oldest row is when it is consumed.
        """
        return lag > self.max_lag + (not is_strict)
