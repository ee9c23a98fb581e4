"""An inference server's side of its slots: one compiled call looks at all of them, another answers one.

    look:   each REQUEST (acquire): is it new? noted · if none is, again and again, as long as a spin
    answer: version -> REPLY = number (release) · fence -> does the actor sleep?

A spin looks at the requests themselves, and not at the bell: so a request crosses from core to core once, and the bell
is left for a server that sleeps. Does not know batches or policies, and neither sleeps nor wakes. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler import brief, compiled
from headrace.inference.slots import (
    ACTOR_SLEEPS,
    BEAT,
    ERROR_BYTES,
    IS_LAST,
    REPLY,
    REQUEST,
    VERSION,
    WANTED,
    Slot,
)
from headrace.memory.atomics import fence, load_acquire, store_release

Array = npt.NDArray[Any]

NOBODY = -1
_AT, NUMBER, ASKED, ENDS, NEW, AT_ONCE, _COLUMNS = range(7)  # of what was seen


def nothing_seen(slots: Sequence[Slot]) -> Array:
    """What a server knows of its slots. A row each: where it is, the number of the request that was seen last, the
    version it wants, whether it is the last of its rollout. NEW is a list, from the top: the slots of new requests; the
    first row of AT_ONCE says whether they were there before the spin."""
    seen = np.zeros((len(slots), _COLUMNS), np.int64)
    seen[:, _AT] = [slot.at for slot in slots]
    return seen


@compiled
def look(words: Array, bell: int, seen: Array, loops: int) -> int:
    """Look at all slots of a server, and again for as long as a spin of so many looks at one word. The slot of the one
    new request, or NOBODY, or how many are new, negative."""
    words[bell + BEAT] += 1
    found = _new(words, seen)
    seen[0, AT_ONCE] = found != NOBODY
    scans = loops // (12 + 2 * len(seen))  # a scan takes about as long as so many looks at one word
    while found == NOBODY and scans > 0:
        found = _new(words, seen)
        scans -= 1
    return found


@compiled
def _new(words: Array, seen: Array) -> int:
    count = 0
    for i in range(len(seen)):
        at = seen[i, _AT]
        number = load_acquire(words, at + REQUEST)
        if number not in (seen[i, NUMBER], words[at + REPLY]):
            seen[i, NUMBER], seen[i, ASKED], seen[i, ENDS] = number, words[at + WANTED], words[at + IS_LAST]
            seen[count, NEW] = i
            count += 1
    return NOBODY if count == 0 else seen[0, NEW] if count == 1 else -count


@brief
def answer(words: Array, seen: Array, i: int, version: int, error_bytes: int) -> int:
    """A slot's answer; whether the actor sleeps and has to be woken."""
    at = seen[i, _AT]
    words[at + VERSION] = version
    words[at + ERROR_BYTES] = error_bytes
    store_release(words, at + REPLY, seen[i, NUMBER])
    fence()
    return load_acquire(words, at + ACTOR_SLEEPS)
