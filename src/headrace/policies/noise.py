"""Action noise by counter: the words of transition c of environment e are a pure function of (seed, e, c).

    key(seed, e), counter --two keyed mixing rounds--> 64-bit words --inverse transform--> gumbel · normal · logistic

A fixed number of words per real transition, no rejection sampling, so nothing has to be remembered but the counter:
any slab of any shard can be drawn again, on any worker, in one call. Invalid rows consume none.
Each round is the splitmix64 finaliser. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.policies.noise_spec import Kind, NoiseSpec

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Words = npt.NDArray[np.uint64]


class CounterNoise:
    """The noise of one shard's environments. `keys` are two 64-bit keys per environment, from the seed tree."""

    def __init__(self, spec: NoiseSpec, keys: Sequence[tuple[int, int]]) -> None:
        self.spec = spec
        self._key_1 = np.array([key[0] for key in keys], np.uint64)[None, :, None]
        self._key_2 = np.array([key[1] for key in keys], np.uint64)[None, :, None]

    def draw(self, counters: npt.NDArray[np.int64], n_steps: int) -> npt.NDArray[np.float32]:
        """Noise [n_steps, B, width]: entry t of environment b belongs to its transition counters[b] + t."""
        transition = counters.astype(np.uint64)[None, :, None] + np.arange(n_steps, dtype=np.uint64)[:, None, None]
        word = np.arange(self.spec.words, dtype=np.uint64)
        position = np.asarray(transition * np.uint64(self.spec.words) + word, np.uint64)  # [T, B, words]
        return _transform(_mix(_mix(position * _GOLDEN + self._key_1) + self._key_2), self.spec.kind)


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def _transform(words: Words, kind: Kind) -> npt.NDArray[np.float32]:
    # 52 bits and a half: strictly between 0 and 1, since the sum is exact (with 53 bits the largest would round to 1).
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    if kind == "gumbel":
        noise = -np.log(-np.log(uniform))
    elif kind == "logistic":
        noise = np.log(uniform) - np.log1p(-uniform)
    else:  # Box-Muller with the cosine only: two words each, no pairing to remember
        radius = np.sqrt(-2.0 * np.log(np.ascontiguousarray(uniform[..., 0::2])))
        noise = radius * np.cos(2.0 * np.pi * np.ascontiguousarray(uniform[..., 1::2]))
    return noise.astype(np.float32)
