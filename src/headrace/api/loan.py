"""The end of a loan: a batch whose memory is filled again says so, where it would show other rollouts."""

from __future__ import annotations

from typing import Any

from headrace.errors import UsageError
from headrace.learning.batch import Batch


class GivenBack(Batch):
    """What a batch becomes when its memory is filled again: reading it would show other rollouts."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        raise UsageError(
            f"batch.{name}: this batch was given back when the next one was asked for; keep batch.copy() instead"
        )

    def __repr__(self) -> str:
        return "<a batch that was given back>"


def end_loan(batch: Batch) -> None:
    """Its memory is filled again from now on."""
    vars(batch).clear()
    batch.__class__ = GivenBack
