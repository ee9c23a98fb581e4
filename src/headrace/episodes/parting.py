"""Where two runs of one seed part ways, from their recorded episodes.

    episodes of A and of B --by (environment, episode)--> the first step at which actions, ends or checksums differ

Checksums are known at the borders of rollouts and at ends only, so a difference in observations or rewards is located
between two of them; a different action to the step. What one of the runs has not recorded is no difference.
Does not know files or configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.episodes.recorded import RecordedEpisode


@dataclass(frozen=True)
class Parting:
    """The first difference of two runs."""

    update: int
    """Of the first run."""
    env_index: int
    episode: int
    step: int
    what: str
    """In words: a is the first run, b the second."""

    def text(self) -> str:
        """For people."""
        return (
            f"they part ways in update {self.update}, env {self.env_index}, episode {self.env_index}:{self.episode}, "
            f"step {self.step}: {self.what}"
        )


def first_parting(a: Sequence[RecordedEpisode], b: Sequence[RecordedEpisode]) -> Parting | None:
    """The earliest difference by update, row and environment; None if all that both have is the same."""
    theirs = {(one.env_index, one.episode): one for one in b}
    found: list[tuple[tuple[int, int, int], Parting]] = []
    parted: set[int] = set()  # later episodes of an environment that parted say nothing new
    for one in sorted(a, key=lambda one: (one.env_index, one.episode)):
        other = theirs.get((one.env_index, one.episode))
        difference = None if other is None or one.env_index in parted else _difference(one, other)
        if difference is not None:
            parted.add(one.env_index)
            step, what = difference
            update, row = one.place_of(min(step, one.length - 1))
            place = update, row, one.env_index
            found.append((place, Parting(update, one.env_index, one.episode, step, what)))
    return min(found, key=lambda one: one[0])[1] if found else None


def _difference(a: RecordedEpisode, b: RecordedEpisode) -> tuple[int, str] | None:
    """The first step at which two recordings of one episode differ, and in what."""
    step = _first_other_action(a.actions, b.actions)
    agreed, mark = 0, None  # steps up to which checksums agree, and the first at which they do not
    checks = dict(b.marks)
    for steps, check in a.marks:
        if steps in checks and checks[steps] != check:
            mark = steps
            break
        agreed = steps if steps in checks else agreed
    if mark is not None and (step is None or step >= mark):
        where = f"in one of the steps {agreed} to {mark - 1}" if mark - 1 > agreed else f"in step {agreed}"
        return agreed, f"the same actions, but other observations, rewards or flags {where} (checksums differ)"
    if step is not None:
        return step, f"the action is {a.actions[step].tolist()} in a and {b.actions[step].tolist()} in b"
    for one, other, names in ((a, b, "ab"), (b, a, "ba")):
        if one.is_finished and other.length > one.length:
            return one.length - 1, f"the episode ends here in {names[0]} and goes on in {names[1]}"
    return None


def _first_other_action(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int | None:
    count = min(len(a), len(b))
    if a.dtype != b.dtype or a.shape[1:] != b.shape[1:]:
        return 0
    as_bytes = [np.ascontiguousarray(one[:count]).reshape(count, -1).view(np.uint8) for one in (a, b)]
    differs = (as_bytes[0] != as_bytes[1]).any(1)
    return int(np.argmax(differs)) if differs.any() else None
