"""Writes docs/environments.md: `headrace check` and 2,000 steps of training for environments of many families.

    tools/environments.py                  all of them, then the page
    tools/environments.py --only atari     one family again; the others' rows are kept (docs/environments.json)

Every row is made by the commands that it shows, in the order of the table. What they print on stderr is an error here.
An environment that is refused must be refused with the remedy that the row after it shows, and does not count.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "docs" / "environments.json", ROOT / "docs" / "environments.md"
STEPS = 2000
TRAIN = f"--total-timesteps {STEPS} --n-envs 4 --n-steps 50 --batch-size 100"

# What other packages print: MuJoCo of some of Gymnasium's models, gymnasium-robotics of its versions.
THEIRS = ("WARNING: compiler attribute 'settotalmass' is deprecated", "AdroitHandRelocateDense-v1, ")

# family: (package that must be there, extra of headrace, [(environment and its options, options of training alone)])
FAMILIES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "classic control": ("gymnasium", "", [(one, "") for one in (
        "CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1",
    )]),
    "toy text": ("gymnasium", "", [
        ("FrozenLake-v1", ""), ("Taxi-v4", ""), ("CliffWalking-v1", ""),
        ("Blackjack-v1", "--policy auto"), ("Blackjack-v1 --wrappers gymnasium.wrappers:FlattenObservation", ""),
    ]),
    "Box2D": ("Box2D", "box2d", [
        ("LunarLander-v3", ""), ("LunarLanderContinuous-v3", ""), ("BipedalWalker-v3", ""),
        ("BipedalWalker-v3 --wrappers box2d_fresh_world:FreshWorld", ""),
        ("CarRacing-v3", "--policy CnnPolicy"),
    ]),
    "MuJoCo": ("mujoco", "mujoco", [(one, "") for one in (
        "Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Swimmer-v5", "Reacher-v5", "InvertedPendulum-v5",
        "Humanoid-v5",
    )]),
    "MuJoCo robotics": ("gymnasium_robotics", "", [
        ("gymnasium_robotics:FetchReach-v4", "--policy auto"),
    ]),
    "Dict observations": ("gymnasium", "", [("reach_goal:Reach", "--policy auto")]),
    "Atari": ("ale_py", "atari", [(f"ALE/{one}-v5 --preset atari", "") for one in (
        "Breakout", "Pong", "SpaceInvaders",
    )]),
    "MiniGrid": ("minigrid", "minigrid", [
        ("MiniGrid-Empty-5x5-v0", "--policy auto"), ("MiniGrid-DoorKey-5x5-v0", "--policy auto"),
        ("MiniGrid-Empty-5x5-v0 --wrappers minigrid.wrappers:ImgObsWrapper", ""),
        ("MiniGrid-DoorKey-5x5-v0 --wrappers minigrid.wrappers:ImgObsWrapper", ""),
        ("MiniGrid-FourRooms-v0 --wrappers minigrid.wrappers:FlatObsWrapper", ""),
        ("BabyAI-GoToLocal-v0 --wrappers minigrid.wrappers:ImgObsWrapper", ""),
    ]),
    "EnvPool": ("envpool", "envpool", [(f"envpool:{one}", "") for one in (
        "CartPole-v1", "Acrobot-v1", "Pendulum-v1",
    )]),
    "Gymnasium vector": ("gymnasium", "", [
        ("gymnasium:make_vec --env-kwargs '{\"id\": \"CartPole-v1\"}'", ""),
        ("gymnasium:make_vec --env-kwargs '{\"id\": \"Pendulum-v1\", \"vectorization_mode\": \"sync\"}'", ""),
    ]),
    "PettingZoo": ("pettingzoo", "pettingzoo", [
        ("pettingzoo_agent:make --env-kwargs '{\"game\": \"pettingzoo.classic.rps_v2\"}'", ""),
        ("pettingzoo_agent:make --env-kwargs '{\"game\": \"pettingzoo.sisl.multiwalker_v9\"}'", ""),
    ]),
}  # fmt: skip


INSTEAD = {
    "gymnasium_robotics:FetchReach-v4": "use [`reach_goal:Reach`](../examples/reach_goal.py) with `--policy auto`"
}
"""What to use in the place of an environment that can't be made."""


@dataclass(frozen=True)
class Row:
    """One environment. A refused one has an answer and nothing else."""

    family: str
    env: str
    command: str
    env_class: str = ""
    step_us: float | None = None
    result: str = ""
    refused: str = ""

    @property
    def counts(self) -> bool:
        """Whether it was checked and trained."""
        return bool(self.result)


def run(command: str) -> tuple[str, str, int]:
    """A command line of headrace, in the folder of the examples: what it printed, complained of, and its exit code."""
    headrace = str(Path(sys.executable).with_name("headrace"))
    done = subprocess.run(
        [headrace, *shlex.split(command)], capture_output=True, text=True, cwd=ROOT / "examples", timeout=900
    )
    own = [line for line in done.stderr.splitlines() if line and not line.startswith(THEIRS)]
    return done.stdout, "\n".join(own), done.returncode


def row_of(family: str, env: str, training: str) -> Row:
    """Check and train one environment."""
    command = f"headrace train {env} {TRAIN} {training}".strip()
    name = re.sub(r" --wrappers [\w.]+:", " + ", env).replace(" --env-kwargs", "").replace(" --preset", ", preset")
    out, complaint, code = run(f"check {env}")
    if code == 2 or "unsupported" in complaint:
        return Row(family, name, f"headrace check {env}", refused=f"refused: {complaint.rpartition('; ')[2]}")
    if "could not be made" in complaint:
        cause = complaint.rpartition(": could not be ")[2].strip()
        if cause.endswith(":"):
            raise SystemExit(f"headrace check {env} shows no cause: {complaint}")
        return Row(family, name, f"headrace check {env}", refused=f"could not be {cause}")
    if code or complaint:
        raise SystemExit(f"headrace check {env}: exit code {code}\n{complaint}")
    said = dict(line.split(None, 1) for line in out.splitlines() if len(line.split(None, 1)) == 2)
    cost = re.match(r"cost +([\d.]+) us", said.get("step", ""))
    with tempfile.TemporaryDirectory() as folder:
        _, complaint, code = run(f"{command.removeprefix('headrace ')} --seed 1 --quiet --run-dir {folder}/run")
        if code or complaint:
            raise SystemExit(f"{command}: exit code {code}\n{complaint}")
        found = json.loads((Path(folder) / "run" / "result.json").read_text())
    mean = found["mean_return"]
    ended = "no episode ended" if mean is None else f"mean return {mean:.1f}"
    step_us = None if cost is None else float(cost[1])
    return Row(family, name, command, said["class"][0], step_us, f"{found['steps']:,} steps, {ended}")


def page(rows: list[Row], absent: list[str]) -> str:
    """The page."""
    counted = [row for row in rows if row.counts]
    n_envs = len({row.env.partition(" + ")[0] for row in counted})
    lines = [
        "# Environments",
        "",
        "Each row was made by two commands: `headrace check` found the class and the time of a step, and the command "
        f"of the row trained for {STEPS:,} steps. `tools/environments.py` runs them and writes this page.",
        "",
        f"{n_envs} environments of {len({row.family for row in counted})} families train. The class says what is "
        "guaranteed: [Your environment](guides/your-environment.md) has the list. Step times are medians on a busy "
        "machine: compare them with one another, not with other pages. A return after so few steps shows that the run "
        "works, not what it learns. A pool (class B) is not timed by `headrace check`.",
        "",
        "| family | environment | class | step | training |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row.refused:
            instead = f"; {INSTEAD[row.env]}" if row.env in INSTEAD else ""
            lines.append(f"| {row.family} | {row.env} | | | {row.refused}{instead} |")
        else:
            step = "" if row.step_us is None else f"{row.step_us:,.0f} µs"
            lines.append(f"| {row.family} | {row.env} | {row.env_class} | {step} | {row.result} |")
    lines += ["", "Observations of several arrays (Dict, Tuple) train with `--policy auto`: "
              "[the guide](guides/dict-observations.md). MiniGrid's `mission` is a text, and left out."]  # fmt: skip
    lines += ["", *(f"Not tried here: {one}." for one in absent), ""] if absent else [""]
    lines += [
        "The commands, in the order of the table:",
        "",
        "<!-- not executed: some take minutes, and need extras -->",
        "```sh",
    ]
    lines += [f"$ {row.command}" for row in rows]
    lines += [
        "```",
        "",
        "`pettingzoo_agent` is [an example](../examples/pettingzoo_agent.py) that makes one agent of a game an "
        "environment, with the other agents acting at random; run its commands in `examples/`. Games in which one "
        "policy plays all agents need an axis of agents, which is not built.",
        "",
        "BipedalWalker is class C because episodes share a Box2D world; "
        "[a wrapper](../examples/box2d_fresh_world.py) gives each its own, and makes it class A. "
        "CarRacing shares its world, too, but `headrace check` saw one episode of each instance only, since its "
        "steps are slow: take its class with care. MuJoCo prints a "
        "deprecation warning of its own for HalfCheetah's model.",
    ]
    if any("could not be made" in row.refused for row in rows):
        lines += [
            "",
            "An environment that could not be made raised in its own package: gymnasium-robotics 1.4.2 does, with "
            "MuJoCo 4. `reach_goal` is [an example](../examples/reach_goal.py) with its three arrays, and a camera.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked for, keep the other rows, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=FAMILIES, action="append", help="families to run again")
    chosen = parser.parse_args().only or list(FAMILIES)
    rows: dict[str, list[Row]] = {family: [] for family in FAMILIES}
    for row in json.loads(ROWS.read_text()) if ROWS.exists() else []:
        rows[row["family"]].append(Row(**row))
    for family in chosen:
        package, _, envs = FAMILIES[family]
        rows[family] = []
        for one in envs if find_spec(package) is not None else []:
            rows[family].append(row_of(family, *one))
            print(rows[family][-1], flush=True)
    every = [row for of_family in rows.values() for row in of_family]
    ROWS.write_text(json.dumps([asdict(row) for row in every], indent=1) + "\n")
    PAGE.write_text(page(every, [family for family in FAMILIES if not rows[family]]))


if __name__ == "__main__":
    main()
