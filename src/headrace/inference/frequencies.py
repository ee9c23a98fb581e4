"""Choices of a policy of the user's own: how often they come under noise, against exp(log_prob).

    draws for some observations --G-test, with a bound that holds for any sample--> nothing, or an error

With n draws from claimed probabilities p and frequencies f, P(n KL(f || p) > t) <= exp(-t) (e t / d)^d for d free
cells, whatever p and n are (Agrawal, 2020); sums over observations obey the same bound. Where other entries of an
action were drawn as well, p is the mean of the claimed conditional probabilities: such counts spread no wider.
An honest policy is refused with a probability below 1e-9. With 65,536 draws a lie of 1e-3 in KL is found (0.50 for
0.52).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.inference.tried import BUDGET_S, LOG_ALARM, OBSERVATIONS, Tried

Array = npt.NDArray[Any]

_MOST_ROWS, _ROWS_OF_FEW, _ROWS_OF_MANY = 1 << 16, 1 << 14, 1 << 12  # of one choice, a few, many
_MOST_JOINT = 4096  # combinations of choices that are looked at one by one
_MOST_ENTRIES = 8  # of a larger action that are tested
_CELLS = 32


def require_frequencies(tried: Tried) -> None:
    """Compare how often actions come with their probabilities."""
    counts = tried.counts
    joint = math.prod(counts.tolist())
    if counts.max() > _MOST_JOINT * 4:
        return
    observations = max(1, min(OBSERVATIONS, _MOST_JOINT * 4 // joint))
    if joint <= _MOST_JOINT * 4:
        _require_whole(tried, joint, observations)
    most = _MOST_ROWS if len(counts) == 1 else _ROWS_OF_FEW if joint <= _MOST_JOINT else _ROWS_OF_MANY
    which, actions = _acted(tried, observations, most)
    entries = np.unique(np.linspace(0, len(counts) - 1, _MOST_ENTRIES).astype(int))
    alarm = LOG_ALARM - math.log(2 * len(entries))  # each is tested twice
    for entry in entries.tolist():
        claimed = _claimed(tried, which, actions, entry)
        beside = actions[:, (entry + 1) % len(counts)] % 3  # an entry that may hang together with its neighbour
        for groups in (which, which * 3 + beside)[: len(counts)]:
            found, log_bound = surprise(groups, actions[:, entry], claimed)
            if log_bound < alarm:
                _refuse_frequencies(tried, which, actions[:, entry], claimed, entry, found / len(which))


def _require_whole(tried: Tried, joint: int, observations: int) -> None:
    """All probabilities must add up to 1."""
    every = np.stack(np.unravel_index(np.arange(joint), tried.counts), -1)
    for one in range(observations):
        total = float(np.exp(tried.log_prob(np.full(joint, one), every)).sum())
        if not abs(total - 1.0) < 1e-3:
            raise UsageError(
                f"{tried.name}.evaluate: exp(log_prob) of all {joint:,} actions of an observation adds up to "
                f"{total:.4g}, expected 1; log_prob must be the log-probability of the action"
            )


def _acted(tried: Tried, observations: int, most: int) -> tuple[Array, Array]:
    """Observations' numbers and the actions drawn for them: as many as fit into a tenth of a second."""
    drawn, rows, begun = 0, 64, time.thread_time()
    parts: list[tuple[Array, Array]] = []
    while drawn < most:
        which = np.arange(rows) % observations
        parts.append((which, tried.act(which, tried.draw(rows, drawn))))
        drawn += rows
        elapsed = time.thread_time() - begun
        if elapsed * 3 > BUDGET_S:  # the next part has as many rows as all before
            break
        rows = drawn
    return np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts])


def _claimed(tried: Tried, which: Array, actions: Array, entry: int) -> Claimed:
    """Claimed probabilities of an entry's choices, the others being as they are."""
    n = int(tried.counts[entry])
    others = actions.copy()
    others[:, entry] = 0
    number = (others * tried.weights).sum(1) + (which + 1) * 0x1E3779B97F4A7C15  # a hash of its kind
    _, first, kind = np.unique(number, return_index=True, return_inverse=True)
    kinds = np.column_stack([which, others])[first]
    filled = np.repeat(kinds, n, axis=0)
    filled[:, 1 + entry] = np.tile(np.arange(n), len(kinds))
    log_p = tried.log_prob(filled[:, 0], filled[:, 1:]).reshape(-1, n)
    p = np.exp(log_p - log_p.max(1, keepdims=True))
    return Claimed(p / p.sum(1, keepdims=True), kind.reshape(-1))


def _refuse_frequencies(tried: Tried, which: Array, chosen: Array, claimed: Claimed, entry: int, kl: float) -> None:
    gaps = []  # (difference, frequency, claim, choice, draws) for each observation
    for one in np.unique(which):
        rows = which == one
        p = claimed.of(rows)
        seen = np.bincount(chosen[rows], minlength=len(p)) / rows.sum()
        choice = int(np.abs(seen - p).argmax())
        gaps.append((abs(seen - p)[choice], seen[choice], p[choice], choice, int(rows.sum())))
    _, seen, p, choice, draws = max(gaps)
    where = "" if len(tried.counts) == 1 else f" in entry {entry}"
    raise UsageError(
        f"{tried.name}: act and evaluate do not belong together. For one observation act chose {choice}{where} in "
        f"{seen:.3f} of {draws:,} draws, exp(log_prob) says {p:.3f} ({len(which):,} draws in all, difference "
        f"{kl:.2g} in KL; an honest policy fails with a probability below 1e-9). Sample with the noise that act is "
        f"given, by the logits that evaluate uses"
    )


@dataclass(frozen=True)
class Claimed:
    """Probabilities of one entry's choices: [kinds, choices], and the kind of every row."""

    p: Array
    kind: Array

    def of(self, rows: Array) -> Array:
        """Their mean over some rows."""
        mean: Array = np.bincount(self.kind[rows], minlength=len(self.p)) @ self.p / rows.sum()
        return mean


def surprise(groups: Array, chosen: Array, claimed: Claimed) -> tuple[float, float]:
    """n KL(frequencies || claimed) over all groups, and the log of a bound on the probability of as much by chance."""
    total, free = 0.0, 0
    for group in np.unique(groups):
        rows = groups == group
        p, n = claimed.of(rows), int(rows.sum())
        if len(p) > _CELLS:  # neighbours together, so that cells are about as likely
            cell = np.minimum(np.cumsum(p) * _CELLS, _CELLS - 1).astype(int)
            p, seen = np.bincount(cell, p), np.bincount(cell[chosen[rows]], minlength=cell.max() + 1)
        else:
            seen = np.bincount(chosen[rows], minlength=len(p))
        came = seen > 0
        if (p[came] == 0).any():
            return math.inf, -math.inf
        total += float((seen[came] * np.log(seen[came] / (n * p[came]))).sum())
        free += max(0, int((p > 0).sum()) - 1)
    if total <= free:
        return total, 0.0
    if not free:
        return total, 0.0 if total < 1e-3 else -math.inf
    return total, -total + free + free * math.log(total / free)
