"""Why environments are stepped in batches: one at a time in a Python loop, or many in one numpy call.

    python examples/vectorising.py

Both do the same arithmetic per step. What a batch saves is the interpreter's work per call, and how many actors a
learner then needs follows from `headrace plan`.
"""

import math
import time

import numpy as np

from headrace.planning.throughput import actors_needed, demand

TERMS = 64


def one_step(state: float) -> float:
    """A transition of a single environment."""
    return sum(math.sin(0.001 * state + term) for term in range(TERMS)) * 1.000001


def many_steps(states: np.ndarray) -> np.ndarray:
    """A transition of every environment of a batch."""
    return np.sin(0.001 * states[:, None] + np.arange(TERMS)).sum(1) * 1.000001


def rate(step, state, envs: int, seconds: float = 0.3) -> float:
    """Environment steps per second."""
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        state, calls = step(state), calls + 1
    return calls * envs / (time.perf_counter() - begun)


single = rate(one_step, 1.0, 1)
print(f"{'B':>6} {'steps/s':>12} {'of B = 1':>9}")
print(f"{1:>6} {single:>12,.0f} {1:>8.1f}x   (a Python loop)")
for envs in (4, 16, 64, 256, 1024):
    batched = rate(many_steps, np.ones(envs), envs)
    print(f"{envs:>6} {batched:>12,.0f} {batched / single:>8.1f}x")

wanted = demand(batch=512, update_s=0.008)
print(f"\na learner that takes 8 ms for 512 transitions uses {wanted:,.0f} a second:")
print(f"it needs {actors_needed(wanted, 1_000)} actors of 1,000 steps/s")
