"""Kills of a worker or an inference server at named points of its life, from inside: at the very instruction.

    Strikes(folder) wraps an environment ─pickled to the worker─> unpickled there: POINTS and ASKING are armed
    striking_servers(folder) ─as what servers run─> the points of SERVING are armed there
    arm(folder, point) -> the next process that gets there dies by SIGKILL, once     deaths(folder) -> when, and who

The wrapper travels with the plan, so it is there before the worker attaches to anything. Each life of a worker or
server leaves a file when it is ready. In other processes nothing happens: the same environment inline is undisturbed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import gymnasium as gym

from support.worker_envs import in_worker

POINTS = (
    "before attach", "after attach", "before reset", "in step", "between step and write", "in the middle of a write",
    "before commit", "after commit", "waiting for an order", "during weight copy", "during shutdown",
)  # fmt: skip
ASKING = ("waiting for an action", "with an action in hand")  # of a worker that asks an inference server
SERVING = (
    "server before attach", "server after attach", "server during weight copy", "holding a request", "holding a reply",
    "after a reply, before it wakes the worker",
)  # fmt: skip
IN_A_SLAB = (
    "in step", "between step and write", "in the middle of a write", *ASKING, "holding a request", "holding a reply",
    "after a reply, before it wakes the worker",
)  # fmt: skip
AT_START = ("before attach", "after attach", "before reset", "server before attach", "server after attach")


class Death(NamedTuple):
    """By time.time()."""

    at_s: float
    pid: int


def arm(folder: Path, point: str, after: int = 0) -> None:
    """For who gets there next, or so many times later."""
    assert point in (*POINTS, *ASKING, *SERVING)
    draft = folder / f".{_file(point)}"
    draft.write_text(str(after))
    draft.rename(folder / _file(point))  # whole or not at all: a worker that runs ahead may look for it now


def is_armed(folder: Path, point: str) -> bool:
    return (folder / _file(point)).exists()


def deaths(folder: Path) -> list[Death]:
    """In their order."""
    return _noted(folder, "died-*")


def lives(folder: Path) -> list[Death]:
    """When workers and servers were ready."""
    return _noted(folder, "ready-*")


def _noted(folder: Path, pattern: str) -> list[Death]:
    return sorted(Death(float(path.read_text()), int(path.name.partition("-")[2])) for path in folder.glob(pattern))


def _file(point: str) -> str:
    return "at-" + point.replace(" ", "-")


class Strikes:
    """As `wrappers=(Strikes(folder),)`: makes a wrapped environment, and arms the process it is unpickled in."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if in_worker():
            _place(self)

    def __call__(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return _Struck(env, self)

    def strike(self, point: str) -> None:
        if not in_worker():
            return
        file = self.folder / _file(point)
        try:
            later = int(file.read_text() or 0)
        except FileNotFoundError:
            return
        if later > 0:
            file.write_text(str(later - 1))
            return
        file.unlink()
        self.note("died")
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, what: str) -> None:
        """Whole or not at all."""
        file = self.folder / f"{what}-{os.getpid()}"
        file.with_name(f".{file.name}").write_text(str(time.time()))
        file.with_name(f".{file.name}").rename(file)


class _Struck(gym.Wrapper[Any, Any, Any, Any]):
    """The points round an environment. The second of a worker's environments is where a row is half written."""

    made = 0

    def __init__(self, env: gym.Env[Any, Any], strikes: Strikes) -> None:
        super().__init__(env)
        self._strikes, self._number = strikes, _Struck.made
        _Struck.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._strikes.strike("before reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._strikes.strike("in the middle of a write" if self._number % 2 else "in step")
        result = super().step(action)
        self._strikes.strike("between step and write")
        return result


def _place(strikes: Strikes) -> None:
    """Points in code of headrace, in this process only."""
    from headrace.collecting.host import Host
    from headrace.inference import client
    from headrace.memory.segment import SharedSegment
    from headrace.memory.slab import Slab
    from headrace.runtime.line import Line
    from headrace.weights.store import WeightStore

    begin, close, commit = Host.__init__, Host.close, Slab.commit
    attach, receive, copy_into = SharedSegment.attach, Line.receive, WeightStore.copy_into
    take = client.take

    def attached(name: str) -> SharedSegment:
        strikes.strike("before attach")
        return attach(name)

    def begun(host: Host, *arguments: Any) -> None:
        strikes.strike("after attach")
        begin(host, *arguments)
        strikes.note("ready")

    def closed(host: Host) -> None:
        strikes.strike("during shutdown")
        close(host)

    def committed(slab: Slab, *arguments: Any) -> None:
        strikes.strike("before commit")
        commit(slab, *arguments)
        strikes.strike("after commit")

    def received(line: Line) -> bytes | None:
        strikes.strike("waiting for an order")
        return receive(line)

    def copied(store: WeightStore, vector: Any, version: int) -> bool:
        half = len(vector) // 2
        vector[:half] = store._vectors[version % store._capacity][:half]
        strikes.strike("during weight copy")
        return copy_into(store, vector, version)

    def taken(*arguments: Any) -> int:
        strikes.strike("waiting for an action")
        acted = take(*arguments)
        if acted != client.NOT_YET:
            strikes.strike("with an action in hand")
        return acted

    _put([
        (SharedSegment, "attach", staticmethod(attached)), (Host, "__init__", begun), (Host, "close", closed),
        (Slab, "commit", committed), (Line, "receive", received),
        (WeightStore, "copy_into", copied), (client, "take", taken),
    ])  # fmt: skip


@contextmanager
def striking_servers(folder: Path) -> Iterator[None]:
    """Servers that are started meanwhile get to the points of SERVING."""
    with patch("headrace.inference.servers.run_server", _StruckServer(str(folder))):
        yield


class _StruckServer:
    """Runs in the server's process."""

    __name__ = "run_server"  # the first function on the stack that is the server's own

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, line: Any, plan: Any) -> None:
        from headrace.inference.server import run_server

        _place_in_server(Strikes(self._folder))
        run_server(line, plan)


def _place_in_server(strikes: Strikes) -> None:
    """Points in code of headrace, in this process only."""
    from headrace.inference import server
    from headrace.memory.segment import SharedSegment
    from headrace.weights.store import WeightStore

    begin, act, answer = server.Server.__init__, server.Server._act, server.answer
    attach, copy_into = SharedSegment.attach, WeightStore.copy_into

    def attached(name: str) -> SharedSegment:
        strikes.strike("server before attach")
        return attach(name)

    def begun(one: server.Server, *arguments: Any) -> None:
        strikes.strike("server after attach")
        begin(one, *arguments)
        strikes.note("ready")

    def acted(one: server.Server, *arguments: Any) -> None:
        strikes.strike("holding a request")
        act(one, *arguments)

    def answered(*arguments: Any) -> Any:
        strikes.strike("holding a reply")
        sleeps = answer(*arguments)
        strikes.strike("after a reply, before it wakes the worker")
        return sleeps

    def copied(store: WeightStore, vector: Any, version: int) -> bool:
        half = len(vector) // 2
        vector[:half] = store._vectors[version % store._capacity][:half]
        strikes.strike("server during weight copy")
        return copy_into(store, vector, version)

    _put([
        (SharedSegment, "attach", staticmethod(attached)), (server.Server, "__init__", begun),
        (server.Server, "_act", acted), (server, "answer", answered), (WeightStore, "copy_into", copied),
    ])  # fmt: skip


def _put(places: list[tuple[Any, str, Callable[..., Any]]]) -> None:
    for owner, name, function in places:
        setattr(owner, name, function)
