"""Which server is asked: load, homes of episodes, health, rate limits and versions of weights. Pure: time comes in.

    of(session) ──> the episode's own server, if it may be asked now; else the least loaded one that may; else None
    failed, gone, stale ──> out ──back──> in        limited ──> not before a moment        answered ──> all is well

A home is kept for the episodes that asked last, so that a server finds its prompt cached; the table has a bound, and
an episode that lost its place in it gets a new home. Does not know HTTP or who waits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from headrace.agents.given import listed
from headrace.errors import HeadraceError, UsageError, require_types
from headrace.keywords import in_words

_OUT_AFTER = 3  # failures in a row
_MOST_HOMES = 4096
_MOST_PAUSE_S = 8.0


class OutageError(HeadraceError):
    """No server was there for longer than the limit."""


@in_words()
@dataclass(frozen=True)
class Server:
    """How to talk to servers."""

    urls: str | Sequence[str] = ()
    """Base URLs, as in http://127.0.0.1:8000/v1, or one; OPENAI_BASE_URL if none is given."""
    model: str = ""
    """The model's name; the first one that the server lists if empty."""
    api_key: str = field(default="", repr=False)
    """OPENAI_API_KEY if empty; servers of one's own seldom ask."""
    request_s: float = 60.0
    """For one attempt."""
    attempts: int = 4
    """At one request, with growing pauses between."""
    pause_s: float = 0.25
    """Before the second attempt; doubled each time, up to 8 s, and shortened at random."""
    is_text_only: bool | None = None
    """None: ask the server."""
    outage_s: float = 600.0
    """Without any server that may be asked; then the run ends, and can be continued."""
    update_s: float = 120.0
    """For one server to take over new weights."""

    def __post_init__(self) -> None:
        urls = listed("urls", self.urls, str, "the address of a server, as http://127.0.0.1:8000/v1, or several")
        object.__setattr__(self, "urls", tuple(urls))
        require_addresses("urls", urls)
        require_types(self, {float: ("request_s", "pause_s", "outage_s", "update_s"), int: ("attempts",)})
        for name in ("request_s", "pause_s", "outage_s", "update_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name}: expected seconds above 0, got {getattr(self, name)}")
        if self.attempts < 1:
            raise UsageError(f"attempts: expected at least 1, got {self.attempts}")

    def pause_before(self, attempt: int) -> float:
        """Seconds before the so-manieth attempt, the first being 0; to be shortened at random."""
        return float(min(_MOST_PAUSE_S, self.pause_s * 2 ** max(0, attempt - 1)))


@dataclass
class _State:
    load: int = 0  # requests under way
    homes: int = 0  # episodes that live there
    failures: int = 0  # in a row
    limits: int = 0  # refusals for too many requests, in a row
    not_before_s: float = float("-inf")
    out: str = ""  # why it is not asked; empty: it is
    version: int = 0  # of its weights: what it answers from now on is at least of this one


class Servers:
    """Some servers, by URL."""

    def __init__(self, urls: Sequence[str], most_homes: int = _MOST_HOMES) -> None:
        self._states = {url: _State() for url in urls}
        self._home: OrderedDict[str, str] = OrderedDict()  # who asked last comes last
        self._most_homes = most_homes
        self.since_s: float | None = None  # since when requests have found nobody to ask

    def of(self, session: str, now_s: float = 0.0, avoid: str = "") -> str | None:
        """Who is asked for an episode now; `avoid` has just failed it. None: nobody may be asked."""
        home = self._home.get(session, "")
        if home and home != avoid and self._is_open(home, now_s):
            self._home.move_to_end(session)
            return home
        there = [url for url in self._states if self._is_open(url, now_s)]
        if not there:
            self.since_s = now_s if self.since_s is None else self.since_s
            return None
        others = [url for url in there if url != avoid] or there
        url = min(others, key=lambda one: (self._states[one].load, self._states[one].homes))
        self._settle(session, url)
        return url

    def start(self, url: str) -> None:
        """A request is under way."""
        self._states[url].load += 1

    def end(self, url: str) -> None:
        """It is over."""
        self._states[url].load -= 1

    def answered(self, url: str) -> None:
        """As it should."""
        state = self._states[url]
        state.failures = state.limits = 0
        self.since_s = None

    def failed(self, url: str) -> bool:
        """An attempt did; True after some in a row: it should not be asked for a while."""
        self._states[url].failures += 1
        return self._states[url].failures >= _OUT_AFTER

    def take_out(self, url: str, why: str) -> None:
        """It is not asked until it is back."""
        self._states[url].out = why

    def back(self, url: str) -> None:
        """It may be asked again."""
        state = self._states[url]
        state.out, state.failures = "", 0

    def limited(self, url: str, pause_s: float | None, default_s: float, now_s: float) -> float:
        """It asks for a pause; an unnamed one grows, and so does one of next to nothing. Returns its seconds."""
        state = self._states[url]
        if pause_s is None or pause_s < default_s:
            pause_s = min(_MOST_PAUSE_S, default_s * 2 ** min(state.limits, 16))
        state.limits += 1
        state.not_before_s = max(state.not_before_s, now_s + pause_s)
        return pause_s

    def is_out(self, url: str) -> bool:
        """Whether it has to come back before it is asked."""
        return bool(self._states[url].out)

    def version(self, url: str) -> int:
        """Of its weights, as far as is known."""
        return self._states[url].version

    def has_version(self, url: str, version: int) -> None:
        """It said so, or was given them."""
        self._states[url].version = version

    def next_s(self) -> float:
        """When the next pause is over; inf: nobody pauses."""
        return min((one.not_before_s for one in self._states.values() if not one.out), default=float("inf"))

    def away_s(self, now_s: float) -> float:
        """For how long requests have found nobody to ask. In another thread it may just have been forgotten."""
        since_s = self.since_s
        return 0.0 if since_s is None else now_s - since_s

    def waited_for(self, now_s: float) -> str:
        """Who is not there, and why."""
        told = []
        for url, state in self._states.items():
            if state.out:
                told.append(f"{url} ({state.out})")
            elif state.not_before_s > now_s:
                told.append(f"{url} (rate limit, {state.not_before_s - now_s:.1f} s more)")
        return "; ".join(told)

    def _is_open(self, url: str, now_s: float) -> bool:
        state = self._states[url]
        return not state.out and state.not_before_s <= now_s

    def _settle(self, session: str, url: str) -> None:
        before = self._home.pop(session, None)
        if before is not None:
            self._states[before].homes -= 1
        self._home[session] = url
        self._states[url].homes += 1
        if len(self._home) > self._most_homes:
            _, left = self._home.popitem(last=False)
            self._states[left].homes -= 1


def retry_after_s(headers: Mapping[str, str], wall_s: float) -> float | None:
    """What Retry-After asks for, in seconds from now: a number, or a date by the server's own clock if it says so."""
    asked = headers.get("retry-after", "").strip()
    try:
        seconds = float(asked)
    except ValueError:
        pass
    else:
        return seconds if 0 <= seconds < float("inf") else None
    try:
        then_s = parsedate_to_datetime(asked).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    with suppress(ValueError, TypeError, OverflowError):  # else by our clock
        wall_s = parsedate_to_datetime(headers.get("date", "")).timestamp()
    return max(0.0, then_s - wall_s)


def require_addresses(name: str, urls: Sequence[str]) -> None:
    """UsageError unless they can be addresses of servers: an HTTP library would fail with words of its own."""
    for url in filter(None, urls):
        try:
            parts = urlsplit(url)
            is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port beyond 65535, half a bracket
            is_sound = False
        if not is_sound or not url.isprintable() or " " in url:
            raise UsageError(
                f"{name}: expected the address of a server, as http://127.0.0.1:8000/v1, got {url[:200]!r}"
            )


def is_refused(error: BaseException | None) -> bool:
    """Whether there was no connection at all; a request that was on its way may have done harm, this one has not."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError) or type(error).__name__ == "ConnectError":
            return True
        error = error.__cause__ or error.__context__
    return False
