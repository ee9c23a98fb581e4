"""Junk on every socket there is: strangers crash nothing, hold up nobody, and real callers get through meanwhile.

    the hub of LLM workers (a unix socket)      `headrace agents serve` (HTTP on loopback)

500 junk connections are the long form (benchmarks/chaos.py, point 18); here are a few dozen of each.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.agents import ports
from headrace.agents.codec import ByteCodec
from headrace.agents.desk import Desk
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.protocol import Request
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.plan import Ticket
from headrace.agents.ports import Hub, SocketPort
from headrace.agents.records import fingerprint
from headrace.agents.scheduler import Scheduler
from headrace.agents.serve import MAX_BODY_BYTES, RunningServer
from support.agent_envs import Counting, spec
from support.command import files_in
from support.junk import call_http, call_http_oversized, call_hub
from support.waiting import wait_until

STRANGERS = 60
CODEC = ByteCodec()
QUESTION = Request(1, 0, 0, CODEC.encode("Actions: one, two\n<think>||"), 40, 1)


@pytest.fixture
def engine() -> Iterator[Any]:
    engine = scripted(latency=Latency(0.001))
    yield engine
    engine.close()


@pytest.fixture
def hub(engine: Any) -> Iterator[Hub]:
    hub = Hub(Desk(Scheduler([Ticket(0, "A", 1, 2)], 1), engine, 1, 1), engine)
    yield hub
    hub.close()


def pulled(hub: Hub) -> Ticket | None:
    """A real worker comes, asks for work and goes."""

    port = SocketPort(hub.address, hub.key, 0)
    try:
        return port.pull().result(30.0)
    finally:
        port.close()


def test_a_silent_stranger_keeps_no_worker_waiting(hub: Hub) -> None:
    """It connects first and says nothing: the worker behind it has its work at once."""
    strangers = [one for number in (1, 2, 3, 4, 5, 6, 7, 8, 9) if (one := call_hub(hub.address, number)) is not None]
    assert strangers, "none of these is silent"
    try:
        begun = time.monotonic()
        assert pulled(hub) == Ticket(0, "A", 1, 2)
        assert time.monotonic() - begun < 5.0
    finally:
        for one in strangers:
            one.close()


def test_strangers_are_hung_up_on_in_time(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their threads and descriptors are not kept."""
    monkeypatch.setattr(ports, "_KEY_S", 0.3)
    with ExitStack() as stack:
        silent = [stack.enter_context(one) for number in range(40) if (one := call_hub(hub.address, number))]
        assert len(silent) > 5
        wait_until(lambda: not hub._callers, 60.0)
        for one in silent:
            one.settimeout(10.0)
            with suppress(ConnectionResetError):  # it had said something that nobody read
                while one.recv(4096):
                    pass  # its challenge; then the end


def test_the_hub_says_so_rarely(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(STRANGERS):
        if (one := call_hub(hub.address, number)) is not None:
            one.close()
    wait_until(lambda: hub._refused == STRANGERS, 60.0)
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert [line.partition(";")[0] for line in lines] == [f"connections refused so far: {n}" for n in (1, 10)]


def test_workers_play_among_strangers(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real worker processes, strangers all the while: the calm records, and no file beside them."""

    def rolled(backend: str) -> str:
        with hr.AgentRollouts([spec(Counting)], engine, 2, backend, group_size=2) as one:
            return fingerprint(one.run(4))

    made: list[Hub] = []
    begin = Hub.__init__

    def remembered(hub: Hub, *arguments: Any) -> None:
        begin(hub, *arguments)
        made.append(hub)
        waiting.extend(call_hub(hub.address, number) for number in range(STRANGERS // 2))

    waiting: list[Any] = []
    monkeypatch.setattr(Hub, "__init__", remembered)
    monkeypatch.chdir(tmp_path)
    want = rolled("threading")
    try:
        assert rolled("loky") == want
    finally:
        for one in waiting:
            if one is not None:
                one.close()
    assert len(made) == 1
    assert made[0]._refused > STRANGERS // 4
    assert not files_in(tmp_path)


# --- HTTP ------------------------------------------------------------------------------------------------------------


def test_junk_requests(engine: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Every one is refused by a status or hung up on; the answers to real questions do not change."""
    with RunningServer(engine) as server, ExitStack() as stack:
        real = OpenAIEngine(CODEC, Server((server.url,), is_text_only=False, model="headrace"))
        stack.callback(real.close)
        want, statuses = real.generate([QUESTION]), []
        for number in range(STRANGERS):
            silent, answer = call_http(server.port, number)
            if silent is not None:
                stack.enter_context(silent)
            elif answer:
                statuses.append(int(answer.split(b" ")[1]))
            if number % 20 == 0:
                assert real.generate([QUESTION]) == want
        assert real.generate([QUESTION]) == want
        assert len(statuses) > STRANGERS / 4
        assert all(400 <= status < 500 for status in statuses), statuses
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_a_body_without_an_end(engine: Any) -> None:
    """Refused at the limit, not when memory is full."""
    with RunningServer(engine) as server:
        before = _resident_bytes()
        answer = call_http_oversized(server.port, 10 * MAX_BODY_BYTES)
        assert b"413" in answer.split(b"\r\n")[0]
        assert b"a body of more than" in answer
        assert _resident_bytes() - before < 5 * MAX_BODY_BYTES
        assert threading.active_count() < 50


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
