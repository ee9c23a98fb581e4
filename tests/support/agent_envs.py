"""Text environments that misbehave, for the agents' tests. All of them are built by name in worker processes too."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headrace.agents import ports
from headrace.agents.environments.text_env import Step, TextEnvSpec


class Counting:
    """Counts what the player says; the observation is a random number of the seed's own. Ends after `steps` actions."""

    instructions = "Say one or two."
    actions = ("one", "two")

    def __init__(self, steps: int = 4, step_s: float = 0.0) -> None:
        self._steps, self._step_s = steps, step_s
        self._rng = np.random.default_rng(0)
        self._taken: list[str] = []
        self.is_closed = False

    def reset(self, seed: int) -> str:
        self._rng = np.random.default_rng(seed)
        self._taken = []
        return f"number {self._rng.integers(1000)}"

    def step(self, action: str) -> Step:
        if self._step_s:
            time.sleep(self._step_s)
        self._taken.append(action)
        wins = self._taken.count("two")
        is_done = len(self._taken) >= self._steps
        facts = {"success": float(wins > len(self._taken) / 2), "action_is_effective": 1.0}
        return Step(f"number {self._rng.integers(1000)}", float(action == "two"), is_done, facts)

    def close(self) -> None:
        self.is_closed = True


class Heavy(Counting):
    """Steps of a heavy-tailed length, by the seed."""

    def step(self, action: str) -> Step:
        time.sleep(0.001 * min(30.0, float(self._rng.pareto(1.2)) + 0.2))
        return super().step(action)


class Raising(Counting):
    """Raises in `where` for seeds with an odd number."""

    def __init__(self, where: str = "step", every: int = 2, **options: Any) -> None:
        if where == "build":
            raise OSError("no display")
        super().__init__(**options)
        self._where, self._every, self._seed = where, every, 0

    def reset(self, seed: int) -> str:
        self._seed = seed
        if self._where == "reset" and seed % self._every == 1:
            raise KeyError("no such level")
        return super().reset(seed)

    def step(self, action: str) -> Step:
        if self._where == "step" and self._seed % self._every == 1:
            raise RuntimeError("the machine is broken")
        return super().step(action)

    def close(self) -> None:
        super().close()
        if self._where == "close":
            raise RuntimeError("would not close")


class Garbage(Counting):
    """Returns what it should not."""

    def __init__(self, what: str = "none", **options: Any) -> None:
        super().__init__(**options)
        self._what = what

    def reset(self, seed: int) -> str:
        return 3 if self._what == "reset" else super().reset(seed)  # type: ignore[return-value]

    def step(self, action: str) -> Step:
        step = super().step(action)
        told: dict[str, Any] = {
            "none": None,
            "tuple": ("a", 1.0, False, {}),
            "text": Step(7, 0.0, False),  # type: ignore[arg-type]
            "nan": Step("a", float("nan"), False),
            "done": Step("a", 0.0, "yes"),  # type: ignore[arg-type]
        }
        result: Step = told.get(self._what, step)
        return result


RELEASE = threading.Event()  # lets hung environments of this process go


class Hanging(Counting):
    """Hangs in step, once per `once` file or always, until RELEASE is set."""

    def __init__(self, once: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._once = once

    def step(self, action: str) -> Step:
        if not self._once or claim(self._once):
            RELEASE.wait(20.0)
        return super().step(action)


class HangingClose(Counting):
    """Hangs in close until RELEASE is set."""

    def close(self) -> None:
        RELEASE.wait(20.0)


class Late(Counting):
    """Its third step takes longer than it may, once ON is set, and comes back; notes if it is reset after that."""

    ON = threading.Event()
    reused: ClassVar[list[bool]] = []  # in this process

    def __init__(self, late_s: float = 0.7, **options: Any) -> None:
        super().__init__(**options)
        self._late_s, self._was_late = late_s, False

    def reset(self, seed: int) -> str:
        self.reused.append(self._was_late)
        return super().reset(seed)

    def step(self, action: str) -> Step:
        if len(self._taken) == 2 and self.ON.is_set():
            self._was_late = True
            time.sleep(self._late_s)
        return super().step(action)


class Stuck(Counting):
    """Steps until RELEASE is set; notes each close, and whether it came while it was in a step."""

    closed: ClassVar[list[bool]] = []
    num_inside: ClassVar[int] = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._is_inside = False

    def step(self, action: str) -> Step:
        self._is_inside = True
        Stuck.num_inside += 1
        RELEASE.wait(20.0)
        self._is_inside = False
        return super().step(action)

    def close(self) -> None:
        self.closed.append(self._is_inside)


class LateAndHanging(Late):
    """Comes back too late, and never from close."""

    def close(self) -> None:
        RELEASE.wait(20.0)


class Leaver(Counting):
    """Would end the program, or the task, or the generator that it runs in."""

    def __init__(self, how: str = "exit", **options: Any) -> None:
        super().__init__(**options)
        self._how = how

    def step(self, action: str) -> Step:
        kinds: dict[str, BaseException] = {
            "exit": SystemExit(3),
            "cancel": asyncio.CancelledError(),
            "interrupt": KeyboardInterrupt(),
            "generator": GeneratorExit(),
        }
        raise kinds[self._how]


class Edge(Counting):
    """Comes back just when it is given up, or just before."""

    def step(self, action: str) -> Step:
        time.sleep(0.1 + 0.002 * float(self._rng.random()))
        return super().step(action)


class Busy(Counting):
    """Computes for a while in every step; kills its process once, if that is not `parent`."""

    def __init__(self, once: str = "", parent: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self._once, self._parent = once, parent

    def step(self, action: str) -> Step:
        until = time.thread_time() + 0.008
        while time.thread_time() < until:
            pass
        if self._once and os.getpid() != self._parent and claim(self._once):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Flaky(Counting):
    """Raises once in all processes together."""

    def __init__(self, once: str, **options: Any) -> None:
        super().__init__(**options)
        self._once = once

    def step(self, action: str) -> Step:
        if claim(self._once):
            raise ConnectionError("a hiccup")
        return super().step(action)


class Dying(Counting):
    """Kills the process it lives in, once."""

    def __init__(self, once: str, **options: Any) -> None:
        super().__init__(**options)
        self._once = once

    def step(self, action: str) -> Step:
        if claim(self._once):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Unplugging(Counting):
    """Ends the connection of the worker process it lives in, once, or breaks the worker; the process lives on."""

    def __init__(self, once: str, how: str, **options: Any) -> None:
        super().__init__(**options)
        self._once, self._how = once, how

    def step(self, action: str) -> Step:
        if claim(self._once):
            if self._how == "error":
                ports.encode = None  # type: ignore[assignment]
            for handle in map(int, os.listdir("/proc/self/fd")):
                if _leads_to_a_hub(handle):
                    self._unplug(handle)
        return super().step(action)

    def _unplug(self, handle: int) -> None:
        if self._how == "shutdown":
            with socket.socket(fileno=os.dup(handle)) as end:
                end.shutdown(socket.SHUT_RDWR)
        elif self._how == "close":  # and its number is not given to another file
            with open(os.devnull, "r+b") as nothing:
                os.dup2(nothing.fileno(), handle)


def _leads_to_a_hub(handle: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(handle)) as end:
            return str(end.getpeername()).endswith("/hub")
    except OSError:
        return False


class Forgetful(Counting):
    """Carries something over from one episode to the next."""

    def __init__(self) -> None:
        super().__init__()
        self._episodes = 0

    def reset(self, seed: int) -> str:
        self._episodes += 1
        return f"{super().reset(seed)}, episode {self._episodes}"


class Leaving(Counting):
    """Notes in a file that it was closed."""

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self._name = f"{os.getpid()}-{id(self)}-{time.monotonic_ns()}"
        self._folder = Path(folder)
        (self._folder / f"{self._name}.built").touch()

    def step(self, action: str) -> Step:
        if self._rng.random() < 0.2:
            raise RuntimeError("an error, and still closed")
        return super().step(action)

    def close(self) -> None:
        (self._folder / f"{self._name}.closed").touch()


def claim(path: str) -> bool:
    """True for the first who asks, in any process."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def spec(factory: Any, tag: str = "", **options: Any) -> TextEnvSpec:
    return TextEnvSpec(tag or factory.__name__, factory, options)
