"""What a client of the server asks for: read as data, and refused by name where this server does not do it.

    body ──(size, nesting, keys)──> parameters ──(supported? of the right kind?)──> Request, or Refused with a status

A parameter that would change the answer and is not carried out is an error, never passed over.
"""

from __future__ import annotations

import random
from typing import Any

from headrace.agents.engines.protocol import Engine, Request
from headrace.files import parse_object

MODEL = "headrace"
MAX_BODY_BYTES = 8 << 20
_MOST_SEED = 1 << 64
# What is carried out; all else is refused unless it says what happens anyway.
_SUPPORTED = {
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "seed", "temperature", "logprobs",
    "return_token_ids", "stop_token_ids", "top_p", "top_k",
}  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "stream": (False,), "echo": (False,),
    "min_p": (0, 0.0), "presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0), "repetition_penalty": (1, 1.0),
    "logit_bias": ({},), "suffix": ("",), "stop": ([], ""), "tools": ([],), "tool_choice": ("none",),
    "response_format": ({"type": "text"},), "top_logprobs": (0,), "ignore_eos": (False,),
}  # fmt: skip
_PASSED_OVER = {"user", "metadata", "store", "service_tier", "stream_options", "parallel_tool_calls"}


class RefusedError(Exception):
    """A request that is not carried out: an HTTP status, and why."""

    def __init__(self, status: int, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.parameter = status, parameter


def read_request(body: bytes, engine: Engine, is_chat: bool) -> tuple[Request, dict[str, Any]]:
    """The request, and what was asked for as it was written."""
    try:
        asked = {name: value for name, value in parse_object(body).items() if value is not None}
    except ValueError as error:
        raise RefusedError(400, f"expected a JSON object: {error}") from error
    _require_supported(asked, engine)
    ids = _chat_ids(asked, engine) if is_chat else _prompt_ids(asked, engine)
    if not ids or min(ids) < 0 or max(ids) >= engine.codec.vocabulary:
        most = engine.codec.vocabulary - 1
        raise RefusedError(400, f"prompt: expected token ids from 0 to {most}, at least one", "prompt")
    seed = _whole(asked, "seed", 0, _MOST_SEED - 1, random.getrandbits(63))
    limit = "max_tokens" if "max_tokens" in asked else "max_completion_tokens"
    max_tokens = _whole(asked, limit, 1, 1 << 31, 16)
    temperature = _number(asked, "temperature", 0, 1e6)
    top_p, top_k = _number(asked, "top_p", 0, 1), _whole(asked, "top_k", -1, 1 << 31, 0)
    if top_p == 0:
        raise RefusedError(400, "top_p: expected a number above 0, and at most 1, got 0", "top_p")
    return Request(0, 0, 0, ids, max_tokens, seed, temperature, top_p=top_p, top_k=top_k), asked


def _require_supported(asked: dict[str, Any], engine: Engine) -> None:
    model = asked.get("model", MODEL)
    if model != MODEL:
        raise RefusedError(404, f"model: this server has {MODEL!r} only, got {str(model)[:80]!r}", "model")
    for name, value in asked.items():
        if name in _SUPPORTED or name in _PASSED_OVER:
            continue
        if name not in _NEUTRAL:
            raise RefusedError(400, f"{name[:80]}: this server does not know that parameter", name[:80])
        if not any(value == one and type(value) is type(one) for one in _NEUTRAL[name]):
            only = _NEUTRAL[name][0]
            raise RefusedError(400, f"{name}: this server supports {only!r} only, got {str(value)[:80]!r}", name)
    for name in ("logprobs", "return_token_ids"):
        if not isinstance(wish := asked.get(name, False), int) or wish < 0:
            said = f"{name}: expected true, false or a number of at least 0, got {str(wish)[:80]}"
            raise RefusedError(400, said, name)
    if (wish := asked.get("logprobs", 0)) > 1:
        said = f"logprobs: this server gives those of sampled tokens only: expected at most 1, got {str(wish)[:80]}"
        raise RefusedError(400, said, "logprobs")
    stops = asked.get("stop_token_ids", [])
    known = {*getattr(engine.codec, "stop_ids", ()), engine.codec.eos_id}
    if not isinstance(stops, list) or any(type(one) is not int or one not in known for one in stops):
        raise RefusedError(400, f"stop_token_ids: this server stops at {sorted(known)} only", "stop_token_ids")


def _prompt_ids(asked: dict[str, Any], engine: Engine) -> list[int]:
    prompt = asked.get("prompt")
    if isinstance(prompt, str):
        try:
            return engine.codec.encode(prompt)
        except ValueError as error:  # half of a surrogate pair is no text
            raise RefusedError(400, f"prompt: expected a text: {error}", "prompt") from error
    if isinstance(prompt, list) and all(type(one) is int for one in prompt):
        return prompt
    raise RefusedError(
        400, f"prompt: expected one text or one list of token ids, got {type(prompt).__name__}: {str(prompt)[:80]}",
        "prompt",
    )  # fmt: skip


def _chat_ids(asked: dict[str, Any], engine: Engine) -> list[int]:
    if asked.get("logprobs") not in (None, False):
        raise RefusedError(400, "logprobs: chats are text only here; ask /v1/completions for tokens", "logprobs")
    messages = asked.get("messages")
    is_read = isinstance(messages, list) and bool(messages)
    for one in messages if is_read and isinstance(messages, list) else ():
        texts = isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        is_read = is_read and texts and set(one) <= {"role", "content", "name"}
    if not is_read or not isinstance(messages, list):
        raise RefusedError(
            400, f"messages: expected role and content, text each, got {str(messages)[:120]}", "messages"
        )
    try:
        return engine.codec.encode(engine.codec.render(messages, is_asking=True))
    except Exception as error:  # a template may raise whatever it likes
        raise RefusedError(400, f"messages: the template refuses them: {error}", "messages") from error


def _whole(asked: dict[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = asked.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise RefusedError(400, f"{name}: expected a whole number from {least} to {most}, got {str(value)[:80]}", name)
    return value


def _number(asked: dict[str, Any], name: str, least: float, most: float) -> float:
    value = asked.get(name, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise RefusedError(400, f"{name}: expected a number from {least:g} to {most:g}, got {str(value)[:80]}", name)
    return float(value)
