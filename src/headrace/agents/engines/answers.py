"""What a server answered, read as data: ids, log-probabilities and text, or an EpisodeError that says what is wrong.

    /v1/completions        ids, a log-probability for each ──> Completion
    /v1/chat/completions   text, no tokens                 ──> Completion, text only

Does not know HTTP, retries or servers; versions are read in weight_updates.
"""

from __future__ import annotations

from typing import Any

from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.records import ENGINE, EpisodeError


def token_completion(reply: Any, request: Request, codec: Codec) -> Completion:
    """vLLM's answer: token_ids beside the text, logprobs.token_logprobs for each."""
    try:
        choice = reply["choices"][0]
        ids = choice.get("token_ids")
        if ids is None:
            raise EpisodeError(ENGINE, "an answer without token ids")
        log_probs = [0.0 if one is None else float(one) for one in choice["logprobs"]["token_logprobs"]]
        ids = [int(one) for one in ids]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise EpisodeError(ENGINE, f"an answer that can't be read: {type(error).__name__}: {error}") from error
    if not all(0 <= one < codec.vocabulary for one in ids):
        raise EpisodeError(ENGINE, f"token ids beyond the vocabulary; expected 0 to {codec.vocabulary - 1}")
    has_ended = bool(ids) and ids[-1] == codec.eos_id
    text = codec.decode(ids[:-1] if has_ended else ids)
    log_probs = [min(0.0, one) for one in log_probs]
    return Completion(ids, log_probs, [0] * len(ids), text, choice.get("finish_reason") or "stop")


def text_completion(reply: Any) -> Completion:
    """A chat's answer: its text."""
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise EpisodeError(ENGINE, f"an answer without a message: {str(reply)[:200]}") from error
    if not isinstance(text, str):
        raise EpisodeError(ENGINE, f"an answer without text: {str(reply)[:200]}")
    return Completion((), (), (), text, choice.get("finish_reason") or "stop")
