"""A Hugging Face model in this process: batched token by token, exact log-probabilities, weights replaced in place.

    waiting ──> reading: its prompt, a chunk a pass ──> ready ──> a slot: [ one pass: a token for each ] ──> answer
                   ^────────── publish: new weights, everything is read again ─────────┘

Requests join and leave between two passes; none waits for the longest answer of a batch. A reading pass costs the
same for one prompt as for eight: so it waits for eight, a few passes at most, and reads ahead while slots are taken.

A pass has one of a few shapes that give the same bits, and every request has its own random numbers, so an answer
depends on its prompt and seed, not on its neighbours: `self_test` proves it on this machine. What a pass costs follows
the requests and their lengths, not `slots` or `max_context`. Chunks of a conversation that were read before are not
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
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.agents.codec import Codec
from headrace.agents.engines.cache import CHUNK, Places
from headrace.agents.engines.passes import READERS, Generation, Passes, draw
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, answers_of, checked
from headrace.agents.records import ENGINE, EpisodeError
from headrace.clock import now_s
from headrace.errors import HeadraceError, UsageError, whole
from headrace.policies.threads import torch_threads

_GATHER_S = 0.005  # that an idle engine waits for others to read with
_MOST_HELD = 3  # passes that a prompt waits for others to be read with


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
        self._name = type(model).__name__
        self._slots, self._threads = slots, threads
        self._length = -(-max_context // CHUNK) * CHUNK
        self._passes = Passes(model.eval(), slots, slots + parked, self._length)
        with torch_threads(threads), torch.inference_mode():
            self._passes.prove_widths()
        self._places = Places(slots + parked)
        self._jobs: list[Generation | None] = [None] * slots
        self._waiting: deque[Generation] = deque()
        self._reading: list[Generation] = []
        self._ready: deque[Generation] = deque()
        self._live = 1 << 30  # episodes: more requests than these can't come
        self._held = 0  # passes that prompts have waited to be read
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
        """More requests than these can't come."""
        self._live = max(1, live)

    def publish(self, weights: Any, version: int | None = None) -> int:
        """A model or a state_dict; takes effect between two passes, also for answers that are under way."""
        state = weights.state_dict() if hasattr(weights, "state_dict") else weights
        if not isinstance(state, Mapping) or not all(isinstance(one, Tensor) for one in state.values()):
            raise UsageError(f"publish: expected a model or its state_dict, got {weights!r}")
        fresh = {name: tensor.detach().clone() for name, tensor in state.items()}
        with self._changed:
            self._passes.require_fitting(fresh)
            self._weights = fresh
            self.version = self.version + 1 if version is None else version
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
                f"{self._name}: the same request got another answer in other company; rollouts could "
                f"not be repeated. Use full attention, float32 and no dropout"
            )

    # -------------------------------------------------------------------------------------------------- inside

    def _submit(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        jobs = [Generation(one, Future(), np.random.Generator(np.random.PCG64(one.seed))) for one in requests]
        with self._changed:
            for job in jobs:
                most = self._length - job.request.max_tokens
                if self._is_closed:
                    job.future.set_exception(EpisodeError(ENGINE, "the engine was closed"))
                elif not 0 < len(job.request.ids) <= most:
                    problem = f"a prompt of {len(job.request.ids)} tokens, expected 1 to {most}"
                    job.future.set_exception(EpisodeError(ENGINE, problem))
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
        most = self._slots - self._num_speaking + 2 * READERS
        while self._waiting and self._places.has_room and len(self._reading) + len(self._ready) < most:
            job = self._waiting.popleft()
            if job.future.set_running_or_notify_cancel():
                job.place, job.read = self._places.take(job.request.session, job.ids[:-1])
                self._reading.append(job)

    def _gathers(self) -> bool:
        """Whether, with nothing else to do, another request came while it waited for some to read together."""
        if self._weights is not None or self._num_speaking or self._ready or self._is_worth_reading():
            return False
        count = self._num_present
        self._changed.wait(_GATHER_S)
        return self._num_present > count

    def _is_worth_reading(self) -> bool:
        """Whether a reading pass is full, or can't get any fuller."""
        return len(self._reading) >= READERS or self._num_present >= self._live

    def _step(self) -> None:
        """Read what should be read now, then one token for every request that has a slot."""
        started = now_s()
        self._seat()
        while self._reading:
            has_free = self._num_speaking < self._slots
            if not self._is_worth_reading() and self._num_speaking and self._held < _MOST_HELD:
                self._held += has_free  # reading ahead has time
                break
            self._held = 0
            self._read()
            self._seat()
            if not has_free:
                break
        speaking = self._num_speaking
        if speaking:
            self._speak()
            was = self._statistics
            self._statistics = replace(
                was,
                batches=was.batches + 1,
                batched=was.batched + speaking,
                tokens=was.tokens + speaking,
                busy_s=was.busy_s + now_s() - started,
            )

    def _seat(self) -> None:
        """Free slots to those who are ready."""
        for at, job in enumerate(self._jobs):
            if job is None and self._ready:
                self._jobs[at] = self._ready.popleft()

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
        seated = [(at, job) for at, job in enumerate(self._jobs) if job is not None]
        speaking = [job for _, job in seated]
        draw(speaking, self._passes.speak(speaking), self._acting)
        for at, job in seated:
            has_ended = job.sampled[-1] in self.codec.stop_ids
            if has_ended or len(job.sampled) >= job.request.max_tokens:
                self._jobs[at] = None
                self._answer(job, has_ended)

    def _answer(self, job: Generation, has_ended: bool) -> None:
        text = self.codec.decode(job.sampled[:-1] if has_ended else job.sampled)
        answer = Completion(job.sampled, job.log_probs, job.versions, text, "stop" if has_ended else "length")
        self._places.leave(job.place)
        was = self._statistics
        self._statistics = replace(
            was,
            requests=was.requests + 1,
            attempts=was.attempts + 1,
            prompt_tokens=was.prompt_tokens + len(job.request.ids),
            answer_tokens=was.answer_tokens + len(job.sampled),
        )
        try:
            job.future.set_result(checked(job.request, answer, self.codec, False))
        except EpisodeError as failure:
            job.future.set_exception(failure)

    def _take_over(self) -> None:
        with self._changed:
            weights, self._weights = self._weights, None
            assert weights is not None
            self._passes.load(weights)
            self._acting = self.version
            self._places.forget()
            self._reading = [*(job for job in self._jobs if job is not None), *self._ready, *self._reading]
            self._ready.clear()
            self._jobs = [None] * self._slots
            for job in self._reading:
                job.read = 0

    def _fail_all(self, failure: EpisodeError) -> None:
        placed = [*(job for job in self._jobs if job is not None), *self._ready, *self._reading]
        waiting = [job for job in self._waiting if job.future.set_running_or_notify_cancel()]
        for job in placed:
            self._places.leave(job.place)
        self._places.forget()  # how far a pass got that failed is unknown
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
