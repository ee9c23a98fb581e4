"""headrace doctor on runs that were built to be held up by a known cause: is its verdict right, are its predictions?

Every case is a run of some seconds. The doctor sees the files that it left and nothing else. How strong a cause is, and
which environment or worker is the slow one, is drawn by --seed. The verdict is right if the causes that it ranks first
are those that were built in, all of them named. Then the best advice that is an option is tried: short runs without and
with it, in alternation. Every run without it is also what a prediction is made from; medians of both are compared. A
prediction is right within 25 % of the gain that the runs show.

slow disk    every append to metrics and events takes some milliseconds more
slow env     one that sleeps, so that it is slow on a busy machine as well
accelerator  the emulated one: one queue, no CPU
"""

import argparse
import json
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import harness
import numpy as np
import torch

from headrace.api.model import Model
from headrace.cli.doctor_measuring import learning_costs, short_run
from headrace.cli.train_command import changed
from headrace.collecting.topology import TopologyConfig
from headrace.envs.seeds import Purpose
from headrace.envs.spec import EnvSpec
from headrace.learning.config import PpoConfig
from headrace.planning import verdict as causes
from headrace.planning.advice import advise
from headrace.planning.verdict import judge
from headrace.policies.config import PolicyConfig
from headrace.run_config import RunConfig, SessionConfig
from headrace.telemetry import sinks

SEED = 7  # of the runs; --seed draws their causes


class Sleepy(gym.Env):
    """Sleeps in every step; in those of some environments longer, which are known by the seed of their first reset."""

    def __init__(self, sleep_s: float = 0.0, slow_s: float = 0.0, slow_seeds: tuple[int, ...] = ()) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._sleep_s, self._slow_s, self._slow_seeds, self._count = sleep_s, slow_s, slow_seeds, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed in self._slow_seeds:
            self._sleep_s = self._slow_s
        self._count = 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        if self._sleep_s:
            time.sleep(self._sleep_s)
        self._count += 1
        return self._obs(), 1.0, False, self._count >= 200, {}

    def _obs(self) -> np.ndarray:
        return np.full(4, self._count / 200, np.float32)


@dataclass(frozen=True)
class Case:
    """A run and what holds it up."""

    name: str
    expected: tuple[str, ...]
    env: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)
    learning: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)
    disk_s: float = 0.0
    slow: tuple[int, ...] = ()

    def configs(self) -> tuple[RunConfig, SessionConfig]:
        """As the command line would have them."""
        place = TopologyConfig(**{"n_envs": 8, "n_steps": 32, "topology": "inline", "spares": 0} | self.place)
        learning = PpoConfig(**{"batch_size": 128, "n_epochs": 1} | self.learning)
        seed_of = EnvSpec(Sleepy).seed_of(SEED, Purpose.ENV)
        env = self.env | ({"slow_seeds": tuple(seed_of(index, 0) for index in self.slow)} if self.slow else {})
        config = RunConfig(EnvSpec(Sleepy, env), SEED, PolicyConfig(**self.policy), learning, place)
        usual = {"checkpoint_every": 0, "keep_episodes_mb": 0, "check_episodes": 0}
        return config, SessionConfig(**usual | self.session)


def drawn(seed: int) -> list[Case]:
    """All cases; their strengths are drawn."""
    draw = random.Random(seed)

    def us(least: float, most: float) -> float:
        return draw.uniform(least, most) * 1e-6

    processes = {"topology": "processes", "workers": "2"}
    tiny, big = {"batch_size": draw.choice([4, 8]), "n_epochs": 4}, {"net_arch": (draw.choice([512, 768]),) * 2}
    env, lone, half = draw.randrange(8), draw.randrange(8), draw.choice([(0, 1, 2, 3), (4, 5, 6, 7)])
    return [
        Case("slow env", (causes.ENV,), {"sleep_s": us(200, 800)}),
        Case("slow env, two workers", (causes.ENV,), {"sleep_s": us(500, 1200)}, processes),
        Case("big net", (causes.LEARNER,), policy=big, learning={"n_epochs": 4}),
        Case("tiny minibatches", (causes.LEARNER,), learning=tiny),
        Case("slow disk", (causes.LOGGING,), disk_s=draw.uniform(0.02, 0.06)),
        Case("one slow worker", (causes.IMBALANCE,), {"sleep_s": us(100, 200), "slow_s": us(1500, 2500)}, processes,
             slow=half),
        Case("one slow env", (causes.SLOW_ENV,), {"slow_s": us(1500, 4000)}, slow=(env,)),
        Case("one slow env, two workers", (causes.SLOW_ENV,), {"slow_s": us(3000, 6000)}, processes, slow=(lone,)),
        Case("starved learner", (causes.ENV,), {"sleep_s": us(500, 1500)}, processes | {"workers": "1", "max_lag": 1}),
        Case("central inference, slow accelerator", (causes.INFERENCE,), {"sleep_s": us(100, 150)},
             processes | {"inference": "central", "double_buffering": "off",
                          "inference_device": f"emulated:{draw.randint(4, 8)}ms+5us"}),
        Case("local inference, one accelerator", (causes.INFERENCE,), {},
             processes | {"inference_device": f"emulated:{draw.randint(3, 6)}ms+5us"}),
        Case("frequent checkpoints", (causes.CHECKPOINTS,), session={"checkpoint_every": 256}),
        Case("frequent evaluations", (causes.EVALUATIONS,), session={"eval_every": draw.choice([256, 512])}),
        Case("cheap env behind an inference server", (causes.COMMUNICATION,), {},
             processes | {"inference": "central", "double_buffering": "off"}),
        Case("slow env and tiny minibatches", (causes.ENV, causes.LEARNER), {"sleep_s": us(150, 300)}, learning=tiny),
        Case("slow disk and big net", (causes.LOGGING, causes.LEARNER), policy=big, learning={"n_epochs": 2},
             disk_s=draw.uniform(0.05, 0.08)),
    ]  # fmt: skip


@contextmanager
def slow_disk(seconds: float) -> Iterator[None]:
    """Appends to the files of metrics take longer."""
    append = sinks._WholeAppends.append

    def slowly(self: Any, data: bytes) -> None:
        time.sleep(seconds)
        append(self, data)

    sinks._WholeAppends.append = slowly  # type: ignore[method-assign]
    try:
        yield
    finally:
        sinks._WholeAppends.append = append  # type: ignore[method-assign]


def judged(case: Case, seconds: float, rounds: int) -> dict[str, Any]:
    """A case: its verdict, and the best advice tried. Every round has a run of each kind: both see the same machine."""
    config, session = case.configs()
    with slow_disk(case.disk_s), tempfile.TemporaryDirectory(prefix="headrace-verdict-") as scratch:
        first = short_run(config, session, short_run(config, session, 500.0, 0.2).sps, seconds)
        verdict = judge(first)
        costs = {}
        if verdict.shares.get(causes.LEARNER, 0.0) >= 0.15:
            saved = Path(scratch) / "run"
            with Model.from_config(config) as model:
                model.save(saved)
            costs = learning_costs(saved, first)
        is_right = set(verdict.names[: len(case.expected)]) == set(case.expected)
        if is_right and causes.SLOW_ENV in case.expected:
            is_right = first.slow_envs == case.slow
        shares = {name: own for name, own in verdict.shares.items() if own > 0.02}
        got = {"case": case.name, "expected": case.expected, "verdict": verdict.names, "is_right": is_right,
               "sentence": verdict.sentence, "shares": shares,
               "free_cores": first.free_cores, "starved": verdict.is_starved}  # fmt: skip
        best = next((one for one in advise(first, costs) if one.is_applicable), None)
        if best is None:
            return got | {"options": "", "predicted": None, "achieved": None}
        other, later = changed(config, session, list(best.options))
        pairs = []
        for number in range(rounds):
            before = first if not number else short_run(config, session, first.sps, seconds)
            found = [one.gain for one in advise(before, costs) if one.options == best.options]
            after = short_run(other, later, best.sps, seconds)
            pairs.append((found[0] if found else 1.0, after.sps / before.sps))
    predicted, achieved = (median(column) for column in zip(*pairs, strict=True))
    return got | {"options": " ".join(best.options), "predicted": predicted, "achieved": achieved, "pairs": pairs}


def off(row: dict[str, Any]) -> float:
    """How far a prediction is from what was achieved."""
    return abs(row["predicted"] / row["achieved"] - 1.0) if row["predicted"] else float("inf")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="draws the causes")
    parser.add_argument("--only", nargs="*", type=int, metavar="I", help="only these cases")


def main() -> None:
    arguments = harness.arguments(__doc__, add=options)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    cases = drawn(arguments.seed)
    cases = [cases[index] for index in arguments.only] if arguments.only else cases[:1] if arguments.smoke else cases
    seconds, rounds = (0.5, 1) if arguments.smoke else (1.5, 1) if arguments.quick else (2.0, 3)
    rows = []
    for index, case in enumerate(cases):
        row = judged(case, seconds, rounds)
        rows.append(row)
        print(f"{index:2} {'right' if row['is_right'] else 'WRONG'}  {case.name}: {row['sentence']}")
        if row["predicted"]:
            print(
                f"         {row['options']}: predicted {row['predicted']:.2f}x, achieved {row['achieved']:.2f}x",
                flush=True,
            )
    right, close = sum(row["is_right"] for row in rows), sum(off(row) <= 0.25 for row in rows)
    is_whole = len(rows) >= 12
    harness.report(
        [
            harness.Claim("verdicts that are right", right, f"of {len(rows)}", None, None, "all",
                          right == len(rows) if is_whole else None),
            harness.Claim("predictions within 25 %", close, f"of {len(rows)}", None, None, "at least 9",
                          close >= 9 if is_whole else None),
        ],
        arguments.json, {}, {"seed": arguments.seed, "rows": json.loads(json.dumps(rows))},
    )  # fmt: skip


if __name__ == "__main__":
    main()
