"""Does it learn? Five seeds of three tasks to their thresholds, beside SB3 with equal hyperparameters, in one run.

    final return: 100 evaluation episodes after the last step       CartPole >= 475, Acrobot >= -100, Pendulum >= -250
    steps to threshold: first periodic evaluation that reaches it   same as SB3's or fewer, within noise
    time to 475: training seconds to it, both tuned                 at most half of SB3's

The hyperparameters are the files in configs/, which `headrace train --config` takes.
"""

import json
import tomllib
from collections.abc import Iterable
from statistics import mean, median, stdev
from typing import Any

import harness

CONFIGS = harness.ROOT / "configs"
TASKS = {"cartpole": ("CartPole-v1", 475.0), "acrobot": ("Acrobot-v1", -100.0), "pendulum": ("Pendulum-v1", -250.0)}
NOT_PPO = ("total_timesteps", "seed", "eval_every", "n_eval_episodes", "checkpoint_every", "gradients")

# RL Zoo's, tuned for SB3; they serve us as well. Both run until an evaluation reaches 475.
TUNED_SB3 = {
    "n_envs": 8,
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "learning_rate": "lin_0.001",
    "clip_range": "lin_0.2",
}
TUNED_OURS = TUNED_SB3

Results = list[dict[str, Any]]


def hyperparameters(task: str) -> tuple[dict[str, Any], int]:
    """PPO's keywords of a task's config file, and its number of steps."""
    data = tomllib.loads((CONFIGS / f"{task}.toml").read_text())
    return {key: value for key, value in data.items() if key not in NOT_PPO}, data["total_timesteps"]


def learn(who: str, env: str, options: dict[str, Any], total: int, seeds: Iterable[int], *more: str) -> Results:
    """One learning run per seed."""
    results = []
    for seed in seeds:
        command = ["learn", "--env", env, "--hyperparameters", json.dumps(options), "--total-timesteps", str(total)]
        command += ["--seed", str(seed), *more]
        run = (
            harness.run_ours
            if who == "headrace"
            else lambda *a, timeout_s: harness.run_peer(who, *a, timeout_s=timeout_s)
        )
        result = run(*command, timeout_s=3600)
        results.append(result)
        print(
            f"{who}, {env}, seed {seed}: {result['mean_reward']:.1f} after {result['steps']:,} steps, "
            f"{result['seconds']:.1f} s, threshold at {result['reached_at_steps']}",
            flush=True,
        )
    return results


def steps_to(
    env: str,
    threshold: float,
    options: dict[str, Any],
    total: int,
    every: int,
    seeds: Iterable[int],
    what: str,
    ours_too: dict[str, Any] | None = None,
) -> harness.Claim:
    """Mean steps until an evaluation reaches the threshold, ours beside SB3's; never reaching counts as `total`.

    `ours_too` are options that SB3 does not have, such as where actors run.
    """
    seeds = list(seeds)
    more = ("--eval-every", str(every), "--stop-at", str(threshold))
    given = {"headrace": options | (ours_too or {}), "sb3": options}
    reached = {
        who: [one["reached_at_steps"] or total for one in learn(who, env, given[who], total, seeds, *more)]
        for who in ("headrace", "sb3")
    }
    ours, theirs = mean(reached["headrace"]), mean(reached["sb3"])
    noise = standard_error(reached["headrace"]) + standard_error(reached["sb3"])
    holds = ours <= 1.1 * theirs
    name = f"{env}, steps to {threshold:g}, {what}"
    return harness.Claim(
        name, ours, "steps", theirs, ours / theirs, f"<= SB3's + 10 % (standard error {noise:,.0f})", holds
    )


def final_returns(task: str, seeds: Iterable[int], with_sb3: bool) -> list[harness.Claim]:
    """Final returns of a task's configuration against its threshold and against SB3."""
    env, threshold = TASKS[task]
    options, total = hyperparameters(task)
    seeds = list(seeds)
    ours = [one["mean_reward"] for one in learn("headrace", env, options, total, seeds)]
    goal = f"every seed >= {threshold:g}"
    claims = [
        harness.Claim(
            f"{env}, worst of {len(ours)} seeds", min(ours), "return", None, None, goal, min(ours) >= threshold
        )
    ]
    if with_sb3:
        theirs = [one["mean_reward"] for one in learn("sb3", env, options, total, seeds)]
        noise = standard_error(ours) + standard_error(theirs)
        goal = f">= SB3's (noise {noise:.1f})"
        holds = mean(ours) >= mean(theirs) - noise
        claims.append(
            harness.Claim(f"{env}, mean of {len(ours)} seeds", mean(ours), "return", mean(theirs), None, goal, holds)
        )
    return claims


def time_to_475(seeds: Iterable[int]) -> harness.Claim:
    """Training seconds to 475, both tuned, seed by seed in alternation."""
    more = ("--eval-every", "2000", "--stop-at", "475", "--eval-episodes", "1")
    seconds: dict[str, list[float]] = {"headrace": [], "sb3": []}
    for seed in seeds:
        for who, options in (("headrace", TUNED_OURS), ("sb3", TUNED_SB3)):
            (result,) = learn(who, "CartPole-v1", options, 100_000, [seed], *more)
            seconds[who].append(result["reached_at_s"] or result["seconds"])
    ours, theirs = median(seconds["headrace"]), median(seconds["sb3"])
    return harness.Claim(
        "CartPole-v1, time to 475, both tuned", ours, "s", theirs, ours / theirs, "<= 0.5x SB3's", ours <= 0.5 * theirs
    )


def main() -> None:
    arguments = harness.arguments(__doc__)
    absent: dict[str, str] = {}
    found = harness.NOT_IN_SMOKE if arguments.smoke else harness.peer("sb3")
    if isinstance(found, harness.Absent):
        absent["sb3"] = found.reason
    if arguments.smoke:
        (result,) = learn("headrace", "CartPole-v1", hyperparameters("cartpole")[0], 4_096, [1], "--eval-episodes", "4")
        harness.report(
            [harness.Claim("CartPole-v1, smoke", result["mean_reward"], "return", None, None, "-", None)],
            arguments.json,
            absent,
        )
        return
    seeds = range(1, 3) if arguments.quick else range(1, 6)
    claims = []
    for task in TASKS:
        claims += final_returns(task, seeds, with_sb3="sb3" not in absent)
    if "sb3" not in absent:
        for task, every in (("cartpole", 5_000), ("acrobot", 10_000), ("pendulum", 20_000)):
            env, threshold = TASKS[task]
            options, total = hyperparameters(task)
            claims.append(steps_to(env, threshold, options, total, every, seeds, "equal hyperparameters"))
        claims.append(time_to_475(seeds))
    harness.report(claims, arguments.json, absent)


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
