"""hr.IMPALA: actor-critic with V-trace. Knows keyword arguments; the rest is `Model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from headrace.api.arguments import PLACE_OPTIONS, drawn_seed, env_spec, own_module, place, policy_config
from headrace.api.model import Model
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.errors import UsageError
from headrace.learning.config import ImpalaConfig
from headrace.policies.policy import Module
from headrace.run_config import RunConfig

_ALGORITHM = tuple(field.name for field in fields(ImpalaConfig))


class IMPALA(Model):
    """Actor-critic with V-trace: one pass over each batch, corrected for the policy that acted.

    Options are those of the algorithm (learning_rate, batch_size, gamma, gae_lambda, late_clip, ent_coef, vf_coef,
    max_grad_norm, learner_threads) and those of PPO that say where things run (n_envs, n_steps, topology, workers,
    max_lag ...).
    """

    algorithm = "impala"

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
        unknown = [name for name in options if name not in (*_ALGORITHM, *PLACE_OPTIONS)]
        if unknown:
            raise UsageError(f"unknown option {unknown[0]}: expected one of {', '.join((*_ALGORITHM, *PLACE_OPTIONS))}")
        where = {"n_steps": 32} | {name: value for name, value in options.items() if name in PLACE_OPTIONS}
        config = RunConfig(
            env=env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=drawn_seed(seed),
            policy=policy_config(policy, policy_kwargs),
            algorithm=ImpalaConfig(**{name: value for name, value in options.items() if name in _ALGORITHM}),
            topology=place(**where),
        )
        self._set_up(config, own_module(policy))
        self._verbose = verbose
