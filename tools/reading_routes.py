"""The runs that reading_cost.py watches, each by the public interface alone, in a process of its own.

    python reading_routes.py ROUTE        warm up -> window open -> a few updates, or groups -> window closed
                                          prints how many of them the window saw

What happens before and after the window is start and end, and is not counted. The environment is the driver's own and
short: within the window episodes end both ways. Does not know how calls are written down.
"""

import dataclasses
import inspect
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from sitecustomize import open_window  # of call_trace/, first on the path

import headrace as hr
from headrace.run_config import SessionConfig

WARM_UP, WATCHED = 3, 4  # updates
LOKY_PROCESSES, LOKY_S = 2, 60
GROUP_SIZE, LIVE, WARM_UP_GROUPS, WATCHED_GROUPS = 2, 4, 4, 8


class Corridor(gym.Env):
    """Four numbers in, two choices out; an episode is over after seven steps, or cut after nine."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        is_over = self.count >= 7 and int(action) == 0
        return np.full(4, self.count / 10, np.float32), 1.0, is_over, self.count >= 9 and not is_over, {}


def train(**options: Any) -> int:
    """env.step -> weights."""
    updates = 0

    def on_update(record: Any) -> None:
        nonlocal updates
        updates += 1
        if updates == WARM_UP:
            open_window(True)
        elif updates == WARM_UP + WATCHED:
            open_window(False)

    job = {"n_envs": 8, "n_steps": 16, "batch_size": 64, "n_epochs": 2, "seed": 1}
    with hr.PPO("MlpPolicy", Corridor, **job, **options) as model:
        by_the_clock: dict[str, Any] = {"check_episodes": 0} if hasattr(SessionConfig, "check_episodes") else {}
        model.learn((WARM_UP + WATCHED + 1) * 8 * 16, callback=on_update, **by_the_clock)
    return WATCHED


def play(**options: Any) -> int:
    """LLM turn -> record."""
    with hr.AgentRollouts("FrozenLake") as default:
        limits = dataclasses.replace(default.limits, max_live=LIVE)
    # One worker: a second might come up within the window, and its start would count.
    with hr.AgentRollouts("FrozenLake", n_jobs=1, group_size=GROUP_SIZE, limits=limits, seed=1, **options) as rollouts:
        for number, _ in enumerate(rollouts.stream(WARM_UP_GROUPS + WATCHED_GROUPS + 4), 1):
            if number == 1 and options["backend"] == "loky":
                wait_for_loky()
            elif number == WARM_UP_GROUPS:
                open_window(True)
            elif number == WARM_UP_GROUPS + WATCHED_GROUPS:
                open_window(False)
    return WATCHED_GROUPS


def bound_loky_processes() -> int:
    """joblib's children that have a group of their own: they bind themselves to us before all else.

    The shell that removes the hub's folder has a group of its own, too, and is none of joblib's.
    """
    bound = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            children = [int(one) for one in path.read_text().split()]
            bound |= {one for one in children if os.getpgid(one) == one and b"LokyProcess" in command_of(one)}
    return len(bound)


def command_of(pid: int) -> bytes:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def wait_for_loky() -> None:
    """joblib starts two processes, also for one worker: the idle one would come up within the window."""
    until = time.monotonic() + LOKY_S
    while bound_loky_processes() < LOKY_PROCESSES:
        if time.monotonic() > until:
            raise SystemExit(f"{LOKY_PROCESSES} processes of joblib did not come up within {LOKY_S} s")
        time.sleep(0.01)


def without_spares() -> dict[str, int]:
    """A spare might come up within the window, and its start would count. The first house has none."""
    return {"spares": 0} if "spares" in inspect.signature(hr.PPO).parameters else {}


ROUTES: dict[str, Callable[[], int]] = {
    "processes": lambda: train(topology="processes", workers=2, **without_spares()),
    "inline": lambda: train(topology="inline"),
    "loky": lambda: play(backend="loky"),
    "threading": lambda: play(backend="threading"),
}

if __name__ == "__main__":
    print(ROUTES[sys.argv[1]]())
