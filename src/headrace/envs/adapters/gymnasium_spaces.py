"""Gymnasium spaces to descriptors; a space that headrace does not take is refused with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from headrace.errors import EnvError, UsageError
from headrace.memory.spaces import Box, Discrete, MultiBinary, MultiDiscrete, ObservationSpace, Space

_ADVICE = {
    ("Dict", "observation"): "wrap the environment in gymnasium.wrappers.FlattenObservation",
    ("Tuple", "observation"): "wrap the environment in gymnasium.wrappers.FlattenObservation",
    ("Text", "observation"): "encode the text as numbers in a wrapper",
}


def describe_observation(space: gym.Space[Any], where: str) -> ObservationSpace:
    """The descriptor of an observation space; `where` names the environment."""
    return _array(space, "observation", where)


def describe_action(space: gym.Space[Any], where: str) -> Space:
    """The descriptor of an action space."""
    return _array(space, "action", where)


def _array(space: gym.Space[Any], role: str, where: str) -> Space:
    match space:
        case gym.spaces.Box():
            if role == "action" and not np.issubdtype(space.dtype, np.floating):
                raise UsageError(
                    f"{where}: expected a float action Box, got dtype {space.dtype}; wrap it as MultiDiscrete"
                )
            return Box(tuple(space.shape), str(space.dtype), _bound(space.low), _bound(space.high))
        case gym.spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case gym.spaces.MultiDiscrete():
            nvec, start = np.asarray(space.nvec), np.asarray(space.start)
            return MultiDiscrete(_ints(nvec), tuple(nvec.shape), _ints(start))
        case gym.spaces.MultiBinary():
            return MultiBinary(tuple(space.shape))
    kind = type(space).__name__
    raise UsageError(
        f"{where}: unsupported {role} space {kind}; expected Box, Discrete, MultiDiscrete or MultiBinary; "
        f"{_ADVICE.get((kind, role), 'convert it in a wrapper')}"
    )


def require_alike(envs: Sequence[gym.Env[Any, Any]], env_indices: Sequence[int], where: str) -> None:
    """Refuse instances of one environment that have different spaces."""
    for index, env in zip(env_indices, envs, strict=True):
        for role in ("observation", "action"):
            expected, got = (getattr(one, f"{role}_space") for one in (envs[0], env))
            if expected is not got and expected != got:
                raise EnvError(
                    f"{where}: env {index} has the {role} space {got}, expected {expected}, as env {env_indices[0]}; "
                    f"all instances of an environment must have the same spaces"
                )


def _bound(bound: Any) -> tuple[float, ...]:
    flat = np.asarray(bound, np.float64).reshape(-1)
    return (float(flat[0]),) if flat.size and (flat == flat[0]).all() else tuple(float(x) for x in flat)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(x) for x in np.asarray(values).reshape(-1))
