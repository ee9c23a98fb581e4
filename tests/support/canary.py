"""Code that a doctored file names. Importing it, calling it or wrapping with it leaves a line in $HEADRACE_CANARY."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym


def sing(what: str) -> None:
    path = os.environ.get("HEADRACE_CANARY")
    if path:
        with open(path, "a") as file:
            file.write(f"{what}\n")


sing("imported")


def make(**kwargs: Any) -> gym.Env[Any, Any]:
    sing("called")
    return gym.make("CartPole-v1")


def wrap(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    sing("wrapped")
    return env
