"""A Hugging Face model in this process: batched token by token, exact log-probabilities, weights replaced in place.

    waiting ──> reading: its prompt, a chunk a pass ──> ready ──> a slot: [ one pass: a token for each ] ──> answer
                   ^────────── publish: new weights, everything is read again ─────────┘

Requests join and leave between two passes; none waits for the longest answer of a batch. Prompts wait for others to be
read with while that costs less than to read them alone, and are read ahead while slots are taken. A speaking pass costs
little more for many than for few: it waits for episodes that were answered just now and will come back soon.

A pass has one of a few shapes that give the same bits, and every request has its own random numbers, so an answer
depends on its prompt and seed, not on its neighbours: `self_test` proves it on this machine. What a pass costs follows
the requests and their lengths, not `slots` or `max_context`. Chunks that are still there are not read again: the same
tokens in a pass of the same shape give the same bits. Sampled tokens came in another shape, and are. An answer under
way goes on with new weights; each token has its version. Any causal model with full attention will do (Qwen2, Llama).
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.agents.codec import Codec
from headrace.agents.engines.away import Away
from headrace.agents.engines.cache import CHUNK, Places
from headrace.agents.engines.passes import READERS, Generation, Passes, draw, require_model
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, answers_of, require_room
from headrace.agents.engines.weight_updates import next_version
from headrace.agents.records import ENGINE, EpisodeError
from headrace.clock import now_s
from headrace.errors import HeadraceError, UsageError, whole
from headrace.keywords import in_words
from headrace.policies.threads import torch_threads

_GATHER_S = 0.002  # that an idle engine waits after the last request for others to read with
_BEGIN_S = 0.005  # the same, where episodes begin: they come together
_READ_COST = 0.5  # of a reading pass beside that of its rows, in speaking passes


@in_words(title="in_process")
class InProcessEngine:
    """An engine over a model of this process."""

    is_text_only = False

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
        self._name = type(model).__name__
        self._slots, self._threads = slots, whole("threads", threads, 1)
        self._length = -(-whole("max_context", max_context, 1) // CHUNK) * CHUNK
        self._passes = Passes(model.eval(), slots, slots + parked, self._length)
        with torch_threads(threads), torch.inference_mode():
            self._passes.prove()
        self._places = Places(slots + parked)
        self._speaking: list[Generation] = []  # by slot
        self._waiting: deque[Generation] = deque()
        self._reading: list[Generation] = []
        self._ready: deque[Generation] = deque()
        self._live = 1 << 30  # episodes: more requests than these can't come
        self._held = 0  # passes that prompts have waited to be read, added up over the prompts
        self._came_s = 0.0  # when the last request did
        self._has_read_ahead = False  # since the last speaking pass
        self._away = Away()  # episodes that were answered and have not come back
        self._pass_s = 0.0  # of a speaking pass, on average
        self._round_s = 0.0  # of passes and seats since the last speaking pass
        self._is_last = False  # no more episodes begin
        self._weights: dict[str, Tensor] | None = None  # to be taken over before the next pass
        self._statistics = EngineStatistics()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(self, request: Request) -> Future[Completion]:
        """Join as soon as a slot is free."""
        (future,) = self._submit([request], may_return=True)
        return future

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """All of them, together."""
        return answers_of(self._submit(requests))

    def expect(self, live: int) -> None:
        """More requests than these can't come."""
        self._live = max(1, live)

    def drain(self, is_last: bool) -> None:
        """Whether no more episodes begin: then time in which others are away is for those that are here."""
        self._is_last = is_last

    def publish(self, weights: Any, version: int | None = None) -> int:
        """A model or a state_dict; takes effect between two passes, also for answers that are under way."""
        state = weights.state_dict() if hasattr(weights, "state_dict") else weights
        if not isinstance(state, Mapping) or not all(isinstance(one, Tensor) for one in state.values()):
            raise UsageError(f"publish: expected a model or its state_dict, got {weights!r}")
        fresh = {name: tensor.detach().clone() for name, tensor in state.items()}
        with self._changed:
            self._passes.require_fitting(fresh)
            self.version, self._weights = next_version(self.version, version), fresh
            if self._thread is None or not self._thread.is_alive():
                self._take_over()
            self._changed.notify()
            return self.version

    def statistics(self) -> EngineStatistics:
        """So far."""
        return self._statistics

    def close(self) -> None:
        """Requests that wait fail."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def self_test(self) -> None:
        """Raise unless an answer is the model's, and the same alone, in company, and in other slots."""
        rng = np.random.default_rng(0)
        lengths = [min(5 + 37 * at, self._length - 4) for at in range(3)]
        requests = [
            Request(0, at, 0, rng.integers(0, self.codec.vocabulary, length).tolist(), 4, 1000 + at)
            for at, length in enumerate(lengths)
        ]
        alone = [self.generate([one])[0] for one in requests]
        if failed := [one for one in alone if isinstance(one, EpisodeError)]:
            raise HeadraceError(f"{self._name}: it can't be played with in this process: {failed[0].message}")
        together = self.generate([*requests[1:], requests[0], *requests[::-1]])
        if [*alone[1:], alone[0], *alone[::-1]] != together:
            raise HeadraceError(
                f"{self._name}: the same request got another answer in other company; rollouts could "
                f"not be repeated. Use full attention, float32 and no dropout"
            )
        for request, answer in zip(requests, alone, strict=True):
            assert isinstance(answer, Completion)
            with torch_threads(self._threads), torch.inference_mode():
                want = self._passes.recomputed([*request.ids, *answer.ids], len(answer.ids))
            if not np.allclose(answer.log_probs, want, rtol=1e-3, atol=1e-3):
                raise HeadraceError(
                    f"{self._name}: token by token it gives other log-probabilities than in one pass, so records "
                    f"could not be trained on. Expected a causal model with full attention"
                )

    def _submit(self, requests: Sequence[Request], may_return: bool = False) -> list[Future[Completion]]:
        jobs = [Generation(one, Future(), np.random.default_rng(one.seed), may_return) for one in requests]
        with self._changed:
            for job in jobs:
                try:
                    if self._is_closed:
                        raise EpisodeError(ENGINE, "the engine was closed")
                    require_room(job.request, self._length)
                except EpisodeError as problem:
                    job.future.set_exception(problem)
                else:
                    self._waiting.append(job)
            self._came_s = now_s()
            for job in jobs if may_return else ():
                self._away.back(job.request.session, self._came_s)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._serve, name="engine-model", daemon=True)
                self._thread.start()
            self._changed.notify()
        return [job.future for job in jobs]

    def _serve(self) -> None:
        with torch_threads(self._threads), torch.inference_mode():
            while True:
                try:
                    with self._changed:
                        while not (self._is_closed or self._weights or self._num_present):
                            self._changed.wait()
                        if self._is_closed:
                            return self._fail_all(EpisodeError(ENGINE, "the engine was closed"))
                        self._admit()
                        self._seat()
                        if self._weights is None and (patience_s := self._patience_s()) > 0:
                            self._changed.wait(patience_s)
                            continue
                    if self._weights is not None:
                        self._take_over()
                    self._step()
                except Exception as error:
                    with self._changed:
                        self._fail_all(EpisodeError(ENGINE, f"{type(error).__name__}: {error}"))

    @property
    def _num_present(self) -> int:
        return len(self._waiting) + len(self._reading) + len(self._ready) + len(self._speaking)

    def _admit(self) -> None:
        """Those who wait, in the order they came: for free slots, and some more to read ahead."""
        most = self._slots - len(self._speaking) + 2 * READERS
        while self._waiting and self._places.has_room and len(self._reading) + len(self._ready) < most:
            job = self._waiting.popleft()
            if job.future.set_running_or_notify_cancel():
                job.place, job.read = self._places.take(job.request.session, job.ids[:-1])
                self._reading.append(job)

    def _patience_s(self) -> float:
        """Seconds to wait for other requests before the next pass; 0: it is made now."""
        if self._is_worth_reading():
            return 0.0
        speaking, coming = len(self._speaking), max(0, min(self._away.count(now_s()), self._live - self._num_present))
        if not speaking:
            gather_s = _GATHER_S if coming else _BEGIN_S
            return self._came_s + gather_s - now_s() if self._live > self._num_present else 0.0
        if not coming or self._is_last:
            return 0.0
        left_s = self._away.left_s(now_s())
        return left_s if left_s * speaking < coming * self._pass_s else 0.0

    def _is_worth_reading(self) -> bool:
        """Whether a reading pass is full, or they have waited long enough; slots that are taken speak in between."""
        if len(self._reading) >= READERS:
            return not (self._has_read_ahead and len(self._speaking) >= self._slots)
        return bool(self._reading) and self._held >= _READ_COST * len(self._speaking) > 0

    def _step(self) -> None:
        """One pass: of prompts that should be read now, or a token for every request that has a slot."""
        started, speaking = now_s(), len(self._speaking)
        if self._reading and (self._is_worth_reading() or not speaking):
            self._has_read_ahead = speaking >= self._slots
            self._read()
            self._held = self._held if self._reading else 0
            self._worked(now_s() - started)
        elif speaking:
            self._held += len(self._reading) if speaking < self._slots else 0  # reading ahead has time
            self._has_read_ahead = False
            self._speak()
            pass_s = now_s() - started
            self._pass_s += 0.1 * (pass_s - self._pass_s)
            self._statistics = self._statistics.after_pass(speaking, pass_s, self._round_s)
            self._round_s = 0.0

    def _worked(self, seconds: float) -> None:
        """For those who speak next."""
        self._round_s += seconds
        self._statistics = replace(self._statistics, busy_s=self._statistics.busy_s + seconds)

    def _seat(self) -> None:
        """Free slots to those who are ready."""
        if count := min(len(self._ready), self._slots - len(self._speaking)):
            started, jobs = now_s(), [self._ready.popleft() for _ in range(count)]
            self._passes.seat(jobs, len(self._speaking))
            self._speaking += jobs
            self._worked(now_s() - started)

    def _read(self) -> None:
        """One reading pass; those that are read are ready for a slot."""
        self._passes.read(self._reading)
        done = [job for job in self._reading if job.is_read]
        self._reading = [job for job in self._reading if not job.is_read]
        for job in done:
            self._places.has_read(job.place, job.ids[:-1])
            self._ready.append(job)

    def _speak(self) -> None:
        """One speaking pass: a token for every slot that is taken; an answer that is whole leaves its slot."""
        draw(self._speaking, self._passes.speak(self._speaking), self._acting)
        ended = []
        for at in reversed(range(len(self._speaking))):
            if self._speaking[at].has_ended(self.codec):
                ended.append(self._speaking[at])
                self._vacate(at)
        if ended:
            self._answer(ended)

    def _vacate(self, slot: int) -> None:
        """The last one moves there: those who speak lie side by side."""
        last = self._speaking.pop()
        if slot < len(self._speaking):
            self._passes.move(last, len(self._speaking), slot)
            self._speaking[slot] = last

    def _answer(self, jobs: Sequence[Generation]) -> None:
        """All that ended with this pass. None leaves before all are decoded: environments would interrupt that."""
        answers, was = [job.answer(self.codec) for job in jobs], self._statistics
        self._statistics = replace(
            was, requests=was.requests + len(jobs), attempts=was.attempts + len(jobs),
            prompt_tokens=was.prompt_tokens + sum(len(job.request.ids) for job in jobs),
            answer_tokens=was.answer_tokens + sum(len(job.sampled) for job in jobs),
        )  # fmt: skip
        answered_s = now_s()
        for job, answer in zip(jobs, answers, strict=True):
            self._places.leave(job.place)
            if job.may_return:
                self._away.leave(job.request.session, answered_s)
            if isinstance(answer, EpisodeError):
                job.future.set_exception(answer)
            else:
                job.future.set_result(answer)

    def _take_over(self) -> None:
        with self._changed:
            weights, self._weights = self._weights, None
            assert weights is not None
            self._passes.load(weights)
            self._acting = self.version
            self._places.forget()
            self._reading = [*self._speaking, *self._ready, *self._reading]
            self._ready.clear()
            self._speaking.clear()
            for job in self._reading:
                job.read = 0

    def _fail_all(self, failure: EpisodeError) -> None:
        placed = [*self._speaking, *self._ready, *self._reading]
        waiting = [job for job in self._waiting if job.future.set_running_or_notify_cancel()]
        for job in placed:
            self._places.leave(job.place)
        self._places.forget()  # how far a pass got that failed is unknown
        self._speaking, self._reading = [], []
        self._ready.clear()
        self._waiting.clear()
        for job in [*placed, *waiting]:
            job.future.set_exception(failure)


@in_words()
def in_process(model: Any, codec: Codec, **options: Any) -> InProcessEngine:
    """An engine over a copy of a model in float32, tested on this machine before it is used."""
    require_model(model, codec)
    engine = InProcessEngine(copy.deepcopy(model).float(), codec, **options)
    try:
        engine.self_test()
    except BaseException:
        engine.close()
        raise
    return engine
