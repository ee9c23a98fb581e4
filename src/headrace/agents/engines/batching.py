"""The micro-batcher: requests of all workers meet here and go to the model together. No lock round generate.

    submit ──> waiting ──(hold a moment?)──> batch ──> model.run ──> each future gets its own answer

How long to hold is decided by what it costs: b requests that wait t seconds for one more lose b * t, and the late one
would lose a whole batch time S. So the batch goes when nobody came for S / b seconds, when it is full, when max_wait_s
is over, or when everybody who is alive is already in it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, checked
from headrace.agents.failures import EpisodeError
from headrace.agents.records import ENGINE
from headrace.clock import now_s
from headrace.errors import UsageError, require_types


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

    def publish(self, weights: Any) -> int:
        """Use other weights."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True)
class Batching:
    """Bounds of a batch."""

    max_batch: int = 256
    max_wait_s: float = 0.02

    def __post_init__(self) -> None:
        require_types(self, {int: ("max_batch",), float: ("max_wait_s",)})
        if self.max_batch < 1:
            raise UsageError(f"max_batch: expected at least 1, got {self.max_batch}")
        if self.max_wait_s < 0:
            raise UsageError(f"max_wait_s: expected 0 or more, got {self.max_wait_s}")


def hold_until(size: int, first_s: float, last_s: float, live: int, batch_s: float, bounds: Batching) -> float:
    """The moment at which a batch of that size should go: with -inf at once. Arithmetic."""
    if size >= min(bounds.max_batch, live):
        return float("-inf")
    return min(first_s + bounds.max_wait_s, last_s + batch_s / size)


class Batched:
    """An engine over a batch model."""

    is_text_only = False

    def __init__(self, model: BatchModel, bounds: Batching | None = None) -> None:
        self._model = model
        self._bounds = bounds or Batching()
        self._waiting: list[tuple[Request, Future[Completion]]] = []
        self._first_s = self._last_s = 0.0
        self._live = self._bounds.max_batch
        self._batch_s = 0.0  # of the last batch
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
                self._first_s = self._last_s
            self._waiting.append((request, future))
            self._changed.notify()
        return future

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """One batch, now; split only where it is larger than max_batch."""
        answers: list[Completion | EpisodeError] = []
        for start in range(0, len(requests), self._bounds.max_batch):
            answers += self._run(requests[start : start + self._bounds.max_batch])
        return answers

    def expect(self, live: int) -> None:
        """Nobody waits for more than these."""
        with self._changed:
            self._live = max(1, live)
            self._changed.notify()

    def publish(self, weights: Any) -> int:
        """Between two batches."""
        with self._turn:
            return self._model.publish(weights)

    def statistics(self) -> EngineStatistics:
        """So far."""
        return self._statistics

    def close(self) -> None:
        """Whoever still waits is told."""
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
                until = hold_until(
                    len(self._waiting), self._first_s, self._last_s, self._live, self._batch_s, self._bounds
                )
                patience_s = until - now_s()
                if patience_s <= 0:
                    break
                self._changed.wait(patience_s)
            size = self._bounds.max_batch
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            self._first_s = now_s()
            return batch

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
            self._batch_s = now_s() - started
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
                busy_s=was.busy_s + self._batch_s,
            )
            return done
