"""An actor's side of a slot: one compiled call asks for a row, spins, and takes the answer.

    leaf, noise -> slot -> REQUEST = number (release) -> bell · fence -> does the server sleep? WAKE
                                              REPLY == number (acquire) within a spin? slot -> actions · else NOT_YET

Bytes are copied, whatever they mean; numba makes the code once for each pair of dtypes, of observations and actions.
What stays the same for a rollout is noted in the slot, so that a call has few arguments. Does not know how long a spin
should be, and neither sleeps nor wakes (client). Imports no torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler import compiled
from headrace.inference.slots import (
    BELL,
    ERROR_BYTES,
    IS_LAST,
    NOTE,
    REPLY,
    REQUEST,
    SERVER_SLEEPS,
    VERSION,
    WANTED,
    Slot,
)
from headrace.memory.atomics import fence, load_acquire, store_release
from headrace.memory.copying import copy_bytes
from headrace.memory.waiting import spin_until

Array = npt.NDArray[Any]

NOT_YET, WAKE, FAILED = -1, -2, -3  # instead of the version that acted
_BELL, _FIRST, _LAST, _WANTED = range(NOTE, NOTE + 4)  # words of the actor's note,
_LEAF, _NOISE, _ACTION = range(NOTE + 4, NOTE + 10, 2)  # and the slot's spans


def begin(words: Array, slot: Slot, first: int, n_steps: int, wanted: int) -> None:
    """Note what a rollout asks with: its row r has the number first + r."""
    note = (slot.bell, first, n_steps - 1, wanted, *slot.spans)
    words[slot.at + NOTE : slot.at + NOTE + len(note)] = note


def bits(array: Array) -> Array:
    """An array as `ask` takes it: numba does not know float16."""
    return array.view(np.int16) if array.dtype == np.float16 else array


@compiled
def ask(words: Array, at: int, row: int, leaf: Array, noise: Array, out: Array, loops: int) -> int:
    """Ask for a row, by the first leaf of its observations: the others are in their place. WAKE if the server sleeps,
    else what `take` says."""
    if (
        leaf.nbytes != words[at + _LEAF + 1]
        or noise.nbytes != words[at + _NOISE + 1]
        or out.nbytes != words[at + _ACTION + 1]
    ):
        raise ValueError("expected observations, noise and actions as large as their places in the slot")
    bell, number = words[at + _BELL], words[at + _FIRST] + row
    copy_bytes(words, words[at + _LEAF], leaf, 0, leaf.nbytes)
    copy_bytes(words, words[at + _NOISE], noise, 0, noise.nbytes)
    words[at + WANTED] = words[at + _WANTED]
    words[at + IS_LAST] = row == words[at + _LAST]
    store_release(words, at + REQUEST, number)
    store_release(words, bell + BELL, number)
    fence()  # the bell is rung before it is seen who sleeps
    if load_acquire(words, bell + SERVER_SLEEPS):
        return WAKE
    return take(words, at, row, out, loops)


@compiled
def take(words: Array, at: int, row: int, out: Array, loops: int) -> int:
    """The version that acted on a row, with its actions, if they are there within a spin; else FAILED or NOT_YET."""
    if not spin_until(words, at + REPLY, words[at + _FIRST] + row, loops):
        return NOT_YET
    if words[at + ERROR_BYTES]:
        return FAILED
    copy_bytes(out, 0, words, words[at + _ACTION], out.nbytes)
    return int(words[at + VERSION])
