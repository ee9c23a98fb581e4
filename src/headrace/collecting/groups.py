"""Groups of LLM episodes as a source: a run learns from them as it learns from slabs.

    rollouts.stream ──(failed and late groups are counted and passed over)──> collect: W groups ──> give_back -> Harvest

W is the rollouts' groups_per_update, and their pace keeps them within max_lag versions of the learner. The version is
the engine's: the run's weights are published there, and every sampled token names the version that gave it.
With a run directory, groups that came back after the last snapshot are in the group log and come from there again.
Does not know what is learned from a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from statistics import fmean
from typing import Any

import numpy.typing as npt

from headrace.agents.metrics import summary
from headrace.agents.records import COMPLETED, TRUNCATED, Episode, Group
from headrace.agents.rollouts import AgentRollouts
from headrace.collecting.source import Harvest, Totals
from headrace.episodes.statistics import Finished
from headrace.errors import HeadraceError, UsageError

Array = npt.NDArray[Any]

_WINDOW = 100  # episodes that the mean return is about
_MOST_UNUSABLE = 4  # times as many groups in a row as an update needs, and not one that can be learned from


class GroupSource:
    """Lends a list of completed groups, in the order of their numbers. Closes the rollouts, not their engine."""

    is_interruptible = True

    def __init__(self, rollouts: AgentRollouts) -> None:
        if rollouts.pace is None:
            raise UsageError("rollouts: expected max_lag and groups_per_update, so that they keep pace with a learner")
        self._rollouts, self._per_update = rollouts, rollouts.pace.per_update
        self._stream: Generator[Group, None, None] | None = None
        self._lent: list[Group] = []
        self._episodes = 0
        self._returns: deque[float] = deque(maxlen=_WINDOW)

    def collect(self) -> list[Group]:
        """The next groups that can be learned from, as many as an update needs."""
        if self._lent:
            raise HeadraceError("collect: the last batch was not given back")
        if self._stream is None:
            self._stream = self._rollouts.stream()
        batch, unusable = list[Group](), 0
        while len(batch) < self._per_update:
            group = next(self._stream)
            if group.status == COMPLETED:
                batch.append(group)
                unusable = 0
                continue
            unusable += 1
            if unusable >= _MOST_UNUSABLE * self._per_update:
                raise HeadraceError(f"{unusable} groups in a row can't be learned from; the last {_why(group)}")
        self._lent = sorted(batch, key=lambda group: group.number)
        return self._lent

    def give_back(self) -> Harvest:
        """The groups were learned from; a step is a turn."""
        groups, self._lent = self._lent, []
        episodes = [one for group in groups for one in group.episodes]
        self._episodes += len(episodes)
        self._returns.extend(one.reward for one in episodes)
        steps = sum(len(one.turns) for one in episodes)
        return Harvest(steps, summary(groups), tuple(_finished(one) for one in episodes))

    def run_ahead(self) -> None:
        """New weights may have been published: more groups may start."""
        self._rollouts.look_again()

    def totals(self) -> Totals:
        """What it has given so far; the ledger counts groups."""
        mean_return = fmean(self._returns) if self._returns else None
        statistics = self._rollouts.statistics
        return Totals(self._episodes, mean_return, dict(statistics.ledger), statistics.restarts)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Which groups came back, the ledger and the episodes' statistics."""
        own = {"episodes": self._episodes, "returns": list(self._returns)}
        return {"rollouts": self._rollouts.state(), **own}, {}

    def restore(self, state: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Go on from a snapshot: no group that was learned from comes again, and none is skipped."""
        self._hang_up()
        self._rollouts.restore(state["rollouts"])
        self._episodes = state["episodes"]
        self._returns = deque(state["returns"], _WINDOW)

    def close(self) -> None:
        """End the workers and close the group log; may be called twice."""
        self._hang_up()
        self._rollouts.close()

    def _hang_up(self) -> None:
        stream, self._stream, self._lent = self._stream, None, []
        if stream is not None:
            stream.close()


def _finished(one: Episode) -> Finished:
    return Finished(one.member, one.group, one.reward, len(one.turns), one.status != TRUNCATED)


def _why(group: Group) -> str:
    if group.failures:
        return f"failed at the boundary {group.failures[0].boundary}: {group.failures[0].message}"
    return f"is {group.lag} versions old, more than max_lag = {group.max_lag}"
