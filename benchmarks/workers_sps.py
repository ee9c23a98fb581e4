"""Collecting with worker processes: environments that burn CPU, Pong, HalfCheetah, and what a hand-over costs.

burn:       200 us of pure Python a step. headrace inline and with 2 workers beside Gymnasium's AsyncVectorEnv, SB3's
            SubprocVecEnv and PufferLib's Multiprocessing, each in its best of several numbers of environments.
atari, mujoco: Pong (standard preprocessing) and HalfCheetah-v5 beside Gymnasium's SyncVectorEnv. headrace seeds every
            episode, which loads an Atari game anew (0.15 s): "seeded episodes" does the same work.
hand-over:  a 16 MiB slab filled by one process and read by another, in GB/s, beside memcpy of the same bytes.
waiting:    the learner's share of waiting when one worker supplies more than it can use, by the OS's CPU times.
length:     steps/s of the last quarter of a long run beside its first quarter.

headrace runs a policy that only draws from its noise; the peers get ready-made actions: environments are compared.
"""

import json
import multiprocessing
import os
import resource
import time
from statistics import median
from typing import Any

import gymnasium as gym
import harness
import numpy as np
import torch
from burn import BurnEnv, loops_per_us
from torch import nn

import headrace as hr
from headrace.memory.segment import SharedSegment
from headrace.policies.noise_spec import NoiseSpec
from headrace.policies.policy import Evaluation

BURN_US, N_STEPS = 200.0, 128  # 128 rows are the collector's default


class Dice(nn.Module):
    """Acts by its noise alone, so that the environments' cost is all there is."""

    skip_honesty_check = True  # nothing is learned from its log-probabilities

    def __init__(self, width: int, kind: str, tile: int = 8) -> None:
        super().__init__()
        self.largest_tile = tile  # what a worker has: nothing is computed from it that more rows would speed up
        self.noise = NoiseSpec(kind, width)
        self.nothing = nn.Parameter(torch.zeros(1))

    def act(self, obs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        noise = torch.zeros(len(obs), self.noise.width) if noise is None else noise
        return noise.argmax(-1) if self.noise.kind == "gumbel" else noise.clamp(-1, 1)

    def evaluate(self, obs: torch.Tensor, actions: torch.Tensor) -> Evaluation:
        zero = self.nothing.expand(len(obs))
        return Evaluation(zero, zero, zero)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.nothing.expand(len(obs))


def pong() -> gym.Env:
    """Pong with the standard preprocessing: 84 x 84 grey, four frames, skip of four."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, frame_skip=4, grayscale_obs=True, scale_obs=False)
    return gym.wrappers.FrameStackObservation(env, 4)


class Seeded(gym.Wrapper):
    """Gives every episode a seed of its own, as headrace does: an episode can then be played again."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode_seed = (getattr(self, "episode_seed", 0) if seed is None else seed) + 1
        return self.env.reset(seed=self.episode_seed, options=options)


def half_cheetah() -> gym.Env:
    return gym.make("HalfCheetah-v5")


def ours(env: Any, policy: nn.Module, n_envs: int, seconds: float, **where: Any) -> float:
    """Steps/s of collected rollouts."""
    with hr.Collector(env, policy, n_envs=n_envs, n_steps=N_STEPS, seed=1, **where) as rollouts:
        next(rollouts)
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            steps += next(rollouts).steps
        return steps / (time.perf_counter() - start)


def theirs(make: Any, n_envs: int, seconds: float, vector: str) -> float:
    """Steps/s of a Gymnasium vector environment with ready-made actions."""
    kind = {"sync": gym.vector.SyncVectorEnv, "async": gym.vector.AsyncVectorEnv}[vector]
    envs = kind([make] * n_envs)
    try:
        envs.reset(seed=1)
        envs.action_space.seed(1)
        actions = [envs.action_space.sample() for _ in range(64)]
        for action in actions[:8]:
            envs.step(action)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            envs.step(actions[count % 64])
            count += 1
        return count * n_envs / (time.perf_counter() - start)
    finally:
        envs.close()


def _fill(name: str, size: int, count: int, line: Any) -> None:
    block = np.frombuffer(SharedSegment.attach(name).buffer, np.uint8)
    source = np.ones(size, np.uint8)
    for turn in range(count):
        line.recv_bytes()
        np.copyto(block[(turn % 2) * size : (turn % 2 + 1) * size], source)
        line.send_bytes(b"c")


def hand_over_gbs(size: int = 16 * 2**20, count: int = 120) -> float:
    """GB/s from a writer's memory into a shared slab that the reader reads in place (it sums a word per page)."""
    segment = SharedSegment.create(2 * size)
    line, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_fill, args=(segment.name, size, count + 4, other))
    process.start()
    try:
        block = np.frombuffer(segment.buffer, np.uint8)
        line.send_bytes(b"l")
        line.send_bytes(b"l")  # two leases out: while one slab is read the next is filled
        total, start = 0, 0.0
        for turn in range(count + 4):
            line.recv_bytes()
            if turn == 4:
                start = time.perf_counter()
            half = (turn % 2) * size
            total += int(block[half : half + size : 4096].sum())
            if turn < count + 2:
                line.send_bytes(b"l")
        seconds = time.perf_counter() - start
        assert total == (count + 4) * size // 4096
        return (count - 1) * size / seconds / 1e9
    finally:
        process.join()
        process.close()
        line.close()
        other.close()
        segment.unlink()


def memcpy_gbs(size: int = 16 * 2**20, count: int = 120) -> float:
    source, block = np.ones(size, np.uint8), np.zeros(2 * size, np.uint8)
    for half in (0, 1):
        np.copyto(block[half * size : (half + 1) * size], source)
    start = time.perf_counter()
    for turn in range(count):
        np.copyto(block[(turn % 2) * size : (turn % 2 + 1) * size], source)
    return count * size / (time.perf_counter() - start) / 1e9


def waiting_share(updates: int) -> float:
    """1 - CPU time / wall time of the learner's process while a worker supplies more than it can use."""
    with hr.PPO(
        "MlpPolicy", "CartPole-v1", n_envs=16, n_steps=64, batch_size=128, n_epochs=20, gradients="autograd", seed=1,
        topology="processes", workers=1, max_lag=1,
    ) as model:  # fmt: skip
        model.learn(5 * 1024)
        usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        model.learn(updates * 1024)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    return max(0.0, 1.0 - cpu / wall)


def length_ratio(updates: int) -> float:
    """Seconds per update of the last quarter over those of the second quarter: 1 where a step's cost does not rise."""
    times: list[float] = []
    with hr.PPO(
        "MlpPolicy", "MountainCar-v0", n_envs=16, n_steps=32, batch_size=512, n_epochs=1, seed=1, topology="processes",
        workers=2,
    ) as model:  # fmt: skip
        model.learn(updates * 512, callback=lambda record: times.append(time.perf_counter()))
    durations = np.diff(times)
    quarter = len(durations) // 4
    return float(np.median(durations[-quarter:]) / np.median(durations[quarter : 2 * quarter]))


def main() -> None:
    arguments = harness.arguments(__doc__)
    torch.set_num_threads(1)
    rounds, seconds = (1, 0.3) if arguments.smoke else (3, 2.0) if arguments.quick else (5, 4.0)
    absent: dict[str, str] = {}
    claims: list[harness.Claim] = []
    turns = round(BURN_US * loops_per_us())
    dice = Dice(2, "gumbel")

    burn = hr.EnvSpec(BurnEnv, {"turns": turns})
    inline, two = "headrace inline", "headrace 2 workers"
    contenders: dict[str, Any] = {
        inline: lambda: ours(burn, dice, 16, seconds, topology="inline"),
        two: lambda: ours(burn, dice, 16, seconds, topology="processes", workers=2, max_lag=1),
    }
    for n_envs in (2, 16):
        contenders[f"AsyncVectorEnv, {n_envs}"] = lambda n=n_envs: theirs(lambda: BurnEnv(turns), n, seconds, "async")
    for name, sizes in (("sb3", (2, 16)), ("pufferlib", (2, 16))):
        found = harness.NOT_IN_SMOKE if arguments.smoke else harness.peer(name)
        if isinstance(found, harness.Absent):
            absent[name] = found.reason
            continue
        for n_envs in sizes:
            options = json.dumps({"turns": turns, "n_envs": n_envs, "seconds": seconds})
            contenders[f"{name}, {n_envs}"] = lambda name=name, options=options: harness.run_peer(
                name, "burn", "--options", options, timeout_s=300
            )["sps"]
    values = harness.alternate(contenders, rounds, absent=absent)
    medians = {name: median(series) for name, series in values.items()}
    peers = {name: sps for name, sps in medians.items() if not name.startswith("headrace")}
    best = max(peers, key=peers.__getitem__)
    for baseline, goal in ((inline, 1.9), (best, 1.3)):
        ratio = medians[two] / medians[baseline]
        claims.append(
            harness.Claim(
                f"burning 200 us: 2 workers / {baseline}",
                medians[two],
                "steps/s",
                medians[baseline],
                ratio,
                f">= {goal}x",
                ratio >= goal,
            )
        )

    for name, make, policy, n_envs, period in (
        ("Pong", pong, Dice(6, "gumbel", 4), 8, 3 * seconds),  # several episodes long: their beginning is the dear part
        ("HalfCheetah-v5", half_cheetah, Dice(6, "normal", 8), 16, seconds),
    ):
        try:
            make().close()
        except Exception as error:  # the extra is not installed
            absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        contenders = {
            "headrace": lambda make=make, policy=policy, n=n_envs, period=period: ours(
                make, policy, n, period, topology="processes", workers=2, max_lag=1
            ),
            "SyncVectorEnv": lambda make=make, n=n_envs, period=period: theirs(make, n, period, "sync"),
        }
        if name == "Pong":
            contenders["SyncVectorEnv, seeded episodes"] = lambda make=make, n=n_envs, period=period: theirs(
                lambda: Seeded(make()), n, period, "sync"
            )
        values = harness.alternate({f"{name}, {who}": what for who, what in contenders.items()}, rounds, absent=absent)
        mine, *others = ((who, median(series)) for who, series in values.items())
        for (who, other), is_asked in zip(others, (True, False), strict=False):
            ratio = mine[1] / other
            goal = (">= 1.8x", ratio >= 1.8) if is_asked else ("-", None)
            claims.append(harness.Claim(f"2 workers / {who}", mine[1], "steps/s", other, ratio, *goal))

    count = 20 if arguments.smoke else 120
    values = harness.alternate(
        {"hand-over": lambda: hand_over_gbs(count=count), "memcpy": lambda: memcpy_gbs(count=count)},
        rounds,
        absent=absent,
    )
    mine, other = median(values["hand-over"]), median(values["memcpy"])
    claims.append(
        harness.Claim("hand-over of 16 MiB", mine, "GB/s", other, mine / other, ">= 0.8x memcpy", mine / other >= 0.8)
    )
    share = median([waiting_share(3 if arguments.smoke else 60) for _ in range(rounds)])
    claims.append(
        harness.Claim("learner's waiting, supply above demand", share, "", None, None, "< 0.05", share < 0.05)
    )
    ratio = length_ratio(40 if arguments.smoke else 2000)
    claims.append(
        harness.Claim("time per step, end of a long run / beginning", ratio, "", None, None, "<= 1.1", ratio <= 1.1)
    )
    harness.report(claims, arguments.json, absent, {"steps_per_s": medians, "cores": os.cpu_count()})


if __name__ == "__main__":
    main()
