"""A token-in/token-out server in vLLM's shape, over any engine; it can also misbehave on purpose.

    GET /health, /v1/models, /v1/codec (tokenizer and template) · POST /v1/completions (prompt: text or token ids),
    /v1/chat/completions

Answers carry token_ids, logprobs.token_logprobs and weights_version. Requests go to the engine one by one and meet in
its batches. Loopback unless another host is asked for, and then only with a token.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from headrace.agents.codec import describe
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.records import EpisodeError
from headrace.errors import HeadraceError, UsageError
from headrace.plain_text import shortened

MODEL = "headrace"
MAX_PROBLEM = 500  # characters: it may quote what came
MAX_BODY_BYTES = 32 << 20  # of a request: longer than any prompt, and far from the memory of a machine


@dataclass(frozen=True)
class Faults:
    """The share of requests that go wrong, by kind."""

    slow: float = 0.0
    slow_s: float = 5.0
    error: float = 0.0  # HTTP 500
    drop: float = 0.0  # the connection ends in the middle of the answer
    garbage: float = 0.0  # JSON that is no answer
    wrong_logprobs: float = 0.0  # one log-probability too few
    seed: int = 0

    def __post_init__(self) -> None:
        shares = (self.slow, self.error, self.drop, self.garbage, self.wrong_logprobs)
        if min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise UsageError(f"faults: expected shares of at least 0 that add up to at most 1, got {shares}")

    def drawn(self, rng: random.Random) -> str:
        """Which fault this request gets; empty for none."""
        draw = rng.random()
        for kind in ("slow", "error", "drop", "garbage", "wrong_logprobs"):
            draw -= getattr(self, kind)
            if draw < 0:
                return kind
        return ""


def application(engine: Engine, faults: Faults | None = None, token: str = "") -> Any:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.requests import Request as HttpRequest
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    logging.getLogger("uvicorn.error").addFilter(_is_news)
    bad = faults or Faults()
    rng = random.Random(bad.seed)

    def problem(status: int, message: str) -> Response:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)

    async def health(_: HttpRequest) -> Response:
        return JSONResponse({"status": "ok", "weights_version": engine.version})

    async def models(_: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "headrace"}]})

    async def codec(_: HttpRequest) -> Response:
        return JSONResponse(describe(engine.codec))

    async def complete(http: HttpRequest) -> Response:
        return await answer(http, is_chat=False)

    async def chat(http: HttpRequest) -> Response:
        return await answer(http, is_chat=True)

    async def answer(http: HttpRequest, is_chat: bool) -> Response:
        if token and http.headers.get("authorization") != f"Bearer {token}":
            return problem(401, "a token is required: Authorization: Bearer TOKEN")
        fault = bad.drawn(rng)
        if fault == "error":
            return problem(500, "injected fault")
        if fault == "slow":
            await asyncio.sleep(bad.slow_s)
        try:
            asked = json.loads(await _within(http.stream(), MAX_BODY_BYTES))
            request = _request(asked, engine, is_chat)
        except Exception as error:  # whatever a client sends: too large, too deep, infinite, of another type
            return problem(400, shortened(f"{type(error).__name__}: {error}", MAX_PROBLEM))
        try:
            completion = await asyncio.wrap_future(engine.submit(request))
        except EpisodeError as failure:
            return problem(500, str(failure))
        if fault == "garbage":
            return JSONResponse({"choices": [{"tokens": "nonsense"}]})
        body = _body(request, completion, asked, is_chat, fault == "wrong_logprobs")
        if fault == "drop":
            return StreamingResponse(_torn(json.dumps(body).encode()), media_type="application/json")
        return JSONResponse(body)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/codec", codec),
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ]
    )


class RunningServer:
    """A server in a thread of this process, for tests, and where the engine is here anyway."""

    def __init__(
        self, engine: Engine, host: str = "127.0.0.1", port: int = 0, faults: Faults | None = None, token: str = ""
    ) -> None:
        require_safe(host, token)
        import uvicorn

        config = uvicorn.Config(application(engine, faults, token), host, port, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="agents-server", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise HeadraceError(f"the server did not start at {host}:{port}; is the port free?")
            time.sleep(0.01)  # uvicorn tells by a flag, not by an event
        self.port = int(self._server.servers[0].sockets[0].getsockname()[1])
        self.url = f"http://{host}:{self.port}/v1"

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def require_safe(host: str, token: str) -> None:
    """Beyond loopback only with a token."""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local and not token:
        raise UsageError(f"host {host}: expected a loopback address, or a token that clients have to know")


async def _within(chunks: AsyncIterator[bytes], limit: int) -> bytes:
    """A request's body, read no further than the limit."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise ValueError(f"expected at most {limit:,} bytes")
    return bytes(body)


def _request(asked: dict[str, Any], engine: Engine, is_chat: bool) -> Request:
    if not isinstance(asked, dict):
        raise ValueError("expected a JSON object")
    codec = engine.codec
    if is_chat:
        ids = codec.encode(codec.render(asked["messages"], is_asking=True))
    else:
        prompt = asked["prompt"]
        ids = codec.encode(prompt) if isinstance(prompt, str) else [int(one) for one in prompt]
    if not ids or min(ids) < 0 or max(ids) >= codec.vocabulary:
        raise ValueError(f"prompt: expected token ids from 0 to {codec.vocabulary - 1}, at least one")
    seed = asked.get("seed")
    seed = random.getrandbits(63) if seed is None else int(seed)
    max_tokens = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16)
    temperature = 1.0 if asked.get("temperature") is None else float(asked["temperature"])
    for name, value, most in (
        ("seed", seed, 2**64 - 1),
        ("max_tokens", max_tokens, 10**6),
        ("temperature", temperature, 100),
    ):
        if not 0 <= value <= most:
            raise ValueError(f"{name}: expected 0 to {most}, got {value}")
    return Request(0, 0, 0, ids, max_tokens, seed, temperature)


def _body(
    request: Request, completion: Completion, asked: dict[str, Any], is_chat: bool, is_short: bool
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": completion.finish}
    if is_chat:
        choice["message"] = {"role": "assistant", "content": completion.text}
    else:
        choice["text"] = completion.text
        if asked.get("logprobs") is not None:
            log_probs = list(completion.log_probs)[: -1 if is_short else None]
            choice["logprobs"] = {"token_logprobs": log_probs, "tokens": [f"token_id:{one}" for one in completion.ids]}
    if asked.get("return_token_ids"):
        choice["token_ids"] = list(completion.ids)
        choice["prompt_token_ids"] = list(request.ids)
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(request.ids),
            "completion_tokens": len(completion.ids),
            "total_tokens": len(request.ids) + len(completion.ids),
        },
        "weights_version": max(completion.versions, default=0),
    }


class _DropError(ConnectionResetError):
    """A connection that is dropped on purpose."""


async def _torn(body: bytes) -> AsyncIterator[bytes]:
    yield body[: len(body) // 2]
    raise _DropError("injected fault")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether the server's log should have it: a traceback of what was asked for is none."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return not isinstance(error, _DropError)
