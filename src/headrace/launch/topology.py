"""The topology as data: which shards a run has, and where their actors, the policy and the learner run, and why.

    TopologyConfig (what the user said) --resolve--> Topology (what will run, with a reason for each choice)

The three choices are orthogonal: topology, max_lag, inference. A value that is not built yet is refused here, before
anything starts. Starts nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import UsageError, require_types

_TOPOLOGIES = {"auto": True, "inline": True, "threads": False, "processes": False, "ray": False, "fused": False}
_INFERENCE = {"auto": True, "local": True, "central": False}


@dataclass(frozen=True)
class TopologyConfig:
    """Where things run."""

    n_envs: int = 8
    """Environments in all, whoever hosts them."""
    topology: str = "auto"
    """inline, threads, processes, ray or fused; auto measures and says why."""
    workers: str = "auto"
    """Worker processes or threads; auto, or a number."""
    inference: str = "auto"
    """local: each actor runs the policy; central: one server does for all."""
    max_lag: int = 0
    """How many versions old data may be; 0 is synchronous."""
    shards: int = 0
    """Groups of environments that fill a slab together; 0 chooses. Never changes results in synchronous runs."""

    def __post_init__(self) -> None:
        require_types(self, {int: ("n_envs", "max_lag", "shards"), str: ("topology", "workers", "inference")})
        if self.n_envs < 1:
            raise UsageError(f"n_envs: expected at least 1, got {self.n_envs}")
        if not 0 <= self.shards <= self.n_envs:
            raise UsageError(f"shards: expected 0 (auto) to n_envs = {self.n_envs}, got {self.shards}")
        _require("topology", self.topology, _TOPOLOGIES)
        _require("inference", self.inference, _INFERENCE)
        if self.max_lag < 0:
            raise UsageError(f"max_lag: expected 0 or more, got {self.max_lag}")
        if self.max_lag > 0:
            raise UsageError(f"max_lag={self.max_lag} is not built yet; use 0 (synchronous)")
        if self.workers != "auto" and not self.workers.isdigit():
            raise UsageError(f"workers: expected auto or a number, got {self.workers!r}")
        if self.workers not in ("auto", "0", "1"):
            raise UsageError(f"workers={self.workers} is not built yet (topology=inline has none); use auto")


@dataclass(frozen=True)
class Topology:
    """What will run."""

    topology: str
    inference: str
    max_lag: int
    shards: tuple[range, ...]
    reasons: tuple[str, ...]

    @property
    def slabs_per_update(self) -> int:
        """W: one slab of every shard."""
        return len(self.shards)


def resolve(config: TopologyConfig) -> Topology:
    """Settle every `auto`, and say why."""
    reasons = []
    if config.topology == "auto":
        reasons.append("topology=inline: the only one built so far; no hand-over costs")
    if config.inference == "auto":
        reasons.append("inference=local: the actor runs in the learner's process")
    count = config.shards or 1
    if not config.shards:
        reasons.append("shards=1: one thread steps all environments, so one slab is the largest batch")
    return Topology("inline", "local", config.max_lag, tuple(split(config.n_envs, count)), tuple(reasons))


def split(n_envs: int, count: int) -> list[range]:
    """Env indices 0..n_envs-1 in `count` consecutive shards whose sizes differ by at most one."""
    small, extra = divmod(n_envs, count)
    shards, start = [], 0
    for shard in range(count):
        stop = start + small + (shard < extra)
        shards.append(range(start, stop))
        start = stop
    return shards


def _require(name: str, value: str, known: dict[str, bool]) -> None:
    if value not in known:
        raise UsageError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    if not known[value]:
        built = ", ".join(key for key, is_built in known.items() if is_built)
        raise UsageError(f"{name}={value} is not built yet; use one of {built}")
