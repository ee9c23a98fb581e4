"""A learner in a process of its own, so that it, its fork server and its resource tracker can be killed.

learner(folder, env=..., **options of hr.PPO) -> Popen; every update leaves a file, and waits while `wait` is there
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.command import PATHS
from support.waiting import family, is_gone, wait_until

NOISY, STEPS = "support.bit_envs:Noisy", 20 * 64
LEARNER = """
import json, os, sys, time
import headrace as hr
options = json.loads(sys.argv[1])
with hr.PPO("MlpPolicy", n_envs=4, n_steps=16, seed=1, topology="processes", workers=2, **options) as model:
    updates = 0
    def tell(record):
        global updates
        updates += 1
        open(f"update-{updates}", "w").close()
        while os.path.exists("wait"):
            time.sleep(0.01)
    model.learn(int(sys.argv[2]), tell)
    print(model.result.weights_sha256, model.result.restarts)
"""


@contextmanager
def learner(folder: Path, *flags: str, env: str = NOISY, **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *flags, "-c", LEARNER, json.dumps({"env": env, **options}), str(STEPS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], *files: Path) -> None:
    wait_until(lambda: all(file.exists() for file in files) or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def tracker_of(process: subprocess.Popen[str]) -> int | None:
    """The resource tracker that a learner has now."""
    for pid in family(process.pid):
        with suppress(OSError):  # gone meanwhile
            if "resource_tracker" in Path(f"/proc/{pid}/cmdline").read_text() and not is_gone(pid):
                return pid
    return None
