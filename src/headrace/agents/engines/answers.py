"""What a server answered, read as data: everything that a token needs to be trained on is there, or it is refused.

    /v1/completions        ids, a log-probability for each, the weights' version ──> Completion
    /v1/chat/completions   text, reasoning, tool calls; no tokens                   ──> Completion, text only

Read from the JSON itself: a client library that fits values to types makes 0.0 of false. Nothing is filled in: a
log-probability that is missing, null, NaN, above 0 or a stand-in for minus infinity, an id that is no token, an answer
to another prompt or a broken-off one is an EpisodeError. Does not know retries or servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import ROUNDING, Completion, Request
from headrace.agents.records import ENGINE, EpisodeError
from headrace.files import parse_json

MAX_ANSWER_BYTES = 64 << 20
_MOST_TOKENS = 1 << 40
_NO_PROBABILITY = -9999.0  # vLLM writes this for minus infinity, which no sampled token can have
_BROKEN_OFF = ("abort", "error", "content_filter")


async def answer_read(asked: Any) -> Any:
    """The JSON of an answer that the openai client is about to give: not without end, and not nested without end."""
    async with asked as reply:
        try:
            body = await _body(reply)
        except EpisodeError:
            raise
        except Exception as error:  # of the HTTP library that the openai client is built on: they differ by version
            raise EpisodeError(ENGINE, f"an answer that broke off: {type(error).__name__}: {error}") from error
    return parse_json(body)


async def _body(reply: Any) -> bytes:
    parts, size = [], 0
    async for part in reply.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise EpisodeError(ENGINE, f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
    return b"".join(parts)


def tokens_used(reply: Any) -> tuple[int | None, int | None]:
    """Of the prompt and of the answer, as the server counts them; None where it does not, or says nonsense."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    sizes = usage if isinstance(usage, dict) else {}
    prompt, given = (
        one if type(one) is int and 0 <= one <= _MOST_TOKENS else None
        for one in (sizes.get("prompt_tokens"), sizes.get("completion_tokens"))
    )
    return prompt, given


def token_completion(reply: Any, request: Request, codec: Codec) -> Completion:
    """vLLM's answer: token_ids beside the text, logprobs.token_logprobs for each."""
    choice = _choice(reply)
    ids = _whole_numbers("token_ids", choice.get("token_ids"))
    prompt = choice.get("prompt_token_ids")
    if prompt is not None and prompt != list(request.ids):
        raise EpisodeError(ENGINE, f"an answer to another prompt: sent {_short(request.ids)}, got {_short(prompt)}")
    section = choice.get("logprobs")
    log_probs = _log_probs(section.get("token_logprobs") if isinstance(section, dict) else None)
    if len(log_probs) != len(ids):
        raise EpisodeError(ENGINE, f"{len(ids)} token ids with {len(log_probs)} log-probabilities; expected one each")
    version = reply.get("weights_version")
    if version is not None and type(version) is not int:
        raise EpisodeError(ENGINE, f"weights_version is {_short(version)}, expected a whole number")
    finish = _finish(choice)
    stop = next((at for at, one in enumerate(ids) if one in codec.stop_ids), None)
    if stop is not None:  # what a server samples beyond a stop id that it does not know is no part of the answer
        ids, log_probs, finish = ids[: stop + 1], log_probs[: stop + 1], "stop"
    _require_known(ids, codec)
    text = codec.decode(ids if stop is None else ids[:-1])
    return Completion(ids, log_probs, [version or 0] * len(ids), text, finish)


def text_completion(reply: Any) -> Completion:
    """A chat's answer: its text, and what the server has taken out of it: reasoning and tool calls."""
    choice = _choice(reply)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise EpisodeError(ENGINE, f"an answer without a message: {_short(reply)}")
    text, calls = message.get("content"), message.get("tool_calls") or []
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(reasoning, str) or not isinstance(calls, list) or not all(map(_is_call, calls)):
        raise EpisodeError(
            ENGINE, f"reasoning or tool calls that are not in OpenAI's shape: {_short(reasoning)}, {_short(calls)}"
        )
    if not isinstance(text, str) and not (text is None and (calls or reasoning)):
        raise EpisodeError(ENGINE, f"an answer without text: {_short(reply)}")
    return Completion((), (), (), text or "", _finish(choice), reasoning, calls)


def _is_call(call: Any) -> bool:
    """What is in the arguments is the model's own: here it is a text."""
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and all(isinstance(function.get(name), str) for name in ("name", "arguments"))


def _choice(reply: Any) -> dict[str, Any]:
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EpisodeError(ENGINE, f"an answer that can't be read, expected choices: {_short(reply)}")
    first: dict[str, Any] = choices[0]
    return first


def _finish(choice: dict[str, Any]) -> str:
    finish = choice.get("finish_reason") or "stop"
    if not isinstance(finish, str) or finish in _BROKEN_OFF:
        raise EpisodeError(ENGINE, f"an answer that was broken off: finish_reason {_short(finish)}")
    return finish


def _whole_numbers(name: str, values: Any) -> list[int]:
    if values is None:
        raise EpisodeError(ENGINE, "an answer without token ids")
    if not isinstance(values, list) or any(type(one) is not int for one in values):
        raise EpisodeError(ENGINE, f"{name} is {_short(values)}, expected whole numbers")
    return values


def _log_probs(values: Any) -> list[float]:
    """All of them real; a rounding error above 0 counts as 0."""
    if not isinstance(values, list):
        raise EpisodeError(ENGINE, "an answer without log-probabilities; expected logprobs.token_logprobs")
    for at, one in enumerate(values):
        is_number = isinstance(one, (int, float)) and not isinstance(one, bool)
        if not is_number or not _NO_PROBABILITY < one <= ROUNDING:  # NaN is not; a huge int is no float
            got = "null" if one is None else _short(one)
            raise EpisodeError(
                ENGINE, f"the log-probability of token {at} is {got}; expected a finite number of at most 0"
            )
    return [min(0.0, float(one)) for one in values]


def _require_known(ids: Sequence[int], codec: Codec) -> None:
    """Before they are decoded: tokenizers raise whatever they like."""
    for one in ids:
        if not 0 <= one < codec.vocabulary:
            raise EpisodeError(ENGINE, f"token id {one}; expected 0 to {codec.vocabulary - 1}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
