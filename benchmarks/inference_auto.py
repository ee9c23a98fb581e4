"""inference=auto on a grid of configurations: does it choose the faster placement, and are its predictions right?

For each configuration: what `auto` predicts and chooses, then steps/s while collecting with local and with central
inference, without and with double buffering. All on this machine, one after the other, in worker processes.

device    cpu, or an emulated accelerator (emulated:2ms+5us is 2 ms a batch and 5 us a row; one queue, no CPU)
policy    mlp: 64 x 64 on four numbers; cnn: the Nature CNN on 84 x 84 x 4 frames; frames: the same frames for a network
          of one layer, since on an accelerator only the time is modelled
env       burn: a step takes that much CPU time; sleep: it waits as long, as for a simulator elsewhere

auto is right if its choice reaches at least 95 % of the faster placement. A prediction is right within 25 % of what the
chosen placement reached. The grid in inference_grid.json was written before auto was; --random draws another one.
"""

import argparse
import json
import logging
import random
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import harness
import numpy as np
import torch
from burn import loops_per_us

import headrace as hr
from headrace.memory.spaces import Box, Discrete
from headrace.policies.distributions import Categorical
from headrace.policies.policy import Evaluation

GRID = Path(__file__).with_name("inference_grid.json")
BUFFERED = "double-buffered"
PLACES = {
    "local": {"inference": "local"},
    "central": {"inference": "central", "double_buffering": "off"},
    BUFFERED: {"inference": "central", "double_buffering": "on"},
}


class Timed(gym.Env):
    """A step that takes a given time, burning or sleeping."""

    def __init__(self, kind: str, turns: int, sleep_s: float, is_frames: bool) -> None:
        shape = (84, 84, 4) if is_frames else (4,)
        high, dtype = (255, np.uint8) if is_frames else (1.0, np.float32)
        self.observation_space = gym.spaces.Box(0, high, shape, dtype)
        self.action_space = gym.spaces.Discrete(6 if is_frames else 2)
        self._obs = np.zeros(shape, dtype)
        self._kind, self._turns, self._sleep_s, self._count = kind, turns, sleep_s, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return self._obs, {}

    def step(self, action: int) -> Any:
        if self._kind == "sleep":
            time.sleep(self._sleep_s)
        else:
            x = 1
            for _ in range(self._turns):
                x = (x * 5 + 1) & 0xFFFF
        self._count += 1
        return self._obs, 1.0, False, self._count >= 200, {}


class OneLayer(torch.nn.Module):
    """A small network on frames: it looks at every 16th pixel."""

    largest_tile = 64

    def __init__(self, observation: Box, action: Discrete) -> None:
        super().__init__()
        self._distribution = Categorical(action.n)
        self.noise = self._distribution.noise
        self.heads = torch.nn.Linear(6 * 6 * 4, action.n + 1)

    def _both(self, obs: torch.Tensor) -> torch.Tensor:
        return self.heads(obs[:, ::16, ::16].reshape(len(obs), -1).float() / 255.0)

    def act(self, obs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        return self._distribution.act(self._both(obs)[:, :-1], noise)

    def evaluate(self, obs: torch.Tensor, actions: torch.Tensor) -> Evaluation:
        both = self._both(obs)
        return Evaluation(*self._distribution.evaluate(both[:, :-1], actions), both[:, -1])

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self._both(obs)[:, -1]


def collector(one: dict[str, Any], loops: float, **place: Any) -> hr.Collector:
    """Of a configuration, somewhere."""
    is_frames = one["policy"] != "mlp"
    kwargs = {"kind": one["env"], "turns": round(one["env_us"] * loops), "sleep_s": one["env_us"] * 1e-6}
    policy: Any = {"mlp": "MlpPolicy", "cnn": "CnnPolicy"}.get(one["policy"])
    if policy is None:
        policy = OneLayer(Box((84, 84, 4), "uint8", (0.0,), (255.0,)), Discrete(6))
    n_envs = one["envs_per_worker"] * one["workers"]
    n_steps = 32 if is_frames else 128
    return hr.Collector(
        Timed, policy, n_envs, n_steps, seed=1, env_kwargs=kwargs | {"is_frames": is_frames}, topology="processes",
        workers=one["workers"], inference_device=one["device"], spares=0, **place,
    )  # fmt: skip


def steps_per_s(one: dict[str, Any], loops: float, place: str, seconds: float) -> float:
    """While collecting; what completes a batch is the learner's."""
    with collector(one, loops, **PLACES[place]) as source:
        reader, weights, steps, took = source.parts.reader, source.parts.weights, 0, 0.0
        for i in range(10**6):
            begun = time.perf_counter()
            batch = reader.collect()
            if i:  # the first one starts the workers
                took, steps = took + time.perf_counter() - begun, steps + batch.steps
            del batch
            reader.give_back()
            weights.publish()
            if took >= seconds and i > 2:
                return steps / took
    raise AssertionError("a million rollouts")


def judged(one: dict[str, Any], loops: float, seconds: float) -> dict[str, Any]:
    """A configuration, predicted and measured."""
    begun = time.perf_counter()
    with collector(one, loops, inference="auto") as source:
        topology = source.parts.topology
        predicted = dict(topology.promised)
    spent = time.perf_counter() - begun
    reached = {}
    for place in PLACES:
        if place == BUFFERED and one["envs_per_worker"] < 2:
            continue
        reached[place] = steps_per_s(one, loops, place, seconds)
    chosen = next(iter(predicted), "local")
    best_central = max(speed for place, speed in reached.items() if place != "local")
    return one | {
        "predicted": predicted,
        "reached": reached,
        "chosen": chosen,
        "auto_s": spent,
        "central_over_local": best_central / reached["local"],
        "of_best": reached[chosen] / max(reached.values()),
        "off": predicted.get(chosen, 0.0) / reached[chosen] - 1.0,  # -100 %: it could not be measured
    }


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """A random grid."""
    draw = random.Random(seed)
    grid = []
    for _ in range(count):
        device = draw.choice(["cpu", "emulated:2ms+5us", "emulated:500us+20us"])
        grid.append(
            {
                "device": device,
                "policy": draw.choice(["mlp", "cnn"] if device == "cpu" else ["mlp", "frames"]),
                "env": draw.choice(["burn", "burn", "sleep"]),
                "env_us": draw.choice([5, 20, 100, 500, 2000]),
                "envs_per_worker": draw.choice([1, 2, 4, 8]),
                "workers": draw.choice([1, 2, 4, 8]),
            }
        )
    return grid


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--random", type=int, metavar="SEED", help="a grid drawn at random instead of the written one")
    parser.add_argument("--part", default="0:20", metavar="I:J", help="only these configurations; a part of a long run")
    parser.add_argument("--parts", type=Path, metavar="FILE", help="keep what was measured here, and add to it")


def main() -> None:
    arguments = harness.arguments(__doc__, add=options)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("headrace.launch").setLevel(logging.INFO)
    grid = json.loads(GRID.read_text()) if arguments.random is None else drawn(arguments.random, 20)
    start, stop = map(int, arguments.part.split(":"))
    seconds = 0.1 if arguments.smoke else 0.5 if arguments.quick else 1.0
    if arguments.smoke:
        start, stop = 13, 14
    loops = loops_per_us()
    known = json.loads(arguments.parts.read_text()) if arguments.parts and arguments.parts.exists() else {}
    for index in range(start, min(stop, len(grid))):
        got = judged(grid[index], loops, seconds)
        known[str(index)] = got
        reached = ", ".join(f"{place} {speed:,.0f}" for place, speed in got["reached"].items())
        promised = ", ".join(f"{place} {speed:,.0f}" for place, speed in got["predicted"].items())
        print(f"{index:2} {'  '.join(str(value) for value in grid[index].values())}\n   reached   {reached}")
        print(f"   predicted {promised}   of best {got['of_best']:.2f}   off {got['off']:+.0%}", flush=True)
        if arguments.parts:
            arguments.parts.write_text(json.dumps(known, indent=1))
    rows = list(known.values())
    right, close = sum(row["of_best"] >= 0.95 for row in rows), sum(abs(row["off"]) <= 0.25 for row in rows)
    central = sum(row["central_over_local"] > 1.15 for row in rows)
    local = sum(row["central_over_local"] < 1 / 1.15 for row in rows)
    whole, is_written = len(rows) == len(grid), arguments.random is None

    def claim(name: str, value: int, goal: int | None) -> harness.Claim:
        holds = value >= goal if goal is not None and whole else None
        return harness.Claim(name, value, "of them", len(rows), value / len(rows), f">= {goal}" if goal else "-", holds)

    claims = [
        claim("auto chose the faster placement", right, 18 if is_written else None),
        claim("its prediction is within 25 %", close, 15 if is_written else None),
        claim("local wins by more than 15 %", local, 6 if is_written else None),
        claim("central wins by more than 15 %", central, 6 if is_written else None),
    ]
    harness.report(claims, arguments.json, {}, {"configurations": rows})


if __name__ == "__main__":
    main()
