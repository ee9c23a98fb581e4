"""A short walk in worker processes that have mishaps, its calm run, and the warnings that come of them."""

from __future__ import annotations

import functools
import logging
from functools import partial
from pathlib import Path

from headrace.envs.seeds import Purpose, leaf
from support.mishaps import Mishaps
from support.topology_runs import INLINE, SEED, Bits, Case

WALK = Case("walk", "support.bit_envs:LongWalk", n_envs=4, updates=6, kwargs={"limit": 20})


@functools.cache
def calm() -> Bits:
    return WALK.play(**INLINE)


def walking(folder: Path) -> Case:
    return WALK.wrapped(partial(Mishaps, folder=str(folder)))


class Warnings(logging.Handler):
    """Warnings of worker processes and when they came, by time.time()."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        self.at_s: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.at_s.append(record.created)


def named(env: int, episode: int, step: int) -> str:
    return f"env {env}, episode {env}:{episode}, seed {leaf(SEED, Purpose.ENV, env, episode)}, step {step}"
