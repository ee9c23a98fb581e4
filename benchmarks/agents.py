"""LLM rollouts: episodes/s of a lock-step loop, of threads round one lock, and of headrace, in one run.

engine:  scripted, 50 ms + 1 ms per sequence a batch; and the tiny model in this process, for real
envs:    steps of 1 ms, of 50 ms, and heavy-tailed (Pareto, mean about 50 ms, at most 2 s); they wait, none computes

lock-step    a plain loop: all live episodes in one call of the engine, then every environment in turn. Its time is
             known beforehand (sum of batches and steps) and has to be met within 10 %: a slow baseline proves nothing
with threads the same, with the environments of a turn in a thread pool: a barrier per turn is left (for information)
global lock  a thread per episode, one request at a time, as in the known attempt
ours         AgentRollouts, backend auto

Occupancy is the mean batch beside the ideal one, b = N * S / (S + E) with S = 50 ms + b * 1 ms and a mean step of E.
Overhead is the time per turn at 512 live episodes with an engine and environments that cost nothing.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import harness
import numpy as np

import headrace as hr
from headrace.agents.build import tiny_engine
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.environments.text_env import Step, TextEnvSpec
from headrace.agents.episode import Rules
from headrace.agents.limits import Limits

BASE_S, EACH_S = 0.05, 0.001
TURNS = 5
RULES = Rules(max_turn=TURNS, max_actions_per_turn=1, max_actions_per_traj=TURNS, enable_think=False, max_tokens=24)


class Waits:
    """Steps that wait as long as their seed says; an episode has TURNS of them."""

    instructions = "Wait."
    actions = ("go",)

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._rng = np.random.default_rng(0)
        self._left = TURNS

    def reset(self, seed: int) -> str:
        self._rng = np.random.default_rng((seed, next(_MEMBER)))
        self._left = TURNS
        return "Ready."

    def step(self, action: str) -> Step:
        time.sleep(duration(self._kind, self._rng))
        self._left -= 1
        return Step("Done.", 1.0, self._left == 0)

    def close(self) -> None:
        pass


class _Counter:
    """Members of a group wait differently: who comes first gets the first number."""

    def __init__(self) -> None:
        self._lock, self._next = threading.Lock(), 0

    def __next__(self) -> int:
        with self._lock:
            self._next += 1
            return self._next


_MEMBER = _Counter()


def duration(kind: str, rng: np.random.Generator) -> float:
    if kind == "heavy":
        return float(min(2.0, 0.0167 * (1.0 + rng.pareto(1.5))))
    return {"none": 0.0, "1 ms": 0.001, "50 ms": 0.05}[kind]


def go(prompt: str, rng: np.random.Generator) -> str:
    return "<answer>go</answer>"


def request(engine: Engine, episode: int, turn: int, text: str) -> Request:
    return Request(episode, 0, turn, engine.codec.encode(text), 24, 1000 * episode + turn)


def lock_step(engine: Engine, kind: str, episodes: int, pool: ThreadPoolExecutor | None = None) -> tuple[float, float]:
    """Seconds, and the seconds that it should take by its batches and steps."""
    rngs = [np.random.default_rng((7, number)) for number in range(episodes)]
    texts = ["Wait.\nActions: go\n"] * episodes
    before, slept = engine.statistics(), 0.0
    started = time.perf_counter()
    for turn in range(TURNS):
        answers = engine.generate([request(engine, at, turn, text) for at, text in enumerate(texts)])
        assert all(isinstance(answer, Completion) for answer in answers)
        waits = [duration(kind, rng) for rng in rngs]
        if pool is not None:
            list(pool.map(time.sleep, waits))
            slept += max(waits)
        else:
            for seconds in waits:
                time.sleep(seconds)
            slept += sum(waits)
        texts = [f"{text}go\nDone.\nActions: go\n" for text in texts]
    seconds = time.perf_counter() - started
    return seconds, slept + engine.statistics().since(before).busy_s


def global_lock(engine: Engine, kind: str, episodes: int) -> float:
    lock = threading.Lock()

    def play(number: int) -> None:
        rng, text = np.random.default_rng((7, number)), "Wait.\nActions: go\n"
        for turn in range(TURNS):
            with lock:
                engine.generate([request(engine, number, turn, text)])
            time.sleep(duration(kind, rng))
            text += "go\nDone.\nActions: go\n"

    started = time.perf_counter()
    with ThreadPoolExecutor(episodes) as pool:
        list(pool.map(play, range(episodes)))
    return time.perf_counter() - started


def ours(engine: Engine, kind: str, episodes: int, size: int, **options: Any) -> tuple[float, float, str]:
    """Seconds, mean batch, and how it was run."""
    env = TextEnvSpec("Waits", Waits, {"kind": kind})
    with hr.AgentRollouts([env], engine, group_size=size, rules=RULES, **options) as rollouts:
        started = time.perf_counter()
        groups = rollouts.run(episodes // size)
        seconds = time.perf_counter() - started
        assert sum(len(group.episodes) for group in groups) == episodes
        assert all(group.status == "completed" for group in groups)
        assert rollouts.choice is not None
        return seconds, rollouts.statistics.engine.batch_mean, rollouts.choice.backend


def ideal_batch(episodes: int, step_s: float) -> float:
    """b = N * S / (S + E), S = BASE + b * EACH: by iteration."""
    batch = float(episodes)
    for _ in range(200):
        busy = BASE_S + batch * EACH_S
        batch = episodes * busy / (busy + step_s)
    return batch


def mean_step_s(kind: str) -> float:
    rng = np.random.default_rng(0)
    return float(np.mean([duration(kind, rng) for _ in range(20_000)]))


def scripted_engine() -> Engine:
    return scripted(go, Latency(BASE_S, EACH_S))


def free_engine() -> Engine:
    return scripted(go)


def measured(make: Callable[[], Engine], run: Callable[[Engine], Any]) -> Any:
    engine = make()
    try:
        return run(engine)
    finally:
        engine.close()


def rates(
    make: Callable[[], Engine], kind: str, episodes: int, size: int, rounds: int, has_lock: bool
) -> tuple[dict[str, float], list[float], list[float], str]:
    """Episodes/s of each contender (medians), lock-step's time over its analytic one, our batches, how ours ran."""
    analytic: list[float] = []
    batches: list[float] = []
    how: list[str] = []

    def in_lock_step() -> float:
        seconds, should = measured(make, lambda engine: lock_step(engine, kind, episodes))
        analytic.append(seconds / should)
        return episodes / seconds

    def with_threads() -> float:
        with ThreadPoolExecutor(episodes) as pool:
            return episodes / measured(make, lambda engine: lock_step(engine, kind, episodes, pool))[0]

    def by_us() -> float:
        seconds, batch, backend = measured(make, lambda engine: ours(engine, kind, episodes, size))
        batches.append(batch)
        how.append(backend)
        return episodes / seconds

    contenders: dict[str, Callable[[], float]] = {
        f"lock-step, {kind}": in_lock_step,
        f"lock-step with threads, {kind}": with_threads,
        f"ours, {kind}": by_us,
    }
    if has_lock:
        contenders[f"global lock, {kind}"] = lambda: (
            episodes / measured(make, lambda engine: global_lock(engine, kind, episodes))
        )
    values = harness.alternate(contenders, rounds, absent={})
    return {name.partition(",")[0]: median(series) for name, series in values.items()}, analytic, batches, how[-1]


def overhead_ms(episodes: int) -> float:
    """Milliseconds per turn of scheduling and records: engine and environments cost next to nothing."""
    limits = Limits(max_live=episodes)

    def run(engine: Engine) -> float:
        return ours(engine, "none", episodes, 8, backend="threading", n_jobs=2, limits=limits)[0]

    return 1e3 * measured(free_engine, run) / (episodes * TURNS)


def claims_of(kind: str, rate: dict[str, float], goal: float, engine: str) -> list[harness.Claim]:
    mine, other = rate["ours"], rate["lock-step"]
    claims = [
        harness.Claim(
            f"{engine}, steps of {kind}: ours / lock-step", mine, "episodes/s", other, mine / other, f">= {goal}x",
            mine / other >= goal,
        )
    ]  # fmt: skip
    for name in ("lock-step with threads", "global lock"):
        if name in rate:
            told = f"{engine}, steps of {kind}: ours / {name}"
            claims += [harness.Claim(told, mine, "episodes/s", rate[name], mine / rate[name], "-", None)]
    return claims


def main() -> None:
    arguments = harness.arguments(__doc__)
    rounds, episodes, size = (1, 8, 4) if arguments.smoke else (2, 32, 8) if arguments.quick else (3, 64, 8)
    kinds: Sequence[tuple[str, float]] = (("1 ms", 0.95), ("50 ms", 1.5), ("heavy", 3.0))
    claims: list[harness.Claim] = []
    extra: dict[str, Any] = {}
    for kind, goal in kinds if not arguments.smoke else kinds[:1]:
        rate, analytic, batches, how = rates(scripted_engine, kind, episodes, size, rounds, not arguments.smoke)
        claims += claims_of(kind, rate, goal, "50 ms + 1 ms each")
        ideal = ideal_batch(episodes, mean_step_s(kind))
        share, met = median(batches) / ideal, median(analytic)
        claims.append(
            harness.Claim(f"batch occupancy, {kind}", median(batches), "", ideal, share, ">= 0.8x ideal", share >= 0.8)
        )
        claims.append(harness.Claim(f"lock-step / analytic, {kind}", met, "x", None, None, "<= 1.1", met <= 1.1))
        extra[f"ours, {kind}"] = how
    if not arguments.smoke:
        env = TextEnvSpec("Waits", Waits, {"kind": "none"})
        for kind, goal in kinds:
            rate, *_ = rates(lambda: tiny_engine((env,), RULES, 1, 60), kind, episodes, size, rounds, False)
            claims += claims_of(kind, rate, goal, "tiny model")
    count = 64 if arguments.smoke else 512
    cost = min(overhead_ms(count) for _ in range(rounds + 1))
    claims.append(
        harness.Claim(f"overhead per turn, {count} live episodes", cost, "ms", None, None, "< 0.5 ms", cost < 0.5)
    )
    harness.report(claims, arguments.json, {}, extra)


if __name__ == "__main__":
    main()
