"""A Hugging Face model in this process: batched token by token, exact log-probabilities, weights replaced in place.

    waiting ──> reading: its prompt, a chunk a pass ──> ready ──> a slot: [ one pass: a token for each ] ──> answer
                   ^────────── publish: new weights, everything is read again ─────────┘

Requests join and leave between two passes; nobody waits for the longest answer of a batch. A reading pass costs the
same for one prompt as for eight: so it waits for eight, a few passes at most, and reads ahead while slots are taken.

Every pass has one fixed shape and every request its own random numbers, so an answer depends on its prompt and seed,
not on its neighbours: `self_test` proves it on this machine. Chunks of a conversation that were read before are not
read again if they are still there: the same tokens in a pass of the same shape would give the same bits. Sampled tokens
are read again, since they came in another shape; so what is remembered saves time and changes nothing.

An answer that is under way when weights change goes on with the new ones, and each token says which version it came
from. Any causal model with full attention will do (Qwen2, Llama, Mistral ...).
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.agents.codec import Codec
from headrace.agents.engines.cache import CHUNK, Cache, Places
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, answers_of, checked
from headrace.agents.records import ENGINE, EpisodeError
from headrace.clock import now_s
from headrace.errors import HeadraceError, UsageError, whole
from headrace.inference.threads import torch_threads

_READERS = 8  # prompts read side by side
_GATHER_S = 0.005  # that an idle engine waits for others to read with
_MOST_HELD = 3  # passes that a prompt waits for others to be read with


@dataclass
class _Job:
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


class InProcessEngine:
    """An engine over a model of this process."""

    is_text_only = False
    is_in_process = True

    def __init__(
        self,
        model: Any,
        codec: Codec,
        slots: int = 32,
        max_context: int = 1024,
        threads: int = 1,
        parked: int = 0,
    ) -> None:
        """`slots` answers at one time; `parked` conversations more are kept for their next turn."""
        whole("slots", slots, 4, "at least 4, since smaller batches change bits")
        whole("parked", parked, 0)
        self.codec = codec
        self.version = 0  # the latest that was published
        self._acting = 0  # the one that passes are made with
        self._model = model.eval()
        self._slots, self._threads = slots, threads
        self._nowhere = slots + parked  # a place for rows that hold nobody
        self._length = -(-max_context // CHUNK) * CHUNK
        self._cache = Cache(model.config, self._nowhere + 1, self._length)
        self._places = Places(self._nowhere)
        self._jobs: list[_Job | None] = [None] * slots
        self._waiting: deque[_Job] = deque()
        self._reading: list[_Job] = []
        self._ready: deque[_Job] = deque()
        self._live = 1 << 30  # episodes: more requests than these can't come
        self._held = 0  # passes that whoever reads has been kept waiting for
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
        """Nobody waits for more than these."""
        self._live = max(1, live)

    def publish(self, weights: Any) -> int:
        """A model or a state_dict; takes effect between two passes, also for answers that are under way."""
        state = weights.state_dict() if hasattr(weights, "state_dict") else weights
        if not isinstance(state, Mapping) or not all(isinstance(one, Tensor) for one in state.values()):
            raise UsageError(f"publish: expected a model or its state_dict, got {weights!r}")
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
                    while not (self._is_closed or self._weights or self._num_present):
                        self._changed.wait()
                    if self._is_closed:
                        self._fail_all(EpisodeError(ENGINE, "the engine was closed"))
                        return
                    self._admit()
                    if self._gathers():
                        continue
                try:
                    if self._weights is not None:
                        self._take_over()
                    self._step()
                except Exception as error:
                    with self._changed:
                        self._fail_all(EpisodeError(ENGINE, f"{type(error).__name__}: {error}"))

    @property
    def _num_speaking(self) -> int:
        return sum(job is not None for job in self._jobs)

    @property
    def _num_present(self) -> int:
        return len(self._waiting) + len(self._reading) + len(self._ready) + self._num_speaking

    def _admit(self) -> None:
        """Those who wait, in the order they came: for free slots, and some more to read ahead."""
        most = self._slots - self._num_speaking + 2 * _READERS
        while self._waiting and self._places.has_room and len(self._reading) + len(self._ready) < most:
            job = self._waiting.popleft()
            if job.future.set_running_or_notify_cancel():
                job.place, job.read = self._places.take(job.request.session, job.ids[:-1])
                self._reading.append(job)

    def _gathers(self) -> bool:
        """Whether, with nothing else to do, somebody came while it waited for others to read with."""
        if self._weights is not None or self._num_speaking or self._ready or self._is_worth_reading():
            return False
        count = self._num_present
        self._changed.wait(_GATHER_S)
        return self._num_present > count

    def _is_worth_reading(self) -> bool:
        """Whether a reading pass is full, or can't get any fuller."""
        return len(self._reading) >= _READERS or self._num_present >= self._live

    def _step(self) -> None:
        """Read what should be read now, then one token for everybody who has a slot."""
        started = now_s()
        self._seat()
        while self._reading:
            has_free = self._num_speaking < self._slots
            if not self._is_worth_reading() and self._num_speaking and self._held < _MOST_HELD:
                self._held += has_free  # who reads ahead has time
                break
            self._held = 0
            self._read()
            self._seat()
            if not has_free:
                break
        speaking = [at for at, job in enumerate(self._jobs) if job is not None]
        if speaking:
            self._speak(speaking)
            was = self._statistics
            self._statistics = replace(
                was,
                batches=was.batches + 1,
                batched=was.batched + len(speaking),
                tokens=was.tokens + len(speaking),
                busy_s=was.busy_s + now_s() - started,
            )

    def _seat(self) -> None:
        """Free slots to those who are ready."""
        for at, job in enumerate(self._jobs):
            if job is None and self._ready:
                self._jobs[at] = self._ready.popleft()

    def _read(self) -> None:
        """One pass: a chunk of up to eight prompts, all but the last token of each, into the cache."""
        ids = torch.zeros(_READERS, CHUNK, dtype=torch.long)
        rows, starts = torch.full((_READERS,), self._nowhere), torch.zeros(_READERS, 1, dtype=torch.long)
        passing = [job for job in self._reading if job.read < job.length - 1][:_READERS]
        for row, job in enumerate(passing):
            part = job.ids[job.read : min(job.read + CHUNK, job.length - 1)]
            ids[row, : len(part)] = torch.tensor(part)
            rows[row], starts[row, 0] = job.place, job.read
            job.read += len(part)
        if passing:
            self._cache.rows, self._cache.positions = rows, starts + torch.arange(CHUNK)
            self._forward(ids, is_reading=True)
        done = [job for job in self._reading if job.read >= job.length - 1]
        self._reading = [job for job in self._reading if job.read < job.length - 1]
        for job in done:
            self._places.has_read(job.place, job.ids[:-1])
            self._ready.append(job)

    def _speak(self, speaking: list[int]) -> None:
        """One pass: a token for every slot that is taken."""
        ids = torch.zeros(self._slots, 1, dtype=torch.long)
        self._cache.rows = torch.full((self._slots,), self._nowhere)
        self._cache.positions = torch.zeros(self._slots, 1, dtype=torch.long)
        for at in speaking:
            job = self._jobs[at]
            assert job is not None
            ids[at, 0] = job.sampled[-1] if job.sampled else job.request.ids[-1]
            self._cache.rows[at], self._cache.positions[at, 0] = job.place, job.length - 1
        logits = self._forward(ids)[:, 0].double().numpy()
        for at in speaking:
            self._sample(at, logits[at])

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
            text = self.codec.decode(job.sampled[:-1] if has_ended else job.sampled)
            answer = Completion(job.sampled, job.log_probs, job.versions, text, "stop" if has_ended else "length")
            self._jobs[at] = None
            self._places.leave(job.place)
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
            self._places.forget()
            self._reading = [*(job for job in self._jobs if job is not None), *self._ready, *self._reading]
            self._ready.clear()
            self._jobs = [None] * self._slots
            for job in self._reading:
                job.read = 0

    def _require_fitting(self, state: dict[str, Tensor]) -> None:
        ours = {name: tuple(tensor.shape) for name, tensor in self._model.state_dict().items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if ours != theirs:
            odd = sorted(set(ours.items()) ^ set(theirs.items()))[0][0]
            raise UsageError(f"publish: {odd}: expected shape {ours.get(odd)}, got {theirs.get(odd)}")

    def _fail_all(self, failure: EpisodeError) -> None:
        placed = [*(job for job in self._jobs if job is not None), *self._ready, *self._reading]
        waiting = [job for job in self._waiting if job.future.set_running_or_notify_cancel()]
        for job in placed:
            self._places.leave(job.place)
        self._places.forget()  # nobody knows how far a pass got that failed
        self._jobs, self._reading = [None] * self._slots, []
        self._ready.clear()
        self._waiting.clear()
        for job in [*placed, *waiting]:
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
