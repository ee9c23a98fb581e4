"""Keyword arguments, as users give them, to the parts of a RunConfig.

PPO(...), IMPALA(...), Collector(...) --> EnvSpec · PolicyConfig · TopologyConfig · seed
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeGuard, TypeVar, cast

import gymnasium as gym

from headrace import presets
from headrace.api.other_names import option_hint
from headrace.api.sb3_words import MODEL, POLICY, require_adam, require_nothing
from headrace.api.vec_env import VecEnv
from headrace.collecting.topology import TopologyConfig
from headrace.envs.instances import Instance, like
from headrace.envs.spec import EnvSource, EnvSpec, Wrapper
from headrace.errors import UsageError, plain, whole
from headrace.keywords import meant
from headrace.learning.config import PpoConfig
from headrace.plain_text import message_of
from headrace.policies.activations import activation_named
from headrace.policies.config import BUILT_IN, Extractors, PolicyConfig
from headrace.policies.policy import Module, require_policy
from headrace.run_config import CLASS, KWARGS, SessionConfig

OF_ITS_OWN = ("action_masks", "norm_obs", "norm_obs_keys", "clip_obs")
"""What a policy's configuration has beside policy_kwargs: keywords of their own."""

_LEARN = ("callback", "tb_log_name", "reset_num_timesteps", "progress_bar", "run_dir", "wandb")
"""What learn takes beside the options of a session."""


def is_single(env: Any) -> TypeGuard[gym.Env[Any, Any]]:
    """Whether it is an instance of one environment; EnvPool's pools are of both classes."""
    return isinstance(env, gym.Env) and not isinstance(env, gym.vector.VectorEnv)


def number_of(env: Any) -> int | None:
    """How many environments an instance is; None if it is what makes one."""
    many = isinstance(env, gym.vector.VectorEnv | VecEnv)
    return env.num_envs if many else 1 if isinstance(env, gym.Env) else None


def source_of(env: Any) -> Any:
    """An instance, or what get_env returned, as what makes more of it; anything else as it is."""
    if isinstance(env, VecEnv):
        return env.source
    return like(env) if isinstance(env, gym.Env | gym.vector.VectorEnv) else env


def env_spec(
    env: EnvSource | EnvSpec | Instance | VecEnv,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper] = (),
    action_repeat: int = 1,
) -> EnvSpec:
    """The environment and how it is wrapped."""
    if isinstance(env, str) and env in BUILT_IN:
        raise UsageError(
            f"env: expected an environment, got the policy's name {env!r}; the order is hr.PPO(policy, env) and "
            f"hr.Collector(env, policy)"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(f"env_kwargs: expected a dictionary of keyword arguments, got {kwargs!r}")
    given: Any = wrappers
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError(f"wrappers: expected a list of wrappers, got {wrappers!r}")
    if isinstance(env, gym.Env | gym.vector.VectorEnv | VecEnv):
        if kwargs:
            raise UsageError(
                "env_kwargs: an instance was made already; pass its id, or what makes one, with env_kwargs"
            )
        spec: EnvSpec = source_of(env)
        return replace(spec, wrappers=(*spec.wrappers, *wrappers), action_repeat=action_repeat)
    if not isinstance(env, EnvSpec):
        return EnvSpec(env, dict(kwargs or {}), tuple(wrappers), action_repeat)
    if kwargs or wrappers or action_repeat != 1:
        raise UsageError("env: an EnvSpec has its own kwargs, wrappers and action_repeat; give them there")
    return env


def with_env(saved: dict[str, Any], env: EnvSource) -> EnvSpec:
    """Another environment, wrapped as the saved one was."""
    lost = [wrapper["callable"] for wrapper in saved["wrappers"] if not isinstance(wrapper, str)]
    if lost:
        raise UsageError(
            f"the run's environment had wrappers ({', '.join(lost)}), which a file can't hold; "
            f"pass env=EnvSpec(..., wrappers=...)"
        )
    return EnvSpec(env, saved["kwargs"], tuple(saved["wrappers"]), saved["action_repeat"])


def policy_config(
    policy: str | Module, kwargs: Mapping[str, Any] | None = None, own: Mapping[str, Any] | None = None
) -> PolicyConfig:
    """A policy by name with SB3's policy_kwargs, or the name of a module of the user's; and OF_ITS_OWN, as given."""
    own = {name: value for name, value in (own or {}).items() if name in OF_ITS_OWN}
    keys = own.get("norm_obs_keys")
    listed = {"norm_obs_keys": tuple(keys)} if isinstance(keys, list) else {}
    return replace(_policy_config(policy, kwargs), **own | listed)


def _policy_config(policy: str | Module, kwargs: Mapping[str, Any] | None) -> PolicyConfig:
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UsageError(f"policy_kwargs: expected a dictionary, got {kwargs!r}")
    options = dict(kwargs or {})
    for name in options:
        if name in OF_ITS_OWN:
            raise UsageError(f"policy_kwargs: {name} is an option of its own: hr.PPO(..., {name}=...)")
    known = _of_policies()
    require_known("policy_kwargs", options, [*known, "activation_fn", "optimizer_class", CLASS, KWARGS, *POLICY])
    require_nothing(options, POLICY)
    if "optimizer_class" in options:
        require_adam(options["optimizer_class"])
    if not isinstance(policy, str):
        require_policy(policy)
        for name in options:
            if name != "tile":
                raise UsageError(
                    f"policy_kwargs: {name} is for MlpPolicy and CnnPolicy; build your module as you want it"
                )
        return PolicyConfig(_name_of(policy), **options)
    if "activation_fn" in options:
        if "activation" in options:
            raise UsageError("policy_kwargs: activation_fn and activation are the same; give one of them")
        options["activation"] = activation_named(options["activation_fn"])
    if "net_arch" in options:
        options |= _layers(options["net_arch"], options.get("net_arch_vf"))
    return PolicyConfig(policy, **{name: value for name, value in options.items() if name in known})


def _of_policies() -> list[str]:
    """What policy_kwargs take, beside what has another form in Stable-Baselines3."""
    return [field.name for field in fields(PolicyConfig) if field.name not in ("policy", *OF_ITS_OWN)]


def extractors_given(kwargs: Mapping[str, Any] | None) -> Extractors | None:
    """SB3's features_extractor_class and features_extractor_kwargs, or the same by leaf; None if there are none."""
    given: Any = (kwargs or {}).get(CLASS)
    options: Any = (kwargs or {}).get(KWARGS) or {}
    if not isinstance(options, Mapping):
        raise UsageError(f"{KWARGS}: expected a dictionary, got {options!r}")
    if given is None:
        if options:
            raise UsageError(f"{KWARGS}: they are for {CLASS}; give that as well")
        return None
    classes, options = (given, options) if isinstance(given, Mapping) else ({"": given}, {"": options})
    if not classes:
        raise UsageError(f"{CLASS}: expected a class, or one for at least one array, got {given!r}; or leave it out")
    for leaf, one in classes.items():
        if not isinstance(leaf, str) or not (isinstance(one, type) or (isinstance(one, str) and ":" in one)):
            raise UsageError(
                f"{CLASS}: expected a class of torch modules, its module:Class, or a dictionary of them by the names "
                f"of the observation's arrays, got {given!r}"
            )
    for leaf, one in options.items():
        if leaf not in classes or not isinstance(one, Mapping):
            raise UsageError(f"{KWARGS}: expected a dictionary for each of {', '.join(classes)}, got {options!r}")
    return Extractors(
        dict(classes), {leaf: {key: plain(value) for key, value in one.items()} for leaf, one in options.items()}
    )


def _name_of(policy: Module) -> str:
    """Of a module of the user's own; a checkpoint tells it from a built-in one by its name."""
    kind = type(policy)
    if kind.__name__ in BUILT_IN and not kind.__module__.startswith("headrace."):
        raise UsageError(f"policy: a class of your own can't be named {kind.__name__}, as one of headrace's is")
    return kind.__name__


def _layers(given: Any, critic: Any) -> dict[str, Any]:
    """SB3's net_arch: a list for both, or dict(pi=[...], vf=[...]); what a dict leaves out has no hidden layers."""
    if not isinstance(given, Mapping):
        return {"net_arch": _sizes(given), "net_arch_vf": None if critic is None else _sizes(critic)}
    require_known("net_arch", given, ["pi", "vf"])
    if critic is not None:
        raise UsageError("net_arch_vf: net_arch has the critic's layers already, as vf; give one of them")
    return {"net_arch": _sizes(given.get("pi", [])), "net_arch_vf": _sizes(given.get("vf", []))}


def _sizes(given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str) or any(isinstance(one, Mapping) for one in given):
        raise UsageError(
            f"net_arch: expected the sizes of the hidden layers, as in [64, 64] or dict(pi=[64], vf=[64, 64]), "
            f"got {given!r}"
        )
    return tuple(whole("net_arch", one, 1) for one in given)


def place(**options: Any) -> TopologyConfig:
    """Where things run."""
    return TopologyConfig(**in_text(options))


def in_text(options: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and lists may be given where the command line takes text, and None for the default."""
    given = {name: value for name, value in options.items() if value is not None}
    given |= {name: str(given[name]) for name in ("workers", "publish_every") if name in given}
    if isinstance(devices := given.get("inference_device"), list | tuple):
        given["inference_device"] = ",".join(map(str, devices))
    return given


Init = TypeVar("Init", bound=Callable[..., None])


def takes_preset(init: Init) -> Init:
    """A constructor whose argument `preset` names defaults of the others; those that are given win."""
    names = list(inspect.signature(init).parameters)

    @functools.wraps(init)
    def dressed(*given: Any, preset: str | None = None, **named: Any) -> None:
        chosen = presets.preset(preset)
        env = named.get("env", given[names.index("env")] if len(given) > names.index("env") else None)
        if preset and isinstance(env, gym.Env | gym.vector.VectorEnv | VecEnv):
            raise UsageError(f"preset {preset}: it makes and wraps environments itself; pass the id, not an instance")
        defaults = {"wrappers": chosen.wrappers, **chosen.options} if preset else {}
        here = names[: len(given)]
        for name, value in defaults.items():
            if name not in here:
                named.setdefault(name, value)
        if chosen.env_kwargs:
            named["env_kwargs"] = chosen.env_kwargs | dict(named.get("env_kwargs") or {})
        init(*given, preset=preset, **named)

    return cast(Init, dressed)


def own_module(policy: str | Module) -> Module | None:
    """The user's module; None if the policy was named."""
    if isinstance(policy, type):
        raise UsageError(
            f"policy: expected a name or a module, got the class {policy.__name__}; pass {policy.__name__}()"
        )
    return None if isinstance(policy, str) else policy


def copied(module: Module | None) -> Module | None:
    """The user's own module stays as it is."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise UsageError(
            f"policy: {type(module).__name__} can't be copied: {message_of(error, 200)}; torch copies parameters and "
            f"buffers, and no tensors that were computed (torch.nn.utils.parametrizations keeps none)"
        ) from error


def drawn_seed(seed: int | None) -> int:
    """A seed that was not given is drawn, and recorded with the configuration."""
    return int.from_bytes(os.urandom(4), "little") if seed is None else plain(seed)


def require_known(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options that there are not, with the one that was meant."""
    for name in given:
        if name not in known:
            taken = [one for one in known if one not in MODEL]
            raise UsageError(f"{what}: unknown option {name}: {meant(name, taken)}")


def require_options(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """The same for a constructor, whose users may mean an option of learn, of policy_kwargs or of another library."""
    shapes = [*_of_policies(), "activation_fn", CLASS, KWARGS]
    of_ppo = [*(field.name for field in fields(PpoConfig)), "preset", "tune"]
    others = {"learn": of_learn(), "policy_kwargs": shapes, "models": list(OF_ITS_OWN), "PPO": of_ppo}
    for name in given:
        hint = option_hint(name, list(known), others)
        if name not in known and hint is not None:
            raise UsageError(f"{what}: unknown option {name}: {hint}")
    require_known(what, given, known)


def of_learn() -> list[str]:
    """What learn takes."""
    return [*_LEARN, *(field.name for field in fields(SessionConfig))]


def device_of(device: Any, learner_device: Any) -> str:
    """Where the learner computes: `learner_device`, or SB3's `device`, whose auto is the CPU here."""
    if learner_device is not None and str(device) not in ("auto", str(learner_device)):
        raise UsageError(f"device={device} and learner_device={learner_device} are the same option; give one of them")
    chosen = str(device if learner_device is None else learner_device)
    return "cpu" if chosen == "auto" else chosen
