"""hr.PPO: proximal policy optimisation, with SB3's names and defaults. Knows keyword arguments; the rest is `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from headrace.api.arguments import (
    device_of,
    drawn_seed,
    env_spec,
    extractors_given,
    is_single,
    number_of,
    own_module,
    place,
    policy_config,
    require_options,
    takes_preset,
)
from headrace.api.learn_arguments import shown
from headrace.api.model import Model
from headrace.api.other_names import OF_CALLS
from headrace.api.sb3_words import MODEL, require_nothing
from headrace.api.tuning import tuned_if
from headrace.api.vec_env import VecEnv
from headrace.envs.instances import Instance
from headrace.envs.spec import EnvSource, EnvSpec, Wrapper
from headrace.keywords import in_words
from headrace.learning.config import PpoConfig
from headrace.learning.config import Schedule as Coefficient
from headrace.policies.policy import Module
from headrace.run_config import RunConfig

_ALGORITHM = tuple(field.name for field in fields(PpoConfig))
_PLACE = (
    "n_envs", "n_steps", "topology", "workers", "inference", "max_lag", "shards", "start_method", "spares",
    "pick_up_rows", "publish_every", "batch", "nan_policy", "out_of_bounds",
    "hang_floor_s", "hang_ceiling_s", "worker_max_memory_mb", "worker_max_episodes", "env_retries",
    "stats_window_size",
    "inference_device", "double_buffering", "inference_servers", "inference_max_batch", "inference_max_wait_ms",
)  # fmt: skip


@in_words(OF_CALLS)
class PPO(Model):
    """Proximal policy optimisation over environments that headrace builds, seeds and steps."""

    algorithm = "ppo"

    @takes_preset
    def __init__(
        self,
        policy: str | Module,
        env: EnvSource | EnvSpec | Instance | VecEnv,
        learning_rate: Coefficient = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: Coefficient = 0.2,
        clip_range_vf: Coefficient | None = None,
        normalize_advantage: bool = True,
        ent_coef: Coefficient = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        *,
        target_kl: float | None = None,
        action_masks: bool = False,
        norm_obs: bool = False,
        norm_reward: bool = False,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        norm_obs_keys: Sequence[str] | None = None,
        preset: str | None = None,
        n_envs: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        wrappers: Sequence[Wrapper] = (),
        action_repeat: int = 1,
        policy_kwargs: Mapping[str, Any] | None = None,
        gradients: str = "auto",
        learner_threads: int = 1,
        learner_device: Any = None,
        late: str = "weight",
        late_clip: float = 1.0,
        topology: str = "auto",
        workers: int | str = "auto",
        inference: str = "local",
        inference_device: str | Sequence[str] = "cpu",
        double_buffering: str = "auto",
        inference_servers: int = 1,
        inference_max_batch: int = 0,
        inference_max_wait_ms: float = 1.0,
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
        tune: bool | float = False,
        seed: int | None = None,
        verbose: int = 0,
        device: Any = "auto",
        tensorboard_log: str | os.PathLike[str] | None = None,
        stats_window_size: int = 100,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: Any = None,
        rollout_buffer_kwargs: Any = None,
        _init_setup_model: bool = True,
        **unknown: Any,
    ) -> None:
        """SB3's arguments mean what they mean there. An instance as `env` is built anew, n_envs times (1; as many as a
        vector environment has). `preset` ("atari") names defaults for the arguments that are not given
        (headrace.presets). With `action_masks`, actions that the environment forbids are never taken. norm_obs,
        norm_reward, clip_obs, clip_reward and norm_obs_keys are VecNormalize's. `tune` (True, or seconds) finds the
        fastest n_envs, workers, topology and inference for the same batch; of these, arguments that are given stay.
        """
        given = locals()
        require_options("PPO", unknown, [name for name in given if name not in ("self", "unknown")])
        require_nothing(given, MODEL)
        given["learner_device"] = device_of(device, learner_device)
        seen = shown(verbose, tensorboard_log)
        if n_envs is None:
            given["n_envs"] = number_of(env)
        config = RunConfig(
            env=env_spec(env, env_kwargs, wrappers, action_repeat),
            seed=drawn_seed(seed),
            policy=policy_config(policy, policy_kwargs, given),
            extractors=extractors_given(policy_kwargs),
            algorithm=PpoConfig(**{name: given[name] for name in _ALGORITHM}),
            topology=place(**{name: given[name] for name in _PLACE}),
        )
        module = own_module(policy)
        self.tuned = tuned_if(tune, config, module, given["n_envs"] is not None)
        self._set_up(config if self.tuned is None else self.tuned.config, module)
        self._verbose, self._log_folder = seen
        self._instance = env if is_single(env) else None
