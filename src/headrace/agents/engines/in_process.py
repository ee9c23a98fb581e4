"""A Hugging Face model in this process: batched token by token, exact log-probabilities, weights replaced in place.

    submit -> waiting -> a slot: prompt read in chunks ──> [ one pass: a token for every slot ] ──> answer, slot free
                                                              publish: new weights, caches read again

Requests join and leave between two passes; nobody waits for the longest answer of a batch. Every pass has one fixed
shape and every request its own random numbers, so an answer depends on its prompt and seed, not on its neighbours:
`self_test` proves it on this machine. An answer that is under way when weights change goes on with the new ones, and
each token says which version it came from. Any causal model with full attention will do (Qwen2, Llama, Mistral ...).
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, answers_of, checked
from headrace.agents.failures import EpisodeError
from headrace.agents.records import ENGINE
from headrace.clock import now_s
from headrace.errors import HeadraceError, UsageError
from headrace.inference.threads import torch_threads

_CHUNK = 64  # tokens of a prompt read in one pass
_READERS = 8  # prompts read side by side


@dataclass
class _Job:
    """A request and what has been sampled for it."""

    request: Request
    future: Future[Completion]
    rng: np.random.Generator
    sampled: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Everything the next token follows."""
        return [*self.request.ids, *self.sampled]


class _Slots:
    """Keys and values of all slots, as the model's cache: rows at positions of their own."""

    def __init__(self, config: Any, slots: int, length: int) -> None:
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, heads, length, width)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self.rows = torch.zeros(0, dtype=torch.long)  # slot of each row of this pass
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


class InProcessEngine:
    """An engine over a model of this process."""

    is_text_only = False

    def __init__(self, model: Any, codec: Codec, slots: int = 32, max_context: int = 1024, threads: int = 1) -> None:
        if slots < 4:
            raise UsageError(f"slots: expected at least 4, got {slots}; smaller batches change bits")
        self.codec = codec
        self.version = 0  # the latest that was published
        self._acting = 0  # the one that passes are made with
        self._model = model.eval()
        self._slots, self._threads = slots, threads
        self._length = -(-max_context // _CHUNK) * _CHUNK
        self._cache = _Slots(model.config, slots + 1, self._length)  # the last one is for rows that hold nobody
        self._jobs: list[_Job | None] = [None] * slots
        self._waiting: deque[_Job] = deque()
        self._weights: dict[str, Tensor] | None = None  # to be taken over before the next pass
        self._statistics = EngineStatistics()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(self, request: Request) -> Future[Completion]:
        """Join as soon as a slot is free."""
        (future,) = self._submit([request])
        return future

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """All of them, together."""
        return answers_of(self._submit(requests))

    def expect(self, live: int) -> None:
        """Nobody is waited for here."""

    def publish(self, weights: Any) -> int:
        """A model or a state_dict; takes effect between two passes, also for answers that are under way."""
        state = weights.state_dict() if hasattr(weights, "state_dict") else weights
        fresh = {name: tensor.detach().clone() for name, tensor in state.items()}
        with self._changed:
            self._require_fitting(fresh)
            self._weights = fresh
            self.version += 1
            if self._thread is None or not self._thread.is_alive():
                self._take_over()
            self._changed.notify()
            return self.version

    def statistics(self) -> EngineStatistics:
        """So far."""
        return self._statistics

    def close(self) -> None:
        """Whoever waits is told."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def self_test(self) -> None:
        """Raise unless an answer is the same alone, in company, and in other slots."""
        rng = np.random.default_rng(0)
        requests = [
            Request(0, at, 0, rng.integers(0, self.codec.vocabulary, 5 + 37 * at).tolist(), 4, 1000 + at)
            for at in range(3)
        ]
        alone = [self.generate([one])[0] for one in requests]
        together = self.generate([*requests[1:], requests[0], *requests[::-1]])
        if [*alone[1:], alone[0], *alone[::-1]] != together:
            raise HeadraceError(
                f"{type(self._model).__name__}: the same request got another answer in other company; rollouts could "
                f"not be repeated. Use full attention, float32 and no dropout"
            )

    # -------------------------------------------------------------------------------------------------- inside

    def _submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        jobs = [_Job(one, Future(), np.random.Generator(np.random.PCG64(one.seed))) for one in requests]
        with self._changed:
            for job in jobs:
                most = self._length - job.request.max_tokens
                if self._is_closed:
                    job.future.set_exception(EpisodeError(ENGINE, "the engine was closed"))
                elif not 0 < len(job.request.ids) <= most:
                    told = f"a prompt of {len(job.request.ids)} tokens, expected 1 to {most}"
                    job.future.set_exception(EpisodeError(ENGINE, told))
                else:
                    self._waiting.append(job)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._serve, name="engine-model", daemon=True)
                self._thread.start()
            self._changed.notify()
        return [job.future for job in jobs]

    def _serve(self) -> None:
        with torch_threads(self._threads), torch.inference_mode():
            while True:
                with self._changed:
                    while not (self._is_closed or self._waiting or self._weights or any(self._jobs)):
                        self._changed.wait()
                    if self._is_closed:
                        self._fail_all(EpisodeError(ENGINE, "the engine was closed"))
                        return
                    joining = self._seat()
                try:
                    if self._weights is not None:
                        self._take_over()
                        joining = [at for at, job in enumerate(self._jobs) if job is not None]
                    self._pass(joining)
                except Exception as error:
                    with self._changed:
                        self._fail_all(EpisodeError(ENGINE, f"{type(error).__name__}: {error}"))

    def _seat(self) -> list[int]:
        """Give free slots to those who wait, in the order they came."""
        joining = []
        for at, job in enumerate(self._jobs):
            while job is None and self._waiting:
                waiting = self._waiting.popleft()
                if waiting.future.set_running_or_notify_cancel():
                    job = self._jobs[at] = waiting
                    joining.append(at)
        return joining

    def _pass(self, joining: list[int]) -> None:
        """Read what is new, then one token for everybody."""
        started = now_s()
        for start in range(0, len(joining), _READERS):
            self._read(joining[start : start + _READERS])
        live = [at for at, job in enumerate(self._jobs) if job is not None]
        if not live:
            return  # only new weights
        ids = torch.zeros(self._slots, 1, dtype=torch.long)
        self._cache.rows = torch.full((self._slots,), self._slots)
        self._cache.positions = torch.zeros(self._slots, 1, dtype=torch.long)
        for at in live:
            job = self._jobs[at]
            assert job is not None
            everything = job.ids
            ids[at, 0], self._cache.rows[at], self._cache.positions[at, 0] = everything[-1], at, len(everything) - 1
        logits = self._forward(ids)[:, 0].double().numpy()
        for at in live:
            self._sample(at, logits[at])
        was = self._statistics
        self._statistics = replace(
            was,
            batches=was.batches + 1,
            batched=was.batched + len(live),
            tokens=was.tokens + len(live),
            busy_s=was.busy_s + now_s() - started,
        )

    def _read(self, slots: list[int]) -> None:
        """Everything but the last token of some slots into the cache, a chunk of each at a time."""
        texts = []
        for at in slots:
            job = self._jobs[at]
            assert job is not None
            texts.append(job.ids[:-1])
        longest = max(len(text) for text in texts)
        for start in range(0, longest, _CHUNK):
            ids = torch.zeros(_READERS, _CHUNK, dtype=torch.long)
            self._cache.rows = torch.full((_READERS,), self._slots)
            for row, (at, text) in enumerate(zip(slots, texts, strict=True)):
                part = text[start : start + _CHUNK]
                if part:
                    ids[row, : len(part)] = torch.tensor(part)
                    self._cache.rows[row] = at
            self._cache.positions = torch.arange(start, start + _CHUNK).expand(_READERS, _CHUNK)
            self._forward(ids, is_reading=True)

    def _forward(self, ids: Tensor, is_reading: bool = False) -> Tensor:
        at = self._cache.positions
        seen = torch.arange(self._length) <= at[..., None]  # [rows, tokens, length]
        mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)[:, None]
        inner = self._model.model if is_reading else self._model  # reading needs no logits
        out = inner(input_ids=ids, attention_mask=mask, position_ids=at, past_key_values=self._cache, use_cache=True)
        logits: Tensor = out.last_hidden_state if is_reading else out.logits
        return logits

    def _sample(self, at: int, logits: Any) -> None:
        """One token by inverse transform: one uniform number of the request's own per token."""
        job = self._jobs[at]
        assert job is not None
        request = job.request
        scaled = logits / request.temperature if request.temperature > 0 else logits
        log_probs = scaled - scaled.max()
        log_probs -= np.log(np.exp(log_probs).sum())
        if request.temperature > 0:
            total = np.cumsum(np.exp(log_probs))
            token = int(min(np.searchsorted(total, job.rng.random() * total[-1], side="right"), len(total) - 1))
        else:
            token = int(log_probs.argmax())
        job.sampled.append(token)
        job.log_probs.append(min(0.0, float(np.float32(log_probs[token]))))
        job.versions.append(self._acting)
        has_ended = token == self.codec.eos_id
        if has_ended or len(job.sampled) >= request.max_tokens:
            self._jobs[at] = None
            text = self.codec.decode(job.sampled[:-1] if has_ended else job.sampled)
            answer = Completion(job.sampled, job.log_probs, job.versions, text, "stop" if has_ended else "length")
            self._statistics = replace(self._statistics, requests=self._statistics.requests + 1)
            try:
                job.future.set_result(checked(request, answer, self.codec, False))
            except EpisodeError as failure:
                job.future.set_exception(failure)

    def _take_over(self) -> None:
        with self._changed:
            weights, self._weights = self._weights, None
            assert weights is not None
            self._model.load_state_dict(weights)
            self._acting = self.version

    def _require_fitting(self, state: dict[str, Tensor]) -> None:
        ours = {name: tuple(tensor.shape) for name, tensor in self._model.state_dict().items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if ours != theirs:
            odd = sorted(set(ours.items()) ^ set(theirs.items()))[0][0]
            raise UsageError(f"publish: {odd}: expected shape {ours.get(odd)}, got {theirs.get(odd)}")

    def _fail_all(self, failure: EpisodeError) -> None:
        jobs = [job for job in self._jobs if job is not None]
        waiting = [job for job in self._waiting if job.future.set_running_or_notify_cancel()]
        self._jobs = [None] * self._slots
        self._waiting.clear()
        for job in [*jobs, *waiting]:
            job.future.set_exception(failure)


def in_process(model: Any, codec: Codec, **options: Any) -> InProcessEngine:
    """An engine over a copy of a model, tested on this machine before it is used."""
    engine = InProcessEngine(copy.deepcopy(model), codec, **options)
    try:
        engine.self_test()
    except BaseException:
        engine.close()
        raise
    return engine
