"""Points 2, 3, 21 and 22: kills that need a learner in a process of its own.

    in_a_process(learn, ...) ──> a fresh interpreter: its fork server and its resource tracker are its own
                             ──> every few seconds one process of the run is killed, drawn from all that it has

Calm runs and runs with kills take turns; both are timed from their first update to their last.
"""

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
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
from burn import burn, loops_per_us
from harness import Claim

from chaos_points import kills
from chaos_points.kit import Scale, Shown, all_of, at_most, equal, machine, machines, none_of, python, say, wait_until
from chaos_points.proc import family, name_of, private_bytes
from support.command import PATHS
from support.learners import learner
from support.waiting import is_gone, segments_of_processes

BURN_US = 90.0  # beside CartPole's own ten
WORKERS, N_ENVS, N_STEPS = 3, 12, 64
LEARNER_TIMEOUT_S = 900.0
MAX_NOISE = 1.25  # between the fastest and the slowest calm run: a noisier machine can't tell 80 % from 100 %
BENCHMARKS = str(Path(__file__).resolve().parents[1])


class BurningCartPole(gym.Wrapper):
    """CartPole whose step takes some 100 us of pure Python."""

    def __init__(self, turns: int) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.turns = turns

    def step(self, action: Any) -> Any:
        burn(self.turns)
        return self.env.step(action)


def learn(steps: int, every_s: float, seed: int, turns: int, start_method: str = "forkserver") -> dict[str, Any]:
    """A run, in this process; killed at every so many seconds (0: never) until nine tenths of it are done."""
    import headrace as hr

    times: list[tuple[float, float]] = []
    over, kills, asked = threading.Event(), Counter[str](), time.perf_counter()

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
            "start_s": begun - asked,
            "evenness": median(durations) * len(durations) / sum(durations),  # 1: every update took the same time
            "weights_sha256": model.result.weights_sha256,
            "restarts": model.result.restarts,
            "kills": dict(kills),
            "spare_bytes": spare_bytes,
        }


def kill_now_and_then(
    model: Any, times: list[Any], over: threading.Event, every_s: float, seed: int, kills: Counter[str]
) -> None:
    """Count who was killed in `kills`; a spare that has become a worker meanwhile is one."""
    draw = random.Random(seed)
    while not times and not over.wait(0.05):
        pass  # the run has not begun
    while every_s and not over.wait(every_s):
        victim, _ = draw.choice(sorted(roles(model).items()))
        with suppress(ProcessLookupError):
            role = roles(model).get(victim, "gone")
            os.kill(victim, signal.SIGKILL)
            kills[role] += 1


def roles(model: Any) -> dict[int, str]:
    """Every process of the run that lives, and what it is."""
    place = model.parts.reader.place
    known = dict.fromkeys(place.workers.pids, "worker")
    known |= dict.fromkeys(place.workers.standby.spare_pids, "spare")
    known |= dict.fromkeys(place.workers.standby.server_pids, "fork server")
    for pid in family(os.getpid()) - set(known):
        with suppress(OSError):  # gone meanwhile
            if name_of(pid) == "resource tracker":
                known[pid] = "resource tracker"
    return {pid: role for pid, role in known.items() if not is_gone(pid)}


def in_a_process(**how: Any) -> dict[str, Any]:
    """`learn` in a fresh interpreter."""
    command = python("-c", "from chaos_points.learners import main; main()", json.dumps(how))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([BENCHMARKS, PATHS])}
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LEARNER_TIMEOUT_S, check=False
        )
    if done.returncode:
        raise RuntimeError(f"the run ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """The fresh interpreter's."""
    print(json.dumps(learn(**json.loads(sys.argv[1]))))


# ------------------------------------------------------------------------------------------------------ points 2 and 22


def random_kills(scale: Scale) -> Shown:
    """Point 2."""
    turns = round(BURN_US * loops_per_us())
    probe = in_a_process(steps=10 * N_ENVS * N_STEPS, every_s=0.0, seed=0, turns=turns)
    steps = max(20 * N_ENVS * N_STEPS, round(probe["sps"] * scale.seconds))
    runs: dict[str, list[dict[str, Any]]] = {"calm": [], "with kills": []}
    for turn in range(scale.rounds):
        for name in runs if turn % 2 == 0 else reversed(runs):
            every_s = scale.every_s if name == "with kills" else 0.0
            runs[name].append(in_a_process(steps=steps, every_s=every_s, seed=turn, turns=turns))
            one = runs[name][-1]
            say(f"[{turn + 1}/{scale.rounds}] {name}: {one['sps']:,.0f} steps/s, kills {one['kills']}")
    calm, disturbed = runs["calm"], runs["with kills"]
    ratios = [there["sps"] / here["sps"] for here, there in zip(calm, disturbed, strict=True)]
    noise = max(one["sps"] for one in calm) / min(one["sps"] for one in calm)
    same = sum(there["weights_sha256"] == calm[0]["weights_sha256"] for there in disturbed)
    killed = sum(there["kills"].get("worker", 0) for there in disturbed)
    everybody = sum((Counter(there["kills"]) for there in disturbed), Counter[str]())
    restarts = sum(there["restarts"] for there in disturbed)
    spare = max((size for run in calm for size in run["spare_bytes"]), default=0) / 1e6
    return Shown(
        "2",
        f"One random kill every {scale.every_s:g} s",
        f"3 workers on a CartPole of some 100 us a step; {scale.rounds} calm runs of about {scale.seconds:g} "
        "s and as many "
        f"with kills of any child, in turn. Killed: {words(everybody)}. Ratios of the pairs: "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}. The calm runs differ by a factor of {noise:.2f} among "
        f"themselves; above {MAX_NOISE:g} the throughput is not judged.",
        [
            Claim("steps/s with kills, beside calm (median of the pairs)", median(one["sps"] for one in disturbed),
                  "steps/s", median(one["sps"] for one in calm), median(ratios), ">= 0.80x of calm",
                  median(ratios) >= 0.8 if noise <= MAX_NOISE else None),
            all_of("runs with the calm run's weights", same, len(disturbed), "runs"),
            replaced(restarts, killed, everybody["spare"]),
            Claim("memory that a warm spare has to itself", spare, "MB", None, None, "none", None),
        ],
        extra={"steps": steps, "runs": runs},
    )  # fmt: skip


def replaced(restarts: int, killed: int, spares: int) -> Claim:
    """A spare may have become a worker in the moment it was killed."""
    holds = 0 <= restarts - killed <= spares and killed > 0
    return Claim("workers replaced, beside workers killed", restarts, "workers", killed,
                 restarts / killed if killed else None, "equal", holds)  # fmt: skip


def words(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count} times" for name, count in sorted(counted.items())) or "nobody"


def any_child(scale: Scale) -> Shown:
    """Point 22."""
    turns = round(BURN_US * loops_per_us())
    probe = in_a_process(steps=10 * N_ENVS * N_STEPS, every_s=0.0, seed=0, turns=turns)
    every_s = max(1.0, probe["start_s"])  # a fork server that is killed five times before it is ready ends a run
    steps = max(20 * N_ENVS * N_STEPS, round(probe["sps"] * max(scale.seconds, 5 * every_s)))
    calm = in_a_process(steps=steps, every_s=0.0, seed=0, turns=turns)
    runs = [
        in_a_process(steps=steps, every_s=every_s, seed=100 + turn, turns=turns) for turn in range(min(2, scale.rounds))
    ]
    everybody = sum((Counter(run["kills"]) for run in runs), Counter[str]())
    say(f"killed: {words(everybody)}")
    helpers = sum(everybody[role] for role in ("fork server", "resource tracker", "spare"))
    same = sum(run["weights_sha256"] == calm["weights_sha256"] for run in runs)
    return Shown(
        "22",
        "Kills of any child at any moment",
        f"{len(runs)} runs in which a random process is killed every {every_s:.1f} s, which is how long a start takes "
        f"here: others are being started most of the time. Killed: {words(everybody)}.",
        [
            all_of("runs that end with the calm run's weights", same, len(runs), "runs"),
            replaced(sum(run["restarts"] for run in runs), everybody["worker"], everybody["spare"]),
            Claim("kills of fork servers, resource trackers and spares", helpers, "kills", None, None, "> 0",
                  helpers > 0 if scale.name != "smoke" else None),
        ],
        extra={"runs": runs},
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ points 3 and 21


def gone_after_kill(env: str, is_there: str, count: int, **options: Any) -> dict[str, float]:
    """Kill a learner once so many files are there; seconds until workers, everybody and the shared memory are gone."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        with learner(folder, env=env, **options) as process:
            wait_until(lambda: len(list(folder.glob(is_there))) >= count or process.poll() is not None)
            if process.poll() is not None:
                raise RuntimeError(f"the learner ended:\n{process.communicate()[1][-2000:]}")
            members = family(process.pid)
            servers = {pid for pid in members if family(pid)} | {
                pid for pid in members if name_of(pid) == "resource tracker"
            }
            segments = segments_of_processes(members)
            process.kill()
            begun = time.monotonic()
            process.wait()
            workers_s = wait_until(lambda: all(map(is_gone, members - servers)), 120)
            all_s = wait_until(lambda: all(map(is_gone, members)), 120) + workers_s
            wait_until(lambda: not any(path.exists() for path in segments), 120)
            return {"members": len(members), "segments": len(segments), "workers_s": workers_s, "all_s": all_s,
                    "memory_s": time.monotonic() - begun}  # fmt: skip


def learner_killed(scale: Scale) -> Shown:
    """Point 3."""
    claims: list[Claim] = []
    extra: dict[str, Any] = {}
    for kind in machines(scale):
        with machine(kind):
            found = []
            for turn in range(max(1, scale.times - 2)):
                how = {"env_kwargs": {"delay_s": 1e-3}, "max_lag": turn % 2}
                found.append(gone_after_kill("support.worker_envs:dawdling", "update-*", 2, **how))
                say(f"{kind}: {json.dumps(found[-1])}")
        extra[kind] = found
        claims += [
            at_most(
                f"workers gone, slowest of {len(found)}, machine {kind}", max(one["workers_s"] for one in found), 5.0
            ),
            at_most(f"fork server and all others gone, machine {kind}", max(one["all_s"] for one in found), 10.0),
            at_most(f"shared memory gone, machine {kind}", max(one["memory_s"] for one in found), 10.0),
        ]
    of_servers, points = kills.server_points(scale)
    return Shown(
        "3",
        "kill -9 of the learner, kill -9 of the inference server",
        f"The learner: 2 workers in the middle of a rollout, synchronous and asynchronous by turns; slowest of "
        f"{len(found)} kills. The server: {len(kills.SERVING)} points of its life ({', '.join(kills.SERVING)}), "
        f"{scale.times} times each; it kills itself at that instruction, and 2 workers wait for it.",
        claims + of_servers,
        extra=extra | points,
    )


def nothing_outlives(scale: Scale) -> Shown:
    """Point 21."""
    found = []
    for method in ("forkserver", "spawn")[: 1 if scale.name == "smoke" else None]:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            kwargs = {"folder": name, "holds": True}
            # The files lie where the environments write them; the learner's own folder holds none.
            found.append(outlived(Path(name), method, kwargs))
        say(f"{method}: {json.dumps(found[-1])}")
    return Shown(
        "21",
        "Nothing outlives its parent",
        "kill -9 of the learner while its 2 workers are in C calls of minutes that hold the GIL and their 4 "
        "environments "
        f"have a child process each; by {' and '.join(one['method'] for one in found)}.",
        [
            at_most("everything gone, slowest", max(one["all_s"] for one in found), 10.0),
            equal(
                "processes of environments that were there before", min(one["spawned"] for one in found), 4, "processes"
            ),
            none_of("processes and segments left", sum(one["left"] for one in found), len(found), "kills"),
        ],
        extra={"found": found},
    )


def outlived(folder: Path, method: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    with learner(folder, env="support.worker_envs:spawning", env_kwargs=kwargs, start_method=method) as process:
        wait_until(lambda: len(list(folder.glob("holds-*"))) == 2 or process.poll() is not None)
        members = family(process.pid)
        spawned = {int(file.name.partition("-")[2]) for file in folder.glob("spawned-*")} & members
        segments = segments_of_processes(members)
        process.kill()
        begun = time.monotonic()
        process.wait()
        with suppress(TimeoutError):
            wait_until(lambda: all(map(is_gone, members)) and not any(path.exists() for path in segments), 60)
        left = [pid for pid in members if not is_gone(pid)] + [path for path in segments if path.exists()]
        return {"method": method, "members": len(members), "spawned": len(spawned), "left": len(left),
                "all_s": time.monotonic() - begun}  # fmt: skip
