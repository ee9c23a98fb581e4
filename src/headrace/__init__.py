"""headrace collects rollouts from Gymnasium environments and trains torch policies on them.

    import headrace as hr
    model = hr.PPO("MlpPolicy", "CartPole-v1", n_envs=64, n_steps=32)
    model.learn(total_timesteps=150_000)

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import sys
from typing import Any

__version__ = "0.1.0"
__all__ = [
    "IMPALA",
    "PPO",
    "AgentRollouts",
    "BaseCallback",
    "Batch",
    "CallbackList",
    "CheckpointCallback",
    "CheckpointError",
    "Collector",
    "ConsentError",
    "EnvError",
    "EnvSpec",
    "EvalCallback",
    "Evaluation",
    "EveryNTimesteps",
    "HeadraceError",
    "JournalError",
    "NoiseSpec",
    "NumericsError",
    "ReplayError",
    "RolloutWriter",
    "SchemaError",
    "StopTrainingOnMaxEpisodes",
    "StopTrainingOnNoModelImprovement",
    "StopTrainingOnRewardThreshold",
    "UsageError",
    "check_env",
    "evaluate_policy",
    "export_policy",
    "export_rollouts",
    "recorded_episodes",
    "replay",
]

_HOMES = {
    "PPO": "headrace.api.ppo",
    "IMPALA": "headrace.api.others",
    "AgentRollouts": "headrace.agents.rollouts",
    "Collector": "headrace.api.collector",
    "BaseCallback": "headrace.api.callbacks",
    "CallbackList": "headrace.api.callbacks",
    "CheckpointCallback": "headrace.api.stock_callbacks",
    "EvalCallback": "headrace.api.stock_callbacks",
    "EveryNTimesteps": "headrace.api.stock_callbacks",
    "StopTrainingOnMaxEpisodes": "headrace.api.stock_callbacks",
    "StopTrainingOnNoModelImprovement": "headrace.api.stock_callbacks",
    "StopTrainingOnRewardThreshold": "headrace.api.stock_callbacks",
    "Batch": "headrace.learning.batch",
    "evaluate_policy": "headrace.api.evaluation",
    "export_policy": "headrace.api.export",
    "replay": "headrace.api.replay",
    "recorded_episodes": "headrace.api.replay",
    "export_rollouts": "headrace.api.rollouts",
    "RolloutWriter": "headrace.api.rollouts",
    "check_env": "headrace.evaluation.check",
    "EnvSpec": "headrace.envs.spec",
    "NoiseSpec": "headrace.policies.noise_spec",
    "Evaluation": "headrace.policies.policy",
    **dict.fromkeys(
        ("CheckpointError", "ConsentError", "EnvError", "HeadraceError", "JournalError", "NumericsError", "ReplayError",
         "SchemaError", "UsageError"),
        "headrace.errors",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from headrace.api.other_names import module_hint

        hint = module_hint(name)
        if hint and sys._getframe(1).f_code.co_name == "_handle_fromlist":  # from headrace import ...
            raise ImportError(f"cannot import name {name!r} from 'headrace'{hint}", name=name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}{hint}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
