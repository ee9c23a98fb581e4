"""What was predicted of collecting when the policy was placed, beside what it came to.

    Topology.promised · steps and busy seconds of updates ──> {"placement", "predicted_sps", "collect_sps"} ──> words

A worker that takes turns with two shards counts as two: each shard's time runs on while the other one has its turn.
Does not know how the prediction was made (launch/placement).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BUSY = ("env", "inference", "copy")


class Forecast:
    """Of one session. `lanes`: shards that are filled at the same time."""

    def __init__(self, promised: Mapping[str, float], lanes: int) -> None:
        self._promised, self._lanes = dict(promised), lanes
        self._batches, self._steps, self._busy_s = 0, 0, 0.0

    def add(self, steps: int, record: Mapping[str, float]) -> None:
        """An update. The first one is not counted: processes warm up in it."""
        if self._promised and self._batches:
            self._steps += steps
            self._busy_s += sum(record.get(f"headrace/actors/{name}_s", 0.0) for name in _BUSY)
        self._batches += 1

    def encode(self) -> dict[str, Any]:
        """For result.json; nothing if nothing was predicted."""
        if not self._promised:
            return {}
        reached = self._steps * self._lanes / self._busy_s if self._busy_s else None
        chosen = next(iter(self._promised))
        return {"placement": chosen, "predicted_sps": dict(self._promised), "collect_sps": reached}


def words(seen: Mapping[str, Any]) -> str:
    """`central: 6,100 steps/s predicted, 5,950 reached (-2 %); local: 1,980 predicted`; nothing if nothing was."""
    if not seen:
        return ""
    chosen, reached = seen["placement"], seen["collect_sps"]
    predicted = dict(seen["predicted_sps"])
    own = predicted.pop(chosen)
    came = "" if reached is None else f", {reached:,.0f} reached ({reached / own - 1.0:+.0%})"
    others = "".join(f"; {place}: {speed:,.0f} predicted" for place, speed in predicted.items())
    return f"{chosen}: {own:,.0f} steps/s predicted while collecting{came}{others}"
