"""`headrace plan --measure ENV` against runs: is the steps/s that it predicts for a place what training reaches there?

The ten configurations in plan_grid.json (environments, sizes of the network, places) were written before the
predictions were looked at. For each: plan, then run, then plan, each in a fresh process, and of each only the moments
in which other programs left the machine alone (quiet.py); the medians are compared. A prediction is right within 15 %
of what was reached. Where there was no calm moment for a minute, the row says so and proves nothing.

--only I ... runs some of the configurations, and with --json FILE joins them with what is in the file already.

value: what was reached; baseline: what was predicted; both in steps/s while training (collecting and learning), PPO
with the defaults of `plan`.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import harness
from quiet import CALM, quiet_moments

GRID = Path(__file__).with_name("plan_grid.json")
RIGHT, GOAL = 0.15, 8
WINDOW_S = 0.5


def predicted(one: dict[str, Any], count: int, limit_s: float) -> tuple[list[float], float]:
    """As the command says it."""
    _plan(one)  # what is imported and compiled once
    return quiet_moments(lambda: _plan(one), count, limit_s)


def _plan(one: dict[str, Any]) -> float:
    from headrace.cli.plan_command import main as plan

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        size = ["--net-arch", *map(str, one["net_arch"])] if one["net_arch"] else []
        numbers = ["--n-envs", str(one["n_envs"]), "--n-steps", str(one["n_steps"])]
        plan(["--measure", one["env"], *numbers, *size, "--json", str(file)])
        forecast = json.loads(file.read_text())["forecast"]
    place = {name: one[name] for name in ("topology", "workers", "max_lag")}
    return next(each["sps"] for each in forecast if place.items() <= each.items())


def reached(one: dict[str, Any], count: int, limit_s: float) -> tuple[list[float], float]:
    """By training: whole updates, after two that start everything; a moment is half a second of them, or more."""
    from headrace.build import build_run
    from headrace.collecting.topology import TopologyConfig
    from headrace.envs.spec import EnvSpec
    from headrace.policies.config import PolicyConfig
    from headrace.run_config import RunConfig

    workers = "auto" if one["topology"] == "inline" else str(one["workers"])
    place = TopologyConfig(one["n_envs"], one["n_steps"], one["topology"], workers, max_lag=one["max_lag"])
    policy = PolicyConfig(policy="auto", net_arch=tuple(one["net_arch"]) or None)  # as plan has it: a CNN for images
    run, _ = build_run(RunConfig(EnvSpec(one["env"]), 1, policy, topology=place))
    with closing(run):
        for _ in range(2):
            run.update(1 << 40)

        def moment() -> float:
            steps, updates, begun = 0, 0, time.perf_counter()
            while time.perf_counter() - begun < WINDOW_S or updates < 2:
                steps, updates = steps + run.update(1 << 40).harvest.steps, updates + 1
            return steps / (time.perf_counter() - begun)

        return quiet_moments(moment, 2 * count, limit_s)


def alone(what: str, index: int, count: int, limit_s: float) -> dict[str, Any]:
    """In a fresh process."""
    return harness.run_script(__file__, what, str(index), str(count), str(limit_s), timeout_s=300.0)


def named(one: dict[str, Any]) -> str:
    """A configuration in words."""
    name = f"{one['env'].split(':')[-1]} {'x'.join(map(str, one['net_arch'])) or 'cnn'} x {one['n_envs']}, "
    name += one["topology"] + (f" {one['workers']}" if one["topology"] != "inline" else "")
    return name + (f", max_lag {one['max_lag']}" if one["max_lag"] else "")


def claimed(name: str, row: dict[str, Any]) -> harness.Claim:
    was, came = median(row["predicted"]), median(row["reached"])
    is_right = abs(row["off"]) <= RIGHT if row["others"] <= CALM else None
    return harness.Claim(name, came, "steps/s", was, came / was, "+- 15 %", is_right)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", type=int, metavar="I", help="some of the configurations, by number")


def main() -> None:
    grid = json.loads(GRID.read_text())
    if sys.argv[1:2] in (["predicted"], ["reached"]):
        measure = predicted if sys.argv[1] == "predicted" else reached
        values, others = measure(grid[int(sys.argv[2])], int(sys.argv[3]), float(sys.argv[4]))
        print(json.dumps({"sps": values, "others": others}))
        return
    arguments = harness.arguments(__doc__, add=options)
    count, limit_s = (1, 0.0) if arguments.smoke else (2, 20.0) if arguments.quick else (3, 60.0)
    chosen = [0] if arguments.smoke else arguments.only or range(len(grid))
    kept = harness.earlier(arguments.json, bool(arguments.only), "configurations") or []
    rows = {named(row): row for row in kept if row["count"] == count}
    for index in chosen:
        one = grid[index]
        name = named(one)
        before, run, after = (alone(what, index, count, limit_s) for what in ("predicted", "reached", "predicted"))
        was, came = median(before["sps"] + after["sps"]), median(run["sps"])
        others = max(each["others"] for each in (before, run, after))
        series = {"predicted": before["sps"] + after["sps"], "reached": run["sps"]}
        rows[name] = one | series | {"others": others, "off": was / came - 1.0, "count": count}
        print(
            f"{name}: predicted {was:,.0f}, reached {came:,.0f} ({was / came - 1.0:+.0%}), others {others:.0%}",
            flush=True,
        )
    rows = {name: rows[name] for name in map(named, grid) if name in rows}
    claims = [claimed(name, row) for name, row in rows.items()]
    calm = [row for row in rows.values() if row["others"] <= CALM]
    right = sum(abs(row["off"]) <= RIGHT for row in calm)
    is_whole = len(calm) == len(grid)
    claims.append(
        harness.Claim(
            "right", right, "of them", len(rows), right / len(rows), f">= {GOAL}", right >= GOAL if is_whole else None
        )
    )
    harness.report(claims, arguments.json, {}, {"configurations": list(rows.values())})


if __name__ == "__main__":
    main()
