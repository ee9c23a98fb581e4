"""What holds a run up: causes with their share of an update's time, the evidence for each, and one sentence. Pure.

    Evidence ──cycle──> critical path ──judge──> Verdict: causes that matter, the largest one first; notes

A cause is named if it takes a large share of the critical path. Two at once are both named; none may be large enough
(balanced); a run may be too short. What runs hidden behind something else is no cause, however long it takes. Findings
from elsewhere (other detectors) are carried along. Proposes no change (advice), reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from headrace.planning.cycle import AHEAD, Cycle, cycle_of
from headrace.planning.evidence import FEWEST_RECORDS, FEWEST_SECONDS, Evidence, is_crowded

ENV, INFERENCE, LEARNER, COMMUNICATION = "env-bound", "inference-bound", "learner-bound", "communication-bound"
LOGGING, CHECKPOINTS, EVALUATIONS, CALLBACK = "logging-bound", "checkpoint-bound", "evaluation-bound", "callback-bound"
IMBALANCE, SLOW_ENV, STRAGGLERS = "imbalance between workers", "one slow env", "stragglers"
INTERPRETER, OTHER = "threads wait for one another", "something else"
BALANCED, TOO_SHORT = "balanced", "too short"

_PARTS = {
    ENV: ("env",),
    INFERENCE: ("inference",),
    LEARNER: ("completion", "advantages", "sgd"),
    COMMUNICATION: ("copy", "hand_over", "asking", "latency"),
    LOGGING: ("log", "episodes", "view"),
    CHECKPOINTS: ("checkpoint",),
    EVALUATIONS: ("evaluation",),
    CALLBACK: ("callback",),
    IMBALANCE: ("imbalance",),
    SLOW_ENV: ("slow_env",),
    STRAGGLERS: ("stragglers",),
    INTERPRETER: ("interpreter",),
    OTHER: ("other",),
}
FIRST, FURTHER = 0.3, 0.2  # of the critical path: what a cause must take to be named, and a second one
_EVEN = 1.15  # side by side, sides that differ by less are equally long
_STARVED = 0.5  # of the time
_UNEXPLAINED = 0.2  # of the time: more than this in few updates is worth a word
_TWO_CORES = 1.5  # about; with fewer, threads would take turns without sharing an interpreter, too


@dataclass(frozen=True)
class Cause:
    """Something that holds a run up."""

    name: str
    share: float
    """Of the critical path of an update."""
    seconds: float
    evidence: str


@dataclass(frozen=True)
class Verdict:
    """What was found, the largest cause first; `causes` is empty if there is no single one, or too little was seen."""

    sentence: str
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    """Of every cause, also of those that are too small to be named."""
    is_starved: bool = False
    """The learner waits most of the time."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the causes, or what there is instead of one."""
        return tuple(one.name for one in self.causes) or (BALANCED if self.shares else TOO_SHORT,)


def judge(evidence: Evidence, findings: Sequence[str] = ()) -> Verdict:
    """The verdict. `findings`: what other detectors found, a sentence each."""
    if not evidence.is_enough:
        updates = f"{evidence.updates} update{'s'[: evidence.updates != 1]}"
        seen = f"{updates} after the first one, in {evidence.seconds:.2g} s"
        text = f"Too short to say: {seen}; {FEWEST_RECORDS} updates and {FEWEST_SECONDS} s are needed."
        if (every := int(evidence.number("log_interval", 1))) > 1:
            text += f" One update of {every:,} is recorded (--log-interval); with a smaller number there are more."
        return Verdict(text, notes=tuple(findings))
    cycle = cycle_of(evidence)
    parts, notes = cycle.binding(), [*_notes(evidence, cycle), *findings]
    total = sum(parts.values())
    seconds = {name: sum(parts.get(part, 0.0) for part in which) for name, which in _PARTS.items()}
    shares = {name: own / total if total else 0.0 for name, own in seconds.items()}
    is_starved = bool(evidence.workers) and evidence.learner["wait"] > _STARVED * evidence.update_s
    sides_s, rare_s = (cycle.collect_s, cycle.usual_s), sum(cycle.rare.values())
    if cycle.kind == AHEAD and max(sides_s) < _EVEN * min(sides_s) and rare_s < FIRST * cycle.update_s:
        text = (
            f"Balanced: collecting takes {_time(cycle.collect_s)} an update and learning beside it "
            f"{_time(cycle.usual_s)}; to speed up one of them alone gains little."
        )
        return Verdict(text, (), tuple(notes), shares)
    ranked = sorted(shares, key=lambda name: -shares[name])
    named = [name for name in ranked if shares[name] >= (FIRST if name == ranked[0] else FURTHER)]
    named = named if shares[ranked[0]] >= FIRST else []
    causes = tuple(Cause(name, shares[name], seconds[name], _evidence(name, evidence, cycle)) for name in named)
    return Verdict(_sentence(causes, evidence, shares, ranked, is_starved), causes, tuple(notes), shares, is_starved)


def _sentence(
    causes: Sequence[Cause], evidence: Evidence, shares: dict[str, float], ranked: Sequence[str], is_starved: bool
) -> str:
    if not causes:
        first, second = ranked[:2]
        return (
            f"No single cause: the largest are {first} ({shares[first]:.0%}) and {second} ({shares[second]:.0%}) "
            f"of an update."
        )
    top, *others = causes
    text = f"{_named(top.name, evidence)} ({top.share:.0%} of an update's time)"
    text += "".join(f" and {_named(one.name, evidence)} ({one.share:.0%})" for one in others)
    starved = (
        f"; the learner waits {evidence.learner['wait'] / evidence.update_s:.0%} of the time" if is_starved else ""
    )
    return f"{text[0].upper()}{text[1:]}{starved}."


def _named(name: str, e: Evidence) -> str:
    if name != SLOW_ENV:
        return name
    return f"one slow env (env {e.slow_envs[0]})" if len(e.slow_envs) == 1 else f"slow envs ({_listed(e.slow_envs)})"


def _evidence(name: str, e: Evidence, cycle: Cycle) -> str:
    parts, of = cycle.binding(), e.learner
    per = f"of {_time(cycle.update_s)} an update"
    if name == ENV:
        who = "" if len(e.workers) < 2 else f" in each of {len(e.workers)} workers"
        return f"environments step for {_time(parts['env'])}{who} {per}: {_time(_step_s(e, cycle))} a step"
    if name == INFERENCE:
        where = f", policy on {e.options.get('inference_device', 'cpu')}"
        return f"the policy acts for {_time(parts['inference'])} {per}{where}, inference={e.inference}"
    if name == LEARNER:
        each, steps = "", e.gradient_steps
        if steps:
            each = f": {steps:,.0f} gradient step{'s'[: steps != 1]} of {_time(of['sgd'] / steps)}"
        return f"learning takes {_time(sum(of[part] for part in _PARTS[LEARNER]))} {per}{each}"
    if name == COMMUNICATION:
        said = {"copy": "copying", "hand_over": "taking rollouts over", "asking": "asking the inference server",
                "latency": "waking and waiting"}  # fmt: skip
        text = ", ".join(f"{words} {_time(parts[part])}" for part, words in said.items() if parts.get(part, 0.0) > 0)
        return f"{text} {per}"
    if name == LOGGING:
        split = f"records {_time(of['log'])}, episodes {_time(of['episodes'])}, the view {_time(of['view'])}"
        return f"the learner is held up by writing: {split}, {per}"
    if name == IMBALANCE:
        busy = sorted((one.busy, worker) for worker, one in enumerate(e.workers))
        (least, first), (most, last) = busy[0], busy[-1]
        return f"worker {last} is busy for {_time(most)} {per}, worker {first} for {_time(least)}: every update waits"
    if name == SLOW_ENV:
        slow = f"a step of env {_listed(e.slow_envs)} takes {_time(e.slow_env_s)}"
        return f"{slow}, one of the others {_time(e.usual_env_s)}"
    if name == STRAGGLERS:
        busy_s = fmean(one.busy for one in e.workers)
        return f"the slowest worker of an update needs {_time(e.busiest_s)}, each of them {_time(busy_s)} on average"
    if name == INTERPRETER:
        cpu_s, count = sum(one.cpu for one in e.workers), len(e.workers)
        together = f"{count} threads use {_time(cpu_s)} of CPU time in all, and collecting takes"
        shared = "one core is free" if e.free_cores < _TWO_CORES else "one interpreter"
        return f"{shared}: {together} {_time(cycle.collect_s)} {per}"
    words = {CHECKPOINTS: "checkpoints take", EVALUATIONS: "evaluations take", CALLBACK: "callbacks take"}
    own_s = sum(parts.get(part, 0.0) for part in _PARTS[name])
    return f"{words.get(name, 'outside of all measured phases:')} {_time(own_s)} {per}"


def _notes(e: Evidence, cycle: Cycle) -> list[str]:
    """What should be known beside the causes."""
    notes = []
    if is_crowded(e):
        notes.append(
            f"Other programs left {e.free_cores:.1f} of {e.cores} cores to this run: all times are longer than on a "
            f"quiet machine."
        )
    if (beyond_s := e.update_s - cycle.update_s) > _UNEXPLAINED * e.update_s:
        why = f": workers were replaced {e.replaced:,} times, log.txt says why" if e.replaced else ""
        notes.append(
            f"An update takes {_time(e.update_s)} on average, {_time(beyond_s)} more than a usual one: now and then "
            f"the learner waits much longer{why}."
        )
    if cycle.hidden_s > 0.05 * cycle.update_s:
        notes.append(f"{_time(cycle.hidden_s)} of logging, checkpoints and evaluations an update cost nothing: workers "
                     f"collect meanwhile.")  # fmt: skip
    if cycle.kind == AHEAD and cycle.crowded_s > 0.9 * cycle.update_s:
        notes.append(f"All {cycle.cores:.1f} free cores are busy: more workers would not help.")
    return notes


def _step_s(e: Evidence, cycle: Cycle) -> float:
    return cycle.collect["env"] * max(1, len(e.workers)) / e.steps


def _listed(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
