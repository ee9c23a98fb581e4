"""What a model computes: passes over the rows of a cache, and one token drawn from a row's logits.

    read: a chunk of up to eight prompts into the cache · speak: a token's logits for each · draw: the token

A pass has one of a few shapes that are shown to give the same bits, and every request has its own random numbers: an
answer depends on its prompt and seed, not on its neighbours. Does not know threads, queues, or when a pass is worth
its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.agents.codec import Codec
from headrace.agents.engines.cache import CHUNK, Cache, Rows, seen_by
from headrace.agents.engines.plain_decoder import PlainDecoder, plain_decoder
from headrace.agents.engines.protocol import Completion, Request, checked
from headrace.agents.engines.sampling import sampled
from headrace.agents.records import EpisodeError
from headrace.errors import UsageError

READERS = 8  # prompts read side by side
_LEAST = 4  # rows that speak: with fewer, matrix products take other ways
_NOTHING = [0] * CHUNK  # ids of what is not there
_ATTENTION = "headrace"  # its name in transformers


def require_model(model: Any, codec: Any) -> None:
    """Refuse what is no model of transformers, or no codec."""
    if not callable(getattr(model, "forward", None)) or not hasattr(model, "config"):
        raise UsageError(
            f"in_process: expected a causal model of transformers, got {model!r}; "
            f"AutoModelForCausalLM.from_pretrained(folder) loads one"
        )
    if not callable(getattr(codec, "encode", None)) or not hasattr(codec, "eos_id"):
        raise UsageError(
            f"in_process: expected the model's codec, as TokenizerCodec.from_folder(folder), got {codec!r}"
        )


@dataclass
class Generation:
    """A request and what has been sampled for it."""

    request: Request
    future: Future[Completion]
    rng: np.random.Generator
    may_return: bool = False  # its episode comes back by itself, with its next question
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

    def has_ended(self, codec: Codec) -> bool:
        """Whether its last token was the last one."""
        return self.sampled[-1] in codec.stop_ids or len(self.sampled) >= self.request.max_tokens

    def answer(self, codec: Codec) -> Completion | EpisodeError:
        """The whole one, or what is wrong with it."""
        is_stopped = self.sampled[-1] in codec.stop_ids
        text = codec.decode(self.sampled[:-1] if is_stopped else self.sampled)
        answer = Completion(self.sampled, self.log_probs, self.versions, text, "stop" if is_stopped else "length")
        try:
            return checked(self.request, answer, codec, False)
        except EpisodeError as failure:
            return failure

    def take(self, token: int, log_prob: float, version: int) -> None:
        """The next token."""
        self.sampled.append(token)
        self.log_probs.append(log_prob)
        self.versions.append(version)


def draw(speaking: Sequence[Generation], logits: Any, version: int) -> None:
    """One token each, with one uniform number of the request's own."""
    uniforms = np.array([one.rng.random() for one in speaking])
    for one, token, log_prob in zip(
        speaking, *sampled(logits, [one.request for one in speaking], uniforms), strict=True
    ):
        one.take(token, log_prob, version)


class Passes:
    """A model with `places` rows of keys and values, of which `slots` speak at one time."""

    def __init__(self, model: Any, slots: int, places: int, length: int) -> None:
        self._model = _with_own_attention(model)
        self._nowhere = places  # a row for what holds no request
        self._cache = Cache(model.config, places + 1, slots, length)
        self._mask = torch.zeros(1, 1, 1, 1)  # a mask that is given is not computed; the cache has its own
        self._widths, self._readers = [slots], [READERS]  # rows of a speaking and of a reading pass, ascending
        self._length = length
        self._plain: PlainDecoder | None = None

    def prove(self) -> None:
        """Let few requests read and speak in narrow passes, and the plain decoder make them, where that gives the bits
        of the model's own wide ones on this machine."""
        plain, tried = plain_decoder(self._model, self._length), []
        for widths, tokens in ((self._readers, CHUNK), (self._widths, 1)):
            most, rng = widths[-1], np.random.default_rng(1)
            ids = rng.integers(0, self._model.config.vocab_size, (most, tokens)).tolist()
            starts = (rng.integers(0, self._length // tokens, most) * tokens).tolist()
            want = self._tried(ids, starts)
            for width in (256, 128, 64, 32, 16, 8, 4, 2, 1):
                is_sound = width < most and (width >= _LEAST or tokens > 1)
                if is_sound and torch.equal(self._tried(ids[:width], starts[:width]), want[:width]):
                    widths.insert(0, width)
            tried += [(ids[:width], starts[:width], want[:width]) for width in widths]
        if plain is not None:
            self._plain = plain
            if not all(torch.equal(self._tried(ids, starts), want) for ids, starts, want in tried):
                self._plain = None

    def _tried(self, ids: list[list[int]], starts: list[int]) -> Tensor:
        width, tokens = len(ids), len(ids[0])
        if tokens == 1:
            self._cache.speak(starts, width)
        else:
            self._cache.read([min(at, self._nowhere) for at in range(width)], starts, tokens, width)
        return self.forward(ids, is_reading=tokens > 1)

    def read(self, generations: Sequence[Generation]) -> None:
        """One pass: a chunk of up to eight prompts, all but the last token of each, into the cache."""
        passing = [one for one in generations if not one.is_read][:READERS]
        if not passing:
            return
        width = next(width for width in self._readers if width >= len(passing))
        ids, rows, starts = [_NOTHING] * width, [self._nowhere] * width, [0] * width
        for row, one in enumerate(passing):
            part = one.ids[one.read : min(one.read + CHUNK, one.length - 1)]
            ids[row] = [*part, *_NOTHING[len(part) :]]
            rows[row], starts[row] = one.place, one.read
            one.read += len(part)
        self._cache.read(rows, starts, CHUNK, len(passing))
        self.forward(ids, is_reading=True)

    def seat(self, some: Sequence[Generation], slot: int) -> None:
        """From now on they speak in that slot and those behind it."""
        self._cache.seat([one.place for one in some], slot, [one.length - 1 for one in some])

    def move(self, one: Generation, slot: int, other: int) -> None:
        """It speaks in another slot."""
        self._cache.move(slot, other, one.length - 1)

    def speak(self, speaking: Sequence[Generation]) -> Any:
        """One pass: logits of the next token of those in slot 0 and on, [speaking, vocabulary], in double precision."""
        width = next(width for width in self._widths if width >= len(speaking))
        ids = [[one.sampled[-1] if one.sampled else one.request.ids[-1]] for one in speaking]
        ids += [[0]] * (width - len(ids))
        self._cache.speak([one.length - 1 for one in speaking], width)
        return self.forward(ids)[: len(speaking), 0].double().numpy()

    def forward(self, ids: list[list[int]], is_reading: bool = False) -> Tensor:
        """The model over the cache's rows and positions of now."""
        if self._plain is not None:
            return self._plain(ids, self._cache, is_reading)
        inner = self._model.base_model if is_reading else self._model  # reading needs no logits
        out = inner(
            input_ids=torch.tensor(ids), attention_mask=self._mask, position_ids=self._cache.positions(),
            past_key_values=self._cache, use_cache=True,
        )  # fmt: skip
        logits: Tensor = out.last_hidden_state if is_reading else out.logits
        return logits

    def recomputed(self, ids: Sequence[int], count: int) -> Any:
        """Log-probabilities of the last `count` tokens by one call of the model as it is, without our cache."""
        logits = self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -count - 1 : -1]
        return torch.log_softmax(logits, -1)[torch.arange(count), torch.tensor(list(ids[-count:]))].numpy()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Other weights: nothing that was read is worth anything."""
        self._model.load_state_dict(weights)
        self._cache.clear()

    def require_fitting(self, weights: Mapping[str, Tensor]) -> None:
        """UsageError unless they have this model's names and shapes."""
        ours = {name: tuple(tensor.shape) for name, tensor in self._model.state_dict().items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if ours != theirs:
            odd = sorted(set(ours.items()) ^ set(theirs.items()))[0][0]
            raise UsageError(f"publish: {odd}: expected shape {ours.get(odd)}, got {theirs.get(odd)}")


def _with_own_attention(model: Any) -> Any:
    """The model, with attention over the rows of our cache; without that cache it attends as it did."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(module: Any, query: Tensor, key: Any, value: Any, mask: Any, **options: Any) -> tuple[Tensor, None]:
        if isinstance(key, Rows):
            _require_plain(options, key.keys.shape[2])
            return seen_by(query, key.keys, key.values, key.looks, options.get("scaling")), None
        plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **options)
        return plain

    AttentionInterface.register(_ATTENTION, attend)
    AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
    model.set_attn_implementation(_ATTENTION)
    return model


def _require_plain(options: Mapping[str, Any], length: int) -> None:
    window = options.get("sliding_window")
    if window is not None and window < length:
        raise UsageError(
            f"model: its attention looks back {window} tokens (sliding_window), expected full attention: set "
            f"max_context to at most {window}, or take another model"
        )
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise UsageError(f"model: its attention has {name}, expected full attention without it: take another model")
