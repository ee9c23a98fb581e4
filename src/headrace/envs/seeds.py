"""The seed tree: every random number of a run hangs on (seed, purpose, index, number), never on seed + i.

    seed --ENV, env index, episode number--> reset seed      --NOISE, env index--> action noise key
         --MINIBATCH, update--> shuffling                    --WEIGHTS--> initial parameters
         --AGENT_GROUP, group--> reset seed of its episodes  --AGENT_SAMPLING, group, member, turn--> an answer

A leaf does not depend on who asks, when, or how many others there are. Evaluation has a branch of its own.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Branches of the tree. The numbers are part of every run's identity: never renumber."""

    ENV = 1
    NOISE = 2
    MINIBATCH = 3
    WEIGHTS = 4
    EVALUATION = 5
    CHECK = 6
    EVALUATION_NOISE = 7
    AGENT_GROUP = 8
    AGENT_SAMPLING = 9


LONG, SHORT = 63, 32  # bits of a seed; some environments take 32 only


def sequence(seed: int, purpose: Purpose, *path: int) -> np.random.SeedSequence:
    """The leaf as numpy's SeedSequence, for generators."""
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *path))


def leaf(seed: int, purpose: Purpose, *path: int) -> int:
    """The leaf as one 63-bit number, for whatever takes an int."""
    return int(sequence(seed, purpose, *path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def episode_seed(bits: int, seed: int, purpose: Purpose, env_index: int, episode: int) -> int:
    """The reset seed of an episode: the leaf, or its leading bits for an environment that takes no more."""
    return leaf(seed, purpose, env_index, episode) >> (LONG - bits)
