"""End-to-end training steps/s on CartPole-v1, beside SB3, Tianshou, Sample Factory and PufferLib in one run.

64 environments, 32 steps, 4 epochs, minibatches of 512, separate 64x64 tanh actor and critic, one torch thread. Every
contender is a fresh process that trains for 150,000 steps; they alternate, and the medians are compared. headrace runs
inline, with two workers in step with the learner (max_lag 0), and asynchronously (max_lag 1), each with the closed form
of the plain MLP and with autograd. Speed that does not learn is worth nothing, so the inline and the fastest
asynchronous configuration are also trained to 475 beside SB3.
"""

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


def main() -> None:
    arguments = harness.arguments(__doc__)
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
