"""Where the policy should run: a pure function of what was measured, with the steps/s that each placement promises.

    Costs (a step, the policy by rows, a round trip) · Layout (workers, environments, servers) ──promises──> steps/s of
    local, central, central with double buffering ──place──> Placement: the best one, and why

One *cycle* is one step of all environments. What bounds it is whatever is busy all the time: a worker that steps and
acts one after the other, the device, or the cores of the machine. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.collecting.placing import Placement

LOCAL, CENTRAL, BUFFERED = "local", "central", "double-buffered"
WORTH_MEASURING = 20_000  # steps of a session; one of fewer is over soon
_HAND_OVER_S = 400e-6  # per rollout and worker: lease, wake, commit, wake
_ENTER_S = 0.4e-6  # per step: the reader's ledger and journal
_CROWDED_S, _CROWDED = 1e-3, 0.7  # what a server waits for a core while workers use more than so much of all
_LEAST_GAIN = 1.03  # that the simpler placement must be beaten by


@dataclass(frozen=True)
class Time:
    """Of something: seconds until it is over, and those of a core that it takes."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Costs:
    """What was measured. `acting` is by the number of rows that act together."""

    step: Time
    """Of one environment."""
    row: Time
    """Of a worker, for a row of its rollout: what does not depend on the number of environments."""
    acting: Mapping[int, Time]
    round_trip: Time
    """A question and its answer, without the policy; the core time is that of both sides."""
    slot: Time
    """Of a server, for each further shard in a batch."""
    cores: float
    """That are free for this run."""
    has_one_queue: bool = False
    """The policy acts on a device that processes share, not on their own cores."""


@dataclass(frozen=True)
class Layout:
    """What is to be placed."""

    n_envs: int
    n_steps: int
    workers: int
    servers: int = 1
    devices: int = 1
    """That the servers are dealt out to, if they act on devices."""
    max_batch: int = 0
    """Environments that a server acts for at once; 0: as many as there are. Those of a shard stay together."""

    @property
    def per_worker(self) -> int:
        """Environments of the largest worker."""
        return -(-self.n_envs // self.workers)

    def per_batch(self, turns: int) -> int:
        """Environments of the largest batch of a server."""
        every, shard = -(-self.n_envs // (self.servers * turns)), -(-self.per_worker // turns)
        return min(every, max(self.max_batch // shard, 1) * shard) if self.max_batch else every

    def batches(self, turns: int) -> int:
        """Of a server, for all who ask it at the same time."""
        return -(-self.n_envs // (self.servers * turns * self.per_batch(turns)))

    def rows(self, can_buffer: bool) -> set[int]:
        """All numbers of rows whose time matters."""
        return {self.per_worker, self.per_batch(1), *([self.per_batch(2)] if can_buffer else [])}


def promises(costs: Costs, layout: Layout, kinds: tuple[str, ...] = (LOCAL, CENTRAL, BUFFERED)) -> dict[str, float]:
    """Steps per second while collecting, by placement."""
    cycles = {LOCAL: _local_s, CENTRAL: _central_s, BUFFERED: _buffered_s}
    steps = layout.n_envs * layout.n_steps
    reader_s = _HAND_OVER_S * layout.workers + _ENTER_S * steps
    return {kind: steps / (layout.n_steps * cycles[kind](costs, layout) + reader_s) for kind in kinds}


def place(costs: Costs, layout: Layout, kinds: tuple[str, ...]) -> Placement:
    """The best of some placements; the first of them unless another one is better by more than nothing."""
    promised = promises(costs, layout, kinds)
    best = max(promised, key=lambda kind: promised[kind])
    first = next(kind for kind in kinds if promised[kind] * _LEAST_GAIN >= promised[best])
    numbers = ", ".join(f"{kind} {speed:,.0f}" for kind, speed in promised.items())
    acting = ", ".join(f"{_time(time.wall_s)} for {rows}" for rows, time in sorted(costs.acting.items()))
    why = f"a step takes {_time(costs.step.wall_s)}, acting {acting}, a round trip {_time(costs.round_trip.wall_s)}"
    name = "central" if first == BUFFERED else first
    buffered = {BUFFERED: ", double_buffering=on", CENTRAL: ", double_buffering=off"}.get(first, "")
    reason = f"inference={name}{buffered}: predicted steps/s while collecting: {numbers}; {why}"
    in_order = {first: promised[first]} | promised
    return Placement(name, 2 if first == BUFFERED else 1, reason, in_order)


def _local_s(costs: Costs, layout: Layout) -> float:
    acting, workers = costs.acting[layout.per_worker], layout.workers
    stepping = _stepping(costs, layout, 1)
    bounds = [stepping.wall_s + acting.wall_s, workers * (stepping.cpu_s + acting.cpu_s) / costs.cores]
    return max([*bounds, workers * acting.wall_s] if costs.has_one_queue else bounds)


def _central_s(costs: Costs, layout: Layout) -> float:
    """Everybody steps, then the servers act."""
    serving = _serving(costs, layout, 1)
    stepping = _stepping(costs, layout, 1)
    env_s = max(stepping.wall_s, layout.workers * stepping.cpu_s / costs.cores)
    return max(env_s + serving.wall_s, _all_cpu_s(costs, layout, 1) / costs.cores)


def _buffered_s(costs: Costs, layout: Layout) -> float:
    """Half of the environments step while the servers act for the others, if they find a core to do so."""
    stepping, serve_s, cores = _stepping(costs, layout, 2), _serving(costs, layout, 2).wall_s, costs.cores
    env_s = max(stepping.wall_s, layout.workers * stepping.cpu_s / cores)
    cpu_s = _all_cpu_s(costs, layout, 2) / cores
    cycle_s = max(env_s, 2 * serve_s, env_s / 2 + serve_s, cpu_s)
    if layout.workers * costs.step.cpu_s <= _CROWDED * cores * costs.step.wall_s:
        return cycle_s
    free_s = layout.workers * stepping.cpu_s / (_CROWDED * cores)  # a cycle as long as this leaves servers a core
    late_s = max(0.0, min(serve_s, free_s / 2, free_s - env_s / 2)) + _CROWDED_S
    return max(cycle_s, 2 * late_s, env_s / 2 + late_s)


def _stepping(costs: Costs, layout: Layout, turns: int) -> Time:
    """Of one worker, all of its environments."""
    count, row, step = layout.per_worker, costs.row, costs.step
    return Time(turns * row.wall_s + count * step.wall_s, turns * row.cpu_s + count * step.cpu_s)


def _serving(costs: Costs, layout: Layout, turns: int) -> Time:
    """Of one server, whoever asks at the same time: with the way there and back, in the queue of a shared device."""
    one, count = costs.acting[layout.per_batch(turns)], layout.batches(turns)
    acting, more = Time(count * one.wall_s, count * one.cpu_s), -(-layout.workers // layout.servers) - 1
    queued = -(-layout.servers // layout.devices) if costs.has_one_queue else max(1.0, layout.servers / costs.cores)
    wall_s = acting.wall_s * queued + costs.round_trip.wall_s + more * costs.slot.wall_s
    return Time(wall_s, acting.cpu_s + more * costs.slot.cpu_s)


def _all_cpu_s(costs: Costs, layout: Layout, turns: int) -> float:
    """Of all processes, one cycle."""
    asking_s = turns * layout.workers * costs.round_trip.cpu_s
    stepping_s = layout.workers * _stepping(costs, layout, turns).cpu_s
    return stepping_s + turns * layout.servers * _serving(costs, layout, turns).cpu_s + asking_s


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
