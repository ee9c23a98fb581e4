"""Does it learn? Five seeds of every task to its threshold, beside SB3 with equal hyperparameters, in one run.

    final return: 100 evaluation episodes after the last step       CartPole >= 475, Acrobot >= -100, Pendulum >= -250,
                                                                    Catch (42 x 42 images) >= 4.75, MiniGrid >= 0.9,
                                                                    HalfCheetah (normalised) >= 500, Cards >= 0.95,
                                                                    Recall (a memory task, LSTM) >= 0.95
    steps to threshold: first periodic evaluation that reaches it   same as SB3's or fewer, within noise
    time to 475: training seconds to it, both tuned                 at most half of SB3's
    steps/s with an LSTM, evaluations left out                      at least 1.5 times sb3-contrib's RecurrentPPO

The hyperparameters are the files in configs/, which `headrace train --config` takes. --tasks runs some of the tasks.
"""

import argparse
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

import harness

CONFIGS = harness.ROOT / "configs"


@dataclass(frozen=True)
class Task:
    """An environment, the return that counts as learnt, and the steps between evaluations."""

    env: str
    threshold: float
    every: int
    name: str = ""
    wrappers: tuple[str, ...] = ()
    in_one: bool = False
    """Whether one run per seed gives both numbers: images take long."""
    episodes: tuple[int, int] = (100, 20)
    """Of the final evaluation, and of each periodic one."""


TASKS = {
    "cartpole": Task("CartPole-v1", 475.0, 5_000),
    "acrobot": Task("Acrobot-v1", -100.0, 10_000),
    "pendulum": Task("Pendulum-v1", -250.0, 20_000),
    "catch": Task("catch:Catch", 4.75, 4_096, "Catch, 42 x 42 images", in_one=True),
    "minigrid": Task(
        "minigrid:MiniGrid-DoorKey-5x5-v0", 0.9, 8_192, "MiniGrid-DoorKey-5x5-v0, 7 x 7 x 3 images",
        ("minigrid.wrappers:ImgObsWrapper",), in_one=True,
    ),
    "halfcheetah": Task(
        "HalfCheetah-v5", 500.0, 8_192, "HalfCheetah-v5, normalised", in_one=True, episodes=(20, 4),
    ),
    "cards": Task("cards:Cards", 0.95, 2_048, "Cards, action masks", in_one=True),
    "recall": Task("recall:Recall", 0.95, 4_096, "Recall, a memory task, LSTM", in_one=True),
}  # fmt: skip
NORMALIZING = ("norm_obs", "norm_reward")
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
CURVES: dict[str, dict[str, list[Any]]] = {}  # of tasks that take one run per seed: steps and returns, for plots


def hyperparameters(task: str) -> tuple[dict[str, Any], int]:
    """PPO's keywords of a task's config file, and its number of steps."""
    data = tomllib.loads((CONFIGS / f"{task}.toml").read_text())
    options = {key: value for key, value in data.items() if key not in NOT_PPO}
    if TASKS[task].wrappers:
        options["wrappers"] = TASKS[task].wrappers
    return options, data["total_timesteps"]


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
    return _steps_claim(f"{env}, steps to {threshold:g}, {what}", reached["headrace"], reached["sb3"])


def _steps_claim(name: str, ours: list[float], theirs: list[float]) -> harness.Claim:
    noise = standard_error(ours) + standard_error(theirs)
    goal = f"<= SB3's + 10 % (standard error {noise:,.0f})"
    ratio, holds = mean(ours) / mean(theirs), mean(ours) <= 1.1 * mean(theirs)
    return harness.Claim(name, mean(ours), "steps", mean(theirs), ratio, goal, holds)


def final_returns(task: str, seeds: Iterable[int], with_sb3: bool) -> list[harness.Claim]:
    """Final returns of a task's configuration against its threshold and against SB3."""
    one = TASKS[task]
    options, total = hyperparameters(task)
    seeds = list(seeds)
    ours = learn("headrace", one.env, options, total, seeds)
    theirs = learn("sb3", one.env, options, total, seeds) if with_sb3 else []
    return _return_claims(one, ours, theirs)


def _return_claims(task: Task, ours: Results, theirs: Results) -> list[harness.Claim]:
    name, seeds = task.name or task.env, len(ours)
    mine, other = ([one["mean_reward"] for one in results] for results in (ours, theirs))
    goal, holds = f"every seed >= {task.threshold:g}", min(mine) >= task.threshold
    claims = [harness.Claim(f"{name}, worst of {seeds} seeds", min(mine), "return", None, None, goal, holds)]
    if other:
        noise = standard_error(mine) + standard_error(other)
        goal, holds = f">= SB3's (noise {noise:.2g})", mean(mine) >= mean(other) - noise
        claims.append(
            harness.Claim(f"{name}, mean of {seeds} seeds", mean(mine), "return", mean(other), None, goal, holds)
        )
    return claims


def image_task(task: str, seeds: Iterable[int], with_sb3: bool) -> list[harness.Claim]:
    """Both numbers of a task from one run per seed, which goes on after the threshold was reached."""
    one = TASKS[task]
    options, total = hyperparameters(task)
    results: dict[str, Results] = {"headrace": [], "sb3": []}
    plain = {name: value for name, value in options.items() if name not in NORMALIZING}
    without: Results = []
    final, periodic = map(str, one.episodes)
    more = ("--eval-every", str(one.every), "--eval-episodes", final, "--curve-episodes", periodic)
    for seed in seeds:
        for who in ("headrace", "sb3") if with_sb3 else ("headrace",):
            results[who] += learn(who, one.env, options, total, [seed], *more)
        if plain != options:
            without += learn("headrace", one.env, plain, total, [seed], *more)
    claims = _return_claims(one, results["headrace"], results["sb3"])
    if without:
        claims.append(_better_claim(one, results["headrace"], without))
        results["without"] = without
    CURVES[one.name] = {who: [run["curve"] for run in runs] for who, runs in results.items()}
    if with_sb3:
        reached = {
            who: [next((steps for steps, value in run["curve"] if value >= one.threshold), total) for run in runs]
            for who, runs in results.items()
            if who != "without"
        }
        print(f"{one.name}, steps to {one.threshold:g}: {reached}", flush=True)
        name = f"{one.name}, steps to {one.threshold:g}, equal hyperparameters"
        claims.append(_steps_claim(name, reached["headrace"], reached["sb3"]))
    return claims + (_memory_claims(one, options, total, seeds, results) if "lstm_hidden_size" in options else [])


def _memory_claims(
    task: Task, options: dict[str, Any], total: int, seeds: Iterable[int], results: dict[str, Results]
) -> list[harness.Claim]:
    """That the task needs a memory, and steps/s beside RecurrentPPO."""
    plain = {name: value for name, value in options.items() if name not in ("policy", "lstm_hidden_size")}
    best = max(one["mean_reward"] for one in learn("headrace", task.env, plain, total, seeds))
    goal, most = "a quarter and noise", 0.4
    claims = [harness.Claim(f"{task.name}: best of MlpPolicy", best, "return", None, None, goal, best < most)]
    if results["sb3"]:
        ours, theirs = (median(one["steps"] / one["seconds"] for one in results[who]) for who in ("headrace", "sb3"))
        goal, ratio = ">= 1.5x RecurrentPPO's", ours / theirs
        claims.append(harness.Claim(f"{task.name}, training", ours, "steps/s", theirs, ratio, goal, ratio >= 1.5))
    return claims


def _better_claim(task: Task, ours: Results, without: Results) -> harness.Claim:
    """The same runs with raw observations and rewards as the baseline."""
    mine, other = ([one["mean_reward"] for one in results] for results in (ours, without))
    noise = standard_error(mine) + standard_error(other)
    name, goal = f"{task.name} (baseline: without)", f"> without (noise {noise:.2g})"
    ratio, holds = mean(mine) / mean(other), mean(mine) > mean(other) + noise
    return harness.Claim(name, mean(mine), "return", mean(other), ratio, goal, holds)


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


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="only these")


def main() -> None:
    arguments = harness.arguments(__doc__, add=_options)
    absent: dict[str, str] = {}
    found = harness.NOT_IN_SMOKE if arguments.smoke else harness.peer("sb3")
    if isinstance(found, harness.Absent):
        absent["sb3"] = found.reason
    if arguments.smoke:
        (result,) = learn("headrace", "CartPole-v1", hyperparameters("cartpole")[0], 4_096, [1], "--eval-episodes", "4")
        (image,) = learn("headrace", "catch:Catch", hyperparameters("catch")[0], 2_048, [1], "--eval-episodes", "4")
        harness.report(
            [
                harness.Claim(f"{name}, smoke", one["mean_reward"], "return", None, None, "-", None)
                for name, one in (("CartPole-v1", result), (TASKS["catch"].name, image))
            ],
            arguments.json,
            absent,
        )
        return
    with_sb3 = "sb3" not in absent
    seeds = range(1, 3) if arguments.quick else range(1, 6)
    claims = []
    for task in arguments.tasks:
        claims += (image_task if TASKS[task].in_one else final_returns)(task, seeds, with_sb3)
    for task in arguments.tasks if with_sb3 else ():
        one, (options, total) = TASKS[task], hyperparameters(task)
        if not one.in_one:
            claims.append(steps_to(one.env, one.threshold, options, total, one.every, seeds, "equal hyperparameters"))
    if with_sb3 and "cartpole" in arguments.tasks:
        claims.append(time_to_475(seeds))
    harness.report(claims, arguments.json, absent, {"curves": CURVES} if CURVES else None)


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
