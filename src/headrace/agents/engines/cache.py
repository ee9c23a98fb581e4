"""What a model has read: keys and values in rows, who has which of them, and attention over one row's own length.

    Places: episode -> row, and the whole chunks that lie there · Cache: the rows themselves, as the model's cache
    Cache.update ──> Rows ──> the model's attention function ──> Rows.attend, row by row

A row that is not in use keeps what was read until it is needed. A token looks at its own row, up to its own position,
rounded up to whole blocks (or chunks, where those are shown to give the same bits): neither its cost nor its bits
depend on its neighbours or on max_context. Knows no requests, no sampling and no weights but that others came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

CHUNK = 64  # tokens of a prompt read in one pass
BLOCK = 512  # keys that attention takes together: a prefix of whole blocks gives the bits of any longer row
_COPIED = 256  # keys up to which rows are copied side by side: one call for several is worth that


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


@dataclass(frozen=True)
class _Look:
    """Rows of a pass that look equally far back: which they are, where they lie, how far they look, what they see."""

    at: list[int] | slice
    places: Tensor | slice
    length: int
    mask: Tensor


class Cache:
    """Keys and values of all places, as the model's cache: rows at positions of their own."""

    def __init__(self, config: Any, places: int, length: int) -> None:
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, places, heads, length, width)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        least, at = torch.finfo(torch.float32).min, torch.arange(length + BLOCK)
        # Row i of any slice that begins at length - 1 - start hides what comes after token start + i.
        self._hidden = torch.zeros(CHUNK, len(at)).masked_fill_(at > length - 1 + torch.arange(CHUNK)[:, None], least)
        self._length = length
        self._fine = is_fine(config.num_attention_heads, heads, width)
        self.rows = torch.zeros(0, dtype=torch.long)  # place of each row of this pass
        self.positions = torch.zeros(0, 0, dtype=torch.long)  # [rows, tokens]
        self._looks: list[_Look] = []

    def place(self, rows: list[int], starts: list[int], tokens: int, count: int) -> None:
        """Where the next pass's rows lie, where each begins, how many tokens follow; the first `count` rows matter."""
        self.rows = torch.tensor(rows)
        self.positions = torch.tensor(starts)[:, None] + torch.arange(tokens)
        step, far = CHUNK if self._fine and tokens == 1 else BLOCK, dict[int, list[int]]()
        for at, start in enumerate(starts[:count]):
            far.setdefault(min(-(-(start + tokens) // step) * step, self._length), []).append(at)
        self._looks = []
        for length, together in far.items():
            parts = [together] if length <= _COPIED and len(together) > 1 else [[at] for at in together]
            for part in parts:
                firsts = [self._length - 1 - starts[at] for at in part]
                seen = [self._hidden[None, None, :tokens, first : first + length] for first in firsts]
                if len(part) > 1:
                    self._looks.append(_Look(part, self.rows[part], length, torch.cat(seen)))
                else:  # slices: nothing is copied
                    (at,) = part
                    self._looks.append(_Look(slice(at, at + 1), slice(rows[at], rows[at] + 1), length, seen[0]))

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Rows, Rows]:
        """Write this pass's tokens where they belong; what comes back is for the attention function only."""
        rows, at = self.rows[:, None], self.positions
        self._keys[layer][rows, :, at] = keys.transpose(1, 2)
        self._values[layer][rows, :, at] = values.transpose(1, 2)
        both = Rows(self._keys[layer], self._values[layer], self._looks)
        return both, both

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked by some models; positions are always given, so nothing depends on it."""
        return 0


@dataclass(frozen=True)
class Rows:
    """Keys and values of one layer, and what the rows of a pass may see of them."""

    keys: Tensor
    values: Tensor
    looks: list[_Look]

    def attend(self, queries: Tensor, scaling: float | None) -> Tensor:
        """[rows, heads, tokens, width] -> [rows, tokens, heads, width]; zero for rows that do not matter."""
        seen = torch.zeros_like(queries)
        for look in self.looks:
            keys, values = self.keys[:, :, : look.length], self.values[:, :, : look.length]
            seen[look.at] = attention(queries[look.at], keys[look.places], values[look.places], look.mask, scaling)
        return seen.transpose(1, 2)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float | None = None) -> Tensor:
    """Of some rows; heads may share their keys."""
    is_shared = queries.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scaling, enable_gqa=is_shared)


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
