"""From an environment instance to what makes more of it: its Gymnasium spec, or copies of it.

    instance with a spec, built anew alike ──> id, kwargs, wrappers          any other ──> deep copies

headrace needs many environments, in processes of their own. A spec is the better way: it goes into checkpoints, and no
state comes along. What a spec can't say (attributes set afterwards, wrappers that do not record their arguments) is
copied. Says which way it took. The instance itself stays the user's: it is neither stepped, reset nor closed.
A vector environment has to be made in other sizes, so it is built anew or refused: gymnasium.make_vec and EnvPool say
how theirs were made.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any

import gymnasium as gym

from headrace.envs.adapters import envpool
from headrace.envs.spec import MAKE_VEC, EnvSpec
from headrace.errors import HeadraceError, UsageError

Env = gym.Env[Any, Any]
Instance = Env | gym.vector.VectorEnv[Any, Any, Any]
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


def like(env: Instance) -> EnvSpec:
    """What makes environments like an instance, single or vector."""
    return vector_spec_of(env) if isinstance(env, gym.vector.VectorEnv) else spec_of(env)


def single(env: Any) -> Env | None:
    """An instance of one environment; None if it is anything else. EnvPool's pools are of both classes."""
    return None if isinstance(env, gym.vector.VectorEnv) or not isinstance(env, gym.Env) else env


def vector_spec_of(envs: gym.vector.VectorEnv[Any, Any, Any]) -> EnvSpec:
    """What makes vector environments like this one, of any size."""
    made = envs.spec
    if envpool.is_envpool(envs):
        found = envpool.id_of(envs)
        if found is not None:
            return EnvSpec(f"{envpool.PREFIX}{found[0]}", found[1], origin="built anew as the EnvPool that was passed")
    elif envs.unwrapped is envs and made is not None and "vectorization_mode" in made.kwargs:
        kwargs = {"id": made.id} | {name: value for name, value in made.kwargs.items() if name != "num_envs"}
        if "vector_kwargs" in kwargs:  # an AutoresetMode by its value, which a file can hold
            kwargs["vector_kwargs"] = {name: _plain(value) for name, value in kwargs["vector_kwargs"].items()}
        return EnvSpec(MAKE_VEC, kwargs, origin="built anew from the spec of the instance that was passed")
    raise UsageError(
        f"env: expected an id, module:attribute or a function that makes one, got an instance of "
        f"{type(envs).__name__} that can't be built anew: it is wrapped, or was not made by gymnasium.make_vec; pass a "
        f"function with a parameter named num_envs that makes one"
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


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
