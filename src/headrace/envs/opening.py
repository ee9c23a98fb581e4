"""The single environments of a shard, at both ends of their life: made one after the other, and all of them closed.

    make, once for each --open_all--> environments and their spaces, which must be alike
    close_all: each is closed, whatever the others do; the first failure is raised

The crash note says which one is being made or closed. Never runs per step. Does not know how they are played (serial).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation, require_alike
from headrace.envs.missing import reason
from headrace.envs.raising import failure, require_own
from headrace.errors import EnvError
from headrace.memory.crash_note import CLOSE, DOING, MAKE, NOTHING, POSITION
from headrace.memory.spaces import ObservationSpace, Space

Envs = list[gym.Env[Any, Any]]


class Opened(NamedTuple):
    """Environments that were made, and what they have in common."""

    envs: Envs
    observation_space: ObservationSpace
    action_space: Space


def open_all(make: Callable[[], gym.Env[Any, Any]], env_indices: Sequence[int], note: memoryview) -> Opened:
    """One environment for each index. If one can't be made, or differs, those that were made are closed."""
    envs: Envs = []
    try:
        note[DOING] = MAKE
        for position in range(len(env_indices)):
            note[POSITION] = position
            envs.append(make())
        note[DOING] = NOTHING
        env = envs[0]
        where = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        observation = describe_observation(_space_of(env, "observation", where), where, env)
        action = describe_action(_space_of(env, "action", where), where)
        require_alike(envs, list(env_indices), where)
    except BaseException:
        close_all(envs, env_indices, note)
        raise
    return Opened(envs, observation, action)


def _space_of(env: gym.Env[Any, Any], role: str, where: str) -> gym.Space[Any] | None:
    """A space, which may be a property; None if there is none."""
    try:
        space: gym.Space[Any] | None = getattr(env, f"{role}_space", None)
    except BaseException as error:
        require_own(error, where)
        raise EnvError(f"{where}: its {role}_space raised {reason(error)}") from error
    return space


def close_all(envs: Envs, env_indices: Sequence[int], note: memoryview) -> None:
    """Close every environment, whatever the others do."""
    failed: EnvError | None = None
    for position, (index, env) in enumerate(zip(env_indices, envs, strict=False)):
        note[DOING], note[POSITION] = CLOSE, position
        try:
            env.close()
        except BaseException as error:
            reason = failure(position, index, error).reason.removeprefix("raised ")
            failed = failed or EnvError(f"env {index}: could not be closed: {reason}")
            failed.__cause__ = failed.__cause__ or error
    note[DOING] = NOTHING
    if failed is not None:
        raise failed
