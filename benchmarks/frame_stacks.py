"""Frame stacks stored once, beside the same stacks stored whole: bytes a step, and CPU time of collecting.

    benchmarks/frame_stacks.py [--rounds 5] [--env ALE/Breakout-v5]

Both contenders run in one process and take turns, with the same seed: each pair of batches is compared. Stacks are
stored whole below a wrapper that nobody knows. Times are CPU times: a busy machine disturbs them little.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

import headrace as hr
from headrace.memory.layout import slab_bytes
from headrace.memory.schema import rollout_schema
from headrace.policies.threads import torch_threads
from headrace.presets import PRESETS

WRAPPERS = PRESETS["atari"].wrappers


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """Changes nothing, but nobody knows that."""


def model(env: str, *more: Any) -> hr.PPO:
    """A run with the preset, and wrappers around its stack."""
    return hr.PPO("CnnPolicy", env, preset="atari", wrappers=(*WRAPPERS, *more), topology="inline", seed=1)


def bytes_a_step(one: hr.PPO) -> float:
    """What a rollout writes; the room for final observations is not touched before one is there."""
    place = one.parts.config.topology
    schema = rollout_schema(one.parts.observation, one.parts.action, place.n_steps, place.n_envs)
    first_final = schema.offsets["final_row"]
    after = schema.offsets["log_prob"]
    return (slab_bytes(schema) - (after - first_final)) / (place.n_steps * place.n_envs)


def collect(one: hr.PPO) -> tuple[float, Any]:
    """CPU seconds of one rollout, and its observations."""
    start = time.process_time()
    batch = one.run.source.collect()
    seconds = time.process_time() - start
    obs = batch.obs.copy()
    one.run.source.give_back()
    one.run.weights.publish()
    return seconds, obs


def main() -> None:
    """Take turns, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--env", default="ALE/Breakout-v5")
    options = parser.parse_args()
    with model(options.env) as once, model(options.env, Opaque) as whole, torch_threads(1):
        print(f"bytes a step: {bytes_a_step(once):,.0f} stored once, {bytes_a_step(whole):,.0f} stored whole")
        pairs = []
        for number in range(options.rounds + 1):
            turns = (once, whole) if number % 2 else (whole, once)
            found = {id(one): collect(one) for one in turns}
            (once_s, obs), (whole_s, other) = found[id(once)], found[id(whole)]
            assert np.array_equal(obs, other), "the rebuilt stacks are not those that were stored whole"
            pairs.append((once_s, whole_s))
    steps = obs.shape[0] * obs.shape[1]
    once_us, whole_us = (median(times) / steps * 1e6 for times in zip(*pairs[1:], strict=True))
    ratios = sorted(whole_s / once_s for once_s, whole_s in pairs[1:])
    print(
        f"collecting, CPU time: {once_us:,.0f} us a step stored once, {whole_us:,.0f} stored whole; whole / once in "
        f"{len(ratios)} pairs: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


if __name__ == "__main__":
    main()
