"""Environments for the check in passing: what only the process that checks does to them.

is_checking()    whether this process is the one that plays episodes again
RaisesThere      Steady, but it raises in its first step in that process: there is one simulator only
HangsThere       Steady, but its first step never ends there
DrawsRandom      Steady, but its observations come from the global `random`, which it seeds once, by itself
"""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from support.faulty_envs import Steady, Step


def is_checking() -> bool:
    return multiprocessing.current_process().name == "headrace-check"


class RaisesThere(Steady):
    def step(self, action: Any) -> Step:
        if is_checking():
            raise ConnectionError("the simulator serves one client")
        return super().step(action)


class HangsThere(Steady):
    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = Path(file)

    def step(self, action: Any) -> Step:
        if is_checking():
            self._file.touch()
            while True:
                time.sleep(100)
        return super().step(action)


class DrawsRandom(Steady):
    def _seen(self) -> Any:
        return np.array([random.uniform(0, 100) for _ in range(3)], np.float32)


class ShowsItsLength(Steady):
    """Deterministic; the reward of a step tells how far the episode is."""

    def step(self, action: Any) -> Step:
        obs, _, terminated, truncated, facts = super().step(action)
        return obs, float(self._steps), terminated, truncated, facts
