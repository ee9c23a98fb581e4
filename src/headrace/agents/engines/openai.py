"""Any OpenAI-compatible server (vLLM, SGLang, `headrace agents serve`, `transformers serve`), one or several of them.

    submit -> a slot at the least loaded server, always the same one for an episode -> POST, with deadline and retries

Where a server takes prompt token ids and gives ids and log-probabilities back, and its tokenizer is known, records are
in token space. Else chat completions are used and every episode is marked "text only, not trainable". Asked once.
Failures are of two kinds: what may pass (refused, dropped, 429, 5xx, garbage) is tried again, what will not is not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from headrace.agents.codec import ByteCodec, Codec, described
from headrace.agents.engines.answers import text_completion, token_completion
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, answers_of, checked
from headrace.agents.records import ENGINE, TIMEOUT, EpisodeError
from headrace.clock import now_s
from headrace.errors import HeadraceError, UsageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """How to talk to servers."""

    urls: tuple[str, ...] = ()
    """Base URLs, as in http://127.0.0.1:8000/v1; OPENAI_BASE_URL if none is given."""
    model: str = ""
    """The model's name; the first one that the server lists if empty."""
    api_key: str = ""
    """OPENAI_API_KEY if empty; servers of one's own seldom ask."""
    request_s: float = 60.0
    """For one attempt."""
    attempts: int = 4
    """At one request, with growing pauses between."""
    pause_s: float = 0.25
    """Before the second attempt; doubled each time, up to 8 s, and shortened at random."""
    is_text_only: bool | None = None
    """None: ask the server."""


class _Servers:
    """Who is how busy, and where each episode lives. An episode stays: the server may have its prompt cached."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._load = dict.fromkeys(urls, 0)
        self._home: dict[str, str] = {}

    def of(self, session: str) -> str:
        """The episode's server; the least loaded one for a new episode."""
        if session not in self._home:
            counts = dict.fromkeys(self._load, 0)
            for url in self._home.values():
                counts[url] += 1
            self._home[session] = min(self._load, key=lambda url: (self._load[url], counts[url]))
        return self._home[session]

    def leave(self, session: str, bad: str) -> str:
        """Another server than this one, if there is one: it did not answer."""
        others = [url for url in self._load if url != bad]
        if others:
            self._home[session] = min(others, key=self._load.__getitem__)
        return self._home.get(session, bad)

    def start(self, url: str) -> None:
        """A request is under way."""
        self._load[url] += 1

    def end(self, url: str) -> None:
        """It is over."""
        self._load[url] -= 1


class OpenAIEngine:
    """An engine behind HTTP. All requests run on one event loop in a thread of its own."""

    version = 0
    is_in_process = False

    def __init__(self, codec: Codec | None = None, server: Server | None = None) -> None:
        import openai

        server = server or Server()
        urls = server.urls or tuple(filter(None, (os.environ.get("OPENAI_BASE_URL", ""),)))
        if not urls:
            raise UsageError("urls: expected the address of a server, or OPENAI_BASE_URL; none was given")
        self.codec: Codec = codec or ByteCodec()
        self._has_codec = codec is not None
        self._server = server
        self._openai = openai
        key = server.api_key or os.environ.get("OPENAI_API_KEY", "") or "none"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-http", daemon=True)
        self._thread.start()
        self._servers = _Servers(urls)
        self._clients = {
            url: openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=server.request_s) for url in urls
        }
        self._statistics = EngineStatistics()
        self._in_flight = 0
        self._is_closed = False
        self.model = server.model
        self.is_text_only = bool(server.is_text_only)
        try:
            self._run(self._introduce())
        except BaseException:
            self.close()
            raise

    def submit(self, request: Request) -> Future[Completion]:
        """On its way at once: the server batches."""
        if self._is_closed:
            future: Future[Completion] = Future()
            future.set_exception(EpisodeError(ENGINE, "the engine was closed"))
            return future
        return asyncio.run_coroutine_threadsafe(self._answer(request), self._loop)

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        """All at the same time."""
        return answers_of([self.submit(request) for request in requests])

    def expect(self, live: int) -> None:
        """The server's matter."""

    def publish(self, weights: Any, version: int | None = None) -> int:
        """Weights of a server are not ours to change."""
        raise UsageError("publish: a server's weights are changed at the server; use an engine in this process")

    def statistics(self) -> EngineStatistics:
        """So far."""
        return self._statistics

    def close(self) -> None:
        """Hang up."""
        if self._is_closed:
            return
        self._is_closed = True

        async def hang_up() -> None:
            waiting = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for client in self._clients.values():
                await client.close()

        self._run(hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -------------------------------------------------------------------------------------------------- inside

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _introduce(self) -> None:
        """Which model is there, and does it speak in token ids?"""
        url, client = next(iter(self._clients.items()))
        try:
            if not self.model:
                listed = [one.id for one in (await client.models.list()).data]
                if not listed:
                    raise UsageError(f"model: {url} lists none; name one")
                self.model = listed[0]
            if not self._has_codec and not self.is_text_only:
                self._has_codec = await self._learn_codec(client)
            if self._server.is_text_only is None:
                self.is_text_only = not (self._has_codec and await self._speaks_tokens(client))
        except self._openai.APIError as error:
            raise HeadraceError(f"{url}: no OpenAI-compatible server answers there: {_short(error)}") from error
        if self.is_text_only:
            logger.warning("%s gives text only: episodes are recorded without token ids and can't be trained on", url)

    async def _learn_codec(self, client: Any) -> bool:
        """headrace's own server says how its text becomes tokens; of others the tokenizer has to be given."""
        try:
            self.codec = described(await client.get("/codec", cast_to=dict[str, str]))
        except (self._openai.APIError, ValueError, KeyError, TypeError):
            return False
        return True

    async def _speaks_tokens(self, client: Any) -> bool:
        """One token asked for by ids: a server that gives ids and log-probabilities back is fit for training."""
        probe = Request(0, 0, 0, self.codec.encode("a") or [0], 1, 0)
        try:
            return bool(token_completion(await self._post(client, probe), probe, self.codec).ids)
        except (self._openai.BadRequestError, self._openai.UnprocessableEntityError, EpisodeError):
            return False

    async def _answer(self, request: Request) -> Completion:
        server, problem, url = self._server, "", self._servers.of(request.session)
        for attempt in range(server.attempts):
            if attempt:
                pause_s = min(8.0, server.pause_s * 2 ** (attempt - 1))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                url = self._servers.leave(request.session, url)
            self._servers.start(url)
            self._in_flight += 1
            started = now_s()
            try:
                async with asyncio.timeout(server.request_s):
                    answer = await self._ask(self._clients[url], request)
                self._count(answer, started)
                return answer
            except TimeoutError:
                problem, boundary = f"no answer within {server.request_s:g} s", TIMEOUT
            except self._openai.APITimeoutError as error:
                problem, boundary = _short(error), TIMEOUT
            except (self._openai.APIConnectionError, self._openai.RateLimitError) as error:
                problem, boundary = _short(error), ENGINE
            except self._openai.InternalServerError as error:
                problem, boundary = _short(error), ENGINE
            except self._openai.APIStatusError as error:
                raise EpisodeError(ENGINE, f"{url} refused the request: {_short(error)}") from error
            except EpisodeError as failure:  # garbage: another try may bring sense
                problem, boundary = failure.message, failure.boundary
            except (ValueError, self._openai.APIError) as error:
                problem, boundary = f"an answer that can't be read: {_short(error)}", ENGINE
            finally:
                self._servers.end(url)
                self._in_flight -= 1
            logger.info(
                "%s, episode %s, attempt %d of %d: %s", url, request.session, attempt + 1, server.attempts, problem
            )
        raise EpisodeError(boundary, f"{url}, {server.attempts} attempts: {problem}")

    async def _ask(self, client: Any, request: Request) -> Completion:
        if not self.is_text_only:
            answer = token_completion(await self._post(client, request), request, self.codec)
            return checked(request, answer, self.codec, False)
        reply = await client.chat.completions.with_raw_response.create(
            model=self.model,
            messages=list(request.messages),
            **({"tools": list(request.tools)} if request.tools else {}),
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed % 2**31,
            extra_headers={"X-Session-ID": request.session},
        )
        return checked(request, text_completion(json.loads(reply.text)), self.codec, True)

    @property
    def _more_stops(self) -> dict[str, list[int]]:
        """Servers know the model's end token, and not always the others."""
        stops = self.codec.stop_ids
        return {"stop_token_ids": sorted(stops)} if len(stops) > 1 else {}

    async def _post(self, client: Any, request: Request) -> Any:
        reply = await client.completions.with_raw_response.create(
            model=self.model,
            prompt=list(request.ids),
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            logprobs=1,
            extra_body={"return_token_ids": True} | self._more_stops,
            extra_headers={"X-Session-ID": request.session},
        )
        return json.loads(reply.text)

    def _count(self, answer: Completion, started_s: float) -> None:
        was = self._statistics
        self._statistics = replace(
            was,
            requests=was.requests + 1,
            batches=was.batches + 1,
            batched=was.batched + self._in_flight,
            tokens=was.tokens + len(answer.ids),
            busy_s=was.busy_s + (now_s() - started_s) / max(1, self._in_flight),
        )


def _short(error: object) -> str:
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else repr(error)
    return text.splitlines()[0][:200]
