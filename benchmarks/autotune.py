"""train --tune against an exhaustive grid: how much of the best cell's steps/s does the tuned configuration reach?

For each environment: 20 s of tuning; then every cell of a grid (n_envs x place, the same batch) measured once with
short rollouts, the five best of them twice more; then the best cell with its real rollouts, in alternation with the
tuned configuration: both runs are open, and one rests while the other makes its updates. The value is the median of the
tuned one's steps/s while training (collecting and learning), the baseline that of the grid's best cell.

cheap       CartPole-v1                       200 us       burns a core and the GIL (timed_envs:Burns)
5 ms        waits (timed_envs:Waits)          image        42 x 42 pixels and a CNN (catch:Catch)
EnvPool     envpool:CartPole-v1               heavy tail   Pareto, burning (timed_envs:HeavyTail)

PPO with a batch of 8 x 256 steps, minibatches of 256, 4 epochs, max_lag 0. The grid does not come from the tuner:
n_envs 4 to 64 by doubling; inline, 2 threads, 2 worker processes, central inference with 2, double-buffered with 1 and
2; for steps that wait also 4 to 32 threads and 4 and 8 processes. Pools stay in one process: they can't be brought back
if a worker dies, so the tuner does not take them elsewhere either.

--only NAME ... runs some of the environments, and with --json FILE joins them with what is in the file already.
"""

import argparse
import time
from statistics import median
from typing import Any

import harness
import torch

from headrace.api.tuning import tune
from headrace.build import build_run
from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSpec
from headrace.learning.config import PpoConfig
from headrace.policies.config import PolicyConfig
from headrace.run_config import RunConfig

ENVS = {
    "cheap": "CartPole-v1",
    "200 us": "timed_envs:Burns",
    "5 ms": "timed_envs:Waits",
    "image": "catch:Catch",
    "EnvPool": "envpool:CartPole-v1",
    "heavy tail": "timed_envs:HeavyTail",
}
N_ENVS, N_STEPS = 8, 256
BATCH = N_ENVS * N_STEPS
SCREENED, FINALISTS = 256, 5  # steps of a short rollout; cells that are measured again
Place = dict[str, Any]


def places(name: str) -> list[Place]:
    if name == "EnvPool":
        return [{"topology": "inline"}]
    waits = name == "5 ms"
    found: list[Place] = [{"topology": "inline"}]
    found += [{"topology": "threads", "workers": str(n)} for n in ([2, 4, 8, 16, 32] if waits else [2])]
    found += [{"topology": "processes", "workers": str(n)} for n in ([2, 4, 8] if waits else [2])]
    central = {"topology": "processes", "inference": "central"}
    found.append(central | {"workers": "2", "double_buffering": "off"})
    return found + [central | {"workers": str(n), "double_buffering": "on"} for n in (1, 2)]


def cells(name: str) -> list[Place]:
    """The grid, as far as it can be run."""
    every = [{"n_envs": n} | place for n in (4, 8, 16, 32, 64) for place in places(name)]
    turns = [2 if one.get("double_buffering") == "on" else 1 for one in every]
    return [one for one, turn in zip(every, turns, strict=True) if int(one.get("workers", 1)) * turn <= one["n_envs"]]


def config_of(env: str, **place: Any) -> RunConfig:
    n_steps = place.pop("n_steps", None) or BATCH // place.get("n_envs", N_ENVS)
    topology = TopologyConfig(**{"n_envs": N_ENVS, "n_steps": n_steps} | place)
    learning, policy = PpoConfig(batch_size=256, n_epochs=4), PolicyConfig(policy="auto")  # a CNN for images
    return RunConfig(EnvSpec(env), 1, policy, learning, topology)


class Training:
    """A run that makes updates for a moment when it is asked to, and rests meanwhile."""

    def __init__(self, config: RunConfig) -> None:
        self._run, _ = build_run(config)

    def __enter__(self) -> "Training":
        self._run.update(1 << 40)  # which starts everything
        return self

    def __exit__(self, *_: object) -> None:
        self._run.close()

    def steps_per_s(self, seconds: float) -> float:
        """Of whole updates; not of the first, whose rollouts workers have collected while this run rested."""
        self._run.update(1 << 40)
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            steps += self._run.update(1 << 40).harvest.steps
        return steps / (time.perf_counter() - begun)


def screened(env: str, cell: Place, seconds: float) -> float:
    """Of a cell, with short rollouts."""
    with Training(config_of(env, **cell, n_steps=max(4, SCREENED // cell["n_envs"]), spares=0)) as training:
        return training.steps_per_s(seconds)


def judged(name: str, seconds: float, window_s: float, rounds: int, grid: list[Place]) -> dict[str, Any]:
    env = ENVS[name]
    begun = time.perf_counter()
    tuned = tune(config_of(env), seconds, fixed=("max_lag",))
    spent = time.perf_counter() - begun
    print(f"\n{name}\n{tuned.text()}\n({spent:.1f} s)", flush=True)
    speeds = [[screened(env, cell, window_s)] for cell in grid]
    finalists = sorted(range(len(grid)), key=lambda i: -speeds[i][0])[:FINALISTS]
    for index in finalists * 2:
        speeds[index].append(screened(env, grid[index], window_s))
    best = max(finalists, key=lambda i: median(speeds[i]))
    print(f"grid of {len(grid)}: best {grid[best]}, {median(speeds[best]):,.0f}", flush=True)
    with Training(tuned.config) as ours, Training(config_of(env, **grid[best])) as theirs:
        contenders = {
            "tuned": lambda: ours.steps_per_s(window_s),
            "best cell": lambda: theirs.steps_per_s(window_s),
        }
        values = harness.alternate(contenders, rounds, lambda text: None)
    ratio = median(values["tuned"]) / median(values["best cell"])
    print(
        f"tuned {median(values['tuned']):,.0f}, best cell {median(values['best cell']):,.0f}: {ratio:.2f}x", flush=True
    )
    return {
        "tuned": tuned.encode(),
        "tuning_s": spent,
        "grid": [cell | {"steps_per_s": speed} for cell, speed in zip(grid, speeds, strict=True)],
        "best_cell": grid[best],
        "rounds": values,
        "ratio": ratio,
    }


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=ENVS, default=list(ENVS), help="some of the environments")


def main() -> None:
    arguments = harness.arguments(__doc__, add=options)
    torch.set_num_threads(1)
    names = ["cheap"] if arguments.smoke else arguments.only
    seconds = 2.0 if arguments.smoke else 20.0
    window_s, rounds = (0.05, 1) if arguments.smoke else (0.3, 7) if arguments.quick else (0.5, 15)
    is_part = len(names) < len(ENVS)
    kept = harness.earlier(arguments.json, is_part and not arguments.smoke, "environments") or {}
    found = {name: one for name, one in kept.items() if len(one["rounds"]["tuned"]) == rounds}
    for name in names:
        grid = [{"n_envs": 8, "topology": "inline"}] if arguments.smoke else cells(name)
        found[name] = judged(name, seconds, window_s, rounds, grid)
    found = {name: found[name] for name in ENVS if name in found}
    claims = [
        harness.Claim(
            name,
            median(one["rounds"]["tuned"]),
            "steps/s",
            median(one["rounds"]["best cell"]),
            one["ratio"],
            ">= 0.90",
            None if arguments.smoke else one["ratio"] >= 0.9,
        )
        for name, one in found.items()
    ]
    longest = max(one["tuning_s"] for one in found.values())
    in_time = None if arguments.smoke else longest <= seconds + 1.0
    claims.append(harness.Claim("longest tuning", longest, "s", None, None, "<= 21", in_time))
    harness.report(claims, arguments.json, {}, {"environments": found})


if __name__ == "__main__":
    main()
