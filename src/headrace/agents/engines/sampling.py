"""One token from each row of logits: temperature, then top_k, then top_p, then one uniform number.

    logits / temperature ──> the top_k likeliest ──> of these the fewest with a share of top_p ──> inverse transform

The log-probability is that of the distribution the token was drawn from, behind all three (vLLM's processed_logprobs).
Every row by itself, in double precision: neighbours change nothing. Temperature 0 takes the likeliest token; its
log-probability is that at temperature 1, and nothing is cut off. Does not know models, passes or where the uniform
numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.agents.engines.protocol import Request


def sampled(logits: Any, requests: Sequence[Request], uniforms: Any) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities. `logits` is [rows, vocabulary] and is used up."""
    warm = np.array([one.temperature for one in requests])
    is_greedy = warm <= 0
    logits /= np.where(is_greedy, 1.0, warm)[:, None]
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits)
    for row, one in enumerate(requests):
        if one.is_cut and one.temperature > 0:
            cut(weights[row], one.top_k, one.top_p)
    sums = weights.sum(axis=1)
    up_to = weights.cumsum(axis=1, out=weights)
    last = up_to[:, -1]
    tokens = (up_to <= (uniforms * last)[:, None]).sum(axis=1)
    for at in np.flatnonzero(tokens == up_to.shape[1]):  # a number so near to 1 that the product is the whole
        tokens[at] = up_to[at].searchsorted(last[at])
    if is_greedy.any():
        tokens = np.where(is_greedy, logits.argmax(axis=1), tokens)
    log_probs = logits[np.arange(len(tokens)), tokens] - np.log(sums)
    return tokens.tolist(), np.minimum(log_probs.astype(np.float32), np.float32(0.0)).tolist()


def cut(weights: Any, top_k: int, top_p: float) -> None:
    """Zero for what is cut off. Equals of the k-th likeliest stay; at the border of top_p lower ids stay."""
    if 0 < top_k < len(weights):
        weights[weights < np.partition(weights, -top_k)[-top_k]] = 0.0
    if top_p < 1:
        order = np.argsort(-weights, kind="stable")
        shares = weights[order].cumsum()
        count = int(shares.searchsorted(top_p * shares[-1])) + 1
        weights[order[count:]] = 0.0
