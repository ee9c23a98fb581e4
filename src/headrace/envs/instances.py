"""From an environment instance to what makes more of it: its Gymnasium spec, or copies of it.

    instance with a spec, built anew alike ──> id, kwargs, wrappers          any other ──> deep copies

headrace needs many environments, in processes of their own. A spec is the better way: it goes into checkpoints, and no
state comes along. What a spec can't say (attributes set afterwards, wrappers that do not record their arguments) is
copied. Says which way it took. The instance itself stays the user's: it is neither stepped, reset nor closed.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym

from headrace.envs.spec import EnvSpec
from headrace.errors import HeadraceError, UsageError

Env = gym.Env[Any, Any]
_PLAIN = (bool, int, float, str)


class Copies:
    """Makes deep copies of an instance."""

    def __init__(self, env: Env) -> None:
        self._prototype = _copied(env)
        self.__qualname__ = type(env.unwrapped).__name__

    def __call__(self) -> Env:
        return copy.deepcopy(self._prototype)


def spec_of(env: Env) -> EnvSpec:
    """What makes environments like this one."""
    spec = _by_spec(env)
    if spec is None:
        return EnvSpec(Copies(env), origin="deep copies of the instance that was passed")
    return spec


def _by_spec(env: Env) -> EnvSpec | None:
    """None: its spec does not say everything."""
    made = env.spec
    entry = None if made is None else gym.registry.get(made.id)
    if made is None or entry is None:
        return None
    wrappers = made.additional_wrappers[len(entry.additional_wrappers) :]
    if any(one.kwargs is None or one.entry_point.startswith("__main__:") for one in wrappers):
        return None
    kwargs = {name: value for name, value in made.kwargs.items() if (name, value) != ("render_mode", "human")}
    kwargs = {name: value for name, value in kwargs.items() if name not in entry.kwargs or entry.kwargs[name] != value}
    if made.max_episode_steps != entry.max_episode_steps:
        kwargs["max_episode_steps"] = -1 if made.max_episode_steps is None else made.max_episode_steps
    pairs = tuple((one.entry_point, one.kwargs or {}) for one in wrappers)
    spec = EnvSpec(made.id, kwargs, pairs, origin="built anew from the spec of the instance that was passed")
    try:
        fresh = spec.make()
    except HeadraceError:
        return None
    try:
        return spec if _are_alike(env, fresh) else None
    finally:
        fresh.close()


def _are_alike(env: Env, fresh: Env) -> bool:
    """The same spaces, and before the first reset the same plain attributes: later they may be its state."""
    if (env.observation_space, env.action_space) != (fresh.observation_space, fresh.action_space):
        return False
    if env.has_wrapper_attr("has_reset") and env.get_wrapper_attr("has_reset"):
        return True
    ours, theirs = vars(fresh.unwrapped), vars(env.unwrapped)
    plain = [name for name, value in ours.items() if type(value) in _PLAIN and name != "render_mode"]
    return all(name in theirs and theirs[name] == ours[name] for name in plain)


def _copied(env: Env) -> Env:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise UsageError(
            f"env: expected an id, module:attribute or a function that makes one, got an instance of "
            f"{type(env.unwrapped).__name__} that can't be built anew: it has no Gymnasium spec that says everything, "
            f"and copying it failed ({type(error).__name__}: {error}); pass what makes one, as in lambda: make()"
        ) from error
