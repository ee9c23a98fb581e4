"""What a run's files say about where its time went: numbers per update, before anything is concluded from them.

    metrics.jsonl (records) · config.json · result.json ──evidence_of──> Evidence

Files are data: what is missing, of another type, not finite or absurdly large counts as not known. Of a resumed run
the newest session counts: it may run elsewhere. A session's first record is left out, since processes start and code is
compiled in it. Draws no conclusion (cycle, verdict).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any

Record = Mapping[str, float]

COLLECTING = ("env", "inference", "copy")
LEARNING = ("completion", "advantages", "sgd")
BESIDE = ("episodes", "log", "view", "callback", "checkpoint", "evaluation")  # what a session does between updates
PHASES = (*COLLECTING, "hand_over", *LEARNING, "wait", *BESIDE, "other")
FEWEST_RECORDS, FEWEST_SECONDS = 4, 0.2
_MOST_RECORDS = 500  # the newest ones
_LARGEST = 1e12  # a larger number is no measurement, and sums of such overflow
_MOST_SHARDS = 1 << 16
_CROWDED = 0.75  # of the machine's cores: with fewer, other programs matter
_SAME_ENV, _MOST_SLOW, _SLOW = 0.8, 3, 2.0  # the same few environments are the slowest nearly always, and by this much
_UNEXPLAINED = 0.7  # of what they take beyond the others: if as much is left, there are more slow ones
_TIMED_ROWS, _KEPT = 61, 7 / 8  # envs/serial: one row of so many is timed, and moves a mean that keeps the rest of it
_MOST_STRETCHES, _FEWEST_STRETCHES, _NEWLY_TIMED = 6, 2, 1  # of a run, and timed rows of each, at least


@dataclass(frozen=True)
class WorkerTimes:
    """Seconds of one worker per update."""

    env: float = 0.0
    inference: float = 0.0
    copy: float = 0.0
    idle: float = 0.0
    cpu: float = 0.0

    @property
    def busy(self) -> float:
        """All but waiting for orders."""
        return self.env + self.inference + self.copy


@dataclass(frozen=True)
class Evidence:
    """Means per update, in seconds unless it says otherwise."""

    learner: Mapping[str, float]
    """By name of PHASES: the thread that learns. Inline it collects, too."""
    steps: float
    """Environment steps of an update."""
    workers: tuple[WorkerTimes, ...] = ()
    busiest_s: float = 0.0
    """Of whichever worker was the busiest in each update."""
    late_s: tuple[float, ...] = ()
    """How much longer than the one in the middle that was, in each update."""
    usual_busy_s: float = 0.0
    """Of the worker in the middle, in a typical update."""
    uneven_error_s: float = 0.0
    """Standard error of what the slowest worker takes beyond the others: how much of that may be chance."""
    rare: Mapping[str, float] = field(default_factory=dict)
    """Of what the learner does beside, by name, what typical updates have none of: evaluations, checkpoints."""
    collected_s: float = 0.0
    """From an update's end until its successor's rollouts were there, in a typical update."""
    actors_cpu_s: float = 0.0
    learner_cpu_s: float = 0.0
    replaced: int = 0
    """Workers that died or whose environment raised, and others that took their places."""
    act_s: float = 0.0
    """Of the busiest inference server's policy."""
    slow_envs: tuple[int, ...] = ()
    slow_env_s: float = 0.0
    """A step of these, and of the environment in the middle."""
    usual_env_s: float = 0.0
    is_vector: bool = False
    """The environments are stepped as a whole, so far as can be seen."""
    gradient_steps: float = 0.0
    updates: int = 0
    """How many were looked at, and how long they took in all."""
    seconds: float = 0.0
    free_cores: float = math.inf
    """That other programs left to the run."""
    cores: int = 1
    place: str = "inline"
    inference: str = "local"
    turns: int = 1
    shards: int = 1
    max_lag: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of config.json, by their names on the command line with underscores."""

    @property
    def update_s(self) -> float:
        """Of a whole update."""
        return sum(self.learner.values())

    @property
    def sps(self) -> float:
        """Environment steps per second."""
        return self.steps / self.update_s if self.update_s else 0.0

    @property
    def is_enough(self) -> bool:
        """Whether it is worth a conclusion."""
        return self.updates >= FEWEST_RECORDS and self.seconds >= FEWEST_SECONDS and self.steps > 0

    def number(self, option: str, default: float = 0.0) -> float:
        """An option that is a number."""
        value = self.options.get(option)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 63
        return float(value) if is_number and math.isfinite(value) else default  # type: ignore[arg-type]


def evidence_of(records: Sequence[Record], config: Mapping[str, Any], result: Mapping[str, Any]) -> Evidence:
    """From what was read of a run directory."""
    sessions = _comparable([_finite(record) for record in records])
    used = [record for session in sessions for record in session[1:]][-_MOST_RECORDS:]
    where, options = _where(result, config, used), _options(config)
    count = _whole(where.get("workers"), 1) if where["topology"] != "inline" else 0
    turns = max(1, _whole(where.get("turns"), 1))
    learner = {name: _mean(used, f"headrace/time/{name}") for name in PHASES}
    steps, gradient_steps = (_per_update(sessions, tag) for tag in ("time/total_timesteps", "train/n_updates"))
    by_worker = [[_worker(record, worker, turns) for worker in range(count)] for record in used]
    waits = [(record.get("headrace/time/wait", 0.0), _beside(record)) for record in used]
    busiest_s = _mean_of([max((one.busy for one in workers), default=0.0) for workers in by_worker])
    middle = [median([one.busy for one in workers]) for workers in by_worker if workers]
    late = [max(one.busy for one in workers) - usual for workers, usual in zip(by_worker, middle, strict=False)]
    is_waited = median([wait for wait, _ in waits] or [0.0]) > 0.02 * sum(learner.values())
    whole = [wait + beside for wait, beside in waits] or [0.0]
    # A mean has in it what is done now and then while nobody collects; where most updates are late, a median is more.
    collected_s = max(busiest_s, min(median(whole), fmean(whole))) if is_waited else busiest_s
    n_envs = _whole(options.get("n_envs"), 1)
    slow, slow_s, usual_s = _slow_envs(used, n_envs)
    means = [record["headrace/envs/mean_s"] for record in used if "headrace/envs/mean_s" in record]
    if means and not _explains(len(slow), slow_s, usual_s, n_envs, median(means)):  # older runs have none
        slow = ()
    free = [record["headrace/free_cores"] for record in used if "headrace/free_cores" in record]
    cores = max(1, _whole(where.get("cores"), 1))
    most_shards = min(_whole(options.get("n_envs"), _MOST_SHARDS), _MOST_SHARDS)
    return Evidence(
        learner=learner,
        steps=steps,
        workers=tuple(_mean_worker([workers[worker] for workers in by_worker]) for worker in range(count)),
        busiest_s=busiest_s,
        late_s=tuple(late),
        usual_busy_s=median(middle or [0.0]),
        rare={name: _rare([record.get(f"headrace/time/{name}", 0.0) for record in used]) for name in BESIDE},
        uneven_error_s=_uneven_error_s(by_worker),
        collected_s=collected_s,
        actors_cpu_s=_mean(used, "headrace/actors/cpu_s") / turns,
        learner_cpu_s=_mean(used, "headrace/cpu_s"),
        replaced=int(sum(_grown(session, "headrace/restarts") for session in sessions)),
        act_s=_mean(used, "headrace/inference/act_s"),
        slow_envs=slow,
        slow_env_s=slow_s,
        usual_env_s=usual_s,
        is_vector=_is_vector(config, used, n_envs),
        gradient_steps=gradient_steps,
        updates=len(used),
        seconds=sum(learner.values()) * len(used),
        free_cores=min(_mean_of(free) if free else math.inf, cores),
        cores=cores,
        place=str(where["topology"]),
        inference=str(where.get("inference", "local")),
        turns=turns,
        shards=max(1, min(_whole(where.get("shards"), count or 1), most_shards)),
        max_lag=_whole(where.get("max_lag", options.get("max_lag")), 0),
        options=options,
    )


def is_crowded(e: Evidence) -> bool:
    """Whether other programs took cores that the run could have used."""
    return e.free_cores < _CROWDED * e.cores


def _comparable(records: Sequence[Record]) -> list[Sequence[Record]]:
    """The newest session; if that is too short, with the earlier ones that took place as it does.

    The clock of a session starts anew. Whether workers are threads or processes can't be seen from records.
    """
    clock = [(at, one["time/time_elapsed"]) for at, one in enumerate(records) if "time/time_elapsed" in one]
    starts = [0, *(at for (_, before), (at, after) in pairwise(clock) if after < before), len(records)]
    sessions = [records[start:end] for start, end in pairwise(starts)]
    newest = sessions[-1]
    seconds = sum(record.get(f"headrace/time/{name}", 0.0) for record in newest[1:] for name in PHASES)
    if len(newest) > FEWEST_RECORDS and seconds >= FEWEST_SECONDS:
        return [newest]
    return [session for session in sessions if _actors(session) == _actors(newest)]


def _actors(session: Sequence[Record]) -> set[str]:
    """Names of the workers and inference servers that reported."""
    named = {tag.rpartition("/")[0] for record in session for tag in record}
    return {name for name in named if name.startswith(("headrace/worker_", "headrace/inference"))}


def _where(result: Mapping[str, Any], config: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """Where the run took place; what an older result.json does not say is seen from the records."""
    said = result.get("where")
    where = dict(said) if isinstance(said, dict) else {}
    if where.get("topology") not in ("inline", "threads", "processes"):
        last = records[-1] if records else {}
        workers = sum(tag.startswith("headrace/sps/worker_") for tag in last)
        asked = _options(config).get("topology")
        where |= {"topology": (asked if asked == "threads" else "processes") if workers else "inline"}
        where |= {"workers": workers}
    where["workers"] = min(_whole(where.get("workers"), 1), 1024)
    return where


def _options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rooms of a config.json side by side; their keys differ."""
    found: dict[str, Any] = {"algorithm": "ppo"}
    for room in ("env", "policy", "algorithm", "topology", "session"):
        part = config.get(room)
        found |= {key: value for key, value in part.items() if key != "env"} if isinstance(part, dict) else {}
    return found


def _is_vector(config: Mapping[str, Any], records: Sequence[Record], n_envs: int) -> bool:
    """Whether the environment is a pool, or several of which no single one was timed."""
    env = config.get("env")
    name = env.get("env") if isinstance(env, dict) else None
    is_timed = any("headrace/envs/median_s" in record for record in records)
    return (isinstance(name, str) and name.startswith("envpool:")) or (n_envs > 1 and not is_timed)


def _slow_envs(records: Sequence[Record], n_envs: int) -> tuple[tuple[int, ...], float, float]:
    """The few environments that are the slowest in nearly every record, a step of theirs and a usual one.

    Where steps are of any length, each of them is the slowest one at times: then none is named.
    """
    needed = {f"headrace/envs/{name}" for name in ("median_s", "slowest", "slowest_s")}
    seen = [record for record in records if needed <= record.keys() and record["headrace/envs/median_s"] > 0.0]
    if len(seen) < FEWEST_RECORDS:
        return (), 0.0, 0.0
    usual_s = median([record["headrace/envs/median_s"] for record in seen])
    most = min(_MOST_SLOW, max(1, n_envs // 4))
    named, count = list[int](), 0
    for index, times in Counter(int(record["headrace/envs/slowest"]) for record in seen).most_common(most):
        named, count = [*named, index], count + times
        if count >= _SAME_ENV * len(seen):
            mine = [one["headrace/envs/slowest_s"] for one in seen if int(one["headrace/envs/slowest"]) in named]
            slow_s = median(mine)
            is_slow = slow_s >= _SLOW * usual_s and _is_slow_again(seen, n_envs)
            return (tuple(sorted(named)), slow_s, usual_s) if is_slow else ((), 0.0, usual_s)
    return (), 0.0, usual_s


def _is_slow_again(seen: Sequence[Record], n_envs: int) -> bool:
    """Whether the steps that were newly timed are slow, too, in half of the stretches of the run.

    What is recorded is a mean that keeps a single slow step for hundreds of rows: a hiccup, or the first step of all,
    which loads something, is no slow environment. If the slowest one is another one than before, its own mean was
    lower, so that its new steps are slower than is reckoned here.
    """
    rows = [one.get("time/total_timesteps", 0.0) / max(1, n_envs) for one in seen]
    least = max(_NEWLY_TIMED * _TIMED_ROWS, (rows[-1] - rows[0]) / _MOST_STRETCHES)
    begin, verdicts = 0, list[bool]()
    for end in range(1, len(seen)):
        if rows[end] - rows[begin] >= least:
            kept = _KEPT ** ((rows[end] - rows[begin]) / _TIMED_ROWS)
            before_s, after_s = (seen[at]["headrace/envs/slowest_s"] for at in (begin, end))
            verdicts.append(after_s - kept * before_s >= (1 - kept) * before_s / 2)
            begin = end
    return sum(verdicts) >= max(_FEWEST_STRETCHES, len(verdicts) / 2)


def _explains(count: int, slow_s: float, usual_s: float, n_envs: int, mean_s: float) -> bool:
    """Whether a few slow environments and usual ones take what steps of all of them take.

    A record names the slowest one only. Of four that are equally slow, two may be it nearly always: to name these two
    would be a lie about the others, and about what it brings to mend them.
    """
    left_s = n_envs * mean_s - count * slow_s - (n_envs - count) * usual_s
    return left_s <= _UNEXPLAINED * count * (slow_s - usual_s)


def _worker(record: Record, worker: int, turns: int) -> WorkerTimes:
    """In turns, the time of one shard runs on while another one is stepped."""
    parts = [record.get(f"headrace/worker_{worker}/{name}_s", 0.0) for name in (*COLLECTING, "idle", "cpu")]
    return WorkerTimes(*(part / turns for part in parts))


def _mean_worker(times: Sequence[WorkerTimes]) -> WorkerTimes:
    names = (*COLLECTING, "idle", "cpu")
    return WorkerTimes(*(_mean_of([getattr(one, name) for one in times]) for name in names))


def _uneven_error_s(by_worker: Sequence[Sequence[WorkerTimes]]) -> float:
    if len(by_worker) < FEWEST_RECORDS or len(by_worker[0]) < 2:
        return 0.0
    busy = [[one.busy for one in workers] for workers in by_worker]
    totals = [sum(times) for times in zip(*busy, strict=True)]
    slowest = totals.index(max(totals))
    beyond = [times[slowest] - (sum(times) - times[slowest]) / (len(times) - 1) for times in busy]
    return stdev(beyond) / math.sqrt(len(beyond))


def _beside(record: Record) -> float:
    return sum(record.get(f"headrace/time/{name}", 0.0) for name in BESIDE)


def _per_update(sessions: Sequence[Sequence[Record]], tag: str) -> float:
    """How much a count grows with an update; a record may stand for several of them."""
    grown = list[float]()
    for session in sessions:
        pairs = [(one["time/iterations"], one[tag]) for one in session if {"time/iterations", tag} <= one.keys()]
        grown += [(b - a) / (j - i) for (i, a), (j, b) in pairwise(pairs) if j > i and b >= a]
    return _mean_of(grown[-_MOST_RECORDS:])


def _finite(record: Record) -> Record:
    return {tag: value for tag, value in record.items() if 0.0 <= value <= _LARGEST}


def _mean(records: Sequence[Record], tag: str) -> float:
    return _mean_of([record.get(tag, 0.0) for record in records])


def _grown(session: Sequence[Record], tag: str) -> float:
    """From the first record that counts to the last one."""
    counts = [record[tag] for record in session if tag in record]
    return max(0.0, counts[-1] - counts[0]) if counts else 0.0


def _rare(numbers: Sequence[float]) -> float:
    return max(0.0, fmean(numbers) - median(numbers)) if numbers else 0.0


def _mean_of(numbers: Sequence[float]) -> float:
    return fmean(numbers) if numbers else 0.0


def _whole(value: Any, default: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else default
