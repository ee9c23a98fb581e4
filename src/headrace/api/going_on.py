"""A saved run goes on: its configuration, and what the options of a load change of it.

    require_retaken: is each option one that load takes again?      config_of: the configuration to build

Where it runs may change, and so may devices. The environment, the policy and the algorithm stay, but for functions,
which no file holds. Does not know what a checkpoint looks like.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from headrace.api.arguments import device_of, in_text, of_learn, with_env
from headrace.api.other_names import option_hint
from headrace.collecting.moving import moved
from headrace.collecting.topology import DEVICES, PLACES, TopologyConfig
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import UsageError
from headrace.learning.config import ALGORITHMS, ImpalaConfig, PpoConfig
from headrace.policies.config import BUILT_IN, Extractors, PolicyConfig
from headrace.policies.policy import Module
from headrace.run_config import RunConfig, decode


def require_retaken(given: Mapping[str, Any], algorithm: str) -> None:
    """UsageError with what was meant, if an option is none that load takes again: of place, devices, algorithm."""
    learned = [field.name for field in fields(ALGORITHMS.get(algorithm, PpoConfig))]
    known = [*learned, *PLACES, "inference_device", "device"]
    others = (PpoConfig, TopologyConfig, PolicyConfig, EnvSpec, ImpalaConfig)
    fixed = {field.name for kind in others for field in fields(kind)} | {"env_kwargs", "preset", "tune"}
    for name in given:
        hint = option_hint(name, known, {"learn": of_learn(), "policy_kwargs": [], "PPO": []})
        close = [] if name in fixed else difflib.get_close_matches(name, known, n=1)
        hint = hint or (f"did you mean {close[0]}?" if close else None)
        if name not in known and hint is not None:
            raise UsageError(f"load: unknown option {name}: {hint}")


def config_of(
    saved: dict[str, Any],
    env: EnvSource | EnvSpec | None,
    policy: Module | None,
    place: TopologyConfig | None,
    extractors: Extractors | None,
    weights_only: bool,
    options: dict[str, Any],
) -> RunConfig:
    """With what was passed in the place of what was saved; a `place` is the whole of where it runs."""
    for name in DEVICES:
        if options.get(name, "") is None:
            del options[name]
    place = place or _place_of(saved["topology"], options, weights_only)
    was = saved["algorithm"].get("norm_reward", False)
    if not weights_only and options.get("norm_reward", was) != was:
        raise UsageError(
            f"load: norm_reward was {was}, and the run goes on with the statistics of its rewards, or without any; "
            f"leave it out, or take the weights alone: weights_only=True"
        )
    spec = env if isinstance(env, EnvSpec) or env is None else with_env(saved["env"], env)
    config = decode(saved, spec, extractors, **options)
    if policy is None and config.policy.policy not in BUILT_IN:
        raise UsageError(f"the run's policy was a module of its own ({config.policy.policy}); pass policy=... again")
    return config if place is None else replace(config, topology=place)


def _place_of(saved: dict[str, Any], options: dict[str, Any], weights_only: bool) -> TopologyConfig | None:
    """The saved place with other options, which are taken out of those of a load; None if it stays as it was."""
    _settle_devices(saved, options, weights_only)
    given = in_text({name: options.pop(name) for name in (*PLACES, "inference_device") if name in options})
    return moved(TopologyConfig(**saved), given) if given else None


def _settle_devices(saved: dict[str, Any], options: dict[str, Any], weights_only: bool) -> None:
    """SB3's `device` is the learner's; "cpu" is that of inference as well. Weights alone need the CPU, and get it."""
    device = options.pop("device", None)
    if device is not None:
        options["learner_device"] = device_of(device, options.get("learner_device"))
    if weights_only:
        options.setdefault("learner_device", "cpu")
    is_cpu = weights_only or (device is not None and options["learner_device"] == "cpu")
    if is_cpu and not saved["inference_device"].startswith("emulated"):  # which is the CPU, too
        options.setdefault("inference_device", "cpu")
