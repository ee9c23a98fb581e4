"""Numbers of a policy of the user's own: the density with which `act` draws them, against log_prob.

    act as a map of its noise --its density, by the map's derivatives--> log_prob, or an error

Where noise and action have the same width, the density of act's output through one noise vector is exact: a lie of 2 %
in any factor of log_prob is found at each of up to 64 points. A policy with more noise than numbers is tested by a
likelihood ratio: a density fitted to half of the draws may not beat the claimed one on the other half by more than 1e9,
which it does for an honest policy with a probability below 1e-9.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.inference.tried import BUDGET_S, LOG_ALARM, OBSERVATIONS, Tried
from headrace.memory.spaces import size_of

Array = npt.NDArray[Any]

_TOLERANCE = 0.02


def require_density(tried: Tried) -> None:
    """Compare log_prob with the density that act has as a function of its noise."""
    size = size_of(tried.action)
    if tried.spec.width != size:
        _require_likelihood(tried)
        return
    samples = max(OBSERVATIONS, min(64, 8192 // (4 * size), int(BUDGET_S / _row_s(tried) / (4 * size))))
    which, noise = np.arange(samples) % OBSERVATIONS, tried.draw(samples, 0)
    actions = tried.act(which, noise).astype(np.float64)
    fine, coarse = (_log_slope(tried, which, noise, step) for step in (0.05, 0.1))
    if np.isinf(fine).any() and _repeats(tried):
        raise UsageError(
            f"{tried.name}: act gives the same numbers for different noise (does it clip?), so log_prob can't be "
            f"their density. Return mean + std * noise as it is: headrace clips what it sends to the environment"
        )
    slope = (4 * fine - coarse) / 3
    rounding = 2e-6 * size * (np.abs(actions).max(1) + 1) / (0.05 * np.exp(fine / size))
    tolerance = _TOLERANCE + 2 * np.abs(fine - coarse) + rounding
    usable = np.isfinite(slope) & (tolerance < 0.3)
    gap = tried.log_prob(which, actions) - (_log_density(noise, tried.spec.kind) - slope)
    wrong = usable & ~(np.abs(gap) < tolerance)
    if wrong.sum() < max(2, usable.sum() / 8) or (np.median(gap[wrong]) > 0 and _folds(tried, which, noise)):
        return
    raise UsageError(
        f"{tried.name}: act and evaluate do not belong together. At {int(wrong.sum())} of {int(usable.sum())} "
        f"actions that act drew, log_prob is off by {np.median(gap[wrong]):+.3f} (median) from the log-density "
        f"that act has there. Sample with the mean and standard deviation that evaluate uses, and count in the "
        f"derivative of what is done to the sample"
    )


def _row_s(tried: Tried) -> float:
    """Seconds of acting on one row."""
    which, noise = np.arange(OBSERVATIONS), tried.draw(OBSERVATIONS, 0)
    begun = time.thread_time()
    tried.act(which, noise)
    return max(1e-9, time.thread_time() - begun) / OBSERVATIONS


def _log_slope(tried: Tried, which: Array, noise: Array, step: float) -> Array:
    """log |det d act / d noise| [rows], by differences; -inf where act does not react."""
    width = noise.shape[1]
    moved = np.repeat(noise[:, None, None, :], 2, 1).repeat(width, 2).astype(np.float32)  # [rows, 2, width, width]
    moved[:, 0, np.arange(width), np.arange(width)] += np.float32(step)
    moved[:, 1, np.arange(width), np.arange(width)] -= np.float32(step)
    acted = tried.act(which.repeat(2 * width), moved.reshape(-1, width)).astype(np.float64)
    up, down = acted.reshape(len(noise), 2, width, width).transpose(1, 0, 2, 3)
    between = (moved[:, 0] - moved[:, 1]).astype(np.float64).diagonal(axis1=1, axis2=2)  # as float32 has it
    sign, log_det = np.linalg.slogdet((up - down) / between[..., None])
    return np.where(sign == 0, -np.inf, log_det)


def _repeats(tried: Tried) -> bool:
    """Whether some number comes up exactly as before, for other noise: an atom, not a density."""
    actions = tried.act(np.zeros(512, np.int64), tried.draw(512, 1000))
    return any(len(np.unique(column)) < 0.99 * len(column) for column in actions.T)


def _folds(tried: Tried, which: Array, noise: Array) -> bool:
    """Whether different noise leads to the same action (wrapped angles ...): the density is then a sum."""
    grid = np.linspace(-5, 5, 65, dtype=np.float32)
    for row in range(min(4, len(noise))):
        for column in range(noise.shape[1]):
            path = np.repeat(noise[row : row + 1], len(grid), 0)
            path[:, column] = grid
            acted = tried.act(np.full(len(grid), which[row]), path).astype(np.float64)
            along = np.diff(acted, axis=0)
            main = along[np.abs(along).sum(1).argmax()]
            if (along @ main < -1e-4 * (main @ main)).any():
                return True
    return False


def _require_likelihood(tried: Tried) -> None:
    """A Gaussian fitted to half of the draws may not explain the other half much better than log_prob does."""
    for one in range(OBSERVATIONS // 2):
        which = np.full(2048, one)
        actions = tried.act(which, tried.draw(2048, 4096 * one))
        first, second = actions[::2].astype(np.float64), actions[1::2].astype(np.float64)
        spread = np.atleast_2d(np.cov(first.T))
        values = np.linalg.eigvalsh(spread)
        if values[0] < 1e-8 * max(values[-1], 1e-30) or len(np.unique(actions, axis=0)) < 2000:
            return  # not a density of these numbers: nothing to compare with
        off = second - first.mean(0)
        fitted = -0.5 * ((off @ np.linalg.inv(spread)) * off).sum(1) - 0.5 * np.linalg.slogdet(2 * np.pi * spread)[1]
        ratio = float((fitted - tried.log_prob(which[1::2], actions[1::2])).sum())
        if ratio + LOG_ALARM - math.log(OBSERVATIONS // 2) > 0:
            raise UsageError(
                f"{tried.name}: act and evaluate do not belong together. A plain Gaussian, fitted to what act drew "
                f"for one observation, explains 1,024 further draws exp({ratio:.0f}) times better than log_prob"
            )


def _log_density(noise: Array, kind: str) -> Array:
    """Of noise vectors [rows, width], as a sum over their entries."""
    x = noise.astype(np.float64)
    if kind == "normal":
        each = -0.5 * x * x - 0.5 * math.log(2 * math.pi)
    elif kind == "gumbel":
        each = -x - np.exp(-x)
    else:
        each = -x - 2 * np.log1p(np.exp(-x))
    total: Array = each.sum(1)
    return total
