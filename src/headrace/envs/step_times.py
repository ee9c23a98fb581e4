"""How long a step of each environment takes, from every 61st row: enough to find one slow environment among many.

    steps --timed--> the same steps, each with its time      a timed row: spent_ns[b] += ...      take(): means, reset

A prime number of rows, so that it is never the same row of every rollout. Resets are not in it.
Does not know what is done with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from headrace.clock import now_ns

EVERY_ROWS = 61

Step = Callable[[Any], Any]


class StepTimes:
    """Of B environments; of none, if they can't be told apart."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._spent_ns = [0] * len(steps)
        self._rows = 0  # that were timed
        self._timed = [self._wrapped(position, step) for position, step in enumerate(steps)]

    def timed_row(self) -> list[Step]:
        """The steps of a row that is timed."""
        self._rows += 1
        return self._timed

    def take(self, out: npt.NDArray[Any]) -> None:
        """Mean nanoseconds of a step since the last call, of each environment; 0: no row was timed."""
        if not self._rows:
            out.fill(0)
            return
        out[...] = [spent // self._rows for spent in self._spent_ns]
        self._spent_ns[:], self._rows = [0] * len(self._spent_ns), 0

    def _wrapped(self, position: int, step: Step) -> Step:
        spent_ns = self._spent_ns

        def timed(action: Any) -> Any:
            began = now_ns()
            returned = step(action)
            spent_ns[position] += now_ns() - began
            return returned

        return timed
