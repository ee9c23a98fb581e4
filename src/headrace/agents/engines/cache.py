"""What a model has read: keys and values in rows of one fixed length, and who has which of them.

    Places: episode -> row, and the whole chunks that lie there · Cache: the rows themselves, as the model's cache

A row that is not in use keeps what was read until it is needed. Knows no requests, no sampling and no weights but
that others came.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 64  # tokens of a prompt read in one pass


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


class Cache:
    """Keys and values of all places, as the model's cache: rows at positions of their own."""

    def __init__(self, config: Any, places: int, length: int) -> None:
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, places, heads, length, width)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self.rows = torch.zeros(0, dtype=torch.long)  # place of each row of this pass
        self.positions = torch.zeros(0, 0, dtype=torch.long)  # [rows, tokens]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write this pass's tokens where they belong; everything of these rows so far comes back."""
        rows, at = self.rows[:, None], self.positions
        self._keys[layer][rows, :, at] = keys.transpose(1, 2)
        self._values[layer][rows, :, at] = values.transpose(1, 2)
        return self._keys[layer][self.rows], self._values[layer][self.rows]

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked by some models; positions are always given, so nothing depends on it."""
        return 0
