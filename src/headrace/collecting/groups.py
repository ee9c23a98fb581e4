"""Groups of LLM episodes as a source: a run learns from them as it learns from slabs.

    rollouts.stream ──(failed and late groups are counted and passed over)──> collect: W groups ──> give_back -> Harvest

W is the rollouts' groups_per_update, and their pace keeps them within max_lag versions of the learner. The version is
the engine's: the run's weights are published there, and every sampled token names the version that gave it.
With a run directory, groups that came back after the last snapshot are in the group log and come from there again.
Does not know what is learned from a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from statistics import fmean
from typing import Any

import numpy.typing as npt

from headrace.agents.metrics import summary
from headrace.agents.records import COMPLETED, TRUNCATED, Episode, Group
from headrace.agents.rollouts import AgentRollouts
from headrace.collecting.source import Harvest, Totals
from headrace.episodes.finished import Finished
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
        if rollouts.engine.is_text_only:
            raise UsageError(
                "rollouts: expected an engine that gives token ids; what has text only can't be learned from"
            )
        self._rollouts, self._per_update = rollouts, rollouts.pace.per_update
        self.before_wait: Callable[[], None] = lambda: None
        self._stream: Generator[Group, None, None] | None = None
        self._in_hand: list[Group] = []  # of the batch that is being collected
        self._lent: list[Group] = []
        self._episodes = 0
        self._returns: deque[float] = deque(maxlen=_WINDOW)
        self._settled = rollouts.state()  # as it was after the last batch: a collect that is broken off changes nothing

    def collect(self) -> list[Group]:
        """The next groups that can be learned from, as many as an update needs."""
        if self._lent:
            raise HeadraceError("collect: the last batch was not given back")
        unusable = 0
        try:
            while len(self._in_hand) < self._per_update:
                self.before_wait()
                group = self._next()
                if group.status == COMPLETED:
                    self._in_hand.append(group)
                    unusable = 0
                    continue
                unusable += 1
                if unusable >= _MOST_UNUSABLE * self._per_update:
                    raise HeadraceError(f"{unusable} groups in a row can't be learned from; the last {_why(group)}")
        except BaseException:
            self._hang_up()  # what is in hand stays: the next collect goes on with it
            raise
        self._lent, self._in_hand = sorted(self._in_hand, key=lambda group: group.number), []
        return self._lent

    def give_back(self) -> Harvest:
        """The groups were learned from; a step is a turn."""
        groups, self._lent = self._lent, []
        episodes = [one for group in groups for one in group.episodes]
        self._episodes += len(episodes)
        self._returns.extend(one.reward for one in episodes)
        steps = sum(len(one.turns) for one in episodes)
        self._settled = self._rollouts.state()
        record = summary(groups)  # now: who keeps a harvest should not keep its groups
        return Harvest(steps, lambda: record, tuple(_finished(one) for one in episodes))

    def leftovers(self) -> Harvest:
        """Groups are reported by their own log."""
        return Harvest(0, dict)

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
        return {"rollouts": self._settled, **own}, {}

    def restore(self, state: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Go on from a snapshot: no group that was learned from comes again, and none is skipped."""
        self._forget()
        self._rollouts.restore(state["rollouts"])
        self._settled = self._rollouts.state()
        self._episodes = state["episodes"]
        self._returns = deque(state["returns"], _WINDOW)

    def halt(self) -> None:
        """End the workers; what is in hand stays."""
        self._hang_up()

    def close(self) -> None:
        """End the workers and close the group log; may be called twice."""
        self._forget()
        self._rollouts.close()

    def _next(self) -> Group:
        if self._stream is None:
            self._stream = self._rollouts.stream()
        return next(self._stream)

    def _forget(self) -> None:
        self._hang_up()
        self._in_hand, self._lent = [], []

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def _finished(one: Episode) -> Finished:
    return Finished(one.member, one.group, one.reward, len(one.turns), one.status != TRUNCATED)


def _why(group: Group) -> str:
    if group.failures:
        return f"failed at the boundary {group.failures[0].boundary}: {group.failures[0].message}"
    return f"is {group.lag} versions old, more than max_lag = {group.max_lag}"
