"""What the server refuses, by name and status; its token, its limits; weights that come in are data."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.asked import MAX_BODY_BYTES, RefusedError
from headrace.agents.codec import ByteCodec
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.scripted import scripted
from headrace.agents.engines.weight_updates import packed
from headrace.agents.serve import RunningServer
from headrace.agents.weight_door import WeightDoor
from headrace.cli import agents_command
from headrace.errors import HeadraceError, UsageError

PROMPT = ByteCodec().encode("Actions: one, two\n")


@pytest.fixture
def server() -> Iterator[RunningServer]:
    engine = scripted()
    with RunningServer(engine) as one:
        yield one
    engine.close()


def call(url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ({"n": 2}, 400, "n: this server supports 1 only, got '2'"),
        ({"n": True}, 400, "n: this server supports 1 only"),
        ({"stream": True}, 400, "stream: this server supports False only"),
        ({"tools": [{"type": "function"}]}, 400, "tools: this server supports [] only"),
        ({"model": "gpt-5"}, 404, "model: this server has 'headrace' only, got 'gpt-5'"),
        ({"top_p": 0}, 400, "top_p: expected a number above 0"),
        ({"top_p": 1.5}, 400, "top_p: expected a number from 0 to 1"),
        ({"top_k": 2.5}, 400, "top_k: expected a whole number from -1"),
        ({"top_k": -2}, 400, "top_k: expected a whole number from -1"),
        ({"min_p": 0.1}, 400, "min_p: this server supports 0 only"),
        ({"stop": ["x"]}, 400, "stop: this server supports [] only"),
        ({"stop_token_ids": [3]}, 400, "stop_token_ids: this server stops at"),
        ({"stop_token_ids": [[1]]}, 400, "stop_token_ids: this server stops at"),
        ({"stop_token_ids": ["1"]}, 400, "stop_token_ids: this server stops at"),
        ({"logprobs": {"a": 1}}, 400, "logprobs: expected true, false or a number of at least 0"),
        ({"logprobs": -5}, 400, "logprobs: expected true, false or a number of at least 0"),
        ({"logprobs": 5}, 400, "logprobs: this server gives those of sampled tokens only: expected at most 1, got 5"),
        ({"return_token_ids": "no"}, 400, "return_token_ids: expected true, false"),
        ({"guided_json": {}}, 400, "guided_json: this server does not know that parameter"),
        ({"prompt": ["a", "b"]}, 400, "prompt: expected one text or one list of token ids"),
        ({"prompt": [[1], [2]]}, 400, "prompt: expected one text or one list of token ids"),
        ({"prompt": [True]}, 400, "prompt: expected one text or one list of token ids"),
        ({"seed": -1}, 400, "seed: expected a whole number"),
        ({"seed": 1.5}, 400, "seed: expected a whole number"),
        ({"max_tokens": 0}, 400, "max_tokens: expected a whole number from 1"),
        ({"temperature": "hot"}, 400, "temperature: expected a number"),
        ({"temperature": -1}, 400, "temperature: expected a number"),
    ],
)
def test_what_is_not_supported_is_said(asked: dict[str, Any], status: int, told: str, server: RunningServer) -> None:
    got, answer = call(f"{server.url}/completions", {"prompt": PROMPT, **asked})
    assert got == status
    assert told in answer["error"]["message"]
    assert answer["error"]["param"] == next(iter(asked))


def test_what_changes_nothing_is_taken(server: RunningServer) -> None:
    neutral = {"n": 1, "stream": False, "tools": [], "top_p": 1.0, "user": "me", "stop": None, "model": "headrace"}
    assert call(f"{server.url}/completions", {"prompt": PROMPT, **neutral})[0] == 200


@pytest.mark.parametrize("messages", [None, [], "hello", [{"role": "user"}], [{"role": "user", "content": [1]}], [3]])
def test_messages_that_are_none(messages: Any, server: RunningServer) -> None:
    status, answer = call(f"{server.url}/chat/completions", {"messages": messages})
    assert status == 400
    assert "messages: expected role and content" in answer["error"]["message"]


def test_bodies_and_nesting_are_limited(server: RunningServer) -> None:
    status, answer = call(f"{server.url}/completions", b'{"prompt": "' + b"a" * MAX_BODY_BYTES + b'"}')
    assert (status, answer["error"]["message"]) == (413, f"a body of more than {MAX_BODY_BYTES:,} bytes")
    for depth in (100, 100_000):
        status, answer = call(f"{server.url}/completions", b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}")
        assert status == 400
        assert "deep" in answer["error"]["message"]
    assert call(f"{server.url}/completions", {"prompt": PROMPT})[0] == 200


def test_the_token_is_asked_for_on_every_route() -> None:
    engine = scripted()
    try:
        with RunningServer(engine, token="secret") as server:
            root = server.url.removesuffix("/v1")
            routes = ("/health", "/v1/models", "/v1/codec", "/v1/weights", "/v1/nothing")
            posts = ("/v1/completions", "/v1/chat/completions", "/v1/weights/pause", "/v1/weights/load")
            for path, body in [*((path, None) for path in routes), *((path, {}) for path in posts)]:
                for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secretly"}):
                    assert call(root + path, body, **header)[0] == 401, path
            with pytest.raises(HeadraceError, match="refuses the key: set OPENAI_API_KEY"):
                OpenAIEngine(server=Server((server.url,), api_key="wrong"))
            good = {"Authorization": "Bearer secret"}
            assert [call(root + path, None, **good)[0] for path in routes[:4]] == [200] * 4
    finally:
        engine.close()


@pytest.mark.parametrize("how", ["file", "environment", "option"])
def test_where_the_token_comes_from(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_TOKEN", raising=False)
    path = tmp_path / "token"
    path.write_text("secret\n")
    words = {"file": ["--token-file", str(path)], "environment": [], "option": ["--token", "secret"]}[how]
    if how == "environment":
        monkeypatch.setenv("HEADRACE_TOKEN", "secret")
    options = agents_command._parsed(["serve", *words])
    assert agents_command._token(options) == "secret"


def test_tokens_that_are_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text(" \n")
    for words, told in (
        (["--token-file", str(tmp_path / "nothing")], "can't be read"),
        (["--token-file", str(empty)], "expected a token of printable ASCII"),
        (["--token-file", str(empty), "--token", "x"], "expected one of them"),
        (["--token", ""], "--token: expected a token of printable ASCII, got none"),
        (["--token", "a\nb"], "--token: expected a token"),
    ):
        with pytest.raises(UsageError, match=told):
            agents_command._token(agents_command._parsed(["serve", *words]))


# ------------------------------------------------------------------------------------------------ weights


def test_weights_over_http(server: RunningServer) -> None:
    load, kind = f"{server.url}/weights/load", {"Content-Type": "application/octet-stream"}
    assert call(load, packed(None), **kind, **{"X-Weights-Version": "7"}) == (200, {"version": 7, "is_paused": False})
    for body, header, told in (
        (b"junk", {"X-Weights-Version": "8"}, "expected the bytes of a safetensors file"),
        (packed(None), {}, "version: expected a whole number"),
        (packed(None), {"X-Weights-Version": "-1"}, "version: expected a whole number"),
        (packed(None), {"X-Weights-Version": "9" * 5000}, "version: expected a whole number from 0 to 2147483647"),
        (packed(None), {"X-Weights-Version": str(2**31)}, "version: expected a whole number from 0 to 2147483647"),
    ):
        status, answer = call(load, body, **kind, **header)
        assert status == 400
        assert told in answer["error"]["message"]
    status, answer = call(load, {"version": 8, "path": "x.safetensors"})
    assert status == 403
    assert "started without --weights-dir" in answer["error"]["message"]
    assert call(f"{server.url}/weights")[1]["version"] == 7


def test_a_pause_holds_requests_and_ends_by_itself() -> None:
    async def scene() -> list[bool]:
        door = WeightDoor(scripted(), most_pause_s=0.2)
        door.pause()
        waits = asyncio.create_task(door.passed())
        await asyncio.sleep(0)
        seen = [waits.done()]
        door.resume()
        await waits
        door.pause()
        await asyncio.wait_for(door.passed(), 20)
        return [*seen, door.is_paused]

    assert asyncio.run(scene()) == [False, False]


@pytest.mark.parametrize(
    "path", ["../out.safetensors", "/etc/passwd", "link.safetensors", ".", "", "a\0b", None, 3, "pipe"]
)
def test_a_path_is_data(path: Any, tmp_path: Path) -> None:
    """Only files below the folder, wherever names or links lead."""
    import os

    inside = tmp_path / "weights"
    inside.mkdir()
    (tmp_path / "out.safetensors").write_bytes(packed(None))  # type: ignore[arg-type]
    (inside / "link.safetensors").symlink_to(tmp_path / "out.safetensors")
    (inside / "good.safetensors").write_bytes(packed(None))  # type: ignore[arg-type]
    os.mkfifo(inside / "pipe")
    engine = scripted()
    door = WeightDoor(engine, inside)
    with pytest.raises(RefusedError, match="path: "):
        asyncio.run(door.load_file(path, 1))
    assert engine.version == 0
    assert asyncio.run(WeightDoor(engine, inside).load_file("good.safetensors", 2)) == 2
    engine.close()
