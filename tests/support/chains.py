"""A scripted environment whose every transition is known beforehand, in every kind of source.

    Script(seed): (env index, episode number) -> Ending       ChainEnv plays it       expected_stream() transcribes it

Observations are (env index, episode number, step); rewards depend on those and on the action. So a row that is missing,
repeated, moved, given to another environment or driven with another action is seen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.serial import SerialEnvs
from headrace.envs.vector_env import FinalObs, VectorEnv
from headrace.memory.layout import Row
from headrace.memory.slab import Slab

NUM_ACTIONS = 4

Maker = Callable[[], gym.Env[Any, Any]]
SeedOf = Callable[[int, int], int]


class Ending(NamedTuple):
    """How long an episode is, and how it ends."""

    length: int
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class Script:
    """Lengths of 1 to `longest` steps and all three endings, mixed by a seed."""

    seed: int = 0
    longest: int = 6

    def __call__(self, env_index: int, episode: int) -> Ending:
        return _ending(self.seed, self.longest, env_index, episode)


@cache
def _ending(seed: int, longest: int, env_index: int, episode: int) -> Ending:
    rng = np.random.default_rng((seed, env_index, episode))
    kind = int(rng.integers(1, 4))  # bit 0: terminated, bit 1: truncated
    return Ending(int(rng.integers(1, longest + 1)), bool(kind & 1), bool(kind & 2))


def observation_of(env_index: int, episode: int, step: int) -> tuple[float, float, float]:
    return float(env_index), float(episode), float(step)


def reward_of(env_index: int, episode: int, step: int, action: int) -> float:
    return ((31 * env_index + 17 * episode + 7 * step + 3 * action) % 64) / 64 - 0.5  # exact in float32


class ChainEnv(gym.Env[Any, Any]):
    """One environment of a script. Stepping it after an end, or before a reset, is an error, as it should be."""

    def __init__(self, env_index: int, script: Script) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self.reset_seeds: list[int | None] = []
        self._env_index, self._script = env_index, script
        self._step: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.reset_seeds.append(seed)
        self._step = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._step is not None, "stepped without a reset"
        assert self.action_space.contains(action), f"{action!r} is no action"
        episode = len(self.reset_seeds) - 1
        reward = reward_of(self._env_index, episode, self._step, int(action))
        self._step += 1
        seen, ending = self._seen(), self._script(self._env_index, episode)
        if self._step < ending.length:
            return seen, reward, False, False, {}
        self._step = None
        return seen, reward, ending.terminated, ending.truncated, {}

    def _seen(self) -> Any:
        return np.array(observation_of(self._env_index, len(self.reset_seeds) - 1, self._step or 0), np.float32)


# ------------------------------------------------------------------------------------------------------------- sources


def _serial(makers: Sequence[Maker], env_indices: range, seed_of: SeedOf) -> VectorEnv:
    remaining = iter(makers)
    return SerialEnvs(lambda: next(remaining)(), env_indices, seed_of)


def _pool(mode: AutoresetMode) -> Callable[[Sequence[Maker], range, SeedOf], VectorEnv]:
    def build(makers: Sequence[Maker], env_indices: range, seed_of: SeedOf) -> VectorEnv:
        return GymnasiumVector(SyncVectorEnv(list(makers), autoreset_mode=mode), env_indices, seed_of)

    return build


# Every implementation of VectorEnv, by the way it resets. A new one is added here and meets the whole contract.
SOURCES: dict[str, Callable[[Sequence[Maker], range, SeedOf], VectorEnv]] = {
    "serial": _serial,
    "next_step": _pool(AutoresetMode.NEXT_STEP),
    "same_step": _pool(AutoresetMode.SAME_STEP),
    "disabled": _pool(AutoresetMode.DISABLED),
}


def seed_of(env_index: int, episode: int) -> int:
    """The tree's leaf, for a run with seed 0."""
    return leaf(0, Purpose.ENV, env_index, episode)


def chain_envs(source: str, env_indices: range, script: Script) -> tuple[VectorEnv, list[ChainEnv]]:
    """The script behind one of the sources, and the environments themselves, to look into."""
    chains = [ChainEnv(env_index, script) for env_index in env_indices]
    makers: list[Maker] = [lambda chain=chain: chain for chain in chains]  # type: ignore[misc]
    return SOURCES[source](makers, env_indices, seed_of), chains


class Tampered:
    """A source that breaks one rule of the normal form, to show that it would be seen."""

    def __init__(self, envs: VectorEnv, tamper: Callable[[Row], None], real_finals: bool = True) -> None:
        self._envs, self._tamper, self._real_finals = envs, tamper, real_finals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def step(self, row: Row, final: FinalObs) -> None:
        """`real_finals` off hands over zeros instead of the observation an episode was cut in."""
        self._envs.step(row, final if self._real_finals else lambda b, obs: final(b, zeros_like(obs)))
        self._tamper(row)


def zeros_like(leaves: dict[str, Any]) -> dict[str, Any]:
    return {name: np.zeros_like(leaf) for name, leaf in leaves.items()}


def swap_flags(row: Row) -> None:
    row.terminated[:], row.truncated[:] = row.truncated.copy(), row.terminated.copy()


# ------------------------------------------------------------------------------------------------------------- streams


class Transition(NamedTuple):
    """One real step; `final` is the last observation of an episode that was cut, and of no other."""

    obs: tuple[float, ...]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    final: tuple[float, ...] | None


def expected_stream(
    script: Script, env_index: int, length: int, action_of: Callable[[int, int], int]
) -> list[Transition]:
    """The first `length` transitions of an environment, word for word from the script."""
    stream: list[Transition] = []
    episode = 0
    while len(stream) < length:
        ending = script(env_index, episode)
        for step in range(ending.length):
            action = action_of(env_index, len(stream))
            is_last = step == ending.length - 1
            is_cut = is_last and not ending.terminated
            stream.append(
                Transition(
                    observation_of(env_index, episode, step),
                    action,
                    reward_of(env_index, episode, step, action),
                    is_last and ending.terminated,
                    is_last and ending.truncated,
                    observation_of(env_index, episode, step + 1) if is_cut else None,
                )
            )
        episode += 1
    return stream[:length]


def streams_of(slabs: Sequence[Slab]) -> list[list[Transition]]:
    """The valid transitions of every environment of a shard, over consecutive slabs."""
    n_envs = slabs[0].schema.n_envs
    streams: list[list[Transition]] = [[] for _ in range(n_envs)]
    for slab in slabs:
        finals = {int(row): tuple(obs.tolist()) for row, obs in zip(slab.final_row, slab.final_obs["obs"], strict=True)}
        assert len(finals) == slab.final_count, "a row has two final observations"
        for t in range(slab.schema.n_steps):
            for b in range(n_envs):
                final = finals.pop(t * n_envs + b, None)
                if slab.valid[t, b]:
                    streams[b].append(
                        Transition(
                            tuple(slab.obs["obs"][t, b].tolist()),
                            int(slab.action[t, b]),
                            float(slab.reward[t, b]),
                            bool(slab.terminated[t, b]),
                            bool(slab.truncated[t, b]),
                            final,
                        )
                    )
                else:
                    assert final is None, "an invalid row has no final observation"
        assert not finals, "a final observation of a row that does not exist"
    return streams
