"""What a model has read: keys and values in rows, who has which of them, and attention over one row's own length.

    Places: episode -> row, and the whole chunks that lie there · Cache: the rows themselves, as the model's cache
    a place: what was read ──copy──> a slot: what is spoken · Cache.update ──> Rows ──> the model's attention: seen_by

A place that is not in use keeps what was read until it is needed. Slots lie side by side, so that those who speak are
looked at where they lie. A token looks at its own row, up to its own position, rounded up to whole blocks (or chunks,
where those are shown to give the same bits), or farther if its neighbours do: neither its cost nor its bits depend on
max_context. Knows no requests, no sampling and no weights but that others came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.agents.engines.uninterrupted import uninterrupted

CHUNK = 64  # tokens of a prompt read in one pass
BLOCK = 512  # keys that attention takes together: a prefix of whole blocks gives the bits of any longer row
_SPARED = 256  # keys that one call of attention costs: rows that look so much farther than they need share one


class Places:
    """Who has which row of the cache, and which chunks of a conversation lie there, read and whole."""

    def __init__(self, count: int) -> None:
        self._free: dict[int, None] = dict.fromkeys(range(count))  # the longest unused first
        self._home: dict[str, int] = {}  # episode -> place
        self._owner: dict[int, str] = {}
        self._read: dict[int, list[int]] = {}

    @property
    def has_room(self) -> bool:
        """Whether another request may come."""
        return bool(self._free)

    def take(self, session: str, ids: list[int]) -> tuple[int, int]:
        """The place where this conversation lies, if it still does, else the longest unused; and what is read."""
        place = self._home.get(session, -1)
        if place not in self._free:
            place = next(iter(self._free))
            self._home.pop(self._owner.pop(place, ""), None)
            self._read.pop(place, None)
            self._home[session], self._owner[place] = place, session
        del self._free[place]
        return place, common(self._read.get(place, []), ids)

    def has_read(self, place: int, ids: list[int]) -> None:
        """They lie there now."""
        self._read[place] = ids[: len(ids) // CHUNK * CHUNK]

    def leave(self, place: int) -> None:
        """What was read stays until the place is needed."""
        self._free[place] = None

    def forget(self) -> None:
        """Other weights: nothing that was read is worth anything."""
        self._read.clear()


def common(read: list[int], ids: list[int]) -> int:
    """Tokens in whole chunks that are the same from the beginning."""
    count = 0
    while count + CHUNK <= min(len(read), len(ids)) and read[count : count + CHUNK] == ids[count : count + CHUNK]:
        count += CHUNK
    return count


# TorchScript needs the types of fields themselves, which the class syntax keeps as text.
Layout = NamedTuple(  # noqa: UP014
    "Layout", [("rows", list[int]), ("starts", list[int]), ("tokens", int), ("spans", list[tuple[int, int, int]])]
)
"""Of a pass: where its rows lie, where each begins, how many tokens follow; spans of rows that look back together:
first, behind the last, and how far."""
Look = NamedTuple("Look", [("begin", int), ("end", int), ("row", int), ("length", int), ("mask", Tensor)])  # noqa: UP014
"""Rows of a pass that look back together: first, behind the last, where the first lies, how far, what they see."""


class Cache:
    """Keys and values of all places and slots, as the model's cache: rows at positions of their own."""

    def __init__(self, config: Any, places: int, slots: int, length: int) -> None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._shape = (config.num_hidden_layers, places + slots, heads, length, width)
        self._first = places  # the row of slot 0
        self.clear()
        least, at = torch.finfo(torch.float32).min, torch.arange(length + BLOCK)
        # Row i of any slice that begins at length - 1 - start hides what comes after token start + i.
        self.hidden = torch.zeros(CHUNK, len(at)).masked_fill_(at > length - 1 + torch.arange(CHUNK)[:, None], least)
        self._length = length
        self._fine = is_fine(config.num_attention_heads, heads, width)
        self.layout = Layout([], [], 0, [])  # of the next pass
        self._written = torch.zeros(0, dtype=torch.long)
        self._looks: list[Look] = []

    def clear(self) -> None:
        """Nothing lies there. What is hidden is multiplied by zero, so not even rests that are no numbers may stay."""
        self.keys, self.values = torch.zeros(self._shape), torch.zeros(self._shape)

    def seat(self, places: list[int], slot: int, counts: list[int]) -> None:
        """What was read at some places, the first tokens of each, to as many slots from one on."""
        first = self._first + slot
        _copied(self.keys, self.values, places, list(range(first, first + len(places))), counts)

    def move(self, slot: int, other: int, count: int) -> None:
        """What lies in a slot to another one."""
        _copied(self.keys, self.values, [self._first + slot], [self._first + other], [count])

    def read(self, places: list[int], starts: list[int], tokens: int, count: int) -> None:
        """Where the next pass's rows lie, where each begins, how many tokens follow; the first `count` rows matter."""
        spans = [(at, at + 1, self._look(starts[at] + tokens, BLOCK)) for at in range(count)]
        self.layout = Layout(places, starts, tokens, spans)

    def speak(self, starts: list[int], width: int) -> None:
        """Where the token of each slot lies, from slot 0 on; rows up to `width` do not matter."""
        step = CHUNK if self._fine else BLOCK
        spans = together([self._look(start + 1, step) for start in starts])
        rows = list(range(self._first, self._first + width))
        self.layout = Layout(rows, [*starts, *[0] * (width - len(starts))], 1, spans)

    def _look(self, farthest: int, step: int) -> int:
        return min(-(-farthest // step) * step, self._length)

    def positions(self) -> Tensor:
        """Of the next pass's tokens, [rows, tokens]; then `update` knows where they are written."""
        positions, self._written, self._looks = laid_out(self.layout, self.hidden, self.keys)
        return positions

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Rows, Rows]:
        """Write this pass's tokens where they belong; what comes back is for the attention function only."""
        write(keys, self.keys[layer], self._written)
        write(values, self.values[layer], self._written)
        both = Rows(self.keys[layer], self.values[layer], self._looks)
        return both, both

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked by some models; positions are always given, so nothing depends on it."""
        return 0


def together(lengths: list[int]) -> list[tuple[int, int, int]]:
    """Rows that lie side by side and look about equally far: first, behind the last, and the longest look of each."""
    runs: list[tuple[int, int, int]] = []
    spared = 0
    for at, length in enumerate(lengths):
        begin, _, farthest = runs[-1] if runs else (0, 0, 0)
        longest = max(farthest, length)
        more = (longest - farthest) * (at - begin) + longest - length
        if runs and spared + more <= _SPARED:
            spared += more
            runs[-1] = (begin, at + 1, longest)
        else:
            runs.append((at, at + 1, length))
            spared = 0
    return runs


@dataclass(frozen=True)
class Rows:
    """Keys and values of one layer, and what the rows of a pass may see of them."""

    keys: Tensor
    values: Tensor
    looks: list[Look]


# ------------------------------------------------------- what TorchScript compiles, too: plain loops, spelt-out types


def copied(keys: Tensor, values: Tensor, rows: list[int], others: list[int], counts: list[int]) -> None:
    """The first tokens of some rows to other rows, in all layers."""
    for at in range(len(rows)):
        for tensor in (keys, values):
            tensor[:, others[at], :, : counts[at]] = tensor[:, rows[at], :, : counts[at]]


def laid_out(layout: Layout, hidden: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, list[Look]]:
    """Positions [rows, tokens], where each token of each head is written, and what each row sees."""
    rows, starts, tokens, spans = layout
    heads, length = keys.shape[2], keys.shape[3]
    positions = torch.tensor(starts)[:, None] + torch.arange(tokens)
    at = torch.tensor(rows)[:, None, None] * heads + torch.arange(heads)[None, :, None]
    written = (at * length + positions[:, None]).ravel()
    looks: list[Look] = []
    for begin, end, farthest in spans:
        if end - begin == 1:
            first = length - 1 - starts[begin]
            mask = hidden[None, None, :tokens, first : first + farthest]
        else:
            windows = hidden[0].unfold(0, farthest, 1)
            mask = windows.index_select(0, length - 1 - positions[begin:end, 0])[:, None, None]
        looks.append(Look(begin, end, rows[begin], farthest, mask))
    return positions, written, looks


def write(tokens: Tensor, rows: Tensor, written: Tensor) -> None:
    """This pass's tokens [rows, heads, tokens, width] where they belong, in keys or values of one layer."""
    width = tokens.shape[-1]
    rows.view(-1, width).index_copy_(0, written, tokens.reshape(-1, width))


def seen_by(queries: Tensor, keys: Tensor, values: Tensor, looks: list[Look], scaling: float | None) -> Tensor:
    """[rows, heads, tokens, width] -> [rows, tokens, heads, width]; zero for rows that do not matter."""
    parts: list[Tensor] = []
    end = 0
    for look in looks:
        begin, end, row, length, mask = look
        lies = row + end - begin
        parts.append(
            attention(queries[begin:end], keys[row:lies, :, :length], values[row:lies, :, :length], mask, scaling)
        )
    missing = queries.shape[0] - end
    if missing > 0:
        parts.append(torch.zeros_like(queries[:missing]))
    seen = parts[0] if len(parts) == 1 else torch.cat(parts)
    return seen.transpose(1, 2)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None = None) -> Tensor:
    """Of some rows; heads may share their keys."""
    is_shared = queries.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scaling, enable_gqa=is_shared)


_copied = uninterrupted(copied)


def is_fine(heads: int, key_heads: int, width: int) -> bool:
    """Whether one token that looks back some chunks gets the same bits as by a whole block, on this machine."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.finfo(torch.float32).min
    queries = torch.randn(4, heads, 1, width, generator=draw)
    keys, values = (torch.randn(4, key_heads, BLOCK, width, generator=draw) for _ in range(2))
    for length in range(CHUNK, BLOCK, CHUNK):
        for last in (length - CHUNK, length - CHUNK // 2, length - 1):
            mask = torch.zeros(4, 1, 1, BLOCK).masked_fill_(torch.arange(BLOCK) > last, hidden)
            whole = attention(queries, keys, values, mask)
            part = attention(queries, keys[:, :, :length], values[:, :, :length], mask[..., :length])
            if not torch.equal(whole, part):
                return False
    return True
