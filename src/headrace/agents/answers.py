"""What the policy said, as actions: <think>...</think><answer>a || b</answer>, or the answer alone.

Pure text in, actions or a complaint out. Whether an action does anything is the environment's matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WITH_THINKING = re.compile(r"\s*<think>.*?</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)
_ANSWER_ONLY = re.compile(r"\s*<answer>(.*?)</answer>\s*", re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """Actions to take, or what was wrong."""

    actions: tuple[str, ...]
    complaint: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether the environment may move."""
        return not self.complaint


def parse(
    text: str, has_thinking: bool, separator: str, most_actions: int, known: Sequence[str] | None = None
) -> Answer:
    """The actions of one answer, at most so many; names in the environment's own spelling where it has a list."""
    found = (_WITH_THINKING if has_thinking else _ANSWER_ONLY).fullmatch(text)
    if found is None:
        wanted = "<think>...</think><answer>...</answer>" if has_thinking else "<answer>...</answer>"
        return Answer((), f"expected {wanted} and nothing else")
    words = [word.strip() for word in found.group(1).split(separator)]
    actions = [word for word in words if word][:most_actions]
    if not actions:
        return Answer((), "the answer holds no action")
    if known is None:
        return Answer(tuple(actions))
    spelling = {name.lower(): name for name in known}
    unknown = [action for action in actions if action.lower() not in spelling]
    if unknown:
        return Answer((), f"unknown action {unknown[0]!r}, expected one of {', '.join(known)}")
    return Answer(tuple(spelling[action.lower()] for action in actions))
