"""hr.evaluate_policy: SB3's, over environments and seeds of their own.

model's present weights + environments of the evaluation branch of its seed tree --> returns of whole episodes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from headrace.api.arguments import env_spec
from headrace.build import Parts
from headrace.collecting.plan import build_noise
from headrace.envs.building import build_envs
from headrace.envs.mended import mended
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import EnvSource, EnvSpec
from headrace.envs.vector_env import VectorEnv
from headrace.errors import SchemaError, UsageError
from headrace.evaluation.evaluate import Evaluated, evaluate
from headrace.inference.local import LocalInference
from headrace.memory.spaces import Leaves
from headrace.policies.networks import as_policy
from headrace.policies.threads import torch_threads

if TYPE_CHECKING:
    from headrace.api.model import Model

Array = npt.NDArray[Any]
_ENVS = 16


def evaluate_policy(
    model: Model,
    env: EnvSource | EnvSpec | gym.Env[Any, Any] | None = None,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """SB3's evaluate_policy: mean and standard deviation of the returns of whole episodes, or the lists themselves.

    Without `env`, the model's own environment, with seeds from the evaluation branch of its seed tree.
    `callback` is called after each episode with what there is so far; `warn` is for SB3's signature.
    """
    if n_eval_episodes < 1:
        raise UsageError(f"n_eval_episodes: expected at least 1, got {n_eval_episodes}")
    spec: EnvSpec | gym.Env[Any, Any] = model.parts.config.env
    if isinstance(env, gym.Env):
        spec = env
    elif env is not None:
        spec = env_spec(env)
    if render and isinstance(spec, EnvSpec):
        spec = replace(spec, kwargs={**spec.kwargs, "render_mode": "human"})
    result = evaluate_parts(model.parts, n_eval_episodes, deterministic, spec, callback, one_env=render)
    if reward_threshold is not None and not result.mean_reward > reward_threshold:
        raise AssertionError(f"mean reward below threshold: {result.mean_reward:.2f} < {reward_threshold:.2f}")
    if return_episode_rewards:
        return result.returns, result.lengths
    return result.mean_reward, result.std_reward


def evaluate_parts(
    parts: Parts,
    n_episodes: int,
    deterministic: bool = True,
    env: EnvSpec | gym.Env[Any, Any] | None = None,
    callback: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    one_env: bool = False,
) -> Evaluated:
    """Evaluate a run's present weights on environments of their own; the run itself is not touched."""
    spec, seed = env if env is not None else parts.config.env, parts.config.seed
    n_envs = 1 if one_env or isinstance(spec, gym.Env) else min(n_episodes, _ENVS)
    envs = _built(spec, n_envs, seed, parts.config.topology.nan_policy)
    try:
        for role, ours, theirs in (
            ("observation_space", parts.observation, envs.observation_space),
            ("action_space", parts.action, envs.action_space),
        ):
            if ours != theirs:
                raise SchemaError(f"evaluation: expected {role} {ours}, got {theirs}")
        inference = LocalInference(parts.module, parts.observation, parts.action, parts.tile)
        noise = build_noise(as_policy(parts.module).noise, range(n_envs), seed, Purpose.EVALUATION_NOISE)

        def act(obs: Leaves, row: int, out: Array) -> None:
            drawn = None if deterministic else noise.draw(np.full(n_envs, row), 1)[0]
            inference.act(obs, drawn, out)

        progress = None if callback is None else lambda done: callback({"episodes": done}, {})
        parts.module.eval()
        with torch_threads(1):
            return evaluate(envs, act, n_episodes, progress)
    finally:
        if not isinstance(spec, gym.Env):
            envs.close()


def _built(spec: EnvSpec | gym.Env[Any, Any], n_envs: int, seed: int, nan_policy: str) -> VectorEnv:
    """Environments of the evaluation branch; a user's own instance is borrowed."""
    if isinstance(spec, gym.Env):
        seed_of = partial(leaf, seed, Purpose.EVALUATION)
        return mended(SerialEnvs(lambda: spec, range(n_envs), seed_of), nan_policy)
    return build_envs(spec, range(n_envs), seed, Purpose.EVALUATION, nan_policy)
