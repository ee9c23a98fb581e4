"""Models of algorithms other than PPO: hr.IMPALA. Options by keyword; the rest is `Model`.

A further algorithm is one more class of two lines: its options come from its config (learning/config).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from headrace.api.arguments import (
    OF_ITS_OWN,
    device_of,
    drawn_seed,
    env_spec,
    extractors_given,
    number_of,
    own_module,
    place,
    policy_config,
    require_options,
)
from headrace.api.learn_arguments import shown
from headrace.api.model import Model
from headrace.api.other_names import OF_CALLS
from headrace.api.vec_env import VecEnv
from headrace.collecting.topology import TopologyConfig
from headrace.envs.instances import Instance
from headrace.envs.spec import EnvSource, EnvSpec, Wrapper
from headrace.keywords import in_words
from headrace.learning.config import AlgorithmConfig, ImpalaConfig
from headrace.policies.policy import Module
from headrace.run_config import RunConfig


class OtherModel(Model):
    """A model whose options are those of its algorithm's config and those that say where things run."""

    config: ClassVar[type[AlgorithmConfig]]

    def __init__(
        self,
        policy: str | Module,
        env: EnvSource | EnvSpec | Instance | VecEnv,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper] = (),
        action_repeat: int = 1,
        policy_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        verbose: int = 0,
        device: Any = "auto",
        tensorboard_log: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        own, where = ({field.name for field in fields(kind)} for kind in (self.config, TopologyConfig))
        taken = inspect.signature(type(self)).parameters.values()
        known = own | where | set(OF_ITS_OWN) | {one.name for one in taken if one.kind is not one.VAR_KEYWORD}
        require_options(type(self).__name__, options, sorted(known))
        options["learner_device"] = device_of(device, options.get("learner_device"))
        seen = shown(verbose, tensorboard_log)
        places = {name: value for name, value in options.items() if name in where}
        config = RunConfig(
            env=env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=drawn_seed(seed),
            policy=policy_config(policy, policy_kwargs, options),
            extractors=extractors_given(policy_kwargs),
            algorithm=self.config(**{name: value for name, value in options.items() if name in own}),
            topology=place(**{"n_steps": self.config.default_n_steps, "n_envs": number_of(env)} | places),
        )
        self._set_up(config, own_module(policy))
        self._verbose, self._log_folder = seen


@in_words(OF_CALLS)
class IMPALA(OtherModel):
    """Actor-critic with V-trace (IMPALA's loss): one pass over each batch, corrected for the policy that acted."""

    algorithm, config = "impala", ImpalaConfig
