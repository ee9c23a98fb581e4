"""Any OpenAI-compatible server (vLLM, SGLang, `headrace agents serve`, `transformers serve`), one or several of them.

    submit -> [ a server that may be asked, the episode's own if it can be -> POST, with a deadline -> read, checked ]
                 none: wait for one, up to outage_s, and say so                failed: again, another server if there is
    a server that fails, vanishes or has lost its weights is out ──> looked at now and then, given its weights ──> in

Where a server takes prompt token ids and gives ids and log-probabilities back, and its tokenizer is known, records are
in token space. Else chat completions are used and every episode is marked "text only, not trainable". Asked once.
Failures are of two kinds: what may pass (dropped, 5xx, garbage) is tried again, what will not is not. A server that is
not there, or asks for a pause, costs no attempt.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headrace.agents.codec import ByteCodec, Codec, described
from headrace.agents.engines.answers import answer_read, text_completion, token_completion, tokens_used
from headrace.agents.engines.asking import text_asked, tokens_asked
from headrace.agents.engines.fleet import Fleet, models_of
from headrace.agents.engines.protocol import Completion, EngineStatistics, Request, answers_of, checked
from headrace.agents.engines.servers import OutageError, Server, is_refused, require_addresses, retry_after_s
from headrace.agents.engines.weight_updates import (
    HeadraceUpdates,
    StaleError,
    Updates,
    next_version,
    packed,
    require_fresh,
    token_versions,
)
from headrace.agents.given import require
from headrace.agents.records import ENGINE, TIMEOUT, EpisodeError
from headrace.clock import now_s, wall_time
from headrace.errors import HeadraceError, UsageError
from headrace.keywords import in_words

T = TypeVar("T")

_MAY_PASS = (408, 409, 425)  # a time limit of a proxy's, a lock, too early: OpenAI's own client asks again, too

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Problem:
    """An attempt that may go better another time."""

    boundary: str
    message: str
    is_counted: bool = True


@in_words()
class OpenAIEngine:
    """An engine behind HTTP. All requests run on one event loop in a thread of its own."""

    def __init__(
        self,
        codec: Codec | None = None,
        server: Server | str | Sequence[str] | None = None,
        updates: Updates | None = None,
    ) -> None:
        """`server`: how to talk to servers, or just their address; several are asked in turn."""
        import openai

        if codec is not None:
            expected = "a codec, as TokenizerCodec.from_folder(folder); an address goes to server="
            require("codec", codec, expected, "eos_id", "encode")
        server = server if isinstance(server, Server) else Server(server or ())
        urls = tuple(filter(None, server.urls or (os.environ.get("OPENAI_BASE_URL", ""),)))
        if not urls:
            raise UsageError("engine.urls: expected the address of a server, or OPENAI_BASE_URL; none was given")
        require_addresses("OPENAI_BASE_URL", urls)
        self.codec: Codec = codec or ByteCodec()
        self._has_codec = codec is not None
        self._server, self._openai = server, openai
        self.patience_s = server.outage_s  # that an answer may take longer, if nobody is there to give it
        key = server.api_key or os.environ.get("OPENAI_API_KEY", "") or "none"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-http", daemon=True)
        self._thread.start()
        self._fleet = Fleet(urls, key, server, updates or HeadraceUpdates())
        self._statistics = EngineStatistics()
        self._in_flight = 0
        self._is_closed = False
        self.model = server.model
        self.is_text_only = bool(server.is_text_only)
        try:
            self._run(self._introduce(urls))
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """The latest that was published."""
        return self._fleet.version

    @property
    def on_wait(self) -> Callable[[str], None]:
        """Called with who is waited for, while no server can be asked; in a thread of the engine's."""
        return self._fleet.on_wait

    @on_wait.setter
    def on_wait(self, call: Callable[[str], None]) -> None:
        self._fleet.on_wait = call

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
        """A model, a state_dict, or a path at the servers. Servers that are away get them before they are asked."""
        number = next_version(self.version, version)
        return self._run(self._fleet.publish(packed(weights), number))

    def outage(self) -> str:
        """Who is waited for, if no server can be asked; OutageError if that takes longer than outage_s."""
        if self._fleet.gone:
            raise OutageError(self._fleet.heard())
        return self._fleet.waits_for

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
            await self._fleet.close()

        self._run(hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -------------------------------------------------------------------------------------------------- inside

    async def _introduce(self, urls: Sequence[str]) -> None:
        """Which model is there, and does it speak in token ids? The first that answers says so; the others follow."""
        first, problem = "", None
        for url in urls:
            try:
                await self._meet(url)
            except self._openai.AuthenticationError:
                problem = problem or f"{url}: the server refuses the key: set OPENAI_API_KEY to the one it expects"
            except (self._openai.APIError, TimeoutError, ValueError) as error:
                problem = problem or f"{url}: no OpenAI-compatible server answers there: {_short(error)}"
            else:
                first = url
                break
        if not first:
            raise HeadraceError(str(problem))
        reasons = await asyncio.gather(*(self._fleet.unfit(url) for url in urls))
        for url, why in zip(urls, reasons, strict=True):
            if why:
                self._fleet.take_out(url, why)
        if self.is_text_only:
            logger.warning("%s gives text only: episodes are recorded without token ids and can't be trained on", first)

    async def _meet(self, url: str) -> None:
        client = self._fleet.clients[url]
        if not self.model:
            listed = await self._fleet.in_time(models_of(client))
            if not listed:
                raise UsageError(f"model: {url} lists none; name one")
            self.model = listed[0]
        if not self._has_codec and not self.is_text_only:
            self._has_codec = await self._fleet.in_time(self._learn_codec(url))
        if self._server.is_text_only is None:
            self.is_text_only = not (self._has_codec and await self._speaks_tokens(client))

    async def _learn_codec(self, url: str) -> bool:
        """headrace's own server says how its text becomes tokens; of others the tokenizer has to be given."""
        try:
            told = await self._fleet.described(url)
            self.codec = described(told)
        except (ValueError, KeyError, TypeError, AttributeError, OSError):
            return False
        self._fleet.codec = told
        return True

    async def _speaks_tokens(self, client: Any) -> bool:
        """One token asked for by ids: a server that gives ids and log-probabilities back is fit for training."""
        probe, api = Request(0, 0, 0, self.codec.encode("a") or [0], 1, 0), self._openai
        failure, left_s = None, self._server.outage_s
        for attempt in range(self._server.attempts):  # one bad answer at the start is not what the server is like
            try:
                told = await self._fleet.in_time(self._post(client, probe))
                return bool(token_completion(told, probe, self.codec).ids)
            except (api.BadRequestError, api.UnprocessableEntityError):
                return False
            except (api.RateLimitError, api.InternalServerError) as error:
                failure = error
                pause_s = retry_after_s(error.response.headers, wall_time()) or self._server.pause_before(attempt)
                if (left_s := left_s - pause_s) < 0:
                    break
                logger.warning("%s: %s; it is asked again in %.3g s", client.base_url, _short(error), pause_s)
                await asyncio.sleep(pause_s)
            except (ValueError, EpisodeError):
                failure = None
        if failure is not None:
            raise failure
        return False

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _answer(self, request: Request) -> Completion:
        server, attempt, bad = self._server, 0, ""
        while True:
            url = await self._fleet.found(request.session, bad)
            outcome = await self._tried(url, request)
            if isinstance(outcome, Completion):
                return outcome
            attempt += outcome.is_counted
            told = (url, request.session, attempt, server.attempts, outcome.message)
            logger.info("%s, episode %s, attempt %d of %d: %s", *told)
            if attempt >= server.attempts:
                raise EpisodeError(outcome.boundary, f"{url}, {server.attempts} attempts: {outcome.message}")
            bad = url
            if outcome.is_counted:
                await asyncio.sleep(server.pause_before(attempt) * random.uniform(0.5, 1.0))

    async def _tried(self, url: str, request: Request) -> Completion | _Problem:
        """One attempt at one server, and what is to be learned about it."""
        fleet, servers, api = self._fleet, self._fleet.servers, self._openai
        servers.start(url)
        self._in_flight += 1
        started = now_s()
        try:
            async with asyncio.timeout(self._server.request_s):
                answer = await self._ask(url, request, servers.version(url))
        except (TimeoutError, api.APITimeoutError):
            return self._failed(url, _Problem(TIMEOUT, f"no answer within {self._server.request_s:g} s"))
        except (api.RateLimitError, api.InternalServerError) as error:
            asked_s = retry_after_s(error.response.headers, wall_time())
            if not isinstance(error, api.RateLimitError) and asked_s is None:
                return self._failed(url, _Problem(ENGINE, _short(error)))
            pause_s = servers.limited(url, asked_s, self._server.pause_s, now_s())
            self._statistics = replace(self._statistics, limited=self._statistics.limited + 1)
            return _Problem(ENGINE, f"it asks for a pause of {pause_s:.3g} s: {_short(error)}", is_counted=False)
        except api.APIConnectionError as error:
            if not is_refused(error):
                return self._failed(url, _Problem(ENGINE, _short(error)))
            fleet.take_out(url, f"no connection: {_short(error.__cause__)}")
            return _Problem(ENGINE, _short(error), is_counted=False)
        except api.APIStatusError as error:
            if error.status_code in _MAY_PASS:
                return self._failed(url, _Problem(ENGINE, _short(error)))
            raise EpisodeError(ENGINE, f"{url} refused the request: {_short(error)}") from error
        except StaleError as failure:
            fleet.take_out(url, failure.message)
            return _Problem(failure.boundary, failure.message)
        except EpisodeError as failure:  # garbage: another try may bring sense
            return self._failed(url, _Problem(failure.boundary, failure.message))
        except (ValueError, api.APIError) as error:
            return self._failed(url, _Problem(ENGINE, f"an answer that can't be read: {_short(error)}"))
        finally:
            servers.end(url)
            self._in_flight -= 1
            self._statistics = replace(self._statistics, attempts=self._statistics.attempts + 1)
        servers.answered(url)
        self._count(answer, started)
        return answer

    def _failed(self, url: str, problem: _Problem) -> _Problem:
        if self._fleet.servers.failed(url):
            self._fleet.take_out(url, f"several failures in a row, the last: {problem.message}")
        return problem

    async def _ask(self, url: str, request: Request, known: int) -> Completion:
        client = self._fleet.clients[url]
        if self.is_text_only:
            asking = client.chat.completions.with_streaming_response
            told = self._billed(await answer_read(asking.create(model=self.model, **text_asked(request))), request)
            return checked(request, text_completion(told), self.codec, True)
        told = await self._post(client, request)
        answer = token_completion(told, request, self.codec)
        versions = token_versions(told, len(answer.ids), known)
        newest = self._fleet.newest
        if newest is None and max(versions, default=known) > known:  # somebody else published: the server confirms it
            newest = await self._fleet.confirmed(url)
        require_fresh(versions, known, newest)
        self._fleet.seen(url, max(versions, default=known))
        return checked(request, replace(answer, versions=versions), self.codec, False)

    async def _post(self, client: Any, request: Request) -> Any:
        asking = client.completions.with_streaming_response
        told = await answer_read(asking.create(model=self.model, **tokens_asked(request, self.codec)))
        return self._billed(told, request)

    def _billed(self, told: Any, request: Request) -> Any:
        """The answer; its tokens are counted whether it is of use or not."""
        prompt, given = tokens_used(told)
        was = self._statistics
        self._statistics = replace(
            was,
            prompt_tokens=was.prompt_tokens + (len(request.ids) if prompt is None else prompt),
            answer_tokens=was.answer_tokens + (given or 0),
        )
        return told

    def _count(self, answer: Completion, started_s: float) -> None:
        was = self._statistics
        self._statistics = replace(
            was,
            requests=was.requests + 1,
            batches=was.batches + 1,
            batched=was.batched + self._in_flight + 1,
            tokens=was.tokens + len(answer.ids),
            busy_s=was.busy_s + (now_s() - started_s) / (self._in_flight + 1),
        )


def _short(error: object) -> str:
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else repr(error)
    return text.splitlines()[0][:200]
