"""LLM rollouts: episodes/s of a lock-step loop, of threads round one lock, and of headrace, in one run.

engine:  scripted, 50 ms + 1 ms per sequence a batch; and the tiny model in this process, for real
envs:    steps of 1 ms, of 50 ms, and heavy-tailed (Pareto, mean about 50 ms, at most 2 s); they wait, none computes

lock-step    a plain loop: all live episodes in one call of the engine, then every environment in turn. Its time is
             known beforehand (sum of batches and steps) and has to be met within 10 %: a slow baseline proves nothing
with threads the same, with the environments of a turn in a thread pool: a barrier per turn is left. Where all of them
             wait alike it costs nothing, and ours must not be slower
global lock  a thread per episode, one request at a time, as in the known attempt
ours         AgentRollouts, backend auto

All of them hold the same conversations with the same seeds, and wait for the same draws; that is asserted. They take
turns, and a ratio is the median of the ratios of each round, so that a machine that gets slower does so for both.

Occupancy is how many episodes the engine serves at one time, beside Little's law. Of N live episodes each is in its
environment (E seconds a turn), or served (S), or waits (W), so X = N / (S + E + W) turns end per second, and the mean
number that is served, by time, is X * S. Where nobody waits that is the ideal, b = N * S / (S + E); the model's is no
more than its slots. A batch of r sequences that lasts d seconds serves for r * d seconds: the sum of these is divided
by the answers for S, and for the mean batch by the time

    in which the engine works           mean batch of workers: what the barrier of a batch makes larger, not smaller
    in all, its rests included          served at one time. It is (S + E) / (S + E + W), an episode's time without
                                        waiting, and judged for the model, which may be joined at any pass. Who asks the
                                        script within a batch has to wait for its end, which b does not know of.

For the model d is a round: a pass that speaks, and the reading (of those and others) since the last one that did. It
was a mean over passes before, and S the mean pass times the tokens of an answer: ten passes of 0.4 ms for two
stragglers, while all others are away, counted as much as ten rounds of 6 ms for 32, though an answer is in the latter
sixteen times as often. That figure is still there ("by passes"), and not judged. tests/benchmarks/test_occupancy.py has
engines that are below 0.8 of the ideal, as they should be: one request at a time, few slots, nobody joins, rests.

Measured with eight times as many episodes as may be live, until the last group has begun: it is not about the last
straggler. Overhead is the workers' time per turn at 512 live episodes with environments that cost nothing, less the
engine's own.

`--only` runs some parts; with an existing FILE, `--json` keeps the parts it has.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean, median
from typing import Any

import harness
import numpy as np

import headrace as hr
from headrace.agents.build import tiny_engine
from headrace.agents.engines.protocol import Completion, Engine, EngineStatistics, Request
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.environments.text_env import Step, TextEnvSpec
from headrace.agents.episode import Play
from headrace.agents.limits import Limits
from headrace.agents.plan import GroupPlan, Rules, Ticket
from headrace.agents.records import Episode

LATENCY = Latency(0.05, 0.001)
TURNS, SLOTS = 5, 32
RULES = Rules(
    max_turn=TURNS, max_actions_per_turn=1, max_actions_per_traj=TURNS, enable_think=False, max_tokens=24,
    max_context=1024,
)  # fmt: skip


class Waits:
    """Steps that wait as long as the episode's draws say; an episode has TURNS of them."""

    instructions = "Wait."
    actions = ("go",)

    def __init__(self, kind: str, episodes: int) -> None:
        self._kind, self._episodes = kind, episodes
        self._rng = np.random.default_rng(0)
        self._left = TURNS

    def reset(self, seed: int) -> str:
        self._rng = draws_of(next(_NUMBER) % self._episodes)  # any `episodes` in a row are all of them
        self._left = TURNS
        return "Ready."

    def step(self, action: str) -> Step:
        if self._kind != "none":
            time.sleep(duration(self._kind, self._rng))
        self._left -= 1
        return Step("Done.", 1.0, self._left == 0)

    def close(self) -> None:
        pass


class _Counter:
    """Members of a group wait differently: who comes first gets the first number."""

    def __init__(self) -> None:
        self._lock, self._next = threading.Lock(), -1

    def __next__(self) -> int:
        with self._lock:
            self._next += 1
            return self._next


_NUMBER = _Counter()


def draws_of(episode: int) -> np.random.Generator:
    return np.random.default_rng((7, episode))


def duration(kind: str, rng: np.random.Generator) -> float:
    if kind == "heavy":
        return float(min(2.0, 0.0167 * (1.0 + rng.pareto(1.5))))
    return {"none": 0.0, "1 ms": 0.001, "50 ms": 0.05}[kind]


def go(prompt: str, rng: np.random.Generator) -> str:
    return "<answer>go</answer>"


@dataclass(frozen=True)
class Job:
    """What every contender has to do."""

    kind: str
    episodes: int
    size: int
    is_real: bool = False  # the model; else the script

    @property
    def plan(self) -> GroupPlan:
        spec = TextEnvSpec("Waits", Waits, {"kind": self.kind, "episodes": self.episodes})
        return GroupPlan(1, self.size, (spec,), (1,), RULES)


class Seat:
    """One episode for the two baselines, who know no headrace but its conversations and its records."""

    def __init__(self, job: Job, engine: Engine, number: int) -> None:
        group, member = divmod(number, job.size)
        seed_of = partial(job.plan.sampling_seed, group, member)
        self._env = Waits(job.kind, job.episodes)
        ticket = Ticket(group, "Waits", 0, job.size)
        self._play = Play(ticket, member, RULES, engine.codec, seed_of, "Wait.", ("go",))
        self.request: Request | None = self._play.begin(self._env.reset(0))
        self._actions: tuple[str, ...] = ()

    def answered(self, answer: object) -> None:
        assert isinstance(answer, Completion), answer
        self._actions = self._play.answered(answer)

    def act(self) -> float:
        """Seconds that the environment took."""
        started = time.perf_counter()
        steps = [self._env.step(action) for action in self._actions]
        seconds = time.perf_counter() - started
        self.request = self._play.stepped(steps)
        return seconds

    def record(self) -> Episode:
        return self._play.record()


@dataclass(frozen=True)
class Run:
    """How one contender did."""

    episodes: int
    seconds: float
    answers: int  # a name for everything that was sampled
    analytic: float = 0.0
    engine_s: float = 0.0
    how: str = ""

    @property
    def rate(self) -> float:
        return self.episodes / self.seconds


def said(episodes: Sequence[Episode]) -> int:
    """The same for everybody who held the same conversations."""
    return hash(tuple(sorted((one.group, one.member, *(turn.answer for turn in one.turns)) for one in episodes)))


def lock_step(engine: Engine, job: Job, threads: int = 0) -> Run:
    """And the seconds that it should take by its batches and steps. From the first seat to the last record, and until
    its threads have ended, as the others."""
    before, waited, batches = engine.statistics(), 0.0, list[int]()
    started = time.perf_counter()
    with ThreadPoolExecutor(max(1, threads)) as pool:  # which starts no thread before it has work
        seats = [Seat(job, engine, number) for number in range(job.episodes)]
        while asking := [seat for seat in seats if seat.request is not None]:
            answers = engine.generate([seat.request for seat in asking if seat.request is not None])
            batches.append(len(asking))
            for seat, answer in zip(asking, answers, strict=True):
                seat.answered(answer)
            if threads:
                waited += max(pool.map(Seat.act, asking))
            else:
                waited += sum(seat.act() for seat in asking)
        episodes = [seat.record() for seat in seats]
    seconds = time.perf_counter() - started
    busy_s = engine.statistics().since(before).busy_s if job.is_real else sum(LATENCY.of(size) for size in batches)
    return Run(job.episodes, seconds, said(episodes), seconds / (waited + busy_s))


def global_lock(engine: Engine, job: Job) -> Run:
    lock = threading.Lock()

    def play(number: int) -> Episode:
        seat = Seat(job, engine, number)
        while seat.request is not None:
            with lock:
                (answer,) = engine.generate([seat.request])
            seat.answered(answer)
            seat.act()
        return seat.record()

    started = time.perf_counter()
    with ThreadPoolExecutor(job.episodes) as pool:
        episodes = list(pool.map(play, range(job.episodes)))
    return Run(job.episodes, time.perf_counter() - started, said(episodes))


def ours(engine: Engine, job: Job, **options: Any) -> Run:
    with hr.AgentRollouts(job.plan.envs, engine, group_size=job.size, rules=RULES, **options) as rollouts:
        started, before = time.perf_counter(), engine.statistics()
        groups = rollouts.run(job.episodes // job.size)
        seconds = time.perf_counter() - started
        assert all(group.failures == [] for group in groups)
        assert rollouts.choice is not None
        episodes = [one for group in groups for one in group.episodes]
        engine_s = engine.statistics().since(before).busy_s
        return Run(job.episodes, seconds, said(episodes), engine_s=engine_s, how=rollouts.choice.backend)


@dataclass(frozen=True)
class Occupancy:
    """What an engine did for `live` episodes in some seconds, beside environments that took `step_s` a turn."""

    told: EngineStatistics
    seconds: float
    live: int
    step_s: float
    slots: float = math.inf

    def ideal(self, answer_s: float) -> float:
        """Served at one time, if nobody waited."""
        return min(self.slots, self.live * answer_s / (answer_s + self.step_s))

    def ideal_by_passes(self) -> float:
        """With the time of a mean pass; the script's is by iteration, since it depends on the batch."""
        told = self.told
        if self.slots < math.inf:
            return self.ideal(told.tokens / told.requests * told.busy_s / told.batches)
        batch = float(self.live)
        for _ in range(200):
            batch = self.ideal(LATENCY.of(round(batch)))
        return batch

    def claims(self, where: str) -> list[harness.Claim]:
        """Judged by its rests, too, where a request may join at any pass."""
        told, is_joined = self.told, self.slots < math.inf
        ideal = self.ideal(told.served_s / told.requests)
        return [
            _share(f"{where}: mean batch of workers", told.batch_by_time, ideal, True),
            _share(f"{where}: served at one time", told.served_s / self.seconds, ideal, is_joined),
            _share(f"{where}: mean batch, by passes", told.batch_mean, self.ideal_by_passes(), False),
        ]


def _share(name: str, value: float, ideal: float, is_judged: bool) -> harness.Claim:
    share = value / ideal
    told, holds = (">= 0.8x ideal", share >= 0.8) if is_judged else ("-", None)
    return harness.Claim(name, value, "", ideal, share, told, holds)


def occupancy(engine: Engine, job: Job) -> Occupancy:
    """The workers', while there is more to be done than may be live."""
    longer, live = replace(job, episodes=8 * job.episodes), job.episodes // job.size
    options: dict[str, Any] = {"limits": Limits(max_live=job.episodes), "backend": "threading", "n_jobs": 2}
    step_s = mean(duration(job.kind, rng) for rng in map(draws_of, range(longer.episodes)) for _ in range(TURNS))
    with hr.AgentRollouts(longer.plan.envs, engine, group_size=job.size, rules=RULES, **options) as rollouts:
        before, started = engine.statistics(), time.perf_counter()
        told, seconds = before, 0.0
        for count, _ in enumerate(rollouts.stream(8 * live), 1):
            if count == 7 * live:
                told, seconds = engine.statistics().since(before), time.perf_counter() - started
    return Occupancy(told, seconds, job.episodes, step_s, SLOTS if job.is_real else math.inf)


def engine_of(job: Job) -> Engine:
    if job.is_real:
        env = TextEnvSpec("Waits", Waits, {"kind": "none", "episodes": 1})
        return tiny_engine((env,), RULES, 1, 300, SLOTS)
    return scripted(go, LATENCY)


def measured(
    job: Job, rounds: int, close_rounds: int, engine: Engine | None
) -> tuple[list[harness.Claim], dict[str, Any]]:
    """Everybody at one job, in turn."""
    runs: dict[str, list[Run]] = {}

    def contender(name: str, run: Callable[[Engine], Run]) -> Callable[[], float]:
        def once() -> float:
            maker = engine or engine_of(job)
            try:
                runs.setdefault(name, []).append(run(maker))
            finally:
                if engine is None:
                    maker.close()
            return runs[name][-1].rate

        return once

    fewer = replace(
        job, episodes=max(job.size, job.episodes // 4)
    )  # one at a time: as quick with few, and minutes less
    where = f"{'tiny model' if job.is_real else '50 ms + 1 ms each'}, steps of {job.kind}"
    contenders: dict[str, Callable[[Engine], Run]] = {
        "lock-step with threads": lambda maker: lock_step(maker, job, job.episodes),
        "lock-step": lambda maker: lock_step(maker, job),
        "ours": lambda maker: ours(maker, job),
    }
    runners = {f"{where}: {name}": contender(name, run) for name, run in contenders.items()}
    values = harness.alternate(runners, rounds)
    close = {name: runner for name, runner in runners.items() if not name.endswith(": lock-step")}
    more = close_rounds if job.kind in ALIKE else rounds
    for name, series in harness.alternate(close, more).items():  # the close ones more often
        values[name] += series
    values |= harness.alternate({f"{where}: global lock": contender("global lock", lambda m: global_lock(m, fewer))}, 1)
    rates = {name.partition(": ")[2]: series for name, series in values.items()}
    same = {run.answers for name, series in runs.items() if name != "global lock" for run in series}
    assert len(same) == 1, "not all said the same"
    claims = [
        _beside(f"{where}: ours / {name}", rates["ours"], rates[name], goals.get(job.kind))
        for name, goals in (("lock-step", GOALS), ("lock-step with threads", ALIKE), ("global lock", {}))
    ]
    maker = engine or engine_of(job)
    busy = occupancy(maker, job)
    if engine is None:
        maker.close()
    claims += busy.claims(where)
    met = median(run.analytic for run in runs["lock-step"])
    claims.append(harness.Claim(f"{where}: lock-step's time", met, "x analytic", None, None, "<= 1.1", met <= 1.1))
    told = {name: [run.rate for run in series] for name, series in runs.items()}
    engine_did = {"seconds": busy.seconds, "step_s": busy.step_s, **asdict(busy.told)}
    return claims, {"episodes/s": told, "ours ran": runs["ours"][-1].how, "occupancy": engine_did}


def _beside(name: str, mine: list[float], other: list[float], goal: float | None) -> harness.Claim:
    ratio = median(one / another for one, another in zip(mine, other * len(mine), strict=False))
    told, holds = ("-", None) if goal is None else (f">= {goal}x", ratio >= goal)
    return harness.Claim(name, median(mine), "episodes/s", median(other), ratio, told, holds)


def overhead_ms(episodes: int) -> float:
    """Milliseconds per turn of scheduling and records: environments cost nothing, the engine's time is taken off."""
    engine = scripted(go)
    try:
        job = Job("none", episodes, 8)
        run = ours(engine, job, backend="threading", n_jobs=2, limits=Limits(max_live=episodes))
    finally:
        engine.close()
    return 1e3 * (run.seconds - run.engine_s) / (episodes * TURNS)


GOALS = {"1 ms": 0.95, "50 ms": 1.5, "heavy": 3.0}
ALIKE = {"1 ms": 0.98, "50 ms": 0.98}
KINDS = {f"{engine}-{kind.replace(' ', '')}": (engine, kind) for engine in ("scripted", "model") for kind in GOALS}
PARTS = (*KINDS, "overhead")


def overhead(rounds: int, count: int) -> tuple[list[harness.Claim], dict[str, Any]]:
    costs = [overhead_ms(count) for _ in range(rounds + 1)]
    cost = min(costs)
    name = f"overhead per turn, {count} live episodes"
    return [harness.Claim(name, cost, "ms", None, None, "< 0.5 ms", cost < 0.5)], {"ms": costs}


def main() -> None:
    arguments = harness.arguments(
        __doc__, add=lambda parser: parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART")
    )
    # The two that are close play a dozen rounds more: single jobs of a quarter of a second differ by some 5 %.
    rounds, more, episodes, size = (
        (1, 1, 8, 4) if arguments.smoke else (2, 12, 32, 8) if arguments.quick else (3, 12, 64, 8)
    )
    wanted = arguments.only or (("scripted-1ms", "overhead") if arguments.smoke else PARTS)
    parts: dict[str, Any] = {}
    if arguments.only and arguments.json and arguments.json.exists():
        parts = json.loads(arguments.json.read_text())["extra"].get("parts", {})
    model: Engine | None = None
    try:
        for name in wanted:
            if name == "overhead":
                claims, extra = overhead(rounds, 64 if arguments.smoke else 512)
            else:
                engine, kind = KINDS[name]
                is_real = engine == "model"
                model = model or (engine_of(Job("none", 1, 1, True)) if is_real else None)  # taught once
                job = Job(kind, episodes, size, is_real)
                claims, extra = measured(job, max(1, rounds - is_real), more, model if is_real else None)
            parts[name] = {"host": harness.host(), "claims": [asdict(one) for one in claims], "extra": extra}
    finally:
        if model is not None:
            model.close()
    parts = {name: parts[name] for name in PARTS if name in parts}
    told = [harness.Claim(**one) for part in parts.values() for one in part["claims"]]
    harness.report(told, arguments.json, {}, {"parts": parts})


if __name__ == "__main__":
    main()
