"""What will run, and why, in words: for `plan()`, `--dry-run` and the live view."""

from __future__ import annotations

from headrace.build import Parts
from headrace.collecting.topology import Topology
from headrace.learning.algorithm import Algorithm


def plan_text(parts: Parts, algorithm: Algorithm) -> str:
    """A line each."""
    lines = [f"{name:<12} {value}" for name, value in facts(parts, algorithm).items()]
    return "\n".join([*lines, *(f"why          {reason}" for reason in parts.topology.reasons)])


def facts(parts: Parts, algorithm: Algorithm) -> dict[str, str]:
    """The plan in a few words each."""
    config, topology = parts.config, parts.topology
    n_steps, n_envs = config.topology.n_steps, config.topology.n_envs
    shards = len(topology.shards)
    return {
        "environment": f"{config.env.name} x {n_envs}, {type(parts.observation).__name__} -> "
        f"{type(parts.action).__name__}{f' ({config.env.origin})' if config.env.origin else ''}",
        "topology": f"{topology.topology}{_workers(topology)}, {shards} shard{'s'[: shards > 1]}, "
        f"max_lag {topology.max_lag}, inference {topology.inference}",
        "policy": f"{type(parts.module).__name__}, {parts.weights.flat.vector.numel():,} parameters, "
        f"tiles of {parts.tile}",
        "rollout": f"{n_steps} x {n_envs} = {n_steps * n_envs:,} steps",
        "algorithm": f"{config.algorithm.name}, {algorithm.summary}",
        "seed": str(config.seed),
    }


def _workers(topology: Topology) -> str:
    return "" if topology.topology == "inline" else f" with {topology.workers} worker{'s'[: topology.workers > 1]}"
