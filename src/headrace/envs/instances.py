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
import numpy as np

from headrace.envs.adapters import envpool
from headrace.envs.spec import MAKE_VEC, EnvSpec
from headrace.errors import HeadraceError, UsageError

Env = gym.Env[Any, Any]
Instance = Env | gym.vector.VectorEnv[Any, Any, Any]
_PLAIN = (bool, int, float, str)
_OF_GYMNASIUM = ("render_mode", "spec", "_np_random", "_np_random_seed")
_LARGEST, _LONGEST = 10_000, 100  # numbers of an array, and parts of a list, that are compared
_LOOKS = 100  # steps that are played


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
    """The same spaces, and attributes that differ in nothing but what episodes change."""
    if (env.observation_space, env.action_space) != (fresh.observation_space, fresh.action_space):
        return False
    is_played = bool(env.has_wrapper_attr("has_reset") and env.get_wrapper_attr("has_reset"))
    different = _different(_attributes(fresh, is_played), _attributes(env, is_played))
    return not different or (is_played and different <= _changed_by_playing(fresh, different))


def _attributes(env: Env, is_played: bool = True, names: set[str] | None = None) -> dict[str, Any]:
    """What can be compared; of others the type, before an episode has made them: a window, a renderer."""
    found = {name: value for name, value in vars(env.unwrapped).items() if name not in _OF_GYMNASIUM}
    found = found if names is None else {name: value for name, value in found.items() if name in names}
    plain = {name: copy.deepcopy(value) for name, value in found.items() if _is_plain(value)}
    return plain if is_played else {name: type(value) for name, value in found.items()} | plain


def _is_plain(value: Any) -> bool:
    """A number, a text, an array, or a list or dictionary of them, and none that is large."""
    if isinstance(value, np.ndarray):
        return value.dtype != object and value.size <= _LARGEST
    if isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        return len(value) <= _LONGEST and all(map(_is_plain, parts))
    return value is None or isinstance(value, (*_PLAIN, np.generic))


def _different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Names whose values are not the same, or are in one of them only."""
    return {name for name in one.keys() | other.keys() if not _is_same(one.get(name), other.get(name))}


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return not _different(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if one is None or other is None or isinstance(one, type) or isinstance(other, type):
        return one is other
    if np.array_equal(one, other):
        return True
    ours, theirs = np.asarray(one), np.asarray(other)
    is_float = ours.dtype.kind == theirs.dtype.kind == "f"  # with NaN
    return is_float and np.array_equal(ours, theirs, equal_nan=True)


def _changed_by_playing(env: Env, names: set[str]) -> set[str]:
    """Those of the attributes that an episode changes: they are its state, and do not say how it was made."""
    before, changed = _attributes(env, names=names), set[str]()
    try:
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(_LOOKS):
            changed |= _different(before, _attributes(env, names=names))
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                break
        changed |= _different(before, _attributes(env, names=names))
        env.reset()
        return changed | _different(before, _attributes(env, names=names))
    except Exception:  # it will be raised again where it is played
        return changed


def _copied(env: Env) -> Env:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise UsageError(
            f"env: expected an id, module:attribute or a function that makes one, got an instance of "
            f"{type(env.unwrapped).__name__} that can't be built anew: it has no Gymnasium spec that says everything, "
            f"and copying it failed ({type(error).__name__}: {error}); pass what makes one, as in lambda: make()"
        ) from error
