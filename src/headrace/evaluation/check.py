"""`check_env`: what headrace can guarantee for an environment, found out by playing it.

    episodes 1 to 5 in one instance, then episode 5 alone in a fresh process, and the others in instances of their own:
    the same to the last bit?
        yes -> class A · a pool that resets itself -> class B · no -> class C, with the first difference named

Anything that carries state across resets (running normalisation, episodic life, global random numbers) differs here.
Also measures what a step and a reset cost. Does not know policies or training.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.envs.adapters.gymnasium_spaces import describe
from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import EnvError
from headrace.evaluation.trace import FIELDS, MOST_STEPS, Trace, play
from headrace.memory.spaces import Space

EPISODES = 5

_GUARANTEES = {
    "A": (
        "same seed, same bits, on any number of shards and workers",
        "a run stops and resumes bit for bit",
        "a lost worker's episodes are replayed from their journal",
        "any episode can be replayed from its id",
    ),
    "B": (
        "same seed, same bits, on any number of workers",
        "NOT: resume of live episodes, recovery, replay (it resets itself)",
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
    observation: Space
    action: Space
    env_class: str
    evidence: str
    step_us: float | None
    slowest_step_us: float | None
    reset_us: float | None

    def text(self) -> str:
        """For people."""
        lines = [
            f"environment   {self.name}",
            f"observation   {_short(self.observation)}",
            f"action        {_short(self.action)}",
            f"class         {self.env_class}: {self.evidence}",
        ]
        if self.step_us is not None:
            lines.append(
                f"step cost     {self.step_us:.1f} us (slowest 1 %: {self.slowest_step_us:.1f} us), "
                f"reset {self.reset_us:.0f} us: at most {1e6 / self.step_us:,.0f} steps/s a core without a policy"
            )
        return "\n".join([*lines, *(f"guarantee     {line}" for line in _GUARANTEES[self.env_class])])


def check_env(env: EnvSource | EnvSpec, seed: int = 1, progress: Callable[[str], None] | None = None) -> Checked:
    """Play an environment and say what can be guaranteed."""
    spec = env if isinstance(env, EnvSpec) else EnvSpec(env)
    say = progress or (lambda text: None)
    if spec.is_vector():
        pool = GymnasiumVector(spec.make_vector(2), range(2), lambda index, episode: index)
        pool.close()
        evidence = "a vector environment resets itself"
        return Checked(spec.name, pool.observation_space, pool.action_space, "B", evidence, None, None, None)
    single = spec.make()
    try:
        observation = describe(single.observation_space, "observation", spec.name)
        action = describe(single.action_space, "action", spec.name)
        traces = []
        for episode in range(1, EPISODES + 1):
            say(f"playing episode {episode} of {EPISODES} in one instance")
            traces.append(_played(single, seed, episode, spec.name))
    finally:
        single.close()
    say(f"playing episode {EPISODES} alone in a fresh process")
    # As far as it was played, or to its end; the last episode first, so that it is alone in its process.
    steps = {
        episode: MOST_STEPS if trace.flags[-1].any() else len(trace.reward)
        for episode, trace in reversed(list(enumerate(traces, 1)))
    }
    alone = _alone(spec, seed, steps)
    differing = [(episode, traces[episode - 1].difference(alone[episode])) for episode in steps]
    episode, difference = next(((one, found) for one, found in differing if found is not None), (EPISODES, None))
    costs = np.concatenate([trace.step_s for trace in traces]) * 1e6
    played = sum(len(trace.reward) for trace in traces)
    evidence = f"episode {EPISODES} alone in a fresh process is the same to the last bit ({played} steps played)"
    if difference is not None:
        evidence = f"episode {episode} alone in a fresh process differs in {difference}"
    return Checked(
        spec.name,
        observation,
        action,
        "A" if difference is None else "C",
        evidence,
        float(np.median(costs)),
        float(np.quantile(costs, 0.99)),
        float(np.median([trace.reset_s for trace in traces]) * 1e6),
    )


def _played(env: Any, seed: int, episode: int, name: str) -> Trace:
    try:
        return play(env, seed, episode)
    except Exception as error:
        raise EnvError(f"{name}: episode {episode} of the check raised {type(error).__name__}: {error}") from error


def _alone(spec: EnvSpec, seed: int, steps: dict[int, int]) -> dict[int, Trace]:
    """Each episode in an instance of its own, in a process of their own."""
    import cloudpickle

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trace.npz"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "headrace.evaluation.trace", str(out)],
            input=cloudpickle.dumps((spec, seed, steps)),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the user's modules, wherever we found them
            capture_output=True,
            check=False,
        )
        if done.returncode != 0 or not out.is_file():
            raise EnvError(
                f"{spec.name}: could not be played in a fresh process (exit code {done.returncode}):\n"
                f"{done.stderr.decode(errors='replace').strip()}"
            )
        with np.load(out, allow_pickle=False) as data:
            return {episode: Trace(**{name: data[f"{episode}/{name}"] for name in FIELDS}) for episode in steps}


def _short(space: Space) -> str:
    fields = vars(space)
    shape = fields.get("shape")
    count = f"n={fields['n']}" if "n" in fields else f"nvec={fields['nvec']}" if "nvec" in fields else f"shape={shape}"
    return f"{type(space).__name__}({count}, {space.dtype})"
