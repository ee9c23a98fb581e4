"""A scripted policy: answers drawn from each request's own seed, after a latency that does not depend on it.

It stands in for a model where the model does not matter: tests, the comparison of ways to run, benchmarks. Since the
answer depends on the request (its seed, its prompt) and the latency does not, records agree between two ways to run
only if both ask the same questions with the same seeds.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.agents.codec import ByteCodec, Codec
from headrace.agents.engines.batching import Batched, Batching
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.weight_updates import next_version
from headrace.agents.records import EpisodeError
from headrace.errors import UsageError, require_types
from headrace.keywords import in_words

Script = Callable[[str, np.random.Generator], str]  # the prompt's text and the request's randomness -> an answer


@in_words()
@dataclass(frozen=True)
class Latency:
    """Seconds of a batch: base_s + per_sequence_s each, and up to jitter_s more at random."""

    base_s: float = 0.0
    per_sequence_s: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        names = ("base_s", "per_sequence_s", "jitter_s")
        require_types(self, {float: names})
        for name in names:
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"latency.{name}: expected seconds, 0 or more, got {getattr(self, name)}")

    def of(self, sequences: int) -> float:
        """Without the jitter."""
        return self.base_s + sequences * self.per_sequence_s


def random_answers(prompt: str, rng: np.random.Generator) -> str:
    """Actions from the prompt's own list, or sums of its numbers; one answer in ten is not in the format."""
    if rng.random() < 0.1:
        return "I would rather " + str(rng.choice(["not say", "think first", "go home"]))
    asked = prompt.rpartition("<|im_start|>user")[2]
    listed = re.findall(r"^Actions: (.+)$", asked, re.MULTILINE)
    if listed:
        known = listed[-1].split(", ")
        actions = [str(rng.choice(known)) for _ in range(int(rng.integers(1, 3)) if "||" in asked else 1)]
    else:
        numbers = re.findall(r"\d+", prompt)[:4] or ["1"]
        actions = [" + ".join(str(rng.choice(numbers)) for _ in range(int(rng.integers(1, 4))))]
    answer = f"<answer>{' || '.join(actions)}</answer>"
    thoughts = "".join(rng.choice(list("abcdefgh "), int(rng.integers(1, 12))))
    return f"<think>{thoughts}</think>{answer}" if "<think>" in asked else answer


class ScriptedModel:
    """A batch model without a model."""

    def __init__(
        self, script: Script = random_answers, latency: Latency | None = None, codec: Codec | None = None
    ) -> None:
        self.codec: Codec = codec or ByteCodec()
        self.version = 0
        self._script = script
        self._latency = latency or Latency()
        self._clock_noise = random.Random()

    def run(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """One answer per request, from its own seed."""
        wait_s = self._latency.of(len(requests)) + self._latency.jitter_s * self._clock_noise.random()
        started = time.monotonic()
        answers: list[Completion | EpisodeError] = [self._answer(request) for request in requests]
        left_s = wait_s - (time.monotonic() - started)
        if left_s > 0:
            time.sleep(left_s)
        return answers

    def publish(self, weights: Any, version: int | None = None) -> int:
        """A script has no weights; what it says from now on is a new version's."""
        self.version = next_version(self.version, version)
        return self.version

    def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, request: Request) -> Completion:
        rng = np.random.Generator(np.random.PCG64(request.seed))
        text = self._script(self.codec.decode(request.ids), rng)
        ids = [*self.codec.encode(text), self.codec.eos_id]
        finish = "stop"
        if len(ids) > request.max_tokens:
            ids, finish = ids[: request.max_tokens], "length"
            text = self.codec.decode(ids)
        log_probs = np.minimum(-rng.exponential(1.0, len(ids)), 0.0).astype(np.float32)
        return Completion(ids, log_probs.tolist(), [self.version] * len(ids), text, finish)


@in_words()
def scripted(
    script: Script = random_answers,
    latency: Latency | None = None,
    batching: Batching | None = None,
    codec: Codec | None = None,
) -> Batched:
    """An engine that follows a script."""
    if not callable(script):
        raise UsageError(f"script: expected a function of the prompt and a generator, got {script!r}")
    for name, given, kind in (("latency", latency, Latency), ("batching", batching, Batching)):
        if given is not None and not isinstance(given, kind):
            raise UsageError(f"{name}: expected {kind.__name__}(...), got {given!r}")
    return Batched(ScriptedModel(script, latency, codec), batching)
