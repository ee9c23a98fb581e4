"""The micro-batcher: requests of all workers meet here and go to the model together. No lock round generate.

    submit ──> waiting ──(hold a moment?)──> batch ──> model.run ──> each future gets its own answer

How long to hold is decided by what it costs: b requests that wait t seconds for one more lose b * t, and the late one
would lose a whole batch time S. So the batch goes when no request came for S / b seconds, when it is full, when
max_wait_s is over, or when every live episode is already in it. Episodes that were answered just now come back when
their environments have moved: if that is known to be soon they are waited for, since two halves that take turns at the
engine would do so for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, checked
from headrace.agents.records import ENGINE, EpisodeError
from headrace.clock import now_s
from headrace.errors import UsageError, require_types
from headrace.keywords import in_words

_FIRST_S = 0.01  # that the first batch is held after the last who came
_MOST_KNOWN = 8192  # episodes whose last answer is remembered


class BatchModel(Protocol):
    """Something that answers a batch in one call."""

    @property
    def codec(self) -> Codec:
        """How text becomes tokens."""

    @property
    def version(self) -> int:
        """Of its weights."""

    def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """One answer per request, in order."""

    def publish(self, weights: Any, version: int | None = None) -> int:
        """Use other weights, as the next version or as a given one."""

    def close(self) -> None:
        """Let go of everything."""


@in_words()
@dataclass(frozen=True)
class Batching:
    """Bounds of a batch."""

    max_batch: int = 256
    max_wait_s: float = 0.1

    def __post_init__(self) -> None:
        require_types(self, {int: ("max_batch",), float: ("max_wait_s",)})
        if self.max_batch < 1:
            raise UsageError(f"max_batch: expected at least 1, got {self.max_batch}")
        if not self.max_wait_s >= 0:  # NaN is not
            raise UsageError(f"max_wait_s: expected 0 or more, got {self.max_wait_s}")


@dataclass(frozen=True)
class Hold:
    """What the moment at which a batch goes depends on. Arithmetic."""

    size: int  # of the batch so far
    last_s: float  # when the last of it came
    free_s: float  # since when it could have gone
    live: int  # episodes: more than these can't come
    batch_s: float | None  # seconds of a batch; None: there was none yet
    answered: int = 0  # by the batch before
    return_s: float = float("inf")  # from an answer to the next question of the same episode

    def until(self, bounds: Batching) -> float:
        """That moment; -inf: at once."""
        if self.size >= min(bounds.max_batch, self.live):
            return float("-inf")
        held = self.last_s + (self.batch_s / self.size if self.batch_s is not None else _FIRST_S)
        if self.batch_s is not None and self.return_s * self.size < 0.5 * self.batch_s * self.answered:
            held = max(held, self.free_s + 2 * self.return_s)
        return min(self.free_s + bounds.max_wait_s, held)


class Batched:
    """An engine over a batch model."""

    is_text_only = False

    def __init__(self, model: BatchModel, bounds: Batching | None = None) -> None:
        self._model = model
        self._bounds = bounds or Batching()
        self._waiting: list[tuple[Request, Future[Completion]]] = []
        self._last_s = self._free_s = 0.0
        self._answered: dict[str, float] = {}  # episode -> when it got its last answer
        self._num_answered = 0  # by the last batch
        self._return_s = float("inf")
        self._live = self._bounds.max_batch
        self._batch_s: float | None = None  # of the last batch
        self._statistics = EngineStatistics()
        self._changed = threading.Condition()
        self._turn = threading.Lock()  # the model answers one batch at a time
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def codec(self) -> Codec:
        """The model's."""
        return self._model.codec

    @property
    def version(self) -> int:
        """Of the model's weights."""
        return self._model.version

    def submit(self, request: Request) -> Future[Completion]:
        """Join the next batch."""
        future: Future[Completion] = Future()
        with self._changed:
            if self._is_closed:
                future.set_exception(EpisodeError(ENGINE, "the engine was closed"))
                return future
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="engine-batcher", daemon=True)
                self._thread.start()
            self._last_s = now_s()
            if not self._waiting:
                self._free_s = max(self._free_s, self._last_s)
            self._returned(request)
            self._waiting.append((request, future))
            if len(self._waiting) == 1 or len(self._waiting) >= min(self._bounds.max_batch, self._live):
                self._changed.notify()  # else the batcher looks when the batch's time is over
        return future

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """One batch, now; split only where it is larger than max_batch."""
        answers: list[Completion | EpisodeError] = []
        for start in range(0, len(requests), self._bounds.max_batch):
            answers += self._run(requests[start : start + self._bounds.max_batch])
        return answers

    def expect(self, live: int) -> None:
        """More requests than these can't come."""
        with self._changed:
            self._live = max(1, live)
            if self._waiting:
                self._changed.notify()

    def publish(self, weights: Any, version: int | None = None) -> int:
        """Between two batches."""
        with self._turn:
            return self._model.publish(weights, version)

    def statistics(self) -> EngineStatistics:
        """So far."""
        return self._statistics

    def close(self) -> None:
        """Requests that wait fail."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            left, self._waiting = self._waiting, []
            self._changed.notify()
        for _, future in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(EpisodeError(ENGINE, "the engine was closed"))
        if self._thread is not None:
            self._thread.join()
        self._model.close()

    def _serve(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            batch = [(request, future) for request, future in batch if future.set_running_or_notify_cancel()]
            answers = self._run([request for request, _ in batch]) if batch else []
            with self._changed:
                self._free_s = now_s()
                self._num_answered = len(batch)
                self._answered |= dict.fromkeys((request.session for request, _ in batch), self._free_s)
                while len(self._answered) > _MOST_KNOWN:
                    del self._answered[next(iter(self._answered))]
            for (_, future), answer in zip(batch, answers, strict=True):
                if isinstance(answer, EpisodeError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _next_batch(self) -> list[tuple[Request, Future[Completion]]] | None:
        with self._changed:
            while True:
                if self._is_closed:
                    return None
                if not self._waiting:
                    self._changed.wait()
                    continue
                hold = Hold(
                    len(self._waiting), self._last_s, self._free_s, self._live, self._batch_s, self._num_answered,
                    self._return_s,
                )  # fmt: skip
                patience_s = hold.until(self._bounds) - now_s()
                if patience_s <= 0:
                    break
                self._changed.wait(patience_s)
            size = self._bounds.max_batch
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            return batch

    def _returned(self, request: Request) -> None:
        """How long its episode was away; a running mean."""
        answered_s = self._answered.pop(request.session, None)
        if answered_s is not None:
            away_s, known_s = self._last_s - answered_s, self._return_s
            self._return_s = away_s if known_s == float("inf") else known_s + 0.1 * (away_s - known_s)

    def _run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """Every answer checked; a model that fails fails all of the batch."""
        with self._turn:
            started = now_s()
            try:
                answers = self._model.run(requests)
                if len(answers) != len(requests):
                    raise EpisodeError(ENGINE, f"{len(answers)} answers to {len(requests)} requests")
            except EpisodeError as failure:
                answers = [failure] * len(requests)
            except Exception as error:
                answers = [EpisodeError(ENGINE, f"{type(error).__name__}: {error}")] * len(requests)
            batch_s = self._batch_s = now_s() - started
            done: list[Completion | EpisodeError] = []
            for request, answer in zip(requests, answers, strict=True):
                try:
                    done.append(
                        answer if isinstance(answer, EpisodeError) else checked(request, answer, self.codec, False)
                    )
                except EpisodeError as failure:
                    done.append(failure)
            was = self._statistics
            tokens = sum(len(one.ids) for one in done if isinstance(one, Completion))
            self._statistics = replace(
                was,
                requests=was.requests + len(requests),
                batches=was.batches + 1,
                batched=was.batched + len(requests),
                tokens=was.tokens + tokens,
                busy_s=was.busy_s + batch_s,
                prompt_tokens=was.prompt_tokens + sum(len(one.ids) for one in requests),
                answer_tokens=was.answer_tokens + tokens,
                attempts=was.attempts + len(requests),
                served_s=was.served_s + batch_s * len(requests),
            )
            return done
