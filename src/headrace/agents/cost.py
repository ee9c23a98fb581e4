"""What a run has cost: requests, tokens, money. Pure.

    records ──> what its answers hold, over all sessions · engine's counters ──> what this session asked for and got

Records know the answers that were used; a server bills those that were refused or asked for again, too. So both are
given, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.agents.engines.protocol import EngineStatistics
from headrace.agents.records import Group
from headrace.errors import UsageError, require_types


@dataclass(frozen=True)
class Prices:
    """Per million tokens, in any currency; 0: nothing is paid."""

    prompt: float = 0.0
    answer: float = 0.0

    def __post_init__(self) -> None:
        require_types(self, {float: ("prompt", "answer")})
        for name in ("prompt", "answer"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(
                    f"engine.price.{name}: expected at least 0, per million tokens, got {getattr(self, name)}"
                )

    def of(self, prompt_tokens: int, answer_tokens: int) -> float:
        """For so many tokens."""
        return (prompt_tokens * self.prompt + answer_tokens * self.answer) / 1e6


def cost_of(groups: Sequence[Group], prices: Prices) -> dict[str, Any]:
    """Of a run's answers, whichever session they are from. Records of text only hold no tokens: None, and not 0."""
    turns = [turn for group in groups for episode in group.episodes for turn in episode.turns]
    if any(episode.turns and not episode.is_trainable for group in groups for episode in group.episodes):
        return {"requests": len(turns), "prompt_tokens": None, "answer_tokens": None, "money": None}
    prompt, answer = sum(turn.start for turn in turns), sum(turn.stop - turn.start for turn in turns)
    money = prices.of(prompt, answer)
    return {"requests": len(turns), "prompt_tokens": prompt, "answer_tokens": answer, "money": money}


def session_cost(session: EngineStatistics, prices: Prices, groups: int) -> dict[str, Any]:
    """Of one session, which played so many groups: everything that was asked for."""
    return {
        "groups": groups,
        "requests": session.requests,
        "attempts": session.attempts,
        "limited": session.limited,
        "prompt_tokens": session.prompt_tokens,
        "answer_tokens": session.answer_tokens,
        "money": prices.of(session.prompt_tokens, session.answer_tokens),
    }
