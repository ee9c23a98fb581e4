"""Does asynchronous training learn as well? max_lag 1 and 2 beside the synchronous run, five seeds, two tasks.

Two worker processes, the files in configs/, final return of 100 evaluation episodes.
"""

from collections.abc import Iterable
from statistics import mean

import harness

from learning import TASKS, hyperparameters, learn, standard_error


def lagged_returns(task: str, seeds: Iterable[int], every: dict[str, list[float]]) -> list[harness.Claim]:
    """Final returns with max_lag 1 and 2 beside the synchronous run's; `every` gets those of each seed."""
    env = TASKS[task].env
    options, total = hyperparameters(task)
    seeds = list(seeds)
    where = {"topology": "processes", "workers": 2}
    sync = [one["mean_reward"] for one in learn("headrace", env, options | where, total, seeds)]
    claims = []
    every[f"{env}, synchronous"] = sync
    for max_lag in (1, 2):
        late = learn("headrace", env, options | where | {"max_lag": max_lag}, total, seeds)
        ours = every[f"{env}, max_lag {max_lag}"] = [one["mean_reward"] for one in late]
        noise = standard_error(ours) + standard_error(sync)
        name, holds = f"{env}, max_lag {max_lag}, mean of {len(ours)} seeds", mean(ours) >= mean(sync) - noise
        goal = f">= synchronous (noise {noise:.1f})"
        claims.append(harness.Claim(name, mean(ours), "return", mean(sync), None, goal, holds))
    return claims


def main() -> None:
    arguments = harness.arguments(__doc__)
    if arguments.smoke:
        options = hyperparameters("cartpole")[0] | {"topology": "processes", "workers": 2, "max_lag": 1}
        (result,) = learn("headrace", "CartPole-v1", options, 4_096, [1], "--eval-episodes", "4")
        claim = harness.Claim("CartPole-v1, max_lag 1, smoke", result["mean_reward"], "return", None, None, "-", None)
        harness.report([claim], arguments.json, {})
        return
    seeds = range(1, 3) if arguments.quick else range(1, 6)
    every: dict[str, list[float]] = {}
    claims = [claim for task in ("cartpole", "acrobot") for claim in lagged_returns(task, seeds, every)]
    harness.report(claims, arguments.json, {}, {"returns": every})


if __name__ == "__main__":
    main()
