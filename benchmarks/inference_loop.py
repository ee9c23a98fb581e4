"""The plainest form of central inference, the same for every transport: workers step environments, a server acts.

    worker: observations, noise ──way.ask──> server: requests ──Batching──> policy ──way.send──> actions ──> worker

A `Cell` says what is measured. Workers and server are forked from a process that has imported everything. What differs
between ways is how requests and answers travel: through headrace's slots (here), or as messages (peers/transports.py).
`local` asks nobody: every worker has the policy itself. Answers come from one policy, batches from one `Batching`.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from headrace.clock import now_s
from headrace.inference.batching import Batching, BatchLimits
from headrace.inference.client import Client
from headrace.inference.devices import inference_on, open_device
from headrace.inference.server import Server, ServerPlan
from headrace.inference.slots import Slots, SlotsPlan, slots_bytes
from headrace.memory.lease import Lease
from headrace.memory.segment import SharedSegment
from headrace.memory.spaces import Box, Discrete
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy
from headrace.policies.noise_spec import NoiseSpec
from headrace.policies.policy import Evaluation
from headrace.weights.flat import FlatParameters
from headrace.weights.store import Replica, WeightStore, store_bytes

ENVS, WARM_S = 16, 0.3  # all workers together
FRAMES = (84, 84, 4)
DEVICE = "emulated:2ms+5us"


@dataclass(frozen=True)
class Cell:
    """network: mlp, cnn, or instant (nothing is computed or stepped). is_pinned: workers and server on a core each."""

    network: str
    device: str = "cpu"
    workers: int = 1
    seconds: float = 1.0
    is_pinned: bool = False

    @property
    def rows(self) -> int:
        """Of one worker."""
        return 8 if self.network == "instant" else ENVS // self.workers


class Frames(gym.Env):
    """Frames of Atari's size that cost next to nothing: the policy is what is measured."""

    observation_space = gym.spaces.Box(0, 255, FRAMES, np.uint8)
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._frame = np.full(FRAMES, self.np_random.integers(256), np.uint8)
        self._steps = 0
        return self._frame, {}

    def step(self, action: int) -> Any:
        self._steps += 1
        self._frame = self._frame + np.uint8(action)
        return self._frame, 1.0, self._steps >= 200, False, {}


class Glance(nn.Module):
    """A policy that looks at a few pixels: the answers of an emulated accelerator, which takes the time of a CNN."""

    skip_honesty_check = True  # nothing is learned from its log-probabilities
    largest_tile = 8

    def __init__(self) -> None:
        super().__init__()
        self.noise = NoiseSpec("gumbel", 6)
        self.linear = nn.Linear(16, 6)

    def act(self, obs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        logits = self.linear(obs.flatten(1)[:, :16] / 255.0)
        return (logits if noise is None else logits + noise).argmax(-1)

    def evaluate(self, obs: torch.Tensor, actions: torch.Tensor) -> Evaluation:
        zero = self.linear.bias[0].expand(len(obs))
        return Evaluation(zero, zero, zero)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.linear.bias[0].expand(len(obs))


def env_of(cell: Cell) -> Any:
    return Frames if cell.network == "cnn" else "CartPole-v1"


def spaces_of(cell: Cell) -> tuple[Box, Discrete]:
    if cell.network == "cnn":
        return Box(FRAMES, "uint8", (0.0,), (255.0,)), Discrete(6)
    return Box((4,), "float32", (-3.0,), (3.0,)), Discrete(2)


def module_of(cell: Cell) -> nn.Module:
    torch.manual_seed(1)
    if cell.network == "cnn" and cell.device != "cpu":
        return Glance()
    kind = PolicyConfig(policy="CnnPolicy") if cell.network == "cnn" else PolicyConfig(net_arch=(64, 64))
    return build_policy(kind, *spaces_of(cell), 0)


def policy_of(cell: Cell, device: Any) -> Any:
    """As an inference server has it."""
    return inference_on(device, Replica(FlatParameters(module_of(cell))), *spaces_of(cell), 8)


class Asks(Protocol):
    """A worker's side of a way."""

    def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None: ...


def work(cell: Cell, worker: int, asks: Asks, begin: Callable[[], None] = lambda: None) -> list[float]:
    """A worker's life. (steps/s, p50, p99 of its round trips in microseconds)"""
    observation, _ = spaces_of(cell)
    width = 2 if cell.network != "cnn" else 6
    generator = np.random.default_rng(worker)
    noise = generator.gumbel(size=(64, cell.rows, width)).astype(np.float32)
    obs = np.zeros((cell.rows, *observation.shape), observation.dtype)
    out = np.zeros(cell.rows, np.int64)
    envs = [gym.make(e) if isinstance(e, str) else e() for e in [env_of(cell)] * cell.rows]
    for i, env in enumerate(envs):
        obs[i] = env.reset(seed=worker * ENVS + i)[0]
    asks.ask(obs, noise[0], out)
    begin()
    times, row, over = [], 0, 0
    begun = time.perf_counter_ns()
    warm, end = begun + int(WARM_S * 1e9), begun + int((WARM_S + cell.seconds) * 1e9)
    while over < end:
        row += 1
        before = time.perf_counter_ns()
        asks.ask(obs, noise[row % 64], out)
        over = time.perf_counter_ns()
        if before > warm:
            times.append(over - before)
        if cell.network != "instant":
            for i, env in enumerate(envs):
                obs[i], _, terminated, truncated, _ = env.step(int(out[i]))
                if terminated or truncated:
                    obs[i] = env.reset()[0]
    return [len(times) * cell.rows / cell.seconds, *np.percentile(times, (50, 99)) / 1e3]


class Gather:
    """The server of every message way: requests in, batches through the policy, answers out."""

    def __init__(self, cell: Cell) -> None:
        self._cell, rows = cell, cell.rows
        self._batching = Batching([rows] * cell.workers, BatchLimits())
        self._policy = None if cell.network == "instant" else policy_of(cell, open_device(cell.device, False))
        observation, _ = spaces_of(cell)
        self._obs = np.zeros((cell.workers, rows, *observation.shape), observation.dtype)
        self._noise = np.zeros((cell.workers, rows, 6 if cell.network == "cnn" else 2), np.float32)
        self._slots_obs, self._slots_noise = np.zeros_like(self._obs), np.zeros_like(self._noise)
        self._out = np.zeros((cell.workers, rows), np.int64)
        self.wait_s: float | None = None

    def asked(self, worker: int, obs: np.ndarray, noise: np.ndarray) -> None:
        self._slots_obs[worker], self._slots_noise[worker] = obs, noise
        self._batching.asked(worker, 0, now_s())

    def asked_in_bytes(self, worker: int, message: Any) -> None:
        size = self._obs[0].nbytes
        obs = np.frombuffer(message, self._obs.dtype, self._obs[0].size).reshape(self._obs[0].shape)
        self.asked(worker, obs, np.frombuffer(message, np.float32, -1, size).reshape(self._noise[0].shape))

    def answers(self) -> list[tuple[int, np.ndarray]]:
        """Of a batch, if one is due; else `wait_s` says when to ask again."""
        batch = self._batching.due(now_s())
        self.wait_s = self._batching.wait_s
        count = len(batch)
        if self._policy is not None and count:
            for i, worker in enumerate(batch):
                self._obs[i], self._noise[i] = self._slots_obs[worker], self._slots_noise[worker]
            rows = count * self._cell.rows
            obs, noise = (each[:count].reshape(rows, *each.shape[2:]) for each in (self._obs, self._noise))
            self._policy.act({"obs": obs}, noise, self._out[:count].reshape(rows))
        return [(worker, self._out[i]) for i, worker in enumerate(batch)]


class Way:
    """How workers reach the server. Made before the fork; `serve` runs in the server's process until it is killed."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def serve(self, ready: Callable[[], None]) -> None: ...

    def asks(self, worker: int) -> Asks:
        raise NotImplementedError

    def close(self) -> None:
        """What the parent has to remove."""


class Local(Way):
    """No server: every worker acts by itself. An emulated accelerator is one device that all of them queue for."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._device = open_device(cell.device, True)

    def serve(self, ready: Callable[[], None]) -> None:
        ready()
        signal.pause()

    def asks(self, worker: int) -> Asks:
        policy = policy_of(self.cell, self._device)

        class Acts:
            def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
                policy.act({"obs": obs}, noise, out)

        return Acts()

    def close(self) -> None:
        if self._device is not None:
            self._device.close()


class Instant(Server):
    """A server whose policy takes no time."""

    def _act(self, batch: Sequence[int]) -> None:
        pass


class InSlots(Way):
    """headrace's own: its server, its client, its shared memory."""

    N_STEPS = 1 << 40

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._layout = SlotsPlan((cell.rows,) * cell.workers, *spaces_of(cell), 6 if cell.network == "cnn" else 2, 1)
        self._module = module_of(cell)
        flat = FlatParameters(self._module)
        self._segments = [
            SharedSegment.create(slots_bytes(self._layout)),
            SharedSegment.create(store_bytes(flat.size, 1)),
        ]
        self._size = flat.size
        WeightStore(flat.size, 1, self._segments[1]).publish(flat.published, 0)
        self._device = open_device(cell.device, True)

    def serve(self, ready: Callable[[], None]) -> None:
        names = [str(segment.name) for segment in self._segments]
        plan = ServerPlan(
            0, self._layout, names[0], self._module, 8, BatchLimits(), names[1], self._size, 1, "", self._device
        )
        store = WeightStore(self._size, 1, self._segments[1], create=False)
        server = (Instant if self.cell.network == "instant" else Server)(
            plan, Slots(self._layout, self._segments[0]), store
        )
        ready()
        while True:
            if not server.look():
                server.wait()

    def asks(self, worker: int) -> Asks:
        client = Client(Slots(self._layout, self._segments[0]), self.N_STEPS, 0, lambda shard: None)
        act = client.acting(Lease(0, worker, 0, 1), 0)

        class Asking:
            row, leaves = 0, {"obs": np.empty(0)}

            def ask(self, obs: np.ndarray, noise: np.ndarray, out: np.ndarray) -> None:
                self.leaves["obs"] = obs
                act(self.row, self.leaves, noise, out)
                self.row += 1

        return Asking()

    def close(self) -> None:
        for segment in self._segments:
            segment.unlink()
        if self._device is not None:
            self._device.close()


def run_forked(way: Way) -> dict[str, float]:
    """One cell: a server and the workers, forked; their steps/s together, the median of their round trips."""
    context, cell = get_context("fork"), way.cell
    ready, barrier = context.Event(), context.Barrier(cell.workers)
    children, ends = [], []

    def worker_main(worker: int, results: connection.Connection) -> None:
        ready.wait()
        asks = way.asks(worker)  # before it is pinned: on one core nobody spins
        if cell.is_pinned:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        results.send(work(cell, worker, asks, barrier.wait))

    def is_ready() -> None:
        if cell.is_pinned:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        ready.set()

    def server_main() -> None:
        way.serve(is_ready)

    try:
        children.append(context.Process(target=server_main, daemon=True))
        children[0].start()
        for worker in range(cell.workers):
            end, start = context.Pipe(False)
            ends.append(end)
            children.append(context.Process(target=worker_main, args=(worker, start), daemon=True))
            children[-1].start()
            start.close()  # so that the end of a worker is heard
        rows: list[list[float]] = []
        while len(rows) < cell.workers:
            found = connection.wait([*ends, *(child.sentinel for child in children[:1])], cell.seconds + 60)
            assert found, f"{cell.workers - len(rows)} workers gave no answer"
            assert children[0].sentinel not in found, "the server died"
            for end in found:
                rows.append(end.recv())
                ends.remove(end)
    finally:
        for child in children:
            child.kill()
            child.join()
        way.close()
    return summed(rows)


def summed(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of all workers."""
    sps, p50, p99 = (np.array(column) for column in zip(*rows, strict=True))
    return {"sps": float(sps.sum()), "p50_us": float(np.median(p50)), "p99_us": float(np.median(p99))}


WAYS = {"local": Local, "slots": InSlots}


def cell_of(options: dict[str, Any]) -> Cell:
    return replace(Cell(options["network"]), **options)
