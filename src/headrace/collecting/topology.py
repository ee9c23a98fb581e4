"""The topology as data: which shards a run has, and where their actors, the policy and the learner run, and why.

    TopologyConfig (what the user said) --resolve--> Topology (what will run, with a reason for each choice)

The three choices are orthogonal: topology, max_lag, inference. A value that is not built yet is refused here, before
anything starts. Starts nothing itself.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.collecting.forecast import Forecast
from headrace.collecting.placing import Place, not_measured, settle
from headrace.errors import UsageError, require_types
from headrace.inference.device_names import devices_of
from headrace.pace import Pace

_TOPOLOGIES = {"auto": True, "inline": True, "threads": True, "processes": True, "ray": False, "fused": False}
_MOST_SPARES = 64
_INFERENCE = {"auto": True, "local": True, "central": True}
_DOUBLE_BUFFERING = {"auto": True, "on": True, "off": True}
_NAN_POLICIES = {"raise": True, "drop": True, "clamp": True}
_OUT_OF_BOUNDS = {"warn": True, "refuse": True, "ignore": True}


MAX_WINDOW = 10_000
_OF_SERVERS = ("inference_servers", "inference_max_batch", "inference_max_wait_ms")
PLACES = (
    "topology", "workers", "shards", "inference", "inference_servers", "inference_max_batch", "inference_max_wait_ms",
    "double_buffering", "start_method", "spares", "out_of_bounds",
    "hang_floor_s", "hang_ceiling_s", "worker_max_memory_mb", "worker_max_episodes", "env_retries",
    "stats_window_size",
)  # fmt: skip
"""Options that a run may change on its way: they decide no bit of a synchronous one."""
DEVICES = ("inference_device", "learner_device")
"""Those that it may change as well, although a GPU rounds in its own way."""
_LONGEST_S = 1e8  # three years: more is a mistake, and timers do not take it
_LONGEST_WAIT_MS = 1000.0


@dataclass(frozen=True)
class WorkerLimits:
    """When a worker process counts as hung, and when it is replaced by a fresh one."""

    hang_floor_s: float = 30.0
    hang_ceiling_s: float = 300.0
    max_memory_mb: int = 0
    max_episodes: int = 0
    env_retries: int = 100

    def __post_init__(self) -> None:
        for name in ("max_memory_mb", "max_episodes"):
            if getattr(self, name) < 0:
                raise UsageError(f"worker_{name}: expected 0 (no limit) or more, got {getattr(self, name)}")
        if self.env_retries < 0:
            raise UsageError(f"env_retries: expected 0 (end at once) or more, got {self.env_retries}")
        if not 0 < self.hang_floor_s <= _LONGEST_S:
            raise UsageError(f"hang_floor_s: expected more than 0 seconds, got {self.hang_floor_s}")
        if not (self.hang_ceiling_s == 0 or self.hang_floor_s <= self.hang_ceiling_s <= _LONGEST_S):
            raise UsageError(
                f"hang_ceiling_s: expected 0 (never) or at least hang_floor_s = {self.hang_floor_s:g}, "
                f"got {self.hang_ceiling_s}"
            )


@dataclass(frozen=True)
class TopologyConfig:
    """Where things run."""

    n_envs: int = 8
    """Number of environments in all."""
    n_steps: int = 2048
    """Rows per rollout: steps of each environment between two updates."""
    topology: str = "auto"
    """Where environments run: inline, threads or processes; auto measures and says why."""
    workers: str = "auto"
    """Worker processes or threads; auto, or a number."""
    inference: str = "local"
    """Where the policy runs: local (in each worker) or, with worker processes, central (in servers); auto measures."""
    inference_device: str = "cpu"
    """What the policy acts on: cpu, cuda or cuda:N; several, with commas, are dealt out to the inference servers.
    For tests, emulated:2ms+5us takes that long a batch and a row."""
    inference_servers: int = 1
    """Processes that run the policy with inference=central; the workers are dealt out to them."""
    inference_max_batch: int = 0
    """Environments that an inference server acts for at once; 0: as many as ask."""
    inference_max_wait_ms: float = 1.0
    """How long an inference server waits for more workers to ask before it acts for those that have."""
    double_buffering: str = "auto"
    """inference=central: workers step half of their environments while the others wait; on, off, or auto (measures)."""
    max_lag: int = 0
    """How many updates old the weights that collect may be; 0 is synchronous."""
    shards: int = 0
    """Groups of environments that fill one rollout buffer together; 0 chooses. Never changes synchronous results."""
    start_method: str = "forkserver"
    """How worker processes are started: forkserver (fast) or spawn."""
    spares: int = 1
    """Processes that wait, imports done, to take the place of a worker that dies; 0: start one then."""
    pick_up_rows: int = -1
    """Rows after which workers look for newer weights; 0: only between rollouts, -1: 0 if synchronous, else 8."""
    publish_every: str = "1"
    """How often new weights are published: every so many updates, or seconds as in 0.5s."""
    batch: str = "every_shard"
    """What an update learns from: every_shard (one rollout of each) or first_come (as many, in order of arrival)."""
    nan_policy: str = "raise"
    """If an observation or reward is NaN or infinite: raise, drop the episode, or clamp the number."""
    out_of_bounds: str = "warn"
    """If an observation lies outside its Box: warn once, refuse (an error), or ignore."""
    stats_window_size: int = 100
    """Episodes over which rollout/ep_rew_mean and rollout/ep_len_mean are averaged."""
    hang_floor_s: float = 30.0
    """A worker process without progress counts as hung after 10 times the slowest step seen, but not before this."""
    hang_ceiling_s: float = 300.0
    """... and at the latest after this, which also holds before a step was seen; 0: never."""
    worker_max_memory_mb: int = 0
    """Replace a worker process that uses more memory of its own (for environments that leak); 0: no limit."""
    worker_max_episodes: int = 0
    """Replace a worker process after so many episodes; 0: never."""
    env_retries: int = 100
    """How often in a run a worker process whose environment raised is replaced; 0: the run ends at once."""

    def __post_init__(self) -> None:
        require_types(
            self,
            {
                int: (
                    "n_envs",
                    "n_steps",
                    "max_lag",
                    "shards",
                    "spares",
                    "pick_up_rows",
                    "worker_max_memory_mb",
                    "worker_max_episodes",
                    "env_retries",
                    "stats_window_size",
                    "inference_servers",
                    "inference_max_batch",
                ),
                float: ("hang_floor_s", "hang_ceiling_s", "inference_max_wait_ms"),
                str: (
                    "topology",
                    "workers",
                    "inference",
                    "inference_device",
                    "start_method",
                    "batch",
                    "publish_every",
                    "nan_policy",
                    "out_of_bounds",
                ),
            },
        )
        for name in ("n_envs", "n_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected a whole number of at least 1, got {getattr(self, name)}")
        if not 1 <= self.stats_window_size <= MAX_WINDOW:
            raise UsageError(f"stats_window_size: expected 1 to {MAX_WINDOW:,}, got {self.stats_window_size}")
        if not 0 <= self.shards <= self.n_envs:
            raise UsageError(f"shards: expected 0 (auto) to n_envs = {self.n_envs}, got {self.shards}")
        _require("topology", self.topology, _TOPOLOGIES)
        _require("inference", self.inference, _INFERENCE)
        if self.inference == "central" and self.topology not in ("auto", "processes"):
            raise UsageError(f"inference=central needs topology=processes, got {self.topology}; or use inference=local")
        _require("double_buffering", self.double_buffering, _DOUBLE_BUFFERING)
        if self.double_buffering == "on" and self.inference == "local":
            raise UsageError("double_buffering=on needs inference=central: a worker that acts itself does not wait")
        if not 1 <= self.inference_servers <= self.n_envs:
            raise UsageError(f"inference_servers: expected 1 to n_envs = {self.n_envs}, got {self.inference_servers}")
        devices = len(devices_of(self.inference_device))
        if devices > 1 and self.inference != "central":
            raise UsageError(
                f"inference_device: {devices} devices need inference=central, whose servers share them; with "
                f"inference={self.inference}, name one"
            )
        if devices > self.inference_servers:
            raise UsageError(
                f"inference_device: {devices} devices need as many servers, got inference_servers = "
                f"{self.inference_servers}; a server acts on one device"
            )
        if self.inference_max_batch < 0:
            raise UsageError(f"inference_max_batch: expected 0 (all) or more, got {self.inference_max_batch}")
        if not 0 <= self.inference_max_wait_ms <= _LONGEST_WAIT_MS:
            raise UsageError(
                f"inference_max_wait_ms: expected 0 to {_LONGEST_WAIT_MS:g}, got {self.inference_max_wait_ms}"
            )
        if self.max_lag < 0:
            raise UsageError(f"max_lag: expected 0 or more, got {self.max_lag}")
        if self.workers != "auto" and not (self.workers.isascii() and self.workers.isdigit() and int(self.workers)):
            raise UsageError(f"workers: expected auto or a number of at least 1, got {self.workers!r}")
        if self.topology == "inline" and self.workers not in ("auto", "1"):
            raise UsageError(f"workers={self.workers}: topology=inline has none; use threads, processes or auto")
        if self.start_method not in ("forkserver", "spawn"):
            raise UsageError(f"start_method: expected forkserver or spawn, got {self.start_method!r}")
        if not 0 <= self.spares <= _MOST_SPARES:
            raise UsageError(f"spares: expected 0 to {_MOST_SPARES}, got {self.spares}")
        if self.batch not in ("every_shard", "first_come"):
            raise UsageError(f"batch: expected every_shard or first_come, got {self.batch!r}")
        if self.batch == "first_come" and self.max_lag == 0:
            raise UsageError("batch=first_come needs max_lag of at least 1: a synchronous update waits for every shard")
        _require("nan_policy", self.nan_policy, _NAN_POLICIES)
        _require("out_of_bounds", self.out_of_bounds, _OUT_OF_BOUNDS)
        publishing(self.publish_every)
        self.worker_limits  # noqa: B018  # checked by being built
        if self.pick_up_rows < -1:
            raise UsageError(f"pick_up_rows: expected -1 (auto), 0 or more, got {self.pick_up_rows}")
        if self.pick_up_rows > 0 and self.max_lag == 0:
            raise UsageError(
                "pick_up_rows needs max_lag of at least 1: synchronous actors change weights between slabs"
            )

    @property
    def worker_limits(self) -> WorkerLimits:
        """What worker processes are held to."""
        return WorkerLimits(
            self.hang_floor_s, self.hang_ceiling_s, self.worker_max_memory_mb, self.worker_max_episodes,
            self.env_retries,
        )  # fmt: skip


@dataclass(frozen=True)
class Topology:
    """What will run, and where."""

    topology: str
    inference: str
    max_lag: int
    shards: tuple[range, ...]
    reasons: tuple[str, ...]
    workers: int = 1
    start_method: str = "forkserver"
    pick_up_rows: int = 0
    is_even: bool = True
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    spares: int = 1
    servers: int = 0
    max_batch: int = 0
    max_wait_s: float = 0.0
    turns: int = 1
    """Shards that a worker steps in turns (double buffering)."""
    promised: Mapping[str, float] = field(default_factory=dict)
    """Steps/s that were predicted for each placement of the policy, the chosen one first; empty: nothing was."""

    def encode(self) -> dict[str, int | str]:
        """Where things run, for result.json: what was asked for may have been auto."""
        return {
            "topology": self.topology, "workers": self.workers, "shards": len(self.shards), "max_lag": self.max_lag,
            "inference": self.inference, "servers": self.servers, "turns": self.turns,
        }  # fmt: skip

    @property
    def forecast(self) -> Forecast:
        """What was predicted, to be compared with what is reached."""
        return Forecast(self.promised, self.workers * self.turns)

    @property
    def pace(self) -> Pace:
        """How far collecting may run ahead: an update learns from one slab of every shard, or as many."""
        return Pace(self.max_lag, len(self.shards))


@dataclass(frozen=True)
class Choice:
    """A place and a number of workers, and why."""

    topology: str
    workers: int
    reason: str


def resolve(
    config: TopologyConfig,
    choose: Callable[[TopologyConfig], Choice],
    place: Place = not_measured,
) -> Topology:
    """Settle every `auto`, and say why. `choose` and `place` are asked where a measurement must decide."""
    reasons = []
    topology, workers = config.topology, 1 if config.workers == "auto" else int(config.workers)
    if topology == "auto" or (topology != "inline" and config.workers == "auto"):
        choice = choose(config)
        topology, workers = choice.topology, choice.workers
        reasons.append(choice.reason)
    if topology == "inline":
        workers = 1
    if workers > config.n_envs:
        raise UsageError(
            f"workers: expected at most n_envs = {config.n_envs}, got {workers}; raise n_envs, or ask for fewer"
        )
    placement = settle(config, topology, workers, place)
    inference, turns = placement.inference, placement.turns
    if placement.reason:
        reasons.append(placement.reason)
    count = config.shards or turns * workers
    if count < workers:
        raise UsageError(f"shards: expected at least workers = {workers}, got {count}; a worker needs one to fill")
    if not config.shards:
        groups = "two groups of environments, which take turns," if turns > 1 else "one group of environments"
        reasons.append(f"shards={count}: {groups} for each worker")
    if topology != "processes" and (config.worker_max_memory_mb or config.worker_max_episodes):
        reasons.append("worker_max_memory_mb, worker_max_episodes: no effect, there are no worker processes")
    asked = [name for name in _OF_SERVERS if getattr(config, name) != getattr(TopologyConfig, name)]
    if asked and inference == "local":
        reasons.append(f"{', '.join(asked)}: no effect, the policy runs where the environments do (inference=local)")
    servers = config.inference_servers if inference == "central" else 0
    if servers > count:
        raise UsageError(f"inference_servers: expected at most shards = {count}, got {servers}")
    rows = config.pick_up_rows if config.pick_up_rows >= 0 else 8 if config.max_lag else 0
    return Topology(
        topology, inference, config.max_lag, tuple(split(config.n_envs, count)), tuple(reasons), workers,
        config.start_method, rows, config.batch == "every_shard", config.worker_limits, config.spares,
        servers, config.inference_max_batch, config.inference_max_wait_ms / 1000.0, turns, placement.promised,
    )  # fmt: skip


def publishing(text: str) -> Callable[[int, float], bool]:
    """Whether it is time to publish, by the updates so far and the seconds since the last publish."""
    try:
        updates, seconds = (0, float(text[:-1])) if text.endswith("s") else (int(text), 0.0)
    except ValueError:
        updates, seconds = 0, 0.0
    if updates < 1 and not 0 < seconds < float("inf"):
        raise UsageError(f"publish_every: expected updates, as in 1, or seconds, as in 0.5s, got {text!r}")
    return lambda done, since_s: done % updates == 0 if updates else since_s >= seconds


def split(n_envs: int, count: int) -> list[range]:
    """Env indices 0..n_envs-1 in `count` consecutive shards whose sizes differ by at most one."""
    small, extra = divmod(n_envs, count)
    shards, start = [], 0
    for shard in range(count):
        stop = start + small + (shard < extra)
        shards.append(range(start, stop))
        start = stop
    return shards


def _require(name: str, value: object, known: dict[str, bool]) -> None:
    built = [key for key, is_built in known.items() if is_built]
    if not isinstance(value, str) or value not in known:
        close = difflib.get_close_matches(str(value), built, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"{name}: expected one of {', '.join(built)}, got {value!r}{hint}")
    if not known[value]:
        raise UsageError(f"{name}={value} is not built yet; use one of {', '.join(built)}")
