"""End-to-end training steps/s on CartPole-v1, beside SB3, Tianshou, Sample Factory and PufferLib in one run.

64 environments, 32 steps, 4 epochs, minibatches of 512, separate 64x64 tanh actor and critic, one torch thread. Every
contender is a fresh process that trains for 150,000 steps; they alternate, and the medians are compared. headrace runs
inline, with two workers in step with the learner (max_lag 0), and asynchronously (max_lag 1), each with the closed form
of the plain MLP and with autograd. Speed that does not learn is worth nothing, so the inline and the fastest
asynchronous configuration are also trained to 475 beside SB3.

--task hopper and --task breakout are runs of their own, beside SB3, Sample Factory and a single-file PPO over EnvPool
in CleanRL's form: Hopper with the numbers above, Breakout with 8 environments, 128 steps, minibatches of 256, the
Nature CNN and Gymnasium's Atari wrappers. Steps are transitions: those in which EnvPool only resets an environment do
not count, for headrace and for the peer. Both tasks are held against their limit: environments alone and network alone
on one core, and what a run that keeps every core busy with nothing else would reach. Breakout also runs with two torch
threads.
"""

import argparse
import json
from statistics import median
from typing import Any

import harness

from learning import steps_to

PEERS = ("sb3", "pufferlib", "tianshou", "sample_factory")
PLACES: dict[str, dict[str, Any]] = {
    "inline": {"topology": "inline"},
    "2 workers, max_lag 0": {"topology": "processes", "workers": 2},
    "1 worker, max_lag 1": {"topology": "processes", "workers": 1, "max_lag": 1},
    "2 workers, max_lag 1": {"topology": "processes", "workers": 2, "max_lag": 1},
}
GOALS = {"inline": (2.3, 1.25), "2 workers, max_lag 0": (2.6, 1.6)}  # plain, autograd
ASYNC_GOALS = (3.8, 2.2)
KINDS = {"closed_form": "plain MLP", "autograd": "autograd"}
HYPERPARAMETERS = {
    "n_envs": 64,
    "n_steps": 32,
    "batch_size": 512,
    "n_epochs": 4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "learning_rate": 1e-3,
}


TWO_LATE = {"topology": "processes", "workers": 2, "max_lag": 1}
# What runs beside the peers: a task of ours.py, and PPO's further keywords.
TASK_PLACES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "hopper": {
        "inline": ("hopper", PLACES["inline"]),
        "2 workers, max_lag 0": ("hopper", PLACES["2 workers, max_lag 0"]),
        "2 workers, max_lag 1": ("hopper", TWO_LATE),
        "EnvPool, inline": ("hopper_envpool", PLACES["inline"]),
        "EnvPool, 2 workers, max_lag 1": ("hopper_envpool", TWO_LATE | {"env_kwargs": {"num_threads": 1}}),
    },
    "breakout": {
        "inline": ("breakout", PLACES["inline"]),
        "2 workers, max_lag 0": ("breakout", PLACES["2 workers, max_lag 0"]),
        "1 worker, max_lag 1": ("breakout", PLACES["1 worker, max_lag 1"]),
        "2 workers, 2 torch threads": ("breakout", PLACES["2 workers, max_lag 0"] | {"learner_threads": 2}),
    },
}
# The same of the peers: a driver, and its further arguments.
TASK_PEERS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "hopper": {
        "sb3": ("sb3", ()),
        "sample_factory": ("sample_factory", ()),
        "envpool_cleanrl": ("envpool_cleanrl", ()),
        "envpool_cleanrl, pinned": ("envpool_cleanrl", ("--pinned",)),
    },
    "breakout": {
        "sb3": ("sb3", ()),
        "sb3, 2 torch threads": ("sb3", ("--threads", "2")),
        "envpool_cleanrl": ("envpool_cleanrl", ()),
        "envpool_cleanrl, 2 torch threads": ("envpool_cleanrl", ("--threads", "2")),
    },
}
TASK_ABSENT = {"hopper": {}, "breakout": {"sample_factory": "its driver has no Atari: it pins Gymnasium 0.29"}}
LIMIT_OF = {"hopper": "hopper_envpool", "breakout": "breakout"}  # the faster environments
HOPPER_GOAL = 2.0
LIMIT = "limit of two cores"


def other_task(task: str, arguments: argparse.Namespace) -> None:
    """Hopper or Breakout: steps/s beside the peers, and how close to the limit of the cores."""
    is_hopper = task == "hopper"
    quick, whole = (2, 20 if is_hopper else 1), (3 if is_hopper else 2, 60 if is_hopper else 2)
    rounds, updates = (1, 1) if arguments.smoke else quick if arguments.quick else whole
    absent: dict[str, str] = dict(TASK_ABSENT[task])
    given = ("--updates", str(updates), "--task")

    def ours(of: str, options: dict[str, Any]) -> float:
        job = (*given, of, "--options", json.dumps(options))
        return float(harness.run_ours("train_sps", *job, timeout_s=900)["sps"])

    contenders: dict[str, Any] = {
        name: lambda one=one: ours(*one)
        for name, one in TASK_PLACES[task].items()
        if not (arguments.smoke and "EnvPool" in name)
    }
    for name, (driver, more) in TASK_PEERS[task].items():
        found = harness.NOT_IN_SMOKE if arguments.smoke else harness.peer(driver)
        if isinstance(found, harness.Absent):
            absent[name] = found.reason
        else:
            contenders[name] = lambda driver=driver, more=more: harness.run_peer(
                driver, "train_sps", *given, task, *more, timeout_s=900
            )["sps"]
    limits: list[dict[str, float]] = []

    def limit() -> float:
        of = task if arguments.smoke else LIMIT_OF[task]
        limits.append(harness.run_ours("limits", "--task", of, timeout_s=900))
        return limits[-1]["two_cores_sps"]

    others = None if arguments.smoke else harness.Others()
    values = harness.alternate(contenders | {LIMIT: limit}, rounds, absent=absent, others=others)
    medians = {name: median(series) for name, series in values.items()}
    peers = {name: sps for name, sps in medians.items() if name in TASK_PEERS[task]}
    fastest = max(peers, key=peers.__getitem__, default=None)
    baseline = peers[fastest] if fastest else None
    claims = []
    for name in TASK_PLACES[task]:
        if name in medians:
            ratio = medians[name] / baseline if baseline else None
            goal = f">= {HOPPER_GOAL}x fastest peer" if is_hopper else "as it is"
            holds = ratio >= HOPPER_GOAL if ratio is not None and is_hopper else None
            claims.append(harness.Claim(f"{task}, {name}", medians[name], "steps/s", baseline, ratio, goal, holds))
    if LIMIT in medians:
        alone = {key: median(one[key] for one in limits) for key in limits[0] if key.endswith("_sps")}
        print(f"alone: {', '.join(f'{key} {sps:,.0f} steps/s' for key, sps in alone.items())}")
        rows = [(f"{task}, {LIMIT}", alone["two_cores_sps"], baseline)]
        if "env_two_cores_sps" in alone:
            rows.append((f"{task}, environments alone on two cores", alone["env_two_cores_sps"], baseline))
        best = max((name for name in TASK_PLACES[task] if name in medians), key=medians.__getitem__, default=None)
        if best is not None:
            rows.append((f"{task}, {best}, of the limit", medians[best], alone["two_cores_sps"]))
        for name, value, of in rows:
            claims.append(harness.Claim(name, value, "steps/s", of, value / of if of else None, "", None))
    print(f"fastest peer: {fastest}")
    harness.report(claims, arguments.json, absent, {"steps_per_s": values, "limits": limits, "fastest": fastest})


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        add=lambda parser: parser.add_argument(
            "--task", choices=("cartpole", "hopper", "breakout"), default="cartpole"
        ),
    )
    if arguments.task != "cartpole":
        other_task(arguments.task, arguments)
        return
    rounds, updates = (1, 3) if arguments.smoke else (3, 20) if arguments.quick else (5, 73)
    absent: dict[str, str] = {}
    splits: dict[str, list[dict[str, float]]] = {}
    at_start = harness.host()

    def ours(name: str, options: dict[str, Any]) -> float:
        given = ("--updates", str(updates), "--options", json.dumps(options))
        answer = harness.run_ours("train_sps", *given, timeout_s=600)
        splits.setdefault(name, []).append(answer["split_ms"])
        return float(answer["sps"])

    contenders: dict[str, Any] = {}
    for gradients, kind in KINDS.items():
        for place, options in PLACES.items():
            name = f"{kind}, {place}"
            if arguments.smoke and gradients == "autograd" and place != "inline":
                continue  # every place and both gradients once
            contenders[name] = lambda name=name, all_=options | {"gradients": gradients}: ours(name, all_)
    for name in PEERS:
        found = harness.NOT_IN_SMOKE if arguments.smoke else harness.peer(name)
        if isinstance(found, harness.Absent):
            absent[name] = found.reason
        else:
            contenders[name] = lambda name=name: harness.run_peer(
                name, "train_sps", "--updates", str(updates), timeout_s=900
            )["sps"]
    values = harness.alternate(contenders, rounds, absent=absent)
    medians = {name: median(series) for name, series in values.items()}
    peers = {name: sps for name, sps in medians.items() if name in PEERS}
    fastest = max(peers, key=peers.__getitem__, default=None)
    baseline = peers[fastest] if fastest else None

    claims = []
    best_async = ""
    for index, kind in enumerate(KINDS.values()):
        late = [f"{kind}, {place}" for place in PLACES if place not in GOALS and f"{kind}, {place}" in medians]
        quickest = max(late, key=medians.__getitem__, default="")
        best_async = best_async or quickest
        wanted = {f"{kind}, {place}": goals[index] for place, goals in GOALS.items()} | {quickest: ASYNC_GOALS[index]}
        for name, goal in wanted.items():
            if name in medians:
                ratio = medians[name] / baseline if baseline else None
                holds = None if ratio is None else ratio >= goal
                text = f">= {goal}x fastest peer"
                claims.append(harness.Claim(name, medians[name], "steps/s", baseline, ratio, text, holds))
    if not arguments.smoke and "sb3" in peers:
        seeds = range(1, 4) if arguments.quick else range(1, 6)
        places = {"inline": PLACES["inline"], best_async: PLACES[best_async.partition(", ")[2]]}
        for name, options in places.items():
            claims.append(steps_to("CartPole-v1", 475.0, HYPERPARAMETERS, 150_000, 5_000, seeds, name, options))

    for name, measured in splits.items():
        mean = {phase: median(split[phase] for split in measured) for phase in measured[0]}
        total = sum(mean.values())
        parts = (f"{phase} {ms:.1f} ({ms / total:.0%})" for phase, ms in mean.items() if ms / total > 0.001)
        print(f"where an update's time goes (ms), {name}: {', '.join(parts)}")
    for name, series in values.items():
        print(f"{name}: {', '.join(f'{sps:,.0f}' for sps in series)}")
    print(f"fastest peer: {fastest}")
    harness.report(
        claims,
        arguments.json,
        absent,
        {"host_at_start": at_start, "steps_per_s": values, "split_ms": splits, "fastest": fastest},
    )


if __name__ == "__main__":
    main()
