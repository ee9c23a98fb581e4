"""Whether episodes were a success, as environments say it: info["is_success"] of an episode's last step.

    environment or pool --Successes--> the same, seen from the side          said(position) -> True, False or None

For evaluations that report a rate of success. Training does not read info. Changes nothing of what is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """One environment, and the info of its last step."""

    info: Any = None

    def step(self, action: Any) -> Any:
        """A step, as it is."""
        returned: Any = self.env.step(action)
        self.info = returned[4] if isinstance(returned, tuple) and len(returned) == 5 else None
        return returned


class WatchedPool(gym.vector.VectorWrapper):
    """A vector environment, and the infos of its last step."""

    infos: Any = None

    def step(self, actions: Any) -> Any:
        """A step of each, as it is."""
        returned: Any = self.env.step(actions)
        self.infos = returned[4] if isinstance(returned, tuple) and len(returned) == 5 else None
        return returned


class Successes:
    """What the environments of one evaluation say."""

    def __init__(self) -> None:
        self._envs: list[Watched] = []
        self._pool: WatchedPool | None = None

    def watch(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        """One of several single environments, in their order."""
        self._envs.append(Watched(env))
        return self._envs[-1]

    def watch_pool(self, envs: gym.vector.VectorEnv[Any, Any, Any]) -> gym.vector.VectorEnv[Any, Any, Any]:
        """All of them."""
        self._pool = WatchedPool(envs)
        return self._pool

    def said(self, position: int) -> bool | None:
        """Of the step that was taken last; None if it said nothing."""
        return _of_pool(self._pool.infos, position) if self._pool is not None else success(self._envs[position].info)


def success(info: Any) -> bool | None:
    """What one info says."""
    return _told(info.get("is_success")) if isinstance(info, Mapping) else None


def _told(said: Any) -> bool | None:
    """None if it is neither yes nor no, as an array of several is."""
    try:
        return None if said is None else bool(said)
    except Exception:
        return None


def _of_pool(infos: Any, position: int) -> bool | None:
    """Gymnasium keeps infos by key, with a mask of who has it, and those of an end that was reset at once apart."""
    if not isinstance(infos, Mapping):
        return None
    for found in (infos.get("final_info"), infos):
        if isinstance(found, Mapping) and "is_success" in found:
            has = found.get("_is_success")
            if has is None or has[position]:
                return _told(found["is_success"][position])
    return None
