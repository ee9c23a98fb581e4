"""A checksum of what an episode showed: 64 bits over every byte of its rows, carried on from slab to slab.

    row: observation, action, reward, flags (and the observation it was cut in) --> digest of the row
    begin(env, episode) --digest of row 0, 1, 2 ...--> the episode's checksum     after an end: begin(env, episode + 1)

Every mixing step is one-to-one in what it adds, so one altered word of an episode always changes its checksum; changes
in several words, rows or environments that are swapped pass with a chance of 2^-64. It finds accidents, not forgers:
it is no cryptographic hash. The reader computes it from committed slabs, a replay from what it plays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler import compiled
from headrace.memory.schema import DROPPED_END

Array = npt.NDArray[Any]
Sums = npt.NDArray[np.uint64]

_FACTOR, _TERM, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03), np.uint64(32)
ROW, _CUT = np.uint64(1), np.uint64(2)  # where the digests of rows and of final observations begin


def extend(checksum: Sums, env_start: int, slab: Any) -> Sums:
    """Carry the checksums [B] of running episodes on over a slab; returns them as after each row, [T, B].

    A committed slab, or what a replay has in its place: arrays by the same names. Rows that are not valid leave no
    trace. After the last row of an episode that was dropped (nan_policy) the next one begins.
    """
    digest = np.full(slab.reward.shape, ROW)
    cut = np.full(len(slab.final_row), _CUT)
    rows = digest.reshape(-1)
    for leaf in (*slab.obs.values(), slab.action):
        absorb(words_of(leaf, len(rows)), rows)
    if len(cut):
        for leaf in slab.final_obs.values():
            absorb(words_of(leaf, len(cut)), cut)
        rows[slab.final_row] ^= cut
    flags = slab.terminated, slab.truncated, slab.valid, slab.step == DROPPED_END
    _chain(checksum, env_start, digest, slab.reward.view(np.uint32), *flags, slab.episode)
    return digest


def words_of(array: Array, num_rows: int) -> Array:
    """Rows of bytes as rows of the widest words that divide them."""
    plain = array.reshape(num_rows, array.size // num_rows).view(np.uint8)
    width = next(width for width in (8, 4, 1) if plain.shape[1] % width == 0)
    return plain.view(f"u{width}")


@compiled
def _mix(state: Any, word: Any) -> Any:
    state = (state ^ word) * _FACTOR + _TERM
    return state ^ (state >> _HALF)


@compiled
def begin(env_index: Any, episode: Any) -> Any:
    """The checksum of an episode without a step."""
    return _mix(_mix(_TERM, np.uint64(env_index)), np.uint64(episode))


@compiled
def absorb(words: Any, digest: Any) -> None:
    """Add a row of words [N, W] to each digest [N]; long rows in four lanes, which do not wait for one another."""
    n_words = words.shape[1]
    for row in range(len(words)):
        a = digest[row]
        k = 0
        if n_words >= 16:
            b, c, d = a + _FACTOR, a ^ _FACTOR, a + _TERM
            while k + 4 <= n_words:
                a = _mix(a, np.uint64(words[row, k]))
                b = _mix(b, np.uint64(words[row, k + 1]))
                c = _mix(c, np.uint64(words[row, k + 2]))
                d = _mix(d, np.uint64(words[row, k + 3]))
                k += 4
            a = _mix(_mix(_mix(a, b), c), d)
        while k < n_words:
            a = _mix(a, np.uint64(words[row, k]))
            k += 1
        digest[row] = a


@compiled
def _chain(
    checksum: Any, env_start: Any, digest: Any, reward: Any, terminated: Any, truncated: Any, valid: Any, dropped: Any,
    episode: Any,
) -> None:  # fmt: skip
    """From the digest of each row to the checksum of its episode after it, in place."""
    n_rows, n_envs = digest.shape
    for b in range(n_envs):
        state = checksum[b]
        for t in range(n_rows):
            if valid[t, b]:
                flags = np.uint64(terminated[t, b]) + np.uint64(2) * np.uint64(truncated[t, b])
                word = np.uint64(reward[t, b]) | (flags << _HALF)
                state = _mix(state, _mix(digest[t, b], word))
            digest[t, b] = state
            if dropped[t, b] or (valid[t, b] and (terminated[t, b] or truncated[t, b])):
                state = begin(env_start + b, episode[t, b] + 1)
        checksum[b] = state
