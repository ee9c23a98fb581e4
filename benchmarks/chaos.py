"""Runs in which things go wrong, beside calm runs of the same configuration.

kills:  3 workers on a CartPole of some 100 us a step. Every 5 s one process of the run is killed (SIGKILL), drawn from
        all that it has: workers, the spare, the fork server, the resource tracker. Calm runs and runs with kills take
        turns; both are timed from their first update to their last. The weights must be the same, and every killed
        worker, no more and no less, must have been replaced.
spare:  memory that a warm spare has to itself (Private_Clean + Private_Dirty of smaps_rollup).

A point is a function in POINTS: it measures, and returns its claims and what else is worth keeping.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import harness
from burn import _burn, loops_per_us

BURN_US = 90.0  # beside CartPole's own ten
WORKERS, N_ENVS, N_STEPS = 3, 12, 64
LEARNER_TIMEOUT_S = 900.0


@dataclasses.dataclass(frozen=True)
class Scale:
    """How long to look."""

    rounds: int
    seconds: float  # of one calm run
    every_s: float  # between two kills


SMOKE, QUICK, FULL = Scale(1, 3.0, 1.0), Scale(2, 30.0, 5.0), Scale(5, 60.0, 5.0)

Point = Callable[[Scale], tuple[list[harness.Claim], dict[str, Any]]]


class BurningCartPole(gym.Wrapper):
    """CartPole whose step takes some 100 us of pure Python."""

    def __init__(self, turns: int) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.turns = turns

    def step(self, action: Any) -> Any:
        _burn(self.turns)
        return self.env.step(action)


# ------------------------------------------------------------------------------------------------ a learner of its own


def learn(steps: int, every_s: float, seed: int, turns: int, start_method: str = "forkserver") -> dict[str, Any]:
    """A run, in this process; killed at every so many seconds (0: never) until nine tenths of it are done."""
    import headrace as hr

    times: list[tuple[float, float]] = []
    over, kills = threading.Event(), Counter[str]()

    def note(record: dict[str, float]) -> None:
        times.append((time.perf_counter(), record["time/total_timesteps"]))
        if times[-1][1] > 0.9 * steps:
            over.set()

    with hr.PPO(
        "MlpPolicy", BurningCartPole, env_kwargs={"turns": turns}, n_envs=N_ENVS, n_steps=N_STEPS, batch_size=256,
        n_epochs=2, seed=1, topology="processes", workers=WORKERS, start_method=start_method,
    ) as model:  # fmt: skip
        killer = threading.Thread(target=kill_now_and_then, args=(model, times, over, every_s, seed, kills))
        killer.start()
        try:
            model.learn(steps, note)
        finally:
            over.set()
            killer.join()
        spare_bytes = [private_bytes(pid) for pid, role in roles(model).items() if role == "spare"]
        (begun, first), (ended, last) = times[0], times[-1]
        durations = [after - before for (before, _), (after, _) in pairwise(times)]
        return {
            "sps": (last - first) / (ended - begun),
            "evenness": median(durations) * len(durations) / sum(durations),  # 1: every update took the same time
            "weights_sha256": model.result.weights_sha256,
            "restarts": model.result.restarts,
            "kills": dict(kills),
            "spare_bytes": spare_bytes,
        }


def kill_now_and_then(
    model: Any, times: list[Any], over: threading.Event, every_s: float, seed: int, kills: Counter[str]
) -> None:
    """Count who was killed in `kills`."""
    draw = random.Random(seed)
    while not times and not over.wait(0.05):
        pass  # the run has not begun
    while every_s and not over.wait(every_s):
        victim, role = draw.choice(sorted(roles(model).items()))
        kills[role] += 1
        os.kill(victim, signal.SIGKILL)


def roles(model: Any) -> dict[int, str]:
    """Every process of the run that lives, and what it is."""
    place = model.parts.reader.place
    known = dict.fromkeys(place.pids, "worker")
    known |= dict.fromkeys(place._workers.standby.spare_pids, "spare")
    known |= dict.fromkeys(place._workers.standby.server_pids, "fork server")
    for pid in family(os.getpid()) - set(known):
        try:
            if "resource_tracker" in Path(f"/proc/{pid}/cmdline").read_text():
                known[pid] = "resource tracker"
        except OSError:
            continue  # gone meanwhile
    return known


def family(pid: int) -> set[int]:
    """A process's children and theirs."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children |= {int(child) for child in task.read_text().split()}
        except OSError:
            continue  # gone meanwhile
    return children.union(*map(family, children))


def private_bytes(pid: int) -> int:
    """Memory that no other process shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def in_a_process(**how: Any) -> dict[str, Any]:
    """`learn` in a fresh interpreter: its fork server and resource tracker are its own."""
    command = [sys.executable, str(Path(__file__).resolve()), "--learner", json.dumps(how)]
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=LEARNER_TIMEOUT_S, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the run ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# -------------------------------------------------------------------------------------------------------------- points


def kills(scale: Scale) -> tuple[list[harness.Claim], dict[str, Any]]:
    """One random kill every few seconds."""
    turns = round(BURN_US * loops_per_us())
    probe = in_a_process(steps=10 * N_ENVS * N_STEPS, every_s=0.0, seed=0, turns=turns)
    steps = max(20 * N_ENVS * N_STEPS, round(probe["sps"] * scale.seconds))
    runs: dict[str, list[dict[str, Any]]] = {"calm": [], "with kills": []}
    for turn in range(scale.rounds):
        for name in runs if turn % 2 == 0 else reversed(runs):
            every_s = scale.every_s if name == "with kills" else 0.0
            runs[name].append(in_a_process(steps=steps, every_s=every_s, seed=turn, turns=turns))
            print(f"[{turn + 1}/{scale.rounds}] {name}: {json.dumps(runs[name][-1])}", flush=True)
    calm, disturbed = runs["calm"], runs["with kills"]
    ratio = median(there["sps"] / here["sps"] for here, there in zip(calm, disturbed, strict=True))
    same = sum(there["weights_sha256"] == calm[0]["weights_sha256"] for there in disturbed)
    killed = sum(there["kills"].get("worker", 0) for there in disturbed)
    restarts = sum(there["restarts"] for there in disturbed)
    claims = [
        harness.Claim(
            f"steps/s, one kill every {scale.every_s:g} s", median(one["sps"] for one in disturbed), "steps/s",
            median(one["sps"] for one in calm), ratio, ">= 0.80x of a calm run", ratio >= 0.8,
        ),
        harness.Claim("runs with the calm run's weights", same, "runs", len(disturbed), same / len(disturbed), "all",
                      same == len(disturbed)),
        harness.Claim("workers replaced, beside workers killed", restarts, "workers", killed,
                      restarts / killed if killed else None, "equal", restarts == killed),
    ]  # fmt: skip
    return claims, {"steps": steps, "runs": runs}


def spare(scale: Scale) -> tuple[list[harness.Claim], dict[str, Any]]:
    """What a spare costs while it waits."""
    turns, claims = round(BURN_US * loops_per_us()), []
    for method in ("forkserver", "spawn"):
        done = in_a_process(steps=60 * N_ENVS * N_STEPS, every_s=0.0, seed=0, turns=turns, start_method=method)
        size = max(done["spare_bytes"], default=0) / 1e6
        claims.append(harness.Claim(f"memory of a spare, {method}", size, "MB", None, None, "none", None))
    return claims, {}


POINTS: list[Point] = [kills, spare]


def main() -> None:
    if sys.argv[1:2] == ["--learner"]:
        print(json.dumps(learn(**json.loads(sys.argv[2]))))
        return
    names = [point.__name__ for point in POINTS]
    arguments = harness.arguments(
        __doc__, add=lambda parser: parser.add_argument("--points", nargs="*", choices=names, default=names)
    )
    scale = SMOKE if arguments.smoke else QUICK if arguments.quick else FULL
    claims: list[harness.Claim] = []
    extra: dict[str, Any] = {}
    for point in POINTS:
        if point.__name__ in arguments.points:
            found, more = point(scale)
            claims += found
            extra[point.__name__] = more
    harness.report(claims, arguments.json, {}, extra)


if __name__ == "__main__":
    main()
