"""Where the time of an update went, as phases, shares, whole percentages and one plain sentence.

    record (headrace/time/*) ──> time_shares ──> whole_percentages ──> the terminal panel, the plain line
                                      └────────> reading ──────────> the report

Pure. The eight phases are declared once here, for every view. This file does not know how the seconds were measured
or how a share is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.telemetry.sinks import Record


@dataclass(frozen=True)
class TimePart:
    """One part of an update's time. `doing` completes the sentence "... of the time was spent ..."."""

    name: str
    group: str
    doing: str
    more: tuple[str, ...] = ()
    """Names of the record that are part of it."""

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(f"headrace/time/{name}" for name in (self.name, *self.more))


# What a session does beside its run, and handing rollouts over: headrace doctor looks at each of them.
BESIDE = ("hand_over", "episodes", "log", "view", "callback", "checkpoint", "evaluation")
PHASES = (
    TimePart("env", "collect", "stepping the environments"),
    TimePart("inference", "collect", "choosing actions"),
    TimePart("copy", "collect", "copying steps into rollouts"),
    TimePart("completion", "learn", "computing log-probabilities and values"),
    TimePart("advantages", "learn", "computing advantages"),
    TimePart("sgd", "learn", "taking gradient steps"),
    TimePart("wait", "wait", "waiting"),
    TimePart("other", "other", "on everything else", BESIDE),
)
GROUPS = ("collect", "learn", "wait", "other")

# A phase below this share is not worth a clause of its own in the sentence.
_WORTH_SAYING = 0.05
_LARGEST_S = 1e12  # a file may say anything: a larger number is no measurement, and sums of such overflow


def time_shares(records: Iterable[Record]) -> dict[str, float]:
    """TimePart name -> share of the summed time, in the order of PHASES; empty if no time was recorded."""
    seconds = {phase.name: 0.0 for phase in PHASES}
    for record in records:
        for phase in PHASES:
            for tag in phase.tags:
                value = record.get(tag, 0.0)
                if 0.0 <= value <= _LARGEST_S:
                    seconds[phase.name] += value
    total = sum(seconds.values())
    if total <= 0.0:
        return {}
    return {name: value / total for name, value in seconds.items()}


def whole_percentages(shares: Mapping[str, float]) -> dict[str, int]:
    """Shares as whole percentages that add to exactly 100: what rounding leaves over goes to the largest remainders."""
    if not shares:
        return {}
    floors = {name: math.floor(share * 100) for name, share in shares.items()}
    num_missing = 100 - sum(floors.values())
    by_remainder = sorted(shares, key=lambda name: floors[name] - shares[name] * 100)
    for name in by_remainder[:num_missing]:
        floors[name] += 1
    return floors


def group_percentages(percentages: Mapping[str, int]) -> dict[str, int]:
    """Whole percentages of the phases, added up to collect, learn, wait and other."""
    return {group: sum(percentages.get(phase.name, 0) for phase in PHASES if phase.group == group) for group in GROUPS}


def reading(shares: Mapping[str, float]) -> str:
    """One plain sentence, largest phase first."""
    if not shares:
        return "The run recorded no time split."
    percentages = whole_percentages(shares)
    said = [phase for phase in PHASES if shares[phase.name] >= _WORTH_SAYING and phase.name != "other"]
    said.sort(key=lambda phase: -shares[phase.name])
    if not said:
        return f"{percentages['other']} % of the time was spent outside the measured phases."
    first, *others = said
    clauses = [f"{percentages[first.name]} % of the time was spent {first.doing}"]
    clauses += [f"{percentages[phase.name]} % {phase.doing}" for phase in others]
    rest = 100 - sum(percentages[phase.name] for phase in said)
    if rest > 0:
        clauses.append(f"the remaining {rest} % on everything else")
    return "; ".join(clauses) + "."
