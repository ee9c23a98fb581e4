"""Changes to a run, ranked by the steps/s that each should bring. Pure.

    Evidence ──cycle──> critical path ──each change──> another one ──> gain = its steps/s over those of the present one

A change that an option makes carries it (`--log-interval 10`) and can be tried (`headrace doctor --apply`); others are
advice about the environment. One that touches nothing on the critical path gains nothing and is left out, and so are
workers for which there is no core. What larger minibatches would cost can't be seen in a run of one size: the caller
may have measured it (`learning`). Does not know files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headrace.planning.cycle import AHEAD, IN_STEP, INLINE, Cycle, cycle_of
from headrace.planning.evidence import Evidence, is_crowded
from headrace.planning.verdict import SLOW_ENV, judge

_LEAST_GAIN = 1.05
_HAND_OVER_S = 400e-6  # per rollout and worker: lease, wake, commit, wake (as launch/decision has it)
_CALL_S = 15e-6  # of a policy, however few rows it acts for
_ROUND_TRIP_S = 60e-6  # to an inference server and back
_MOST_WORKERS = 16
_SATURATED = 0.6  # of what the free cores can do: workers that use less sleep, and do not wait for a core
_OWN_WORK = 0.7  # of the time of stepping a pool: with less CPU time than that, others do its work
_FEWER = 10  # times fewer logs, checkpoints, evaluations


@dataclass(frozen=True)
class Advice:
    """One change."""

    what: str
    gain: float
    """Steps/s with it over those without."""
    sps: float
    options: tuple[str, ...] = ()
    """For the command line; none: it is not an option of headrace."""
    changes_learning: bool = False
    """What is learnt differs, not only how fast."""
    counts_frames: bool = False
    """It is frames per second that it gains, not steps: these become fewer and larger."""

    @property
    def is_applicable(self) -> bool:
        """Whether an option makes it, and steps/s show it."""
        return bool(self.options) and not self.counts_frames


def advise(evidence: Evidence, learning: Mapping[tuple[str, int], float] | None = None) -> list[Advice]:
    """All changes that promise something, the best one first.

    `learning`: what learning would take with (option, value), as a multiple of what it takes now.
    """
    now = cycle_of(evidence)
    if not evidence.is_enough or not now.sps:
        return []
    found = [
        Advice(what, cycle.sps / now.sps, evidence.sps * cycle.sps / now.sps, tuple(options), changes)
        for what, options, cycle, changes in _changes(evidence, now, learning or {})
    ]
    best: dict[str, Advice] = {}
    for one in found:  # of several values of one option the best one; a smaller change that does as well goes first
        key = one.options[0] if one.options else one.what
        if one.gain >= _LEAST_GAIN and (key not in best or one.gain > 1.05 * best[key].gain):
            best[key] = one
    if (frames := _repeated(evidence, now)) is not None:
        best["--action-repeat"] = frames
    return sorted(best.values(), key=lambda one: (one.counts_frames, -one.gain))


def _repeated(e: Evidence, now: Cycle) -> Advice | None:
    """Every action twice: half of the acting and learning for each frame of the environments.

    A vector environment or pool steps itself, so headrace can't repeat its actions; a mask holds for one step.
    """
    if e.is_vector or e.options.get("action_masks"):
        return None
    repeat = int(e.number("action_repeat", 1))
    gain = 2.0 * now.update_s / now.scaled(env=2.0, slow_env=2.0).update_s if now.update_s else 1.0
    options = ("--action-repeat", str(2 * repeat))
    text = "send every action twice: more frames/s, fewer and larger steps"
    return Advice(text, gain, e.sps * gain, options, True, True) if gain >= _LEAST_GAIN else None


_Change = tuple[str, tuple[str, ...], Cycle, bool]


def _changes(e: Evidence, now: Cycle, learning: Mapping[tuple[str, int], float]) -> Iterator[_Change]:
    yield from _of_workers(e, now)
    yield from _of_inference(e, now)
    yield from _of_learning(e, now, learning)
    yield from _of_session(e, now)
    n_envs = max(1, int(e.number("n_envs", 1)))
    for times in (2, 4):
        yield f"{times}x as many environments in all", ("--n-envs", str(times * n_envs)), _wider(e, now, times), True
    if SLOW_ENV in judge(e).names:  # where all are equally slow, some are a little slower than others
        yield "make the slow environments as fast as the others", (), now.scaled(slow_env=0.0), False
    kind = "compiled" if e.is_vector else "compiled, or a pool such as envpool:ID"
    yield f"an environment that is twice as fast ({kind})", (), _faster(now), False


def _of_workers(e: Evidence, now: Cycle) -> Iterator[_Change]:
    """More of them, or ahead of the learner."""
    n_envs, have = max(1, int(e.number("n_envs", 1))), len(e.workers)
    typed = int(e.number("shards"))  # each worker needs one, or one for each turn
    most = min(n_envs, _MOST_WORKERS, typed // e.turns if typed else n_envs)
    place = e.place if have else "processes"
    is_in_turns = now.collect.get("interpreter", 0.0) > 0.0
    for count in range(2, most + 1) if is_in_turns else ():
        instead = ("--topology", "processes", "--workers", str(count))
        yield f"{count} processes instead of {have} threads", instead, _in_processes(e, now, count), False
    for count in range(max(2, have + 1), most + 1) if not is_in_turns else ():
        options = ("--workers", str(count)) if have else ("--topology", place, "--workers", str(count))
        yield f"{count} workers instead of {have or 'none'}", options, _spread(e, now, count), False
    if now.kind == AHEAD:
        return
    ahead = ("--max-lag", str(max(1, e.max_lag)))
    if have:
        away = ("--topology", "inline", "--workers", "auto", *(_acting_locally(e) if e.inference == "central" else ()))
        yield "no workers: what it takes to reach them is more than they save", away, _inline(e, now), False
        # Who asks a server and who learns want a core at the same time: what asking takes counts as CPU time.
        cpu_s = now.cpu_s + have * now.collect["asking"]
        yield "collect while the learner learns", ahead, replace(now, kind=AHEAD, cpu_s=cpu_s), True
        if now.collect["stragglers"] > 0 and not is_crowded(e):  # else it is other programs that make them late
            first = replace(now.scaled(stragglers=_still_late(e, now)), kind=AHEAD)
            text = "learn from the rollouts that come first, not from one of every worker"
            yield text, (*ahead, "--batch", "first_come"), first, True
    else:
        for count in range(1, most + 1):
            text = f"collect in {count} worker{'s'[: count > 1]} while the learner learns"
            yield (
                text,
                (*ahead, "--topology", place, "--workers", str(count)),
                replace(_spread(e, now, count), kind=AHEAD, beside=now.beside),
                True,
            )
    uneven = n_envs % have if have else 0
    if uneven and now.collect["imbalance"] > 0:
        more = n_envs + have - uneven
        even = replace(now.scaled(imbalance=0.0), steps=now.steps * more / n_envs)
        yield "as many environments for every worker", ("--n-envs", str(more)), even, True


def _still_late(e: Evidence, now: Cycle) -> float:
    """Of what a late worker takes beyond the others, the share that they can't fill: max_lag bounds how far they go."""
    ahead_s = max(1, e.max_lag) * (e.usual_busy_s + now.own_s)
    return sum(max(0.0, late_s - ahead_s) for late_s in e.late_s) / (sum(e.late_s) or 1.0)


def _of_inference(e: Evidence, now: Cycle) -> Iterator[_Change]:
    """Where the policy acts."""
    have, n_envs, is_device = len(e.workers), int(e.number("n_envs", 1)), _is_on_device(e)
    rows = e.steps / max(1, n_envs)
    if e.place == "processes" and e.inference == "local" and is_device and have > 1:
        collect = {**now.collect, "inference": now.collect["inference"] / have, "asking": rows * _ROUND_TRIP_S}
        yield "one inference server for all workers", ("--inference", "central"), replace(now, collect=collect), False
    if e.inference == "central" and not is_device:
        collect = {**now.collect, "asking": 0.0}
        yield "let workers act themselves", _acting_locally(e), replace(now, collect=collect), False
    if e.inference == "central" and e.turns == 1 and (e.number("shards") or n_envs) >= 2 * have:
        env_s, act_s = now.collect["env"], now.collect["inference"]
        together_s = max(env_s, 2 * act_s, env_s / 2 + act_s)
        collect = {**now.collect, "env": together_s - act_s, "inference": act_s}
        options = ("--double-buffering", "on")
        yield (
            "step half of the environments while the others wait for the policy",
            options,
            replace(now, collect=collect),
            False,
        )


def _acting_locally(e: Evidence) -> tuple[str, ...]:
    is_on = e.options.get("double_buffering") == "on"  # which only servers have
    return ("--inference", "local", *(("--double-buffering", "auto") if is_on else ()))


def _of_learning(e: Evidence, now: Cycle, learning: Mapping[tuple[str, int], float]) -> Iterator[_Change]:
    """What the learner does with a batch."""
    for (option, value), factor in learning.items():
        cycle = now.scaled(completion=factor, advantages=factor, sgd=factor)
        was = f" instead of {e.number(option):.0f}" if e.number(option) else ""
        words = {"batch_size": f"minibatches of {value} rows{was}", "learner_threads": f"{value} threads learn{was}"}
        yield words.get(option, f"{option} {value}"), (f"--{option.replace('_', '-')}", str(value)), cycle, True
    if (epochs := int(e.number("n_epochs"))) > 1:
        fewer = epochs // 2
        options = ("--n-epochs", str(fewer))
        yield f"{fewer} epoch{'s'[: fewer != 1]} instead of {epochs}", options, now.scaled(sgd=fewer / epochs), True


def _of_session(e: Evidence, now: Cycle) -> Iterator[_Change]:
    """What happens beside."""
    for option, part, what in (
        ("log_interval", "log", "write metrics less often"),
        ("checkpoint_every", "checkpoint", "fewer checkpoints"),
        ("eval_every", "evaluation", "fewer evaluations"),
    ):
        if value := int(e.number(option)):
            name = f"--{option.replace('_', '-')}"
            yield what, (name, str(_FEWER * value)), now.scaled(**{part: 1.0 / _FEWER}), False
    if e.number("keep_episodes_mb") and now.beside["episodes"]:
        yield "keep no recorded episodes", ("--keep-episodes-mb", "0"), now.scaled(episodes=0.1), False
    if now.beside["view"]:
        yield "no live view", ("--quiet",), now.scaled(view=0.0), False


def _spread(e: Evidence, now: Cycle, count: int) -> Cycle:
    """The same environments in so many workers. CPU time needs cores; what waits or sleeps does not."""
    have = max(1, len(e.workers))
    shared = {name: now.collect.get(name, 0.0) for name in ("env", "inference", "copy")}
    call_s = min(shared["inference"], e.steps / max(1.0, e.number("n_envs", 1)) * _CALL_S)
    if _is_on_device(e):  # which all of them share: it does not become faster
        call_s = shared["inference"]
    works_elsewhere = _works_elsewhere(e, now)
    busy_s = have * (sum(shared.values()) - call_s)
    cpu_s = busy_s * _cpu_share(e, now)
    beside = max(1.0, min(count, now.cores))
    queued = count / have if _is_on_device(e) and e.inference == "local" else 1.0
    even_s = max(busy_s * _largest(e, count), cpu_s / beside) + call_s * queued
    factor = even_s / sum(shared.values()) if sum(shared.values()) and not works_elsewhere else 1.0
    collect = {**now.collect, **{name: factor * own for name, own in shared.items()}}
    collect["latency"] = now.collect.get("latency", 0.0) if e.workers else _HAND_OVER_S * count
    collect["imbalance"] = now.collect.get("imbalance", 0.0) * have / count  # slow environments, among more workers
    kind = IN_STEP if now.kind == INLINE else now.kind
    all_cpu_s = now.cpu_s + works_elsewhere * now.cores * shared["env"]
    new = replace(now, kind=kind, collect=collect, cpu_s=all_cpu_s)
    if now.kind != INLINE:
        return new
    shown_s = max(0.0, sum(now.beside.values()) - new.collect_s)  # workers collect meanwhile
    share = shown_s / sum(now.beside.values()) if sum(now.beside.values()) else 0.0
    return replace(new, beside={name: own * share for name, own in now.beside.items()})


def _works_elsewhere(e: Evidence, now: Cycle) -> bool:
    """A pool whose own threads or processes have the cores already, while the thread that steps it waits for them."""
    return e.is_vector and _cpu_share(e, now) < _OWN_WORK


def _largest(e: Evidence, count: int) -> float:
    """The share of all environments that the fullest of so many workers has: 2 of 8, with 4 workers as with 7."""
    n_envs = max(1, int(e.number("n_envs", 1)))
    return math.ceil(n_envs / count) / n_envs


def _in_processes(e: Evidence, now: Cycle, count: int) -> Cycle:
    """Threads that take turns at one interpreter, as processes: each runs when it likes, on the cores that are free."""
    have, own_s = len(e.workers), sum(now.collect[name] for name in ("env", "inference", "copy"))
    factor = (1.0 + (now.collect["interpreter"] / own_s if own_s else 0.0)) * max(
        _largest(e, count), 1.0 / max(1.0, now.cores)
    )
    new = now.scaled(env=factor, inference=factor, copy=factor, interpreter=0.0, imbalance=have / count)
    cpu_s = now.cpu_s + e.actors_cpu_s  # which that of a run in threads leaves out
    return replace(new, collect={**new.collect, "latency": _HAND_OVER_S * count}, cpu_s=cpu_s)


def _inline(e: Evidence, now: Cycle) -> Cycle:
    """What all workers do, one after the other; the policy acts for all at once, and nothing happens meanwhile."""
    have, busy_s, cpu_s = len(e.workers), sum(one.busy for one in e.workers), sum(one.cpu for one in e.workers)
    factor, slowest_s = 1.0, max(one.busy for one in e.workers)
    at_once = 1.0 if now.collect["interpreter"] else max(1.0, e.free_cores)
    if busy_s and cpu_s > _SATURATED * at_once * slowest_s:
        # They waited for a core or the interpreter, but the slowest one no longer than it took in all: it may sleep.
        factor = min(1.0, max(cpu_s, at_once * slowest_s) / busy_s)
    acting_s = factor * sum(one.inference for one in e.workers)
    each_s = acting_s / have
    call_s = each_s if _is_on_device(e) else min(each_s, e.steps / max(1.0, e.number("n_envs", 1)) * _CALL_S)
    acting_s -= (have - 1) * call_s
    if e.inference == "central":
        acting_s = e.act_s * max(1.0, e.number("inference_servers", 1))
    collect = dict.fromkeys(now.collect, 0.0) | {
        "env": factor * sum(one.env for one in e.workers),
        "inference": acting_s,
        "copy": factor * sum(one.copy for one in e.workers),
    }
    beside = {name: e.learner[name] for name in now.beside}
    return replace(
        now, kind=INLINE, collect=collect, learn={**now.learn, "hand_over": 0.0}, beside=beside, hidden_s=0.0
    )


def _cpu_share(e: Evidence, now: Cycle) -> float:
    """Of the time of actors, what is CPU time. A thread that waits for a core shows less: learning says how much."""
    busy_s = sum(one.busy for one in e.workers) or sum(e.learner[name] for name in ("env", "inference", "copy"))
    own_s = sum(now.learn.values()) + sum(e.learner[name] for name in now.beside)
    learner_cpu_s = e.learner_cpu_s - (0.0 if e.workers else e.actors_cpu_s)
    is_telling = own_s > 0.05 * e.update_s
    usual = min(1.0, max(0.1, learner_cpu_s / own_s)) if is_telling and own_s else 1.0
    return min(1.0, e.actors_cpu_s / busy_s / usual) if busy_s and e.actors_cpu_s else 1.0


def _wider(e: Evidence, now: Cycle, times: int) -> Cycle:
    """More environments: all work grows but what is paid per call, per update and per rollout."""
    rows = e.steps / max(1.0, e.number("n_envs", 1))
    acting_s = now.collect["inference"]
    call_s = acting_s if _is_on_device(e) else min(acting_s, rows * _CALL_S)
    fixed = ("asking", "latency", "slow_env")  # slow ones are exceptions, more of the others come
    wider = {name: own * (1 if name in fixed else times) for name, own in now.collect.items()}
    wider["stragglers"] = now.collect.get("stragglers", 0.0) * math.sqrt(times)  # sums of more steps differ by so much
    wider["inference"] = call_s + times * (acting_s - call_s)
    learn = {name: own * (1 if name in ("hand_over", "other") else times) for name, own in now.learn.items()}
    by_steps = ("checkpoint", "evaluation", "episodes")  # due every so many steps
    beside, rare = (
        {name: own * (times if name in by_steps else 1) for name, own in some.items()}
        for some in (now.beside, now.rare)
    )
    more = replace(now, steps=times * now.steps, collect=wider, learn=learn, beside=beside, rare=rare)
    return replace(more, cpu_s=times * now.cpu_s)


def _is_on_device(e: Evidence) -> bool:
    return {one.strip() for one in str(e.options.get("inference_device", "cpu")).split(",")} != {"cpu"}


def _faster(now: Cycle) -> Cycle:
    return now.scaled(env=0.5, slow_env=0.5)
