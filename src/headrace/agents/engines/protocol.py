"""The protocol of engines: a request in, a completion out, now or later; no request waits for others at a barrier.

    submit(request) -> Future[Completion]     as requests come, batched with whatever else is there
    generate(requests) -> completions          one batch, for a lock-step loop

Workers hold a client of this, never the engine itself. What an engine returns is checked here before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from headrace.agents.chat_template import Message
from headrace.agents.codec import Codec
from headrace.agents.records import ENGINE, EpisodeError, plain_text

ROUNDING = 1e-6  # a log-probability may be above 0 by so much


@dataclass(frozen=True)
class Request:
    """One answer that is wanted. `seed` is the request's own: who else is in the batch does not change its answer."""

    group: int
    member: int
    turn: int
    ids: Sequence[int]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    messages: Sequence[Message] = ()  # for engines that take text only
    tools: Sequence[Mapping[str, Any]] = ()  # for these too
    top_p: float = 1.0  # 1: all tokens
    top_k: int = 0  # 0 or -1: all tokens

    @property
    def is_cut(self) -> bool:
        """Whether unlikely tokens are not drawn at all."""
        return self.top_p < 1 or self.top_k > 0

    @property
    def session(self) -> str:
        """The episode it belongs to: servers keep its cache warm."""
        return f"{self.group}-{self.member}"


@dataclass(frozen=True)
class Completion:
    """What was sampled: ids with their log-probabilities and the version of the weights that gave each."""

    ids: Sequence[int]
    log_probs: Sequence[float]
    versions: Sequence[int]
    text: str
    finish: str = "stop"  # or length
    reasoning: str = ""  # where a server gives it apart from the text
    tool_calls: Sequence[Mapping[str, Any]] = ()  # where a server reads them itself: {"id", "function": {"name", ...}}


@dataclass(frozen=True)
class EngineStatistics:
    """What an engine has done so far."""

    requests: int = 0
    batches: int = 0  # passes of the model
    batched: int = 0  # sequences in all of them together
    tokens: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0  # of all answers, those that were refused or asked for again included: what is paid for
    answer_tokens: int = 0  # of all answers, likewise
    attempts: int = 0  # requests to servers
    limited: int = 0  # of those, how many were told to pause
    served_s: float = 0.0  # seconds of batches, each times its sequences: what all answers took, without waiting

    @property
    def batch_mean(self) -> float:
        """Sequences per pass."""
        return self.batched / self.batches if self.batches else 0.0

    @property
    def batch_by_time(self) -> float:
        """Sequences in the batch, at any moment in which there is one."""
        return self.served_s / self.busy_s if self.busy_s else 0.0

    def after_pass(self, sequences: int, seconds: float, before_s: float) -> EngineStatistics:
        """With a pass that gave every sequence a token, and what was done for it before."""
        return replace(
            self,
            batches=self.batches + 1,
            batched=self.batched + sequences,
            tokens=self.tokens + sequences,
            busy_s=self.busy_s + seconds,
            served_s=self.served_s + sequences * (before_s + seconds),
        )

    def since(self, before: EngineStatistics) -> EngineStatistics:
        """What was done after another look."""
        pairs = zip(vars(self).values(), vars(before).values(), strict=True)
        return EngineStatistics(*(now - then for now, then in pairs))


class TooLongError(EpisodeError):
    """A request that no attempt can answer: the engine has not so much room."""


def require_room(request: Request, room: int) -> None:
    """TooLongError unless the prompt and its answer fit into so many tokens."""
    if not request.ids:
        raise TooLongError(ENGINE, "a prompt of 0 tokens, expected at least 1")
    if len(request.ids) + request.max_tokens > room:
        raise TooLongError(
            ENGINE,
            f"a prompt of {len(request.ids)} tokens and an answer of up to {request.max_tokens} (max_tokens), expected "
            f"at most {room} together: the engine's max_context, which the max_context of Rules must not exceed",
        )


class Engine(Protocol):
    """A maker of tokens."""

    @property
    def codec(self) -> Codec:
        """How text becomes tokens."""

    @property
    def is_text_only(self) -> bool:
        """Whether it gives no token ids: what it says can't be trained on."""

    @property
    def version(self) -> int:
        """Of its weights."""

    def submit(self, request: Request) -> Future[Completion]:
        """Answer one request; the future fails with EpisodeError."""

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """Answer a batch in one call."""

    def expect(self, live: int) -> None:
        """How many episodes are live: more than these requests can't come."""

    def publish(self, weights: Any, version: int | None = None) -> int:
        """Use other weights from now on, as the next version or, in a resumed run, as a given one; returns it."""

    def statistics(self) -> EngineStatistics:
        """A snapshot."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""


@runtime_checkable
class Draining(Protocol):
    """An engine that plans ahead, if it knows how much is to come."""

    def drain(self, is_last: bool) -> None:
        """Whether no more episodes begin: then the slowest of those that are live decides when all is over."""


def answers_of(futures: Sequence[Future[Completion]]) -> list[Completion | EpisodeError]:
    """Wait for all; a failed request is an answer too."""
    answers: list[Completion | EpisodeError] = []
    for future in futures:
        error = future.exception()
        if error is not None and not isinstance(error, EpisodeError):
            raise error
        answers.append(error if error is not None else future.result())
    return answers


def checked(request: Request, completion: Completion, codec: Codec, is_text_only: bool) -> Completion:
    """The completion, or EpisodeError that says what is wrong with it."""
    if not isinstance(completion.text, str):
        raise EpisodeError(ENGINE, f"the text of an answer is {completion.text!r}, expected text")
    text, reasoning = plain_text(completion.text), plain_text(completion.reasoning)
    completion = replace(completion, text=text, reasoning=reasoning)
    if is_text_only:
        return completion
    try:  # plain numbers, whatever kind of sequence an engine has
        completion = replace(
            completion,
            ids=[int(one) for one in completion.ids],
            log_probs=[float(one) for one in completion.log_probs],
            versions=[int(one) for one in completion.versions],
        )
    except (TypeError, ValueError) as error:
        raise EpisodeError(ENGINE, f"an answer that can't be read: {type(error).__name__}: {error}") from error
    count = len(completion.ids)
    if not len(completion.log_probs) == len(completion.versions) == count:
        raise EpisodeError(
            ENGINE,
            f"{count} token ids with {len(completion.log_probs)} log-probabilities and {len(completion.versions)} "
            f"versions; expected one of each per token",
        )
    if not 0 < count <= request.max_tokens:
        raise EpisodeError(ENGINE, f"{count} token ids; expected 1 to max_tokens = {request.max_tokens}")
    if min(completion.ids) < 0 or max(completion.ids) >= codec.vocabulary:
        bad = next(one for one in completion.ids if not 0 <= one < codec.vocabulary)
        raise EpisodeError(ENGINE, f"token id {bad}; expected 0 to {codec.vocabulary - 1}")
    if not all(math.isfinite(one) and one <= ROUNDING for one in completion.log_probs):
        bad_log = next(one for one in completion.log_probs if not (math.isfinite(one) and one <= ROUNDING))
        raise EpisodeError(ENGINE, f"log-probability {bad_log}; expected a finite number of at most 0")
    return completion
