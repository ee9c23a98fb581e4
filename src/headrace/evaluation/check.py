"""`check_env`: what headrace can guarantee for an environment, found out by playing it as training does.

    three instances in turn, some episodes each ──┬── the same again in a fresh process              ──┐  the same,
                                                  └── every episode alone, in an instance of its own ──┘  to the last
                                                      (two fresh processes, at the same time)             bit?
        yes -> class A       no -> class C, with the first difference named
    a pool that resets itself: once more in a fresh process, and as two smaller pools -> class B, or C

State that goes from one episode to the next (running normalisation, episodic life), from one instance to another
(global random numbers, shared buffers) or from elsewhere (the clock, the environment's own unseeded action_space)
differs in one of them. Also measures what a step and a reset cost. Does not know policies or training.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

from headrace.envs.building import first_look
from headrace.envs.seeds import SHORT, Purpose
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import EnvError
from headrace.evaluation.trace import MOST_ROWS, MOST_S, Job, Key, Trace, played
from headrace.memory.spaces import ObservationSpace, Space, in_words, leaves_of

INSTANCES = 3
POOL = 4  # environments of a pool, and of its two halves together

_GUARANTEES = {
    "A": (
        "same seed, same bits, on any number of shards and workers",
        "a run stops and resumes bit for bit",
        "a lost worker's episodes are replayed from their journal",
        "any episode can be replayed from its id",
    ),
    "B": (
        "same seed, same bits, on any number of shards and workers",
        "NOT: resume of live episodes, recovery, replay (it resets itself)",
    ),
    "B, one pool": (
        "same seed, same bits, on any number of workers with the same number of shards",
        "NOT: same bits on another number of shards; resume of live episodes, recovery, replay (it resets itself)",
    ),
    "C": (
        "it runs and learns",
        "NOT: same bits, resume (a live episode can't be brought back), recovery, replay",
    ),
}


@dataclass(frozen=True)
class Checked:
    """What was found."""

    name: str
    observation: ObservationSpace
    action: Space
    env_class: str
    evidence: str
    guarantees: tuple[str, ...]
    seed_bits: int
    step_us: float | None = None
    slowest_step_us: float | None = None
    reset_us: float | None = None

    def text(self) -> str:
        """For people."""
        lines = [
            f"environment   {self.name}",
            *(f"{in_words(name):<13} {_short(leaf)}" for name, leaf in leaves_of(self.observation).items()),
            f"action        {_short(self.action)}",
            f"class         {self.env_class}: {self.evidence}",
        ]
        if self.step_us is not None:
            lines.append(
                f"step cost     {self.step_us:.1f} us (slowest 1 %: {self.slowest_step_us:.1f} us), "
                f"reset {self.reset_us:.0f} us: at most {1e6 / self.step_us:,.0f} steps/s a core without a policy"
            )
        if self.seed_bits == SHORT:
            lines.append(
                f"seeds         {SHORT} bits: it refuses longer ones, so a run sends it the leading bits of its seeds"
            )
        return "\n".join([*lines, *(f"guarantee     {line}" for line in self.guarantees)])


def check_env(env: EnvSource | EnvSpec, seed: int = 1, progress: Callable[[str], None] | None = None) -> Checked:
    """Play an environment and say what can be guaranteed."""
    say = progress or (lambda text: None)
    spec, one = first_look(env if isinstance(env, EnvSpec) else EnvSpec(env), seed, Purpose.CHECK)
    observation, action = one.observation_space, one.action_space
    one.close()
    judge = _judge_pool if spec.is_vector() else _judge_single
    env_class, evidence, costs = judge(spec, seed, say)
    guarantees = _GUARANTEES[env_class]
    return Checked(spec.name, observation, action, env_class[0], evidence, guarantees, spec.seed_bits, **costs)


def _judge_single(spec: EnvSpec, seed: int, say: Callable[[str], None]) -> tuple[str, str, dict[str, float]]:
    say(f"playing {INSTANCES} instances in turn")
    times = _Times()
    here = played(replace(spec, wrappers=(*spec.wrappers, times.wrap)), Job(range(INSTANCES), MOST_ROWS), seed, MOST_S)
    rows = max(sum(len(here[key].reward) for key in here if key[0] == index) for index in range(INSTANCES))
    # Later episodes first, so that nothing was played before them in their process.
    alone = [Job(range(index, index + 1), len(here[index, episode].reward), episode)
             for index, episode in sorted(here, key=lambda key: (-key[1], key[0]))]  # fmt: skip
    say("playing the same again in a fresh process, and every episode alone in another one")
    again, each = _in_fresh_processes(spec, seed, [Job(range(INSTANCES), rows)], alone)
    steps = sum(len(trace.reward) for trace in here.values())
    for others, how in ((each, "played alone in a fresh process"), (again, "played again in a fresh process")):
        for (index, episode), trace in sorted(here.items(), key=lambda one: one[0][::-1]):
            other = others.get((index, episode))
            difference = trace.difference(other) if other else "its number of episodes"
            if difference is not None:
                return "C", f"env {index}, episode {episode}, {how}, differs in {difference}", times.costs()
    evidence = (
        f"{len(here)} episodes of {INSTANCES} instances ({steps} steps) are the same to the last bit in a fresh "
        f"process, and each one alone"
    )
    return "A", evidence, times.costs()


def _judge_pool(spec: EnvSpec, seed: int, say: Callable[[str], None]) -> tuple[str, str, dict[str, float]]:
    say(f"playing a pool of {POOL} environments")
    whole, half = Job(range(POOL), MOST_ROWS), POOL // 2
    here = played(spec, whole, seed, MOST_S)
    rows = max(sum(len(here[key].reward) + 1 for key in here if key[0] == index) for index in range(POOL))  # some more
    say("playing the same again in a fresh process, and two smaller pools in another one")
    halves = [Job(range(half), rows), Job(range(half, POOL), rows)]
    again, smaller = _in_fresh_processes(spec, seed, [replace(whole, rows=rows)], halves)
    for others, env_class, how in (
        (again, "C", "played again in a fresh process"),
        (smaller, "B, one pool", "in a pool of half the size"),
    ):
        for (index, episode), trace in sorted(here.items(), key=lambda one: one[0][::-1]):
            other = others.get((index, episode))
            difference = trace.difference(_cut(other, len(trace.reward))) if other else "its number of episodes"
            if difference is not None:
                what = "a vector environment resets itself; " if env_class != "C" else ""
                return env_class, f"{what}env {index}, episode {episode}, {how}, differs in {difference}", {}
    return "B", "a vector environment resets itself; each of its environments depends on its own seed and actions", {}


def _cut(trace: Trace, steps: int) -> Trace:
    """As far as another one was played."""
    is_cut = len(trace.reward) > steps
    return Trace(trace.obs[: steps + 1], trace.reward[:steps], trace.flags[:steps]) if is_cut else trace


class _Times:
    """What steps and resets cost, measured around the user's environment."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._resets: list[float] = []

    def wrap(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """The environment, timed."""
        return _Timed(env, self._steps, self._resets)

    def costs(self) -> dict[str, float]:
        """In microseconds."""
        steps = np.array(self._steps) * 1e6
        return {
            "step_us": float(np.median(steps)),
            "slowest_step_us": float(np.quantile(steps, 0.99)),
            "reset_us": float(np.median(self._resets) * 1e6),
        }


class _Timed(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], steps: list[float], resets: list[float]) -> None:
        super().__init__(env)
        self._step_s, self._reset_s = steps, resets

    def step(self, action: Any) -> Any:
        start = time.perf_counter()
        result = self.env.step(action)
        self._step_s.append(time.perf_counter() - start)
        return result

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        start = time.perf_counter()
        result = self.env.reset(seed=seed, options=options) if options is not None else self.env.reset(seed=seed)
        self._reset_s.append(time.perf_counter() - start)
        return result


def _in_fresh_processes(spec: EnvSpec, seed: int, *jobs: Sequence[Job]) -> list[dict[Key, Trace]]:
    """Each list of jobs in a process of its own, all of them at the same time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as undo:
        outs = [Path(folder) / f"{number}.npz" for number in range(len(jobs))]
        started = [undo.enter_context(_started(out)) for out in outs]
        for process, one in zip(started, jobs, strict=True):
            _feed(process, cloudpickle.dumps((spec, seed, list(one))))
        return [_result(spec, process, out) for process, out in zip(started, outs, strict=True)]


@contextmanager
def _started(out: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", "headrace.evaluation.trace", str(out)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the user's modules, wherever we found them
    with out.with_suffix(".err").open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=env)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        process.wait()


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.close()
    except BrokenPipeError:
        return  # it has ended: its exit code and its errors say why


def _result(spec: EnvSpec, process: subprocess.Popen[bytes], out: Path) -> dict[Key, Trace]:
    code = process.wait()
    if code != 0 or not out.is_file():
        text = out.with_suffix(".err").read_bytes()[-20_000:].decode(errors="replace").strip()
        raise EnvError(f"{spec.name}: could not be played in a fresh process (exit code {code}):\n{text}")
    found: dict[Key, dict[str, Any]] = {}
    with np.load(out, allow_pickle=False) as data:
        for name in data.files:
            index, episode, field = name.split("/")
            found.setdefault((int(index), int(episode)), {})[field] = data[name]
    return {key: Trace(**fields) for key, fields in found.items()}


def _short(space: Space) -> str:
    fields = vars(space)
    shape = fields.get("shape")
    count = f"n={fields['n']}" if "n" in fields else f"nvec={fields['nvec']}" if "nvec" in fields else f"shape={shape}"
    return f"{type(space).__name__}({count}, {space.dtype})"
