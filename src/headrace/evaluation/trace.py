"""One episode as bytes: what an environment showed when it was driven by actions keyed by (episode, step).

    python -m headrace.evaluation.trace OUT   reads a spec from standard input, plays episodes in this fresh process,
                                              each in an instance of its own, and writes their traces to OUT

The spec comes through a pipe from the parent that started this process (cloudpickle, since it may hold a function);
the trace goes back as plain arrays. Info dicts are left out: they hold times.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.envs.seeds import Purpose, leaf, sequence
from headrace.envs.spec import EnvSpec

MOST_STEPS = 1000
MOST_S = 5.0  # of one episode: a slow environment is judged by fewer steps


@dataclass(frozen=True)
class Trace:
    """Observations (the reset's first), rewards and flags of one episode, and what its steps cost."""

    obs: npt.NDArray[Any]
    reward: npt.NDArray[np.float64]
    flags: npt.NDArray[np.bool_]
    step_s: npt.NDArray[np.float64]
    reset_s: float

    def difference(self, other: Trace) -> str | None:
        """Where two traces part, in words; None if they are the same to the last bit."""
        for step in range(min(len(self.obs), len(other.obs))):
            if self.obs[step].tobytes() != other.obs[step].tobytes():
                return f"the observation {'of the reset' if step == 0 else f'after step {step - 1}'}"
            if step < len(self.reward) and step < len(other.reward):
                if self.reward[step] != other.reward[step] and not (
                    np.isnan(self.reward[step]) and np.isnan(other.reward[step])
                ):
                    return f"the reward of step {step}: {self.reward[step]} and {other.reward[step]}"
                if (self.flags[step] != other.flags[step]).any():
                    return f"the flags of step {step}"
        return (
            None if len(self.obs) == len(other.obs) else f"the length: {len(self.reward)} and {len(other.reward)} steps"
        )


FIELDS = tuple(Trace.__dataclass_fields__)


def play(env: gym.Env[Any, Any], seed: int, episode: int, steps: int = MOST_STEPS, most_s: float = MOST_S) -> Trace:
    """Reset with the episode's seed and take its random actions until it ends, or the steps or the time run out."""
    env.action_space.seed(int(sequence(seed, Purpose.CHECK, episode, 1).generate_state(1, np.uint32)[0]))
    start = time.perf_counter()
    obs, _ = env.reset(seed=leaf(seed, Purpose.CHECK, episode, 0))
    reset_s = time.perf_counter() - start
    seen, rewards, flags, costs = [np.array(obs)], [], [], []
    began = time.perf_counter()
    for _ in range(steps):
        action = env.action_space.sample()
        start = time.perf_counter()
        obs, reward, terminated, truncated, _ = env.step(action)
        costs.append(time.perf_counter() - start)
        seen.append(np.array(obs))
        rewards.append(float(reward))
        flags.append((bool(terminated), bool(truncated)))
        if terminated or truncated or time.perf_counter() - began > most_s:
            break
    return Trace(np.stack(seen), np.array(rewards), np.array(flags), np.array(costs), reset_s)


def main() -> None:
    """The fresh process's side."""
    import cloudpickle

    spec, seed, episodes = cloudpickle.loads(sys.stdin.buffer.read())
    assert isinstance(spec, EnvSpec)
    arrays: dict[str, Any] = {}
    for episode, steps in episodes.items():
        env = spec.make()
        try:
            trace = play(env, seed, episode, steps, most_s=float("inf"))
        finally:
            env.close()
        arrays |= {f"{episode}/{name}": getattr(trace, name) for name in FIELDS}
    with Path(sys.argv[1]).open("wb") as out:
        np.savez(out, **arrays)


if __name__ == "__main__":
    main()
