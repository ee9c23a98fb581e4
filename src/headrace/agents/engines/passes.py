"""What a model computes: passes of one fixed shape over the rows of a cache, and one token drawn from a row's logits.

    read: a chunk of up to eight prompts into the cache · speak: a token's logits for every slot · draw: the token

Every pass has one fixed shape and every request its own random numbers, so an answer depends on its prompt and seed,
not on its neighbours. Does not know threads, queues, or when a pass is worth its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.agents.engines.cache import CHUNK, Cache
from headrace.agents.engines.protocol import Completion, Request
from headrace.errors import UsageError

READERS = 8  # prompts read side by side


@dataclass
class Generation:
    """A request and what has been sampled for it."""

    request: Request
    future: Future[Completion]
    rng: np.random.Generator
    sampled: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    place: int = -1  # of its keys and values
    read: int = 0  # tokens that are there

    @property
    def length(self) -> int:
        """Of `ids`."""
        return len(self.request.ids) + len(self.sampled)

    @property
    def ids(self) -> list[int]:
        """Everything the next token follows."""
        return [*self.request.ids, *self.sampled]

    @property
    def is_read(self) -> bool:
        """Whether all but its last token lie in the cache."""
        return self.read >= self.length - 1

    def draw(self, logits: Any, version: int) -> int:
        """One token by inverse transform: one uniform number of the request's own per token."""
        temperature = self.request.temperature
        scaled = logits / temperature if temperature > 0 else logits
        log_probs = scaled - scaled.max()
        log_probs -= np.log(np.exp(log_probs).sum())
        if temperature > 0:
            total = np.cumsum(np.exp(log_probs))
            token = int(min(np.searchsorted(total, self.rng.random() * total[-1], side="right"), len(total) - 1))
        else:
            token = int(log_probs.argmax())
        self.sampled.append(token)
        self.log_probs.append(min(0.0, float(np.float32(log_probs[token]))))
        self.versions.append(version)
        return token


class Passes:
    """A model with `places` rows of keys and values, of which `slots` speak at one time."""

    def __init__(self, model: Any, slots: int, places: int, length: int) -> None:
        self._model = model
        self._slots, self._length = slots, length
        self._nowhere = places  # a row for what holds no request
        self._cache = Cache(model.config, places + 1, length)

    def read(self, generations: Sequence[Generation]) -> None:
        """One pass: a chunk of up to eight prompts, all but the last token of each, into the cache."""
        ids = torch.zeros(READERS, CHUNK, dtype=torch.long)
        rows, starts = torch.full((READERS,), self._nowhere), torch.zeros(READERS, 1, dtype=torch.long)
        passing = [one for one in generations if not one.is_read][:READERS]
        for row, one in enumerate(passing):
            part = one.ids[one.read : min(one.read + CHUNK, one.length - 1)]
            ids[row, : len(part)] = torch.tensor(part)
            rows[row], starts[row, 0] = one.place, one.read
            one.read += len(part)
        if passing:
            self._cache.rows, self._cache.positions = rows, starts + torch.arange(CHUNK)
            self.forward(ids, is_reading=True)

    def speak(self, slots: Sequence[Generation | None]) -> Any:
        """One pass: logits of the next token, [slots, vocabulary], in double precision."""
        ids = torch.zeros(self._slots, 1, dtype=torch.long)
        self._cache.rows = torch.full((self._slots,), self._nowhere)
        self._cache.positions = torch.zeros(self._slots, 1, dtype=torch.long)
        for at, one in enumerate(slots):
            if one is not None:
                ids[at, 0] = one.sampled[-1] if one.sampled else one.request.ids[-1]
                self._cache.rows[at], self._cache.positions[at, 0] = one.place, one.length - 1
        return self.forward(ids)[:, 0].double().numpy()

    def forward(self, ids: Tensor, is_reading: bool = False) -> Tensor:
        """The model over the cache's rows and positions of now."""
        at = self._cache.positions
        seen = torch.arange(self._length) <= at[..., None]  # [rows, tokens, length]
        mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)[:, None]
        inner = self._model.model if is_reading else self._model  # reading needs no logits
        out = inner(input_ids=ids, attention_mask=mask, position_ids=at, past_key_values=self._cache, use_cache=True)
        logits: Tensor = out.last_hidden_state if is_reading else out.logits
        return logits

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Other weights."""
        self._model.load_state_dict(weights)

    def require_fitting(self, weights: Mapping[str, Tensor]) -> None:
        """UsageError unless they have this model's names and shapes."""
        ours = {name: tuple(tensor.shape) for name, tensor in self._model.state_dict().items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if ours != theirs:
            odd = sorted(set(ours.items()) ^ set(theirs.items()))[0][0]
            raise UsageError(f"publish: {odd}: expected shape {ours.get(odd)}, got {theirs.get(odd)}")
