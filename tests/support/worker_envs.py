"""Environments that do to worker processes what can happen to them, where and when a test wants it.

    Ordered     a wrapper that obeys files: in one step of one episode the worker dies, or holds until it may go on
    dawdling    a walk whose steps take time, in workers only, some environments' more than others'
    Closes      leaves a file when it is closed
    Spawns      a wrapper: has a process of its own, and may hold the GIL for ever in its first step
    fails_in_worker, dies_in_worker, dies_if_told      factories that work in the parent alone
    pool        a vector environment that resets itself: class B

All obey in workers only: the same environment inline is an undisturbed one. Named as support.worker_envs:X they can be
found by a fresh process that has tests/ on its path, and survive in a config.json.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import gymnasium as gym

from headrace.envs.seeds import Purpose, leaf
from support.bit_envs import Noisy
from support.faulty_envs import Steady

HOLD_S = 60.0  # a worker that nobody lets go


def in_worker() -> bool:
    """Whether this process was started by multiprocessing, and not only for a first look at an environment."""
    is_child = multiprocessing.parent_process() is not None
    return is_child and multiprocessing.current_process().name != "headrace-first-look"


def order(folder: Path, what: str, seed: int, env: int, episode: int, step: int) -> Path:
    """Ask for `kill` or `hold` before a step of an episode of a run with that seed; the file tells what became of it.

    A kill removes it. Holding renames it to held-...; the worker goes on once that is removed.
    """
    file = folder / f"{what}-{leaf(seed, Purpose.ENV, env, episode)}-{step}"
    file.touch()
    return file if what == "kill" else file.with_name(file.name.replace("hold", "held"))


class Ordered(gym.Wrapper[Any, Any, Any, Any]):
    """Looks for orders in a folder, each obeyed once however often the step is replayed."""

    def __init__(self, env: gym.Env[Any, Any], folder: str) -> None:
        super().__init__(env)
        self._folder = Path(folder)
        self._seed: int | None = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Remember whose episode it is."""
        self._seed, self._steps = seed, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Obey, then step."""
        if in_worker():
            self._obey(f"{self._seed}-{self._steps}")
        self._steps += 1
        return super().step(action)

    def _obey(self, place: str) -> None:
        try:
            (self._folder / f"kill-{place}").unlink()
        except FileNotFoundError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        held = self._folder / f"held-{place}"
        try:
            (self._folder / f"hold-{place}").rename(held)
        except FileNotFoundError:
            return
        deadline = time.monotonic() + HOLD_S
        while held.exists() and time.monotonic() < deadline:
            time.sleep(0.002)


def ordered(folder: str, length: int = 37) -> gym.Env[Any, Any]:
    """A steady walk that obeys; for command lines, whose wrappers take no arguments."""
    return Ordered(Steady(length), folder)


class Dawdles(Noisy):
    """Noisy; a step takes `delay_s`, or `slow_s` in the environments `slow` of a run with that seed."""

    def __init__(self, delay_s: float, slow: Sequence[int], slow_s: float, seed: int) -> None:
        super().__init__()
        self._delays_s = (delay_s, slow_s)
        self._slow_seeds = {leaf(seed, Purpose.ENV, env, episode) for env in slow for episode in range(100)}
        self._is_slow = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Find out whether it is a slow one: by its seed, wherever it is hosted."""
        self._is_slow = seed in self._slow_seeds
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """As a simulation that takes its time; inline, where schedules are replayed, nobody waits for it."""
        if in_worker():
            time.sleep(self._delays_s[self._is_slow])
        return super().step(action)


def dawdling(delay_s: float, slow: Sequence[int] = (), slow_s: float = 0.0, seed: int = 0) -> gym.Env[Any, Any]:
    """Dawdles, by keyword arguments that JSON holds."""
    return Dawdles(delay_s, slow, slow_s, seed)


def fails_in_worker(file: str) -> gym.Env[Any, Any]:
    """No licence but in the parent; the file tells when, one line each time."""
    if in_worker():
        with open(file, "a") as lines:
            lines.write(f"{time.monotonic()}\n")
        raise OSError("no licence for the simulator in a worker")
    return Steady()


def fails_everywhere(file: str) -> gym.Env[Any, Any]:
    """No licence at all; the file tells how often one was asked for."""
    with open(file, "a") as lines:
        lines.write(f"{os.getpid()}\n")
    raise OSError("no licence for the simulator anywhere")


def fails_after(folder: str, count: int) -> gym.Env[Any, Any]:
    """Licences for so many and no more, over all processes; a file is left for each."""
    for number in range(count):
        if claim(Path(folder) / f"licence-{number}"):
            return Noisy()
    raise OSError("no licence for another one")


def claim(file: Path) -> bool:
    """Whether it is ours: the first who asks gets it."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dies_in_worker() -> gym.Env[Any, Any]:
    """A native library that takes its process with it."""
    if in_worker():
        os.kill(os.getpid(), signal.SIGKILL)
    return Steady()


def dies_if_told(file: str) -> gym.Env[Any, Any]:
    """The same, from the moment on when the file is there."""
    if in_worker() and os.path.exists(file):
        os._exit(3)
    return Steady()


class Closes(Noisy):
    """Leaves a file when it is closed, named by its first seed; the environment `bad` of a run with that seed raises.

    The first of a process is closed again by whoever looks at its spaces: it was never reset, and leaves none.
    """

    def __init__(self, folder: str, bad: int = -1, seed: int = 0) -> None:
        super().__init__()
        self._folder, self._bad_seed = Path(folder), leaf(seed, Purpose.ENV, bad, 0) if bad >= 0 else None
        self._first_seed: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Remember which one it is."""
        self._first_seed = seed if self._first_seed is None else self._first_seed
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        """As a simulator that gives a licence back."""
        if self._first_seed is not None:
            (self._folder / f"closed-{self._first_seed}").touch()
            if self._first_seed == self._bad_seed:
                raise RuntimeError("would not close")


class Spawns(gym.Wrapper[Any, Any, Any, Any]):
    """Starts `sleep` and never ends it, as a simulator that is forgotten; a file by its process id says so."""

    def __init__(self, env: gym.Env[Any, Any], folder: str, holds: bool = False) -> None:
        super().__init__(env)
        self._folder, self._holds = Path(folder), holds
        if in_worker():
            started = subprocess.Popen(["sleep", "600"])
            (self._folder / f"spawned-{started.pid}").touch()

    def step(self, action: Any) -> Any:
        """If it holds, a C call that no thread can interrupt."""
        if self._holds and in_worker():
            (self._folder / f"holds-{os.getpid()}").touch()
            ctypes.PyDLL(None).sleep(600)
        return super().step(action)


def spawning(folder: str, holds: bool = False) -> gym.Env[Any, Any]:
    """The same, by keyword arguments that JSON holds."""
    return Spawns(Noisy(), folder, holds)


_ONE_AT_A_TIME = threading.Lock()  # a fork would hold the pipe of another thread's Popen, which waits for its end


def forgets(folder: str) -> gym.Env[Any, Any]:
    """Starts five processes and ends none of them; a file KIND-PID each says so, and one of this process (command)."""
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    forked = multiprocessing.get_context("fork").Process(target=_sleeps_apart)  # which Python waits for at its end
    with _ONE_AT_A_TIME:
        forked.start()
        started = {
            "plain": subprocess.Popen(["sleep", "600"], **quiet).pid,
            "stubborn": subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600"], **quiet).pid,
            "bare": subprocess.Popen(["/bin/sleep", "600"], env={}, **quiet).pid,
            "forked": forked.pid,
            "session": subprocess.Popen(["sleep", "600"], start_new_session=True, **quiet).pid,
        }
    for kind, pid in {**started, "command": os.getpid()}.items():
        (Path(folder) / f"{kind}-{pid}").touch()
    return Noisy()


def shares(folder: str) -> gym.Env[Any, Any]:
    """Has shared memory, and a fork that holds the resource tracker's pipe and does not end when it is asked to."""
    memory = shared_memory.SharedMemory(create=True, size=64)
    forked = multiprocessing.get_context("fork").Process(target=_sleeps_stubbornly)
    forked.start()
    for kind, what in {"memory": memory.name, "forked": forked.pid, "command": os.getpid()}.items():
        (Path(folder) / f"{kind}-{what}").touch()
    _kept.append(memory)
    return Noisy()


_kept: list[shared_memory.SharedMemory] = []


def _sleeps_stubbornly() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleeps_for_ever()


class _Counted(gym.Wrapper[Any, Any, Any, Any]):
    file: str

    def step(self, action: Any) -> Any:
        with open(self.file, "ab") as steps:
            steps.write(b".")
        time.sleep(0.11)
        return super().step(action)


def slow_and_counted(file: str) -> gym.Env[Any, Any]:
    """Steps of 0.11 s; each is a byte of a file."""
    env = _Counted(Noisy())
    env.file = file
    return env


def _sleeps_apart() -> None:
    # Who reads what this program prints must not wait for us; nor a Popen of another thread, whose pipe a fork holds.
    os.closerange(0, 1 << 16)
    sleeps_for_ever()


def pool(num_envs: int, env: str = "CartPole-v1") -> gym.vector.VectorEnv[Any, Any, Any]:
    """Class B: it resets itself."""
    return gym.make_vec(env, num_envs, "sync")


def seeded_pool(num_envs: int, seeds: list[int], **options: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    """A pool of EnvPool, made by a function of the user's own."""
    import envpool

    pool: gym.vector.VectorEnv[Any, Any, Any] = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=num_envs, seed=seeds, **options
    )
    return pool


def unseeded_pool(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """All of its pools would have the same seeds."""
    return seeded_pool(num_envs, [0] * num_envs)


class Hanging(gym.vector.SyncVectorEnv):
    """A pool of which one hangs in its fifth step, in a worker."""

    lived = 0

    def step(self, actions: Any) -> Any:
        self.lived += 1
        if self.lived == 5 and in_worker():
            sleeps_for_ever()
        return super().step(actions)


def sleeps_for_ever() -> None:
    time.sleep(1000)


def hanging_pool(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Class B, and it hangs."""
    return Hanging([lambda: gym.make("CartPole-v1")] * num_envs)


class RaisesLate(Steady):
    """Raises after many steps of its own: while the learner learns, if that takes long."""

    def __init__(self) -> None:
        super().__init__()
        self._lived = 0

    def step(self, action: Any) -> Any:
        self._lived += 1
        if self._lived > 300:
            raise RuntimeError("enough")
        return super().step(action)
