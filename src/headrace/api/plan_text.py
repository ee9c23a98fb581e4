"""What will run, and why, in words: for `plan()`, `--dry-run` and the live view."""

from __future__ import annotations

from headrace.build import Parts
from headrace.collecting.topology import Topology
from headrace.inference.device_names import CPU
from headrace.learning.algorithm import Algorithm
from headrace.memory.spaces import left_out_of


def plan_text(parts: Parts, algorithm: Algorithm) -> str:
    """A line each."""
    lines = [f"{name:<12} {value}" for name, value in facts(parts, algorithm).items()]
    return "\n".join([*lines, *(f"why          {reason}" for reason in parts.topology.reasons)])


def described(kind: str, parts: Parts, steps: int) -> str:
    """A model in one line."""
    config = parts.config
    return f"{kind}({config.policy.policy!r}, {config.env.name!r}, n_envs={config.topology.n_envs}) at {steps:,} steps"


def facts(parts: Parts, algorithm: Algorithm) -> dict[str, str]:
    """The plan in a few words each."""
    config, topology = parts.config, parts.topology
    n_steps, n_envs = config.topology.n_steps, config.topology.n_envs
    shards = len(topology.shards)
    left_out = {"left out": f"{', '.join(left_out_of(parts.observation))}: text, which no policy sees"}
    return {
        "environment": f"{config.env.name} x {n_envs}, {type(parts.observation).__name__} -> "
        f"{type(parts.action).__name__}{f' ({config.env.origin})' if config.env.origin else ''}",
        **(left_out if left_out_of(parts.observation) else {}),
        "topology": f"{topology.topology}{_workers(topology)}, {shards} shard{'s'[: shards > 1]}, "
        f"max_lag {topology.max_lag}, inference {_inference(parts)}",
        "policy": f"{type(parts.module).__name__}, {parts.weights.flat.vector.numel():,} parameters, "
        f"tiles of {parts.tile}",
        **({"features": features} if (features := getattr(parts.module, "summary", None)) else {}),
        "rollout": f"{n_steps} x {n_envs} = {n_steps * n_envs:,} steps{_one_minibatch(parts)}",
        "algorithm": f"{config.algorithm.name}, {algorithm.summary}",
        "seed": str(config.seed),
    }


def _one_minibatch(parts: Parts) -> str:
    config = parts.config
    is_short = config.topology.n_steps * config.topology.n_envs < config.algorithm.batch_size
    return f", fewer than batch_size {config.algorithm.batch_size:,}: one minibatch" if is_short else ""


def _workers(topology: Topology) -> str:
    return "" if topology.topology == "inline" else f" with {topology.workers} worker{'s'[: topology.workers > 1]}"


def _inference(parts: Parts) -> str:
    device = parts.config.topology.inference_device
    buffered = ", double-buffered" if parts.topology.turns > 1 else ""
    return f"{parts.topology.inference}{buffered}{'' if device == CPU else f' on {device}'}"
