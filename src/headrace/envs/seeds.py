"""The seed tree: every random number of a run hangs on (seed, purpose, index, number), never on seed + i.

    seed --ENV, env index, episode number--> reset seed      --NOISE, env index--> action noise key
         --MINIBATCH, update--> shuffling                    --WEIGHTS--> initial parameters
         --AGENT_GROUP, group--> reset seed of its episodes  --AGENT_SAMPLING, group, member, turn--> an answer

A leaf does not depend on who asks, when, or how many others there are. Evaluation has a branch of its own.
numpy's SeedSequence makes every leaf. Seeds of an environment's episodes differ in their last word alone, and every
reset asks for one, so they are made many at once, from the state that numpy has reached before that word.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]


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
AT_MAKE = 31  # of a pool that is seeded when it is made: EnvPool's are int32
_AT_ONCE = 64  # seeds of an environment's episodes
_SHIFT = np.uint32(16)


def sequence(seed: int, purpose: Purpose, *path: int) -> np.random.SeedSequence:
    """The leaf as numpy's SeedSequence, for generators."""
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *path))


def leaf(seed: int, purpose: Purpose, *path: int) -> int:
    """The leaf as one 63-bit number, for whatever takes an int."""
    return int(sequence(seed, purpose, *path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def episode_seed(bits: int, seed: int, purpose: Purpose, env_index: int, episode: int) -> int:
    """The reset seed of an episode: the leaf, or its leading bits for an environment that takes no more."""
    return _leaves(seed, purpose, env_index, episode // _AT_ONCE)[episode % _AT_ONCE] >> (LONG - bits)


@lru_cache(maxsize=1 << 13)
def _leaves(seed: int, purpose: Purpose, env_index: int, number: int) -> list[int]:
    """`leaf` of 64 episodes in a row. The constants are SeedSequence's, whose numbers numpy promises to keep."""
    start, stop = number * _AT_ONCE, (number + 1) * _AT_ONCE
    if not 0 <= start < stop <= 1 << 32:
        return [leaf(seed, purpose, env_index, episode) for episode in range(start, stop)]
    episodes, pool = np.arange(start, stop, dtype=np.uint32), sequence(seed, purpose, env_index).pool
    words = sum(max(1, -(-word.bit_length() // 32)) for word in (int(purpose), env_index))
    words += max(len(pool), -(-seed.bit_length() // 32))  # a shorter seed is padded
    mixed = _powers(0x43B0D7E5, 0x931E8875, len(pool) * words)  # every word so far, into every place of the pool
    given = _powers(0x8B51F9DD, 0x58F38DED, 0)
    parts = []
    for place in range(2):  # a leaf comes from the first two of four places
        word = _scrambled(episodes, mixed[place : place + 2])
        word = np.uint32(0xCA01F9DD) * pool[place : place + 1] - np.uint32(0x4973F715) * word
        parts.append(_scrambled(word ^ (word >> _SHIFT), given[place : place + 2]).astype(np.uint64))
    leaves: list[int] = (((parts[1] << np.uint64(32)) | parts[0]) >> np.uint64(1)).tolist()
    return leaves


def _powers(first: int, factor: int, start: int) -> Words:
    """Three successive constants of a mixing, from number `start` on."""
    return np.array([first * pow(factor, start + i, 1 << 32) % (1 << 32) for i in range(3)], np.uint32)


def _scrambled(words: Words, constants: Words) -> Words:
    word: Words = (words ^ constants[0]) * constants[1]
    return word ^ (word >> _SHIFT)
