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

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from headrace.envs.building import first_look
from headrace.envs.instances import Instance, like
from headrace.envs.masks import masked
from headrace.envs.seeds import SHORT, Purpose
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.envs.time_limit import time_limit
from headrace.errors import EnvError
from headrace.evaluation.elsewhere import Elsewhere
from headrace.evaluation.trace import MOST_ROWS, MOST_S, Job, Key, Trace, play, played, traces_of
from headrace.keywords import in_words
from headrace.memory.crash_note import CrashNote
from headrace.memory.spaces import Dict, ObservationSpace, Space, in_short, leaves_of, left_out_of, name_of
from headrace.runtime.child import Child

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
        arrays = {name_of(name): in_short(leaf) for name, leaf in leaves_of(self.observation).items()}
        is_one = not isinstance(self.observation, Dict)
        lines = [
            f"environment   {self.name}",
            *(f"observation   {space if is_one else f'{name}: {space}'}" for name, space in arrays.items()),
            *(f"left out      {name}: a text, which no policy sees" for name in left_out_of(self.observation)),
            f"action        {in_short(self.action)}",
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


@dataclass(frozen=True)
class _Game:
    """What is played, and how long it may show no progress."""

    spec: EnvSpec
    seed: int
    hang_ceiling_s: float

    def played_here(self, spec: EnvSpec, job: Job) -> dict[Key, Trace]:
        note = CrashNote(len(job.env_indices))
        with time_limit(self.spec.name, note, self.hang_ceiling_s):
            return played(spec, job, self.seed, MOST_S, note)


_OF_SB3 = {
    "warn": "leave it out: what was found is in what check_env returns",
    "skip_render_check": "leave it out: nothing is rendered",
}


@in_words(_OF_SB3)
def check_env(
    env: EnvSource | EnvSpec | Instance,
    seed: int = 1,
    *,
    progress: Callable[[str], None] | None = None,
    hang_ceiling_s: float = 300.0,
    action_masks: bool = False,
) -> Checked:
    """Play an environment and say what can be guaranteed.

    If it is an instance, others are built like it, and it is not touched. One that shows no progress for
    `hang_ceiling_s` is an error that says what it is in; 0: no limit. With `action_masks`, actions that it forbids are
    not sent.
    """
    say = progress or (lambda text: None)
    if isinstance(env, gym.Env | gym.vector.VectorEnv):
        env = like(env)
    spec, note = env if isinstance(env, EnvSpec) else EnvSpec(env), CrashNote(1)
    spec = masked(spec) if action_masks else spec
    with time_limit(spec.name, note, hang_ceiling_s):
        spec, one = first_look(spec, seed, Purpose.CHECK, note)
        observation, action = one.observation_space, one.action_space
        one.close()
    judge = _judge_pool if spec.is_vector() else _judge_single
    env_class, evidence, costs = judge(_Game(spec, seed, hang_ceiling_s), say)
    guarantees = _GUARANTEES[env_class]
    return Checked(spec.name, observation, action, env_class[0], evidence, guarantees, spec.seed_bits, **costs)


def _judge_single(game: _Game, say: Callable[[str], None]) -> tuple[str, str, dict[str, float]]:
    say(f"playing {INSTANCES} instances in turn")
    times = _Times()
    timed = replace(game.spec, wrappers=(*game.spec.wrappers, times.wrap))
    here = game.played_here(timed, Job(range(INSTANCES), MOST_ROWS))
    rows = max(sum(len(here[key].reward) for key in here if key[0] == index) for index in range(INSTANCES))
    # Later episodes first, so that nothing was played before them in their process.
    alone = [Job(range(index, index + 1), len(here[index, episode].reward), episode)
             for index, episode in sorted(here, key=lambda key: (-key[1], key[0]))]  # fmt: skip
    first = here[0, 0]
    left_after = len(first.reward) if (0, 1) in here and not first.flags[-1].any() else 0
    say("playing the same again in a fresh process, and every episode alone in another one")
    again, each = _in_fresh_processes(game, [Job(range(INSTANCES), rows, left_after=left_after)], alone)
    steps = sum(len(trace.reward) for trace in here.values())
    for others, how in ((each, "played alone in a fresh process"), (again, "played again in a fresh process")):
        for (index, episode), trace in sorted(here.items(), key=lambda one: one[0][::-1]):
            other = others.get((index, episode))
            difference = trace.difference(other) if other else "its number of episodes"
            if difference is not None:
                return "C", f"env {index}, episode {index}:{episode}, {how}, differs in {difference}", times.costs()
    evidence = (
        f"{len(here)} episodes of {INSTANCES} instances ({steps} steps) are the same to the last bit in a fresh "
        f"process, and each one alone"
    )
    return "A", evidence, times.costs()


def _judge_pool(game: _Game, say: Callable[[str], None]) -> tuple[str, str, dict[str, float]]:
    say(f"playing a pool of {POOL} environments")
    whole, half = Job(range(POOL), MOST_ROWS), POOL // 2
    here = game.played_here(game.spec, whole)
    rows = max(sum(len(here[key].reward) + 1 for key in here if key[0] == index) for index in range(POOL))  # some more
    say("playing the same again in a fresh process, and two smaller pools in another one")
    halves = [Job(range(half), rows), Job(range(half, POOL), rows)]
    again, smaller = _in_fresh_processes(game, [replace(whole, rows=rows)], halves)
    for others, env_class, how in (
        (again, "C", "played again in a fresh process"),
        (smaller, "B, one pool", "in a pool of half the size"),
    ):
        for (index, episode), trace in sorted(here.items(), key=lambda one: one[0][::-1]):
            other = others.get((index, episode))
            difference = trace.difference(_cut(other, len(trace.reward))) if other else "its number of episodes"
            if difference is not None:
                what = "a vector environment resets itself; " if env_class != "C" else ""
                return env_class, f"{what}env {index}, episode {index}:{episode}, {how}, differs in {difference}", {}
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


def _in_fresh_processes(game: _Game, *jobs: Sequence[Job]) -> list[dict[Key, Trace]]:
    """Each list of jobs in a process of its own, all of them at the same time."""
    spec = game.spec
    with ExitStack() as undo:
        started = []
        for one in jobs:
            child, n_envs = Child.spawn("headrace-check"), len(one[0].env_indices)
            payload = spec, game.seed, list(one)
            started.append(undo.enter_context(Elsewhere(child, spec, n_envs, play, payload, game.hang_ceiling_s)))
        try:
            return [traces_of(process.answer()) for process in started]
        except EnvError as error:
            text = "\n".join([*getattr(error, "__notes__", ()), str(error)])
            raise EnvError(f"{spec.name}: could not be played in a fresh process (here it could):\n{text}") from None
