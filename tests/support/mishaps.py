"""A wrapper that lets a worker process hang, crash, leak or hang up at a chosen point of an environment's life.

    plan_mishap(folder, "gil", at_step(seed, env, episode, step)) -> what happens there, once, in a worker only

The point is a word: make, reset-SEED, step-SEED-NUMBER, close-SEED, where SEED is that of the episode. `always` leaves
the plan in place, so that every process that gets there has the same mishap. A file `began-...` says when it happened.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym

from headrace.envs.seeds import Purpose, leaf
from support.bit_envs import LongWalk
from support.worker_envs import in_worker


def at_step(seed: int, env: int, episode: int, step: int) -> str:
    return f"step-{leaf(seed, Purpose.ENV, env, episode)}-{step}"


def at_reset(seed: int, env: int, episode: int) -> str:
    return f"reset-{leaf(seed, Purpose.ENV, env, episode)}"


def at_close(seed: int, env: int, episode: int) -> str:
    return f"close-{leaf(seed, Purpose.ENV, env, episode)}"


def plan_mishap(folder: Path, what: str, point: str, always: bool = False) -> Path:
    """Returns the file that will hold the time at which it happened, a line each time.

    The plan is there whole or not at all: a worker that runs ahead may look for it at this moment.
    """
    draft = folder / f".{point}"
    draft.write_text(what + (" always" if always else ""))
    draft.rename(folder / point)
    return folder / f"began-{point}"


def times_s(began: Path) -> list[float]:
    """When it happened, by time.time()."""
    return [float(line) for line in began.read_text().split()]


class Mishaps(gym.Wrapper[Any, Any, Any, Any]):
    """Looks for plans in a folder."""

    def __init__(self, env: gym.Env[Any, Any], folder: str) -> None:
        super().__init__(env)
        self._folder = Path(folder)
        self._seed: int | None = None
        self._steps = 0
        self._meet("make")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._seed, self._steps = seed, 0
        self._meet(f"reset-{seed}")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._meet(f"step-{self._seed}-{self._steps}")
        self._steps += 1
        return super().step(action)

    def close(self) -> None:
        self._meet(f"close-{self._seed}")
        super().close()

    def _meet(self, point: str) -> None:
        if not in_worker():
            return
        plan = self._folder / point
        try:
            what, *always = plan.read_text().split()
        except FileNotFoundError:
            return
        if not always:
            plan.unlink()
        with open(self._folder / f"began-{point}", "a") as lines:
            lines.write(f"{time.time()}\n")
        MISHAPS[what]()


def walk(folder: str, limit: int = 20) -> gym.Env[Any, Any]:
    """A walk with mishaps, for command lines."""
    return Mishaps(LongWalk(limit), folder)


def sleeps_for_ever() -> None:
    time.sleep(1000)


def holds_the_gil() -> None:
    """C code that gives the interpreter to nobody, so no Python code of this process runs."""
    for _ in range(10):  # a signal interrupts sleep(3)
        ctypes.PyDLL(None).sleep(1000)


def spins_and_ignores_sigterm() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def closes_its_line() -> None:
    """As code that closes descriptors which it does not own, and then hangs."""
    for one in gc.get_objects():
        if isinstance(one, multiprocessing.connection.Connection) and one.writable and not one.closed:
            one.close()
    time.sleep(1000)


def says_half() -> None:
    """As code that writes to sockets which it does not own, and then hangs."""
    for one in gc.get_objects():
        if isinstance(one, multiprocessing.connection.Connection) and one.writable and not one.closed:
            os.write(one.fileno(), b"\0\0\x10\0half")
    time.sleep(1000)


def becomes_another_program() -> NoReturn:
    os.execv("/bin/sleep", ["sleep", "1000"])


class DroppedError(Exception):
    """Of somebody's simulator."""


def raises() -> NoReturn:
    raise DroppedError("the connection to the simulator dropped")


def raises_text_of_many_lines() -> NoReturn:
    raise DroppedError("line\n" * 10 + "x" * 10_000_000)


def exits() -> NoReturn:
    raise SystemExit(3)


def interrupts() -> NoReturn:
    raise KeyboardInterrupt


MISHAPS: dict[str, Callable[[], None]] = {
    "raise": raises,
    "raise-long": raises_text_of_many_lines,
    "sys-exit": exits,
    "interrupt": interrupts,
    "sleep": sleeps_for_ever,
    "gil": holds_the_gil,
    "spin": spins_and_ignores_sigterm,
    "stop": stops_itself,
    "hang-up": closes_its_line,
    "half": says_half,
    "exec": becomes_another_program,
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0) and None,
    "slow": lambda: time.sleep(1.4),
}


class Leaks(LongWalk):
    """Keeps a megabyte of every step."""

    def __init__(self, limit: int = 20) -> None:
        super().__init__(limit)
        self._kept: list[bytes] = []

    def step(self, action: Any) -> Any:
        if in_worker():
            self._kept.append(os.urandom(1 << 20))
        return super().step(action)
