"""End-to-end training steps/s on CartPole-v1, beside SB3, Tianshou, Sample Factory and PufferLib in one run.

64 environments, 32 steps, 4 epochs, minibatches of 512, separate 64x64 tanh actor and critic, one torch thread. Every
contender is a fresh process that trains for 150,000 steps; they alternate, and the medians are compared. Speed that
does not learn is worth nothing, so the same configuration is also trained to 475 beside SB3.
"""

from statistics import median
from typing import Any

import harness

from learning import steps_to

PEERS = ("sb3", "pufferlib", "tianshou", "sample_factory")
PLAIN, AUTOGRAD = "headrace", "headrace (autograd)"
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
    splits: list[dict[str, float]] = []
    at_start = harness.host()

    def ours(gradients: str) -> float:
        answer = harness.run_ours("train_sps", "--updates", str(updates), "--gradients", gradients, timeout_s=600)
        if gradients == "closed_form":
            splits.append(answer["split_ms"])
        return float(answer["sps"])

    contenders: dict[str, Any] = {PLAIN: lambda: ours("closed_form"), AUTOGRAD: lambda: ours("autograd")}
    for name in PEERS:
        found = harness.peer(name, install=not arguments.smoke)
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
    for name, goal in ((PLAIN, 2.3), (AUTOGRAD, 1.25)):
        if name in medians:
            ratio = medians[name] / baseline if baseline else None
            holds = None if ratio is None else ratio >= goal
            claims.append(
                harness.Claim(
                    f"{name}, inline, training",
                    medians[name],
                    "steps/s",
                    baseline,
                    ratio,
                    f">= {goal}x fastest peer",
                    holds,
                )
            )
    if not arguments.smoke and "sb3" in peers:
        seeds = range(1, 4) if arguments.quick else range(1, 6)
        claims.append(steps_to("CartPole-v1", 475.0, HYPERPARAMETERS, 150_000, 5_000, seeds, "the timed configuration"))

    if splits:
        mean = {phase: median(split[phase] for split in splits) for phase in splits[0]}
        total = sum(mean.values())
        print("\nwhere an update's time goes (ms): ", end="")
        print(", ".join(f"{phase} {ms:.1f} ({ms / total:.0%})" for phase, ms in mean.items() if ms / total > 0.001))
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
