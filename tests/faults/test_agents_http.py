"""Servers that are slow, fail, drop connections, talk nonsense, or are not there: told apart, tried again, bounded."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock

import pytest

import headrace as hr
from headrace.agents.codec import ByteCodec
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.engines.servers import Servers
from headrace.agents.records import EpisodeError, fingerprint
from headrace.agents.serve import Faults, RunningServer, require_safe
from headrace.errors import HeadraceError, UsageError
from support.agent_envs import Counting, spec
from support.waiting import wait_until

CODEC = ByteCodec()
PROMPT = CODEC.encode("Actions: one, two\n<think>||")


@pytest.fixture
def behind() -> Iterator[Any]:
    engine = scripted(latency=Latency(0.001))
    yield engine
    engine.close()


def ask(engine: OpenAIEngine, seed: int = 1) -> Completion | EpisodeError:
    (answer,) = engine.generate([Request(seed, 0, 0, PROMPT, 40, seed)])
    return answer


def client(*urls: str, **options: Any) -> OpenAIEngine:
    said = {"pause_s": 0.01, "request_s": 5.0, "is_text_only": False, "model": "headrace", **options}
    return OpenAIEngine(CODEC, Server(urls, **said))


@pytest.mark.parametrize("kind", ["error", "drop", "garbage", "wrong_logprobs"])
def test_what_passes_is_tried_again(kind: str, behind: Any) -> None:
    """Every second request goes wrong: with enough attempts the answers are the calm server's."""
    with RunningServer(behind) as calm, RunningServer(behind, faults=Faults(**{kind: 0.5})) as bad:
        one, other = client(calm.url), client(bad.url, attempts=12)
        try:
            for seed in range(8):
                assert ask(other, seed) == ask(one, seed)
        finally:
            one.close()
            other.close()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("error", "injected fault"),
        ("drop", "attempts"),
        ("garbage", "an answer without token ids"),
        ("wrong_logprobs", "log-probabilities"),
    ],
)
def test_what_does_not_pass_is_a_typed_failure(kind: str, told: str, behind: Any) -> None:
    with RunningServer(behind, faults=Faults(**{kind: 1.0})) as server:
        engine = client(server.url, attempts=2)
        try:
            answer = ask(engine)
        finally:
            engine.close()
    assert isinstance(answer, EpisodeError)
    assert answer.boundary == "engine"
    assert told in str(answer)
    assert "2 attempts" in str(answer)


@pytest.mark.parametrize(("status", "attempts"), [(408, 2), (409, 2), (425, 2), (404, 1)])
def test_a_status_that_may_pass_is_tried_again(status: int, attempts: int, behind: Any) -> None:
    import httpx
    from openai import APIStatusError

    with RunningServer(behind) as server:
        engine = OpenAIEngine(server=Server((server.url,), attempts=2, pause_s=0.01))
        try:
            reply = httpx.Response(status, request=httpx.Request("POST", server.url))
            asked = mock.AsyncMock(side_effect=APIStatusError("later", response=reply, body=None))
            before = engine.statistics().attempts
            with mock.patch.object(engine, "_ask", asked):
                (answer,) = engine.generate([Request(0, 0, 0, engine.codec.encode("a"), 4, 0)])
            assert isinstance(answer, EpisodeError)
            assert engine.statistics().attempts - before == attempts
        finally:
            engine.close()


def test_a_drop_that_was_asked_for_is_no_news(behind: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with RunningServer(behind, faults=Faults(drop=1.0)) as server:
        engine = client(server.url, attempts=2)
        assert isinstance(ask(engine), EpisodeError)
        engine.close()
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_slow_server_meets_the_deadline(behind: Any) -> None:
    with RunningServer(behind, faults=Faults(slow=1.0, slow_s=3.0)) as server:
        engine = client(server.url, attempts=2, request_s=0.2)
        started = time.monotonic()
        try:
            answer = ask(engine)
        finally:
            engine.close()
        assert time.monotonic() - started < 2.5
    assert isinstance(answer, EpisodeError)
    assert answer.boundary == "timeout"


def test_a_server_that_is_gone_and_back(behind: Any) -> None:
    with RunningServer(behind) as server:
        port = server.port
    engine = client(f"http://127.0.0.1:{port}/v1", attempts=8, pause_s=0.1)
    back: list[RunningServer] = []
    timer = threading.Timer(0.5, lambda: back.append(RunningServer(behind, port=port)))
    timer.start()
    try:
        assert isinstance(ask(engine), Completion)
    finally:
        timer.join()
        engine.close()
        for server in back:
            server.close()


def test_another_server_takes_over(behind: Any) -> None:
    """Two servers, one of them dead: its episodes move."""
    with RunningServer(behind) as gone:
        dead = gone.url
    with RunningServer(behind) as alive:
        engine = client(dead, alive.url, attempts=3)
        try:
            answers = [ask(engine, seed) for seed in range(6)]
        finally:
            engine.close()
    assert all(isinstance(answer, Completion) for answer in answers)


def test_episodes_are_spread_and_stay() -> None:
    servers = Servers(["a", "b"])
    homes = []
    for number in range(6):
        url = servers.of(f"{number}-0")
        servers.start(url)
        homes.append(url)
    assert sorted(homes) == ["a", "a", "a", "b", "b", "b"]
    assert [servers.of(f"{number}-0") for number in range(6)] == homes, "sticky"
    assert servers.of("0-0", avoid="a") == "b"
    assert servers.of("0-0") == "b"
    assert Servers(["a"]).of("x", avoid="a") == "a"


def test_nobody_there_is_told_at_the_start() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(HeadraceError, match="no OpenAI-compatible server answers there"):
        OpenAIEngine(CODEC, Server((f"http://127.0.0.1:{port}/v1",)))


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000/v1",
        "localhost",
        "http://",
        "ftp://a/v1",
        "http://127.0.0.1:80000/v1",
        "http://[::1/v1",
        "http://a b/v1",
        "http://a\n/v1",
    ],
)
def test_what_is_no_address_is_told_before_anything_starts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="urls: expected the address of a server, as http://"):
        Server(url)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(UsageError, match="OPENAI_BASE_URL: expected the address of a server"):
        OpenAIEngine(CODEC)


PAGE = b"<html>starting up</html>"


@contextmanager
def pages(*shown: tuple[bytes, str], pause_s: float = 0.0) -> Iterator[tuple[str, list[tuple[bytes, str]]]]:
    """Answers every GET with the last page of the list, byte by byte if there is a pause."""
    listed = list(shown)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, kind = listed[-1]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                for at in range(len(body)) if pause_s else ():
                    self.wfile.write(body[at : at + 1])
                    self.wfile.flush()
                    time.sleep(pause_s)
                if not pause_s:
                    self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", listed
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (PAGE, "text/html"),
        (b"{}", "application/json"),
        (b"[]", "application/json"),
        (b'{"data": null}', "application/json"),
        (b'{"data": [{}]}', "application/json"),
        (b'{"data": ["a"]}', "application/json"),
        (b"{", "application/json"),
        (b"\xff", "application/json"),
    ],
)
def test_what_is_no_openai_server_is_told_at_the_start(body: bytes, kind: str) -> None:
    """A web page, a proxy, an address without /v1: not an error of a library's insides."""
    with (
        pages((body, kind)) as (url, _),
        pytest.raises(HeadraceError, match="no OpenAI-compatible server answers there"),
    ):
        OpenAIEngine(CODEC, Server((url,)))


def test_a_server_that_never_says_all_meets_the_deadline_at_the_start() -> None:
    """Every byte comes in time, and the last one never."""
    with (
        pages((b'{"data": []' + b" " * 10_000 + b"}", "application/json"), pause_s=0.05) as (url, _),
        pytest.raises(HeadraceError, match="answers there: TimeoutError: no whole answer within"),
    ):
        OpenAIEngine(CODEC, Server((url,), request_s=0.3))


def test_a_page_in_the_place_of_a_server_does_not_keep_it_out_for_ever() -> None:
    """A proxy's page while the server starts: it is looked at again, and is back when it is."""
    models = (b'{"data": [{"id": "a"}]}', "application/json")
    with pages(models) as (url, shown):
        engine = client(url, pause_s=0.02)
        try:
            shown.append((PAGE, "text/html"))
            engine._loop.call_soon_threadsafe(engine._fleet.take_out, url, "for a test")
            wait_until(lambda: "starting up" in engine._fleet.servers.waited_for(0.0), 20.0)
            shown.append(models)
            wait_until(lambda: not engine._fleet.servers.is_out(url), 20.0)
        finally:
            engine.close()


def test_no_address_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="OPENAI_BASE_URL"):
        OpenAIEngine(CODEC)


def test_rollouts_over_a_bad_server_are_the_calm_ones(behind: Any) -> None:
    def rolled(url: str) -> str:
        engine = client(url, attempts=12)
        try:
            with hr.AgentRollouts([spec(Counting)], engine, 2, "threading", group_size=2) as one:
                return fingerprint(one.run(4))
        finally:
            engine.close()

    bad = Faults(error=0.15, drop=0.15, garbage=0.1, wrong_logprobs=0.1)
    with RunningServer(behind) as calm, RunningServer(behind, faults=bad) as faulty:
        assert rolled(faulty.url) == rolled(calm.url)


def test_our_own_server_tells_its_tokenizer(behind: Any) -> None:
    with RunningServer(behind) as server:
        engine = OpenAIEngine(server=Server((server.url,)))
        try:
            assert not engine.is_text_only
            assert engine.codec == CODEC
            assert isinstance(ask(engine), Completion)
        finally:
            engine.close()


def test_text_only_is_found_out_and_marked(behind: Any) -> None:
    """A server that gives no ids back: chat completions, and no episode can be trained on."""
    with RunningServer(behind, faults=Faults(garbage=0.0)) as server:
        engine = OpenAIEngine(CODEC, Server((server.url,), is_text_only=True))
        try:
            with hr.AgentRollouts([spec(Counting)], engine, 1, "threading", group_size=2) as one:
                groups = one.run(2)
        finally:
            engine.close()
    for group in groups:
        assert group.status == "completed"
        for episode in group.episodes:
            assert not episode.is_trainable
            assert episode.rows == ()
            assert episode.turns


# ------------------------------------------------------------------------------------------------ the server


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_server_speaks_vllms_shape(behind: Any) -> None:
    with RunningServer(behind) as server:
        body = {
            "model": "headrace",
            "prompt": PROMPT,
            "max_tokens": 40,
            "seed": 3,
            "logprobs": 1,
            "return_token_ids": True,
        }
        status, told = post(f"{server.url}/completions", body)
        assert status == 200
        (choice,) = told["choices"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
        assert choice["prompt_token_ids"] == PROMPT
        assert told["usage"]["completion_tokens"] == len(choice["token_ids"])
        status, chat = post(f"{server.url}/chat/completions", {"messages": [{"role": "user", "content": "1 2"}]})
        assert status == 200
        assert isinstance(chat["choices"][0]["message"]["content"], str)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        {},
        {"prompt": []},
        {"prompt": [9999]},
        {"prompt": {"a": 1}},
        {"prompt": "a", "seed": "x"},
    ],
    ids=str,
)
def test_junk_is_refused_and_the_server_goes_on(body: Any, behind: Any) -> None:
    with RunningServer(behind) as server:
        status, told = post(f"{server.url}/completions", body)
        assert status == 400
        assert told["error"]["message"]
        assert post(f"{server.url}/completions", {"prompt": PROMPT})[0] == 200


def test_beyond_loopback_only_with_a_token(behind: Any) -> None:
    for host in ("0.0.0.0", "192.168.0.1", "example.org"):
        with pytest.raises(UsageError, match="expected a loopback address, or a token"):
            require_safe(host, "")
        require_safe(host, "secret")
    for host in ("127.0.0.1", "localhost", "::1"):
        require_safe(host, "")
    with RunningServer(behind, token="secret") as server:
        assert post(f"{server.url}/completions", {"prompt": PROMPT})[0] == 401
        header = {"Authorization": "Bearer secret"}
        assert post(f"{server.url}/completions", {"prompt": PROMPT}, header)[0] == 200


def test_shares_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="faults: expected shares"):
        Faults(slow=0.7, error=0.7)
