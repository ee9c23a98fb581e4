"""Faults on purpose: which requests of a server go wrong, and how. Drawn from a seed; knows no HTTP."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import UsageError

KINDS = ("slow", "error", "drop", "garbage", "wrong_logprobs", "wrong_ids", "stale", "limited")


@dataclass(frozen=True)
class Faults:
    """The share of requests that go wrong, by kind."""

    slow: float = 0.0
    slow_s: float = 5.0
    error: float = 0.0  # HTTP 500
    drop: float = 0.0  # the connection ends in the middle of the answer
    garbage: float = 0.0  # JSON that is no answer
    wrong_logprobs: float = 0.0  # one log-probability too few
    seed: int = 0
    wrong_ids: float = 0.0  # a token that the vocabulary does not have
    stale: float = 0.0  # by weights of a version before
    limited: float = 0.0  # HTTP 429
    retry_after: str = "0.1"  # what a 429 asks for

    def __post_init__(self) -> None:
        shares = tuple(getattr(self, kind) for kind in KINDS)
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise UsageError(f"faults: expected shares of at least 0 that add up to at most 1, got {shares}")

    def drawn(self, rng: random.Random) -> str:
        """Which fault this request gets; empty for none."""
        draw = rng.random()
        for kind in KINDS:
            draw -= getattr(self, kind)
            if draw < 0:
                return kind
        return ""


def spoilt(
    fault: str, ids: Sequence[int], log_probs: Sequence[float], versions: Sequence[int], vocabulary: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """An answer's tokens, well-formed and wrong."""
    told = list(ids), list(log_probs), list(versions)
    if fault == "wrong_logprobs":
        told[1].pop()
    elif fault == "wrong_ids":
        told[0][-1] = vocabulary + 7
    elif fault == "stale":
        told[2][:] = [one - 1 for one in versions]
    return told
