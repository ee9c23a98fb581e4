"""Points 15 and 17: signals to a run with workers, and the ways in which scripts start one."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness import Claim

from chaos_points.kit import Scale, Shown, all_of, at_most, machine, machines, none_of, python, say, wait_until
from chaos_points.proc import family
from headrace.checkpoints.snapshot import find_latest
from headrace.errors import CheckpointError
from support.command import PATHS, TINY, end, start
from support.waiting import is_gone, segments_of_processes

Strike = Callable[["subprocess.Popen[str]"], int]
SLOW = ("support.worker_envs:dawdling", "--env-kwargs", json.dumps({"delay_s": 0.05}))
WHERE = ("--topology", "processes", "--workers", "2", "--run-dir", "out",
         "--total-timesteps", "100000", "--checkpoint-every", "8")  # fmt: skip


def once(number: signal.Signals, code: int) -> Strike:
    def strike(process: "subprocess.Popen[str]") -> int:
        process.send_signal(number)
        return code

    return strike


def twice(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    return 130


ENDINGS: dict[str, tuple[Strike, bool]] = {
    "SIGINT": (once(signal.SIGINT, 130), False),
    "SIGTERM": (once(signal.SIGTERM, 143), False),
    "double Ctrl-C": (twice, False),
    "Ctrl-C in start-up": (once(signal.SIGINT, 130), True),
}


def signals(scale: Scale) -> Shown:
    """Point 15."""
    claims: list[Claim] = []
    extra: dict[str, Any] = {}
    names = list(ENDINGS)[: 1 if scale.name == "smoke" else None]
    for kind in machines(scale):
        found = []
        for name in names:
            found.append(ended(kind, *ENDINGS[name]))
            say(f"{kind}: {name}: exit code {found[-1]['code']}, all gone in {found[-1]['gone_s']:.2f} s")
            extra[f"{kind}: {name}"] = found[-1]
        where, count = f"machine {kind}", len(found)
        claims += [
            at_most(f"children gone, slowest, {where}", max(one["gone_s"] for one in found), 5.0),
            all_of(f"exit codes 130 or 143, {where}", sum(one["is_code"] for one in found), count, "endings"),
            all_of(f"valid checkpoint, or none before training, {where}", sum(one["is_kept"] for one in found), count,
                   "endings"),
            none_of(f"segments left in shared memory, {where}", sum(one["left"] for one in found), count, "endings"),
            none_of(f"tracebacks, {where}", sum(one["traceback"] for one in found), count, "endings"),
        ]  # fmt: skip
    return Shown(
        "15",
        "Ctrl-C and SIGTERM",
        f"`headrace train` with 2 workers: {', '.join(names)}; on the machine as it is and beside 3 processes "
        "that burn.",
        claims,
        extra=extra,
    )


def ended(kind: str, strike: Strike, is_early: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        saved = folder / "out" / "checkpoints"
        process = start("train", *SLOW, *TINY, *WHERE, cwd=folder)
        try:
            if is_early:  # a child is there: workers are being started
                wait_until(lambda: bool(family(process.pid)) or process.poll() is not None)
            else:
                wait_until(lambda: len(list(saved.glob("step_*"))) >= 2 or process.poll() is not None)
            with machine(kind):
                members = family(process.pid)
                segments = segments_of_processes(members)
                begun = time.monotonic()
                code = strike(process)
                with suppress(TimeoutError):  # then it did not end, and what it said is in the results
                    wait_until(lambda: process.poll() is not None and all(map(is_gone, members)), 120)
                gone_s = time.monotonic() - begun
        finally:
            process.kill()
            outcome = end(process)
        try:
            is_kept = not find_latest(folder / "out")[2]
        except CheckpointError:
            is_kept = is_early
        return {"code": outcome.code, "is_code": outcome.code == code, "gone_s": gone_s, "is_kept": is_kept,
                "left": sum(path.exists() for path in segments), "traceback": "Traceback" in outcome.err,
                "err": outcome.err[-500:]}  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- scripts

SCRIPT = """
import sys
import gymnasium as gym
import numpy as np
import headrace as hr

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, scale=1.0):
        self.scale = scale
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen(), {}
    def step(self, action):
        return self.seen(), self.scale * float(action), False, bool(self.np_random.random() < 0.1), {}
    def seen(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

def train(where):
    places = {} if where == "inline" else {"workers": 2, "start_method": where}
    with hr.PPO("MlpPolicy", lambda: Mine(0.5), n_envs=4, n_steps=16, n_epochs=2, seed=5,
                topology="inline" if where == "inline" else "processes", **places) as model:
        model.learn(192)
        return model.result.weights_sha256
"""
TEST = """
def test_it(capsys):
    with capsys.disabled():
        print("\\nran")
        print(train(%r))
"""
TAIL = 'print("ran")\nprint(train(%r))\n'


def started(folder: Path, how: str, method: str) -> "subprocess.CompletedProcess[str]":
    """A script without a guard, a cell (no file at all), a test."""
    environment = {**os.environ, "PYTHONPATH": PATHS}
    text, given = SCRIPT + TAIL % method, None
    if how == "script":
        (folder / "mine.py").write_text(text)
        command = python("-W", "error", "mine.py")
    elif how == "cell":
        command, given = python("-"), text
    else:
        (folder / "test_mine.py").write_text(SCRIPT + TEST % method)
        command = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    return subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, timeout=200, check=False
    )


def scripts(scale: Scale) -> Shown:
    """Point 17."""
    ways = [("script", "inline"), ("script", "forkserver"), ("cell", "forkserver"), ("pytest", "forkserver")]
    ways += [] if scale.name == "smoke" else [("script", "spawn"), ("cell", "spawn"), ("pytest", "spawn")]
    hashes, once_only = [], 0
    for how, method in ways:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            done = started(Path(name), how, method)
        words = done.stdout.split()
        found = [word for word in words if len(word) == 64]
        hashes.append(found[0] if done.returncode == 0 and found else f"failed: {done.stderr[-300:]}")
        once_only += words.count("ran") == 1
        say(f"{how}, {method}: {hashes[-1][:60]}")
    return Shown(
        "17",
        "Scripts, notebook cells, tests",
        f"A class, a lambda and a global of one's own: {', '.join(f'{how} by {method}' for how, method in ways)}. The "
        f"script has no `__main__` guard and runs with warnings as errors; the cell has no file.",
        [
            all_of("runs with the inline run's weights", hashes.count(hashes[0]), len(ways), "runs"),
            all_of("scripts that ran once", once_only, len(ways), "runs"),
        ],
    )
