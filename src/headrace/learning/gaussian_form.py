"""The head of continuous actions in closed form: means, and one log standard deviation for all rows.

    means, actions --gaussian--> dL/dmeans, in place · dL/dlog_std, in the flat gradient

What `closed_form` has for choices, for numbers. Does not know towers or minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from headrace.compiler import compiled
from headrace.learning.closed_form import HeadLoss, surrogate
from headrace.policies.distributions import HALF_LOG_2PI
from headrace.policies.networks import MlpPolicy

Array = npt.NDArray[Any]


def gaussian(module: MlpPolicy, gradients: Mapping[str, Tensor]) -> HeadLoss:
    """Means of independent normals."""
    assert module.log_std is not None
    log_std, d_log_std = module.log_std.detach().numpy(), gradients["log_std"].numpy()

    def loss(head: Array, action: Tensor, *numbers: Any) -> None:
        wide = action if action.itemsize > 2 else action.float()  # numba does not know float16
        _gaussian(head, wide.reshape(len(action), -1).numpy(), log_std, d_log_std, *numbers)

    return loss


@compiled
def _gaussian(
    head: Array, action: Array, log_std: Array, d_log_std: Array, index: Array, n: int, old_log_prob: Array,
    advantage: Array, clip_range: float, ent_coef: float, terms: Array,
) -> None:  # fmt: skip
    """Means become dL/dmeans, in place, and d_log_std is written: d log p(a) = (a - mean) / std² by the mean and
    ((a - mean) / std)² - 1 by log_std; the entropy is in log_std."""
    rows, size = head.shape
    scaled, inverse_std = np.empty(size), np.exp(-log_std.astype(np.float64))
    sums, constant = np.zeros(size), (log_std.astype(np.float64) + HALF_LOG_2PI).sum()
    for r in range(rows):
        squares = 0.0
        for i in range(size):
            scaled[i] = (action[index[r], i] - head[r, i]) * inverse_std[i]
            squares += scaled[i] * scaled[i]
        gain = surrogate(-0.5 * squares - constant, old_log_prob[index[r]], advantage[r], clip_range, terms)
        for i in range(size):
            head[r, i] = -gain * scaled[i] * inverse_std[i] / n
            sums[i] -= gain * (scaled[i] * scaled[i] - 1)
    for i in range(size):
        d_log_std[i] = sums[i] / n - ent_coef * (rows / n)
    terms[:5] /= n
    terms[1] = -(constant + 0.5 * size) * (rows / n)
