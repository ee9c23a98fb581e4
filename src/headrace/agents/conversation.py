"""A conversation in token space, append only: what was sampled stays as it was sampled.

    ask(text) -> ids to go on from · answer(completion) -> its ids appended, mask 1 · ask ...

The chat template must only append. That is checked at every turn: the new text has to begin with the old one and the
answer in it. Where a template rewrites what was said (drops earlier thoughts, trims blanks), a new row is forked from
the rewritten text, and the old row keeps what was sampled. Knows no environment and no engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.agents.codec import Codec, Message
from headrace.agents.engines.protocol import Completion
from headrace.agents.records import TokenRow, token_row


@dataclass
class _Growing:
    """A row that is still written."""

    ids: list[int]
    loss_mask: bytearray
    log_probs: array[float]
    versions: array[int]
    text: str = ""  # what the template rendered for it so far, sampled answers included

    @classmethod
    def of_prompt(cls, ids: list[int], text: str) -> _Growing:
        row = cls([], bytearray(), array("f"), array("i"), text)
        row.read(ids)
        return row

    def read(self, ids: Sequence[int]) -> None:
        """Tokens that the policy did not sample."""
        self.ids += ids
        self.loss_mask += bytes(len(ids))
        self.log_probs.extend([0.0] * len(ids))
        self.versions.extend([-1] * len(ids))

    def sample(self, completion: Completion) -> None:
        """Tokens that it did."""
        self.ids += completion.ids
        self.loss_mask += b"\1" * len(completion.ids)
        self.log_probs.extend(completion.log_probs)
        self.versions.extend(completion.versions)


@dataclass(frozen=True)
class Span:
    """Where an answer's tokens lie."""

    row: int
    start: int
    stop: int


@dataclass
class Conversation:
    """Grows by questions and answers; `rows` may be read at any time."""

    codec: Codec
    is_text_only: bool = False
    messages: list[Message] = field(default_factory=list)
    _rows: list[_Growing] = field(default_factory=list)
    _end: str = ""  # how the end token is spelt, once that was asked
    _ended: str = ""  # the spelling of the end token, if the last answer brought one itself

    def ask(self, text: str) -> list[int]:
        """Add what the environment says; returns the ids to go on from."""
        self.messages.append({"role": "user", "content": text})
        if self.is_text_only:
            return []
        full = self.codec.render(self.messages, is_asking=True)
        row = self._rows[-1] if self._rows else None
        if row is not None and full.startswith(row.text):
            added = full[len(row.text) :]
            row.read(self.codec.encode(added.removeprefix(self._ended)))
            row.text = full
        else:
            self._rows.append(_Growing.of_prompt(self.codec.encode(full), full))
        return list(self._rows[-1].ids)

    def answer(self, completion: Completion) -> Span:
        """Add what the policy sampled."""
        self.messages.append({"role": "assistant", "content": completion.text})
        if self.is_text_only:
            return Span(0, 0, 0)
        row = self._rows[-1]
        start = len(row.ids)
        row.sample(completion)
        has_ended = bool(completion.ids) and completion.ids[-1] == self.codec.eos_id
        if has_ended and not self._end:
            self._end = self.codec.decode([self.codec.eos_id])
        self._ended = self._end if has_ended else ""
        row.text += completion.text
        return Span(len(self._rows) - 1, start, len(row.ids))

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """As arrays."""
        return tuple(token_row(row.ids, bytearray(row.loss_mask), row.log_probs, row.versions) for row in self._rows)
