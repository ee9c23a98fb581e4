"""One update as a critical path: what it consists of, and how long it takes if a part of it changes. Pure.

    inline      collect, learn, beside                          one after the other
    in step     max(collect, beside), learn                     workers collect while the session logs
    ahead       max(collect, learn + beside, CPU time / cores)  max_lag of at least 1: side by side
                and what is rare, one after the other: workers are soon as far ahead as they may be

What is hidden behind collecting now comes to light again if collecting becomes shorter than that.

`collect` is that of the slowest worker. Its parts: what all workers do (env, inference, copy), what the slowest one
does beyond the others (slow_env, imbalance, stragglers), what it takes to ask and to hand over (asking, latency), and
what threads wait for the interpreter that they share (interpreter): it is in the wall time of all that they do.
Of `beside` only what is not hidden behind collecting is in a cycle. Does not know options or words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from headrace.planning.evidence import BESIDE, COLLECTING, LEARNING, Evidence

INLINE, IN_STEP, AHEAD = "inline", "in step", "ahead"
_WAITS = 0.05  # of an update: a learner that waits less is not held up
_CHANCE = 3.0  # standard errors: what one worker takes beyond the others may be chance if it is less
_IN_TURNS = (0.6, 1.3)  # CPU time of all threads over the time of collecting: about one of them runs at any time


@dataclass(frozen=True)
class Cycle:
    """Seconds of one update, by part."""

    kind: str
    steps: float
    collect: Mapping[str, float]
    learn: Mapping[str, float]
    beside: Mapping[str, float]
    hidden_s: float = 0.0
    """What happens beside, behind collecting."""
    cpu_s: float = 0.0
    """CPU time of all processes."""
    cores: float = 1.0
    """That are free for them."""
    rare: Mapping[str, float] = field(default_factory=dict)
    """Of `beside`, what is done in few updates and takes long then."""

    @property
    def collect_s(self) -> float:
        """Until all rollouts are there."""
        return sum(self.collect.values())

    @property
    def own_s(self) -> float:
        """Of the thread that learns."""
        return sum(self.learn.values()) + sum(self.beside.values())

    @property
    def usual_s(self) -> float:
        """Of it, in a typical update."""
        return self.own_s - sum(self.rare.values())

    @property
    def crowded_s(self) -> float:
        """The least that the cores need."""
        return self.cpu_s / max(self.cores, 1.0)

    @property
    def update_s(self) -> float:
        """Of a whole update."""
        if self.kind == AHEAD:
            side_s = max(self.collect_s, self.usual_s + self.hidden_s, self.crowded_s)
            return side_s + sum(self.rare.values())
        return max(self.collect_s, self.hidden_s) + self.own_s

    @property
    def sps(self) -> float:
        """Steps per second."""
        return self.steps / self.update_s if self.update_s else 0.0

    def binding(self) -> dict[str, float]:
        """The parts on the critical path, in seconds. Side by side, only the longer side is on it."""
        own = {**self.learn, **self.beside}
        if self.kind != AHEAD:
            return {**self.collect, **own}
        return {**self.collect, **self.rare} if self.collect_s > self.usual_s else own

    def scaled(self, **factors: float) -> Cycle:
        """Some parts take another time; threads that take turns wait for one another in proportion."""
        own = [name for name in COLLECTING if name in self.collect]
        own_s = sum(self.collect[name] for name in own)
        later_s = sum(self.collect[name] * factors.get(name, 1.0) for name in own)
        factors.setdefault("interpreter", later_s / own_s if own_s else 1.0)
        return replace(
            self,
            collect={name: seconds * factors.get(name, 1.0) for name, seconds in self.collect.items()},
            learn={name: seconds * factors.get(name, 1.0) for name, seconds in self.learn.items()},
            beside={name: seconds * factors.get(name, 1.0) for name, seconds in self.beside.items()},
            rare={name: seconds * factors.get(name, 1.0) for name, seconds in self.rare.items()},
        )


def cycle_of(evidence: Evidence) -> Cycle:
    """The critical path of the updates that were seen."""
    e, of = evidence, evidence.learner
    learn = {name: of[name] for name in ("hand_over", *LEARNING, "other")}
    beside = {name: of[name] for name in BESIDE}
    if e.place == "inline" or not e.workers:
        slow_s = min(_excess_s(e, len(e.slow_envs)), 0.95 * of["env"])
        collect = {"env": of["env"] - slow_s, "slow_env": slow_s, "inference": of["inference"], "copy": of["copy"]}
        return Cycle(INLINE, e.steps, collect, learn, beside, 0.0, e.learner_cpu_s, e.free_cores, e.rare)
    cpu_s = e.learner_cpu_s + e.actors_cpu_s * (e.place == "processes") + e.act_s * (e.inference == "central")
    collect = _collecting(e)
    if e.max_lag:
        is_waiting = of["wait"] > _WAITS * e.update_s
        if is_waiting:  # what workers did is all that the update took
            collect["latency"] += max(0.0, e.update_s - sum(collect.values()) - sum(e.rare.values()))
        return Cycle(AHEAD, e.steps, collect, learn, beside, 0.0, cpu_s, e.free_cores, e.rare)
    shown_s = max(0.0, of["wait"] + sum(beside.values()) - e.collected_s)
    share = min(1.0, shown_s / sum(beside.values())) if sum(beside.values()) else 0.0
    seen = {name: seconds * share for name, seconds in beside.items()}
    hidden_s = sum(beside.values()) - sum(seen.values())
    rare = {name: min(e.rare.get(name, 0.0), seconds) for name, seconds in seen.items()}
    return Cycle(IN_STEP, e.steps, collect, learn, seen, hidden_s, cpu_s, e.free_cores, rare)


def _collecting(e: Evidence) -> dict[str, float]:
    """The time until the slowest worker is done, by cause."""
    if (window_s := _taken_in_turns_s(e)) > 0.0:
        return _in_turns(e, window_s)
    busy = [one.busy for one in e.workers]
    spread = [sum(worker_of(e, index) == worker for index in e.slow_envs) for worker in range(len(busy))]
    # A slow environment makes its worker slower than those without one, or it is no slow one: a thread that has to wait
    # for the interpreter in the same environment's step each time is not.
    without = min((one.env for count, one in zip(spread, e.workers, strict=True) if not count), default=0.0)
    excess = [
        min(_excess_s(e, count), 0.95 * one.env, max(0.0, one.env - without))
        for count, one in zip(spread, e.workers, strict=True)
    ]
    usual = [own - more for own, more in zip(busy, excess, strict=True)]
    even_s = _even_s(usual)
    total = sum(busy) - sum(excess) or 1.0
    env, inference = sum(one.env for one in e.workers) - sum(excess), sum(one.inference for one in e.workers)
    acting_s = even_s * inference / total
    asking_s = max(0.0, acting_s - e.act_s) if e.inference == "central" else 0.0
    stragglers_s, imbalance_s = max(0.0, e.busiest_s - max(busy)), max(usual) - even_s
    if imbalance_s < _CHANCE * e.uneven_error_s:  # now one worker is late and now another one
        stragglers_s, imbalance_s = stragglers_s + imbalance_s, 0.0
    return {
        "env": even_s * env / total,
        "inference": acting_s - asking_s,
        "copy": even_s * sum(one.copy for one in e.workers) / total,
        "interpreter": 0.0,
        "asking": asking_s,
        "slow_env": max(busy) - max(usual),
        "imbalance": imbalance_s,
        "stragglers": stragglers_s,
        "latency": 0.0 if e.max_lag else max(0.0, e.collected_s - max(busy) - stragglers_s),
    }


def _even_s(times: list[float]) -> float:
    """What all workers take but the slowest one."""
    slowest = times.index(max(times))
    others = [own for worker, own in enumerate(times) if worker != slowest]
    return min(fmean(others), max(times)) if others else times[0]


def _in_turns(e: Evidence, window_s: float) -> dict[str, float]:
    """The same of threads that take turns: what each of them does is its CPU time, all else is waiting for the others.

    One that waits before its first step looks idle, and the one that is served last looks late: both are waiting.
    """
    cpu = [one.cpu for one in e.workers]
    even_s, busy_s = _even_s(cpu), sum(one.busy for one in e.workers)
    shares = {name: sum(getattr(one, name) for one in e.workers) / busy_s for name in COLLECTING}
    none = dict.fromkeys(("asking", "slow_env", "stragglers", "latency"), 0.0)
    parts = {name: even_s * share for name, share in shares.items()}
    return parts | none | {"interpreter": window_s - max(cpu), "imbalance": max(cpu) - even_s}


def _taken_in_turns_s(e: Evidence) -> float:
    """How long collecting takes, if it is threads that take turns at one interpreter or core; else 0."""
    if e.place != "threads" or len(e.workers) < 2:
        return 0.0
    is_waiting = e.learner["wait"] > _WAITS * e.update_s
    whole_s = (e.update_s if is_waiting else 0.0) if e.max_lag else e.collected_s
    window_s = max(whole_s, *(one.busy for one in e.workers))
    cpu_s, most_s = sum(one.cpu for one in e.workers), max(one.cpu for one in e.workers)
    least, most = _IN_TURNS
    is_busy = any(one.busy for one in e.workers)
    return window_s if is_busy and least * window_s <= cpu_s <= most * window_s and most_s < window_s else 0.0


def worker_of(e: Evidence, index: int) -> int:
    """The worker of an environment, -1 if there is no such one: shards are dealt out in turn (collecting/topology)."""
    n_envs, shards = int(e.number("n_envs", 1)), max(1, e.shards)
    if not 0 <= index < n_envs:
        return -1
    small, extra = divmod(n_envs, shards)  # the first `extra` shards have one more
    more = extra * (small + 1)
    shard = index // (small + 1) if index < more else extra + (index - more) // small
    return shard % max(1, len(e.workers))


def _excess_s(e: Evidence, count: int) -> float:
    """What some slow environments take beyond usual ones, per update."""
    rows = e.steps / max(1.0, e.number("n_envs", 1))
    return count * rows * max(0.0, e.slow_env_s - e.usual_env_s)
