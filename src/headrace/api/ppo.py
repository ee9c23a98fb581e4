"""hr.PPO: proximal policy optimisation, with SB3's names and defaults. Knows keyword arguments; the rest is `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym

from headrace.api.arguments import (
    drawn_seed,
    env_spec,
    own_module,
    place,
    policy_config,
    require_device,
    require_known,
)
from headrace.api.model import Model
from headrace.envs.spec import EnvSource, EnvSpec, Wrapper
from headrace.errors import UsageError
from headrace.learning.config import PpoConfig
from headrace.learning.config import Schedule as Coefficient
from headrace.policies.policy import Module
from headrace.run_config import RunConfig

_ALGORITHM = tuple(field.name for field in fields(PpoConfig))
_PLACE = (
    "n_envs", "n_steps", "topology", "workers", "inference", "max_lag", "shards", "start_method", "spares",
    "pick_up_rows", "publish_every", "batch", "nan_policy", "out_of_bounds",
    "hang_floor_s", "hang_ceiling_s", "worker_max_memory_mb", "worker_max_episodes", "env_retries",
)  # fmt: skip


class PPO(Model):
    """Proximal policy optimisation over environments that headrace builds, seeds and steps."""

    algorithm = "ppo"

    def __init__(
        self,
        policy: str | Module,
        env: EnvSource | EnvSpec | gym.Env[Any, Any],
        learning_rate: Coefficient = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: Coefficient = 0.2,
        clip_range_vf: float | None = None,
        normalize_advantage: bool = True,
        ent_coef: Coefficient = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        target_kl: float | None = None,
        *,
        n_envs: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper] = (),
        action_repeat: int = 1,
        policy_kwargs: Mapping[str, Any] | None = None,
        gradients: str = "auto",
        learner_threads: int = 1,
        late: str = "weight",
        late_clip: float = 1.0,
        topology: str = "auto",
        workers: int | str = "auto",
        inference: str = "auto",
        max_lag: int = 0,
        shards: int = 0,
        start_method: str = "forkserver",
        spares: int = 1,
        pick_up_rows: int = -1,
        publish_every: int | str = 1,
        batch: str = "every_shard",
        nan_policy: str = "raise",
        out_of_bounds: str = "warn",
        hang_floor_s: float = 30.0,
        hang_ceiling_s: float = 300.0,
        worker_max_memory_mb: int = 0,
        worker_max_episodes: int = 0,
        env_retries: int = 100,
        seed: int | None = None,
        verbose: int = 0,
        device: Any = "auto",
        tensorboard_log: str | os.PathLike[str] | None = None,
        use_sde: bool = False,
        **unknown: Any,
    ) -> None:
        """SB3's arguments mean what they mean there. An `env` that is an instance is built anew n_envs times (1)."""
        given = locals()
        require_known("PPO", unknown, [name for name in given if name not in ("self", "unknown")])
        require_device(device)
        if use_sde:
            raise UsageError("use_sde: state-dependent exploration is not built; leave it out for Gaussian noise")
        if n_envs is None and isinstance(env, gym.Env):
            given["n_envs"] = 1
        config = RunConfig(
            env=env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=drawn_seed(seed),
            policy=policy_config(policy, policy_kwargs),
            algorithm=PpoConfig(**{name: given[name] for name in _ALGORITHM}),
            topology=place(**{name: given[name] for name in _PLACE}),
        )
        self._set_up(config, own_module(policy))
        self._verbose, self._instance = verbose, env if isinstance(env, gym.Env) else None
        self._log_folder = None if tensorboard_log is None else Path(tensorboard_log)
