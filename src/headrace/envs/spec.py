"""What environment a run uses: an id of Gymnasium or EnvPool, "module:attribute" or a callable; kwargs and wrappers.

    EnvSpec --make()--> gymnasium.Env                      one environment, stepped by our own loop
            --make_vector(n)--> gymnasium.vector.VectorEnv   "envpool:id", or a callable that takes `num_envs`: resets
                                                             itself; one that takes `seeds`, too, is seeded when made

The spec is small and picklable; a spec made of strings also survives in a checkpoint's JSON.
Knows how to build an environment; does not step it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from headrace.envs.adapters import envpool
from headrace.envs.missing import hint, is_not_installed, module_of, not_around_vectors, reason, to_install, unknown
from headrace.envs.raising import require_own
from headrace.envs.registered import adopt, hush, known_of, register_family
from headrace.envs.returns import number
from headrace.envs.seeds import AT_MAKE, LONG, SHORT, Purpose, episode_seed
from headrace.errors import EnvError, EnvRaised, HeadraceError, UsageError
from headrace.keywords import in_words

EnvSource = str | Callable[..., Any]
MAKE_VEC = "gymnasium:make_vec"
MASKS = "headrace.envs.masks:ActionMasks"
Wrapper = EnvSource | tuple[EnvSource, Mapping[str, Any]]
"""A wrapper, or a wrapper and its keyword arguments. As text: module:attribute, or module:attribute {"key": value}."""


@in_words()
@dataclass(frozen=True)
class EnvSpec:
    """An environment by name or callable, and how to dress it. Wrappers apply in order, the last one outermost."""

    env: EnvSource
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Wrapper, ...] = ()
    action_repeat: int = 1
    seed_bits: int = LONG
    """Width of reset seeds. A run finds out itself whether an environment takes 32 bits only."""
    origin: str = field(default="", compare=False)
    """Where this comes from, if the user passed something else; for people, no part of the configuration."""

    def __post_init__(self) -> None:
        if isinstance(self.env, gym.Env | gym.vector.VectorEnv):
            raise UsageError(
                f"env: expected an id, module:attribute or a function that makes one, got an instance "
                f"({_name(self.env)}), which hr.PPO, hr.Collector and hr.check_env take, but not hr.EnvSpec"
            )
        if not isinstance(self.env, str) and not callable(self.env):
            raise UsageError(
                f"env: expected an id, module:attribute, a callable or an environment, got {type(self.env).__name__}"
                f"{'; pass one function, n_envs is how many' if isinstance(self.env, list | tuple) else ''}"
            )
        object.__setattr__(self, "wrappers", tuple(map(_one_wrapper, self.wrappers)))
        repeat: Any = self.action_repeat
        if not isinstance(repeat, int) or repeat < 1:
            raise UsageError(f"action_repeat: expected a whole number of at least 1, got {repeat!r}")
        if self.seed_bits not in (LONG, SHORT):
            raise UsageError(f"seed_bits: expected {LONG} or {SHORT}, got {self.seed_bits!r}")

    def __getstate__(self) -> dict[str, Any]:
        """On its way to another process, where the id may not be registered."""
        is_vector = self.env == MAKE_VEC
        return vars(self) | {"known": known_of(self.kwargs.get("id") if is_vector else self.env)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        adopt(state.pop("known"))
        vars(self).update(state)

    @property
    def name(self) -> str:
        """What to call it in run directories and messages."""
        if isinstance(self.env, str):
            return self.env
        name: str = getattr(self.env, "__qualname__", type(self.env).__name__)
        return name.rpartition("<locals>.")[2].strip("<>")

    def seed_of(self, seed: int, purpose: Purpose) -> Callable[[int, int], int]:
        """(env index, episode number) -> reset seed, in a run with this seed."""
        return partial(episode_seed, AT_MAKE if self.is_seeded_when_made() else self.seed_bits, seed, purpose)

    def is_vector(self) -> bool:
        """Whether the callable builds a whole vector environment: it has a parameter named num_envs."""
        return not self._is_id() and "num_envs" in _parameters(self._callable())

    def is_seeded_when_made(self) -> bool:
        """Whether the callable builds a vector environment from its seeds: it has a parameter named seeds, too."""
        return self.is_vector() and "seeds" in _parameters(self._callable())

    def make(self) -> gym.Env[Any, Any]:
        """One environment, wrapped."""
        env = self._build({})
        if not isinstance(env, gym.Env):
            raise EnvError(
                f"{self.name}: expected a gymnasium.Env, got {type(env).__module__}.{type(env).__name__}; "
                f"a factory of vector environments must take a parameter named num_envs"
            )
        dressed: gym.Env[Any, Any] = ActionRepeat(env, self.action_repeat) if self.action_repeat > 1 else env
        try:
            for wrapper in self.wrappers:
                dressed = self._wrap(dressed, wrapper)
        except HeadraceError:
            dressed.close()
            raise
        return dressed

    def make_vector(self, seeds: Sequence[int]) -> gym.vector.VectorEnv[Any, Any, Any]:
        """A vector environment of so many, from a callable that takes num_envs, and may take their seeds."""
        if MASKS in self.wrappers:
            raise UsageError(f"{self.name}: action_masks needs single environments; this makes vector environments")
        if self.action_repeat > 1 or self.wrappers:
            raise UsageError(f"{self.name}: {not_around_vectors(self.env, self.wrappers)}")
        num_envs, is_seeded = len(seeds), self.is_seeded_when_made()
        ours = {"num_envs": num_envs} | ({"seeds": list(seeds)} if is_seeded else {})
        for name in ours.keys() & self.kwargs.keys():
            raise UsageError(f"{self.name}: env_kwargs: {name} can't be set; n_envs and seed of the run decide")
        envs = self._build(ours)
        if envpool.is_envpool(envs):
            if not is_seeded:
                raise UsageError(
                    f"{self.name}: EnvPool ignores the seeds of reset; use env='envpool:ID', or give the function a "
                    f"parameter named seeds and pass it on, as in envpool.make(..., seed=seeds)"
                )
            envs = envpool.Pool(envs)
        if not isinstance(envs, gym.vector.VectorEnv):
            raise EnvError(f"{self.name}: expected a gymnasium.vector.VectorEnv, got {type(envs).__name__}")
        if envs.num_envs != num_envs:
            raise EnvError(
                f"{self.name}: expected {num_envs} environments, got {envs.num_envs}; use the num_envs it is given"
            )
        return envs

    def encode(self) -> dict[str, Any]:
        """The spec as JSON; callables by their name only, so that a checkpoint can say what it needs."""
        return {
            "env": self.env if isinstance(self.env, str) else {"callable": self.name},
            "kwargs": jsonable(self.kwargs),
            "wrappers": [w if isinstance(w, str) else {"callable": _name_of(w)} for w in self.wrappers],
            "action_repeat": self.action_repeat,
            "seed_bits": self.seed_bits,
        }

    def _is_id(self) -> bool:
        """Gymnasium's own module:id imports a module that registers; an id is no attribute, it has a -v0."""
        if not isinstance(self.env, str) or self.env.startswith(envpool.PREFIX):
            return False
        _, colon, attribute = self.env.partition(":")
        return not colon or attribute in gym.registry or not all(map(str.isidentifier, attribute.split(".")))

    def _callable(self) -> Callable[..., Any]:
        if isinstance(self.env, str) and self.env.startswith(envpool.PREFIX):
            return partial(envpool.make_pool, self.env.removeprefix(envpool.PREFIX))
        return load_attribute(self.env, "environment") if isinstance(self.env, str) else self.env

    def _build(self, more: Mapping[str, Any]) -> Any:
        if isinstance(self.env, str) and self._is_id():
            return self._make_registered(self.env)
        factory = self._callable()
        try:
            return factory(**self.kwargs, **more)
        except UsageError:
            raise
        except BaseException as error:
            raise self._failed(error) from (None if is_not_installed(error) else error)

    def _wrap(self, env: gym.Env[Any, Any], wrapper: Any) -> gym.Env[Any, Any]:
        wrap, name = (_load_wrapper(wrapper), wrapper) if isinstance(wrapper, str) else (wrapper, _name_of(wrapper))
        try:
            wrapped = wrap(env)
        except UsageError:
            raise
        except BaseException as error:
            require_own(error, f"{self.name}: wrapper {name}")
            said = f"{self.name}: wrapper {name} raised {reason(error)}{_advice(error)}"
            if is_not_installed(error):
                raise EnvError(said) from None
            raise _raised(error, said) from error
        if not isinstance(wrapped, gym.Env):
            raise EnvError(
                f"{self.name}: expected wrapper {name} to give a gymnasium.Env, got {type(wrapped).__name__}"
            )
        return wrapped

    def _make_registered(self, env_id: str) -> gym.Env[Any, Any]:
        module_name, colon, bare_id = env_id.rpartition(":")
        if colon:
            _import(module_name, f"environment {env_id!r}")  # it registers the id
            hush(module_name)
        else:
            register_family(env_id)
        try:
            gym.spec(bare_id)
        except gym.error.Error as error:
            raise UsageError(f"unknown environment {env_id!r}: {unknown(bare_id)}") from error
        try:
            # Gymnasium's passive checker looks at the first step only and costs a call on every one; we look at all.
            return gym.make(env_id, **{"disable_env_checker": True, **self.kwargs})
        except BaseException as error:
            raise self._failed(error) from (None if is_not_installed(error) else error)

    def _failed(self, error: BaseException) -> EnvError:
        require_own(error, self.name)
        with_kwargs = f" with kwargs {dict(self.kwargs)}" if self.kwargs else ""
        said = f"{self.name}: could not be made{with_kwargs}: {reason(error)}{hint(self.name, error)}"
        return EnvError(said) if is_not_installed(error) else _raised(error, said)


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Sends every action `times` times, or until the episode ends, and sums the rewards."""

    def __init__(self, env: gym.Env[Any, Any], times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step of the repeated action."""
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            amount = number(reward)
            if amount is None:
                return obs, reward, terminated, truncated, info  # refused with the words for it by whoever steps this
            total += amount
            if any(flag is not False and number(flag) != 0 for flag in (terminated, truncated)):
                break
        return obs, total, terminated, truncated, info


def _advice(error: BaseException) -> str:
    """What to do about a wrapper that raised: how to give it the arguments that it lacks."""
    if isinstance(error, TypeError) and "required positional argument" in str(error):
        return """; give them as (Wrapper, {"key": value}), in text 'module:attribute {"key": value}'"""
    return hint("", error)


def _raised(error: BaseException, text: str) -> EnvError:
    return EnvError(text) if isinstance(error, KeyboardInterrupt) else EnvRaised(text)


def _one_wrapper(wrapper: Any) -> EnvSource:
    """A pair as one thing: text where a file can hold it, so that a checkpoint can name it, else a callable."""
    is_pair = isinstance(wrapper, Sequence) and not isinstance(wrapper, str)
    if is_pair and not (len(wrapper) == 2 and isinstance(wrapper[1], Mapping)):
        raise UsageError(f"wrappers: expected a wrapper or (wrapper, kwargs), got {wrapper!r}")
    wrap, kwargs = (wrapper[0], dict(wrapper[1])) if is_pair else (wrapper, {})
    if isinstance(wrap, str):
        plain = jsonable(kwargs)
        if not any(isinstance(value, dict) and set(value) == {"object"} for value in plain.values()):
            return f"{wrap} {json.dumps(plain, sort_keys=True)}" if plain else wrap
        wrap = load_attribute(wrap, "wrapper")
    if not callable(wrap):
        raise UsageError(f"wrappers: expected module:attribute or a callable, got {wrap!r}")
    return partial(wrap, **kwargs) if kwargs else wrap


def _load_wrapper(text: str) -> Callable[..., Any]:
    path, brace, rest = text.partition("{")
    wrap = load_attribute(path.strip(), "wrapper")
    if not brace:
        return wrap
    try:
        kwargs = json.loads(brace + rest)
    except ValueError as error:
        raise UsageError(f'wrapper {text!r}: expected module:attribute {{"key": value}}: {error}') from error
    return partial(wrap, **kwargs)


def _name_of(wrapper: Any) -> str:
    if isinstance(wrapper, partial):
        given = ", ".join(f"{key}={value!r}" for key, value in wrapper.keywords.items())
        return f"{_name_of(wrapper.func)}({given})"
    return str(getattr(wrapper, "__qualname__", repr(wrapper)))


def load_attribute(path: str, what: str) -> Callable[..., Any]:
    """What module:attribute names; the module is imported."""
    module_name, colon, attribute = path.partition(":")
    if not attribute:
        hint = f"; did you mean {':'.join(path.rsplit('.', 1))}?" if "." in path and not colon else ""
        raise UsageError(f"{what} {path!r}: expected module:attribute{hint}")
    found: Any = _import(module_name, f"{what} {path!r}")
    try:
        for name in attribute.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        close = difflib.get_close_matches(attribute, dir(found), n=1)
        hint = f"did you mean {close[0]}?" if close else "expected module:attribute"
        raise UsageError(f"{what} {path!r}: {error}; {hint}") from error
    if not callable(found):
        raise UsageError(f"{what} {path!r}: expected something callable, got {type(found).__name__}")
    loaded: Callable[..., Any] = found
    return loaded


def _import(module_name: str, what: str) -> Any:
    """A module of the user's; if it is its own code that fails, the traceback is theirs to see."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise EnvError(f"{what}: importing {module_name} failed: {error}{hint('', error)}") from error
        if module_name.endswith(".py"):
            raise UsageError(f"{what}: expected a module, without .py: {module_of(module_name)}:...") from error
        where = "expected a module that can be imported from here"
        raise UsageError(f"{what}: {error}; {where}, or {to_install(module_name)}") from error
    except BaseException as error:
        require_own(error, what)
        raise EnvError(f"{what}: importing {module_name} raised {reason(error)}{hint('', error)}") from error


def _name(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def jsonable(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON holds as it is; anything else marked by its name, so that nobody takes it for the thing itself."""
    kept: dict[str, Any] = {}
    for key, value in kwargs.items():
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            is_same = json.loads(json.dumps(plain)) == plain
        except (TypeError, ValueError):
            is_same = False
        kept[key] = plain if is_same else {"object": repr(value)}
    return kept
