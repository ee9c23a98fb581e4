"""headrace collects rollouts from Gymnasium environments and trains torch policies on them.

    import headrace as hr
    model = hr.PPO("MlpPolicy", "CartPole-v1", n_envs=64, n_steps=32)
    model.learn(total_timesteps=150_000)

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = [
    "IMPALA",
    "PPO",
    "AgentRollouts",
    "BaseCallback",
    "CheckpointCallback",
    "Collector",
    "EnvSpec",
    "EvalCallback",
    "Evaluation",
    "NoiseSpec",
    "StopTrainingOnRewardThreshold",
    "check_env",
    "evaluate_policy",
    "recorded_episodes",
    "replay",
]

_HOMES = {
    "PPO": "headrace.api.ppo",
    "IMPALA": "headrace.api.others",
    "AgentRollouts": "headrace.agents.rollouts",
    "Collector": "headrace.api.collector",
    "BaseCallback": "headrace.api.callbacks",
    "CheckpointCallback": "headrace.api.callbacks",
    "EvalCallback": "headrace.api.callbacks",
    "StopTrainingOnRewardThreshold": "headrace.api.callbacks",
    "evaluate_policy": "headrace.api.evaluation",
    "replay": "headrace.api.replay",
    "recorded_episodes": "headrace.api.replay",
    "check_env": "headrace.evaluation.check",
    "EnvSpec": "headrace.envs.spec",
    "NoiseSpec": "headrace.policies.noise",
    "Evaluation": "headrace.policies.policy",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
