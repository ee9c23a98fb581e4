"""Models of algorithms other than PPO: hr.IMPALA. Options by keyword; the rest is `Model`.

A further algorithm is one more class of two lines: its options come from its config (learning/config).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from headrace.api.arguments import drawn_seed, env_spec, own_module, place, policy_config
from headrace.api.model import Model
from headrace.collecting.topology import TopologyConfig
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import UsageError
from headrace.learning.config import AlgorithmConfig, ImpalaConfig
from headrace.policies.policy import Module
from headrace.run_config import RunConfig


class OtherModel(Model):
    """A model whose options are those of its algorithm's config and those that say where things run."""

    config: ClassVar[type[AlgorithmConfig]]

    def __init__(
        self,
        policy: str | Module,
        env: EnvSource | EnvSpec,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[EnvSource] = (),
        action_repeat: int = 1,
        policy_kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
        verbose: int = 0,
        **options: Any,
    ) -> None:
        own, where = ({field.name for field in fields(kind)} for kind in (self.config, TopologyConfig))
        for name in options:
            if name not in own | where:
                close = difflib.get_close_matches(name, own | where, n=1)
                hint = f"did you mean {close[0]}?" if close else f"expected some of {', '.join(sorted(own | where))}"
                raise UsageError(f"unknown option {name}: {hint}")
        places = {name: value for name, value in options.items() if name in where}
        config = RunConfig(
            env=env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=drawn_seed(seed),
            policy=policy_config(policy, policy_kwargs),
            algorithm=self.config(**{name: value for name, value in options.items() if name in own}),
            topology=place(**{"n_steps": self.config.default_n_steps} | places),
        )
        self._set_up(config, own_module(policy))
        self._verbose = verbose


class IMPALA(OtherModel):
    """Actor-critic with V-trace (IMPALA's loss): one pass over each batch, corrected for the policy that acted."""

    algorithm, config = "impala", ImpalaConfig
