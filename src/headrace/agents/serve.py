"""A token-in/token-out server in vLLM's shape, over any engine; it can also misbehave on purpose.

    GET /health, /v1/models, /v1/codec (tokenizer and template), /v1/weights
    POST /v1/completions (prompt: text or token ids), /v1/chat/completions, /v1/weights/{pause, load, resume}

Answers carry token_ids, logprobs.token_logprobs, token_versions and weights_version. Requests go to the engine one by
one and meet in its batches. Loopback unless another host is asked for, and then only with a token, which every route
asks for. What a request may say is in `asked`, how weights come in is in `weight_door`.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.agents.asked import MAX_BODY_BYTES, MODEL, RefusedError, read_request
from headrace.agents.codec import describe
from headrace.agents.engines.protocol import Completion, Engine, Request, TooLongError
from headrace.agents.engines.weight_updates import MOST_VERSION, VERSION_HEADER
from headrace.agents.faults import Faults, spoilt
from headrace.agents.given import path, require
from headrace.agents.records import EpisodeError
from headrace.agents.weight_door import MAX_WEIGHTS_BYTES, WeightDoor
from headrace.errors import HeadraceError, UsageError
from headrace.files import parse_object
from headrace.keywords import in_words
from headrace.plain_text import printable, shortened

_DRAINED = 4  # times a body's limit


def application(engine: Engine, faults: Faults | None = None, token: str = "", weights_dir: Path | None = None) -> Any:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request as HttpRequest
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    logging.getLogger("uvicorn.error").addFilter(_is_news)
    bad = faults or Faults()
    rng = random.Random(bad.seed)
    door = WeightDoor(engine, weights_dir)

    def problem(status: int, message: str, parameter: str | None = None, **headers: str) -> Response:
        kind = "invalid_request_error" if status < 500 else "server_error"
        said = printable(shortened(message))  # it may quote what came
        told = {"message": said, "type": kind, "param": parameter and printable(parameter), "code": status}
        return JSONResponse({"error": told}, status, {name.replace("_", "-"): one for name, one in headers.items()})

    async def refused(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        return problem(error.status, str(error), error.parameter)

    async def health(_: HttpRequest) -> Response:
        return JSONResponse({"status": "ok", "weights_version": engine.version})

    async def models(_: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "headrace"}]})

    async def codec(_: HttpRequest) -> Response:
        return JSONResponse(describe(engine.codec))

    async def weights(_: HttpRequest) -> Response:
        return JSONResponse({"version": engine.version, "is_paused": door.is_paused})

    async def pause(http: HttpRequest) -> Response:
        door.pause()
        return await weights(http)

    async def resume(http: HttpRequest) -> Response:
        door.resume()
        return await weights(http)

    async def load(http: HttpRequest) -> Response:
        if http.headers.get("content-type", "").partition(";")[0] == "application/octet-stream":
            version = http.headers.get(VERSION_HEADER, "")
            number = int(version) if version.isdecimal() and len(version) <= len(str(MOST_VERSION)) else version
            await door.load(await _body_of(http, MAX_WEIGHTS_BYTES), number)
        else:
            try:
                asked = parse_object(await _body_of(http, MAX_BODY_BYTES))
            except ValueError as error:
                raise RefusedError(400, f"expected a JSON object: {error}") from error
            await door.load_file(asked.get("path"), asked.get("version"))
        return await weights(http)

    async def complete(http: HttpRequest) -> Response:
        return await answer(http, is_chat=False)

    async def chat(http: HttpRequest) -> Response:
        return await answer(http, is_chat=True)

    async def answer(http: HttpRequest, is_chat: bool) -> Response:
        fault = bad.drawn(rng)
        if fault == "error":
            return problem(500, "injected fault")
        if fault == "limited":
            return problem(429, "injected fault: too many requests", Retry_After=bad.retry_after)
        if fault == "slow":
            await asyncio.sleep(bad.slow_s)
        request, asked = read_request(await _body_of(http, MAX_BODY_BYTES), engine, is_chat)
        await door.passed()
        try:
            completion = await asyncio.wrap_future(engine.submit(request))
        except TooLongError as failure:
            return problem(400, failure.message, "max_tokens")
        except EpisodeError as failure:
            return problem(500, str(failure))
        if fault == "garbage":
            return JSONResponse({"choices": [{"tokens": "nonsense"}]})
        body = _body(request, completion, asked, is_chat, fault, engine.codec.vocabulary)
        if fault == "drop":
            return StreamingResponse(_torn(json.dumps(body).encode()), media_type="application/json")
        return JSONResponse(body)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/codec", codec),
            Route("/v1/weights", weights),
            Route("/v1/weights/pause", pause, methods=["POST"]),
            Route("/v1/weights/load", load, methods=["POST"]),
            Route("/v1/weights/resume", resume, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        middleware=[Middleware(_Doorkeeper, token)] if token else [],
        exception_handlers={RefusedError: refused},
    )


class _Doorkeeper:
    """Asks for the token, on every route, also on those that do not exist."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._want = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        from starlette.responses import JSONResponse

        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(given, self._want):
            await self._app(scope, receive, send)
            return
        told = {"message": "a token is required: Authorization: Bearer TOKEN", "type": "authentication_error"}
        await JSONResponse({"error": told | {"param": None, "code": 401}}, 401)(scope, receive, send)


async def _body_of(http: Any, limit: int) -> bytes:
    """The body; RefusedError if it is too long. A little more is read and forgotten, so that the client hears of it."""
    from starlette.requests import ClientDisconnect

    announced = http.headers.get("content-length", "")
    parts, size = list[bytes](), 0
    if not announced.isdecimal() or int(announced) <= _DRAINED * limit:
        try:
            async for part in http.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                elif size > _DRAINED * limit:
                    break
        except ClientDisconnect as error:
            raise RefusedError(400, "the client hung up before the end of its request") from error
        if size <= limit:
            return b"".join(parts)
    raise RefusedError(413, f"a body of more than {limit:,} bytes")


@in_words()
class RunningServer:
    """A server in a thread of this process, for tests, and where the engine is here anyway."""

    def __init__(
        self,
        engine: Engine,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Faults | None = None,
        token: str = "",
        weights_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        require("engine", engine, "an engine, as scripted() or in_process(...)", "submit", "codec")
        folder = None if weights_dir is None else path("weights_dir", weights_dir)
        require_safe(host, token)
        import uvicorn

        app = application(engine, faults, token, folder)
        config = uvicorn.Config(app, host, port, log_level="warning", lifespan="off")
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


def bound(host: str, port: int) -> socket.socket:
    """Before a model is taught for a port that another program has. Nobody is let in until the server listens."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"--port {port}: can't listen at {host}: {error.strerror}; choose another") from error
    return listener


def _body(
    request: Request, completion: Completion, asked: dict[str, Any], is_chat: bool, fault: str, vocabulary: int
) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": completion.finish}
    ids, log_probs, versions = spoilt(fault, completion.ids, completion.log_probs, completion.versions, vocabulary)
    if is_chat:
        choice["message"] = {"role": "assistant", "content": completion.text}
    else:
        choice["text"] = completion.text
        if asked.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": log_probs, "tokens": [f"token_id:{one}" for one in ids]}
    if asked.get("return_token_ids"):
        choice["token_ids"] = ids
        choice["token_versions"] = versions
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
        "weights_version": max(versions, default=0),
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
