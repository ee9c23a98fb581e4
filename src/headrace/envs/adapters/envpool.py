"""EnvPool's pools, made from their id, as Gymnasium vector environments in next-step mode.

    "envpool:CartPole-v1", num_envs, one seed each --make_pool--> gymnasium.vector.VectorEnv

EnvPool takes its seeds when a pool is made, one int32 for each environment, and ignores those of reset. The step after
an end is its reset: no transition, and the observation of the step before it is the real final one. Read by
gymnasium_vector, as any other vector environment. The only file that imports envpool.
"""

from __future__ import annotations

import difflib
import importlib
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from headrace.errors import UsageError

PREFIX = "envpool:"
_OURS = {
    "num_envs": "n_envs of the run decides",
    "seed": "seed of the run decides",
    "env_seed": "seed of the run decides",
    "batch_size": "a step waits for all environments, so that results do not depend on which one was first",
    "env_type": "it is gymnasium",
    "max_num_players": "environments with several players are not supported",
}
_FILTERS = threading.Lock()  # Python's warning filters belong to all threads


class Pool(gym.vector.VectorEnv[Any, Any, Any]):
    """A pool that was made with its seeds. EnvPool's threads end with the last reference to it."""

    def __init__(self, pool: Any) -> None:
        self.num_envs = pool.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it gives Gymnasium float64 bounds for float32 arrays
            self.single_observation_space = _unbounded(pool.observation_space)
            self.single_action_space = pool.action_space
        self._pool = pool

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin; seeds were given before."""
        seen: tuple[Any, dict[str, Any]] = self._pool.reset()
        return seen

    def step(self, actions: Any) -> Any:
        """One step of each."""
        return self._pool.step(actions)

    def close(self, **kwargs: Any) -> None:
        """End its threads."""
        self._pool = None


def make_pool(task_id: str, num_envs: int, seeds: Sequence[int], **kwargs: Any) -> Pool:
    """A pool of that id, with a seed for each of its environments."""
    envpool = _imported()
    known = envpool.list_all_envs()
    if task_id not in known:
        close = difflib.get_close_matches(task_id, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else "see envpool.list_all_envs()"
        raise UsageError(f"unknown environment '{PREFIX}{task_id}': {hint}")
    for name, why in _OURS.items():
        if name in kwargs:
            raise UsageError(f"{PREFIX}{task_id}: env_kwargs: {name} can't be set; {why}")
    return Pool(envpool.make(task_id, env_type="gymnasium", num_envs=num_envs, seed=list(seeds), **kwargs))


def is_envpool(envs: Any) -> bool:
    """Whether a vector environment comes from envpool.make(..., env_type="gymnasium")."""
    return any(kind.__module__ == "envpool.python.gymnasium_envpool" for kind in type(envs).__mro__)


def id_of(pool: Any) -> tuple[str, dict[str, Any]] | None:
    """The id and the options that make pools like one from envpool.make; None if it was not made from an id.

    A pool does not know its id, but its class and configuration: the id of that class with the fewest differences.
    """
    envpool, found = _imported(), []
    registry = importlib.import_module("envpool.registration").registry
    for task_id in envpool.list_all_envs():
        module, name = registry.envpools[task_id]["gymnasium"]
        if name == type(pool).__name__ and getattr(importlib.import_module(module), name) is type(pool):
            usual = envpool.make_spec(task_id).config._asdict()
            own = {key: value for key, value in pool.config.items() if value != usual[key] and key not in _OURS}
            found.append((len(own), task_id, own))
    return None if not found else min(found, key=lambda one: one[:2])[1:]


def _imported() -> Any:
    try:
        import envpool
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise
        raise UsageError("EnvPool is not installed; pip install 'headrace[envpool]'") from error
    return envpool


def _unbounded(space: gym.Space[Any]) -> gym.Space[Any]:
    """Some of its boxes have C++'s numeric_limits as bounds, whose min() is the least positive number: no bounds."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict([(name, _unbounded(one)) for name, one in space.spaces.items()])
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where(np.isin(space.low, (limits.tiny, limits.min)), -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return gym.spaces.Box(low, high, space.shape, space.dtype.type)
