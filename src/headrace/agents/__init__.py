"""LLM agents: many multi-turn text environments share one inference engine.

    tickets (groups) -> scheduler -> workers: prompt -> engine -> tokens -> parse -> env.step -> ... -> records

A group is `group_size` episodes of one task with one reset seed, scored together. It is the unit of seed, scheduling,
lag, failure and emission: every group that was handed out comes back exactly once, returned or failed.

What users import is here, by name; which file it lies in may change. Nothing is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "rollouts": ("AgentRollouts",),
    "plan": ("Rules",),
    "limits": ("Limits",),
    "records": ("Episode", "Failure", "Group", "TokenRow", "Turn", "fingerprint"),
    "metrics": ("summary",),
    "codec": ("ByteCodec", "Codec", "TokenizerCodec"),
    "engines.protocol": ("Completion", "Engine", "EngineStatistics", "Request"),
    "engines.batching": ("Batching",),
    "engines.scripted": ("Latency", "scripted"),
    "engines.in_process": ("in_process",),
    "engines.openai": ("OpenAIEngine",),
    "engines.servers": ("Server",),
    "engines.tiny": ("taught", "tiny_codec", "tiny_model"),
    "serve": ("RunningServer",),
    "environments.text_env": ("Step", "TextEnv", "TextEnvSpec", "TextForm"),
    "environments.adapters": ("adapted",),
    "environments.bandit": ("Bandit",),
    "environments.countdown": ("Countdown",),
    "environments.frozen_lake": ("FrozenLake",),
    "environments.lookup": ("Lookup",),
    "environments.sokoban": ("Sokoban",),
    "exports.parquet": ("read_parquet", "write_parquet"),
    "exports.trl": ("episode_reward", "trl_dataset", "trl_rollout_func"),
    "exports.verl": ("agent_loop_outputs", "left_out_episodes", "ragen_batch"),
}
_HOMES = {name: f"headrace.agents.{home}" for home, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.agents' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "headrace":
            raise
        raise ImportError(f"headrace.agents.{name}: {error}; pip install 'headrace[llm]'", name=error.name) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
