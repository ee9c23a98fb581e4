"""The servers of one engine: found for a request, taken out and put back by their health, given their weights.

    found(session): a server that may be asked, or wait for one, say so, and give up at outage_s
    take_out(url) ──> heal, a task: look, agree about the tokenizer, load what it lacks ──> in again
    publish(package): pause, load, resume at all that are in; the others get it before they come in

Runs on the engine's event loop; only `waits_for`, `gone` and `version` are read elsewhere. Does not know requests.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from headrace.agents.engines.servers import OutageError, Server, Servers
from headrace.agents.engines.weight_updates import Package, Updates
from headrace.clock import now_s
from headrace.errors import UsageError

T = TypeVar("T")

_LOOK_S = 10.0  # for a server to say how it is
_SAY_S = 10.0  # between two words about who is waited for
_MOST_PAUSE_S = 5.0  # between two looks at a server that is out

logger = logging.getLogger(__name__)


class Fleet:
    """Some servers."""

    def __init__(self, urls: Sequence[str], key: str, server: Server, updates: Updates) -> None:
        import openai

        self._server, self._updates = server, updates
        self.servers = Servers(urls)
        self.clients = {
            url: openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=server.request_s) for url in urls
        }
        self._passing = (openai.APIError, OSError, ValueError)
        self.version = 0  # the latest that was published
        self.newest: int | None = None  # that a server can have; None: its weights are somebody else's
        self._package: Package | None = None
        self.codec: Any = None  # how the first server describes its tokenizer: the others have to agree
        self._healing: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._waiting = 0
        self._said_s = float("-inf")
        self.gone = ""  # why it was given up to wait
        self.on_wait: Callable[[str], None] = lambda text: None

    @property
    def waits_for(self) -> str:
        """Who requests wait for, if nobody may be asked."""
        return self.servers.waited_for(now_s()) if self._waiting else ""

    async def found(self, session: str, bad: str = "") -> str:
        """A server that may be asked now; OutageError if there is none for too long. `bad` has just failed."""
        servers, limit_s = self.servers, self._server.outage_s
        while (url := servers.of(session, now_s(), bad)) is None:
            away_s = servers.away_s(now_s())
            self._say(away_s, limit_s)
            pause_s = min(limit_s - away_s, servers.next_s() - now_s(), _SAY_S)
            self._waiting += 1
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.001, pause_s)):
                        await self._changed.wait()
            except asyncio.CancelledError:
                if self._waiting == 1:  # nobody waits any more: who comes next begins anew
                    servers.since_s = None
                raise
            finally:
                self._waiting -= 1
        self.gone = ""
        return url

    def heard(self) -> str:
        """Why it was given up to wait. Who asks from now on waits as long again. In any thread."""
        gone, self.gone, self.servers.since_s = self.gone, "", None
        return gone

    def _say(self, away_s: float, limit_s: float) -> None:
        what = f"no server can be asked, waiting for {self.servers.waited_for(now_s())}"
        if away_s >= limit_s:
            self.gone = (
                f"{what}; there was none for {limit_s:g} s (engine.outage_s). Finished groups are kept: run the same "
                f"again with the same run directory to go on"
            )
            raise OutageError(self.gone)
        if now_s() - self._said_s >= _SAY_S or away_s == 0.0:  # one request speaks for all
            self._said_s = now_s()
            logger.warning("%s; for %.0f s now, at most %g s", what, away_s, limit_s)
            self.on_wait(f"{what}; {away_s:.0f} s of at most {limit_s:g} s")

    def take_out(self, url: str, why: str) -> None:
        """It is not asked until it is well again."""
        self.servers.take_out(url, why)
        if url not in self._healing:
            logger.warning("%s is not asked for now: %s", url, why)
            self._healing[url] = asyncio.create_task(self._heal(url))

    async def unfit(self, url: str) -> str:
        """Why this server can't be asked; empty: it can. One that lacks weights is given them."""
        client, floor = self.clients[url], self.servers.version(url)
        try:
            async with asyncio.timeout(_LOOK_S):
                await _look(client, url)
                if self.codec is not None and await self.described(url) != self.codec:
                    return "its tokenizer or template is another than the first server's"
                version = await self._updates.version(client)
            if self._package is not None and version != self.version:
                await self._updates.load(client, self._package, self.version, self._server.update_s)
                logger.warning("%s had weights of version %s and was given version %d", url, version, self.version)
                version = self.version
            elif version is not None and version < floor:
                return f"its weights are of version {version}, expected {floor}; load them there"
        except UsageError as error:
            return str(error)
        except Exception as error:  # what answers there, and a class of the user's that reads it, may raise anything
            return f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if version is not None:
            self.seen(url, version)
        return ""

    def seen(self, url: str, version: int) -> None:
        """A server has these weights now; older ones from there are old news or a restart."""
        self.servers.has_version(url, max(version, self.servers.version(url)))
        self.version = max(self.version, version)

    async def in_time(self, what: Coroutine[Any, Any, T]) -> T:
        """What a server is asked at the start: one that says a little now and then, and never all, has a limit, too."""
        try:
            async with asyncio.timeout(self._server.request_s):
                return await what
        except TimeoutError:
            raise TimeoutError(f"no whole answer within {self._server.request_s:g} s") from None

    async def described(self, url: str) -> Any:
        """How the server's text becomes tokens; headrace's own says so, others answer None."""
        from openai import APIStatusError

        try:
            return await self.clients[url].get("/codec", cast_to=dict[str, str])
        except APIStatusError:
            return None

    async def confirmed(self, url: str) -> int | None:
        """The version that the server itself says it has."""
        try:
            return await self._updates.version(self.clients[url])
        except self._passing:
            return None

    async def publish(self, package: Package, version: int) -> int:
        """To all servers that are in, at the same time; those that can't be reached are out and get it later."""
        before = (self._package, self.newest)
        self._package, self.newest = package, version
        asked = [url for url in self.clients if not self.servers.is_out(url)]
        results = await asyncio.gather(*(self._give(url, package, version) for url in asked), return_exceptions=True)
        refused = [one for one in results if isinstance(one, UsageError)]
        if refused:
            self._package, self.newest = before
            for url, result in zip(asked, results, strict=True):
                if self._package is not None and not isinstance(result, BaseException):
                    self.servers.has_version(url, self.version)
                    self.take_out(url, f"it took version {version}, which another refused, and is given the last again")
            raise refused[0]
        self.version = version
        for url, result in zip(asked, results, strict=True):
            if isinstance(result, self._passing):
                self.take_out(url, f"it did not take version {version}: {type(result).__name__}: {result}"[:200])
            elif isinstance(result, BaseException):
                raise result
        return version

    async def _give(self, url: str, package: Package, version: int) -> None:
        await self._updates.load(self.clients[url], package, version, self._server.update_s)
        self.servers.has_version(url, version)

    async def _heal(self, url: str) -> None:
        pause_s = self._server.pause_s
        try:
            while True:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(_MOST_PAUSE_S, 2 * pause_s)
                problem = await self.unfit(url)
                if not problem:
                    break
                self.servers.take_out(url, problem)
        finally:
            del self._healing[url]
        self.servers.back(url)
        logger.warning("%s is asked again", url)
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Hang up."""
        for client in self.clients.values():
            await client.close()


async def models_of(client: Any) -> list[str]:
    """The models that a server lists; ValueError if what answers there is none of OpenAI's kind: a page, a proxy."""
    reply = await client.get("/models", cast_to=object)  # not models.list(), which takes anything for a list
    listed = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(listed, list) or not all(
        isinstance(one, dict) and isinstance(one.get("id"), str) for one in listed
    ):
        raise ValueError(f"GET models: expected a list of models, got {str(reply)[:80]!r}")
    return [one["id"] for one in listed]


async def _look(client: Any, url: str) -> None:
    """Raise unless a server is there. Not all list their models; then the route that vLLM and SGLang have is asked."""
    from openai import APIStatusError, NotFoundError

    try:
        await models_of(client)
    except APIStatusError:
        with suppress(NotFoundError):  # it has no such route: it is there
            await client.get(f"{url.rstrip('/').removesuffix('/v1')}/health", cast_to=object)
