"""Who waits for whom: the time of an update as one strip per role, the learner's and each worker's.

    Evidence ──strips_of──> Strip (a role, its parts as shares of an update) ──> page

Every strip is one update long, so what one role waits for can be read off the others. Pure; does not know HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.planning.evidence import BESIDE, LEARNING, Evidence

# Kind -> what it is called in the legend, in the order of the strips.
KINDS = {
    "env": "stepping environments",
    "inference": "choosing actions",
    "asking": "asking the inference server",
    "copy": "copying, handing over",
    "learn": "learning",
    "beside": "logging, checkpoints, evaluations",
    "other": "other",
    "wait": "waiting",
}
_MOST_WORKERS = 12  # strips; of more, the busiest ones and the idlest one
_SEEN = 0.05  # of an update: a worker that waits less for the others is not worth a word


@dataclass(frozen=True)
class Strip:
    """A role, and its parts: kinds of KINDS, as shares of an update."""

    role: str
    parts: Mapping[str, float]


def strips_of(evidence: Evidence) -> list[Strip]:
    """The learner's strip, those of workers and of inference servers; none if too little is known."""
    e, total = evidence, evidence.update_s
    if not e.is_enough or not total:
        return []
    of = e.learner
    own = {
        "env": of["env"],
        "inference": of["inference"],
        "copy": of["copy"] + of["hand_over"],
        "learn": sum(of[name] for name in LEARNING),
        "beside": sum(of[name] for name in BESIDE),
        "other": of["other"],
        "wait": of["wait"],
    }
    found = [Strip("learner" if e.workers else "one thread", _shares(own, total))]
    order = sorted(range(len(e.workers)), key=lambda worker: -e.workers[worker].busy)
    shown = order if len(order) <= _MOST_WORKERS else [*order[: _MOST_WORKERS - 1], order[-1]]
    for worker in sorted(shown):
        one = e.workers[worker]
        acting = "asking" if e.inference == "central" else "inference"
        parts = {"env": one.env, acting: one.inference, "copy": one.copy}
        found.append(Strip(f"worker {worker}", _shares(parts, total)))
    if e.inference == "central":
        found.append(Strip("inference server", _shares({"inference": e.act_s}, total)))
    return found


def waiting_of(evidence: Evidence, strips: list[Strip]) -> str:
    """Who waits for whom, in a sentence. Which worker is done last, and waits for the learner alone, may change."""
    if not strips:
        return ""
    learner, workers = strips[0], [one for one in strips[1:] if one.role.startswith("worker")]
    if not workers:
        return "One thread collects and learns, so nothing waits for anything else."
    idle = [one.parts["wait"] for one in workers]
    last = max(0.0, 1.0 - evidence.busiest_s / evidence.update_s)  # of whichever is done last in each update
    least, most = min(*idle, last, 1.0 - learner.parts["wait"]), max(idle)
    rollouts = f"The learner waits {learner.parts['wait']:.0%} of its time for rollouts"
    if len(workers) == 1:
        return f"{rollouts}; the worker waits {least:.0%} of its time for the learner."
    for_others = f", and up to {most - least:.0%} for one another" if most - least >= _SEEN else ""
    return f"{rollouts}; workers wait {least:.0%} of their time for the learner{for_others}."


def _shares(seconds: Mapping[str, float], total: float) -> dict[str, float]:
    """What is left of an update is waiting. Parts that were measured side by side may be longer than it."""
    spent = sum(seconds.values())
    scale = 1.0 / max(total, spent)
    parts = {kind: seconds.get(kind, 0.0) * scale for kind in KINDS}
    return parts | {"wait": parts["wait"] + max(0.0, 1.0 - spent * scale)}
