"""Three `headrace agents serve` processes, one slow, one restarted twice, one with 20 % garbage: a calm run's data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import headrace as hr
from headrace.agents.engines.openai import OpenAIEngine
from headrace.agents.engines.scripted import scripted
from headrace.agents.engines.servers import Server
from headrace.agents.limits import Limits
from headrace.agents.records import Group, fingerprint
from support.agent_envs import Counting, spec
from support.command import PATHS

VERSION = 3
GARBAGE = ("garbage", "wrong-logprobs", "wrong-ids", "stale")


class Served:
    """One server process, at a port of its own."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "agents", "serve", "--port", str(self.port), *self._options],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "HEADRACE_TOKEN": "known"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + 120
        request = urllib.request.Request(f"{self.url}/models", headers={"Authorization": "Bearer known"})
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the server does not come up"
                time.sleep(0.1)


@contextmanager
def three() -> Iterator[tuple[Served, Served, Served]]:
    bad = [word for kind in GARBAGE for word in (f"--fault-{kind}", "0.05")]
    with ExitStack() as stack:
        servers = []
        for options in (("engine.latency.base_s=0.1",), (), bad):
            servers.append(Served(*options))
            stack.callback(servers[-1].kill)
        for one in servers:
            one.wait()
        slow, restarted, garbage = servers
        yield slow, restarted, garbage


def calm(groups: int) -> list[Group]:
    engine = scripted()
    try:
        engine.publish(None, version=VERSION)
        with hr.AgentRollouts([spec(Counting)], engine, 1, "sequential", group_size=2) as rollouts:
            return rollouts.run(groups)
    finally:
        engine.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("groups", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_every_group_once_and_bit_equal_to_a_calm_run(groups: int) -> None:
    got: list[Group] = []
    with three() as (slow, restarted, garbage):
        urls = (slow.url, restarted.url, garbage.url)
        engine = OpenAIEngine(server=Server(urls, api_key="known", pause_s=0.05, attempts=8))
        try:
            assert not engine.is_text_only
            engine.publish(None, version=VERSION)
            limits = Limits(max_live=8)
            with hr.AgentRollouts(
                [spec(Counting, step_s=0.01)], engine, 2, "threading", group_size=2, limits=limits
            ) as rollouts:
                for group in rollouts.stream(groups):
                    got.append(group)
                    if len(got) in (groups // 8, groups // 2):
                        restarted.kill()
                        restarted.start()  # with weights of version 0
        finally:
            engine.close()
        told = engine.statistics()
        restarted.wait()
    assert sorted(group.number for group in got) == list(range(groups)), "every group once"
    assert [group.failures for group in got if group.status != "completed"] == []
    versions = {int(one) for group in got for e in group.episodes for row in e.rows for one in row.versions} - {-1}
    assert versions == {VERSION}
    assert fingerprint(got) == fingerprint(calm(groups))
    assert told.attempts > told.requests, "some answers were refused"
    assert told.answer_tokens > told.tokens


def test_a_stranger_is_not_answered_by_any_route() -> None:
    served = Served()
    try:
        served.wait()
        for path in ("/health", "/v1/models", "/v1/codec", "/v1/weights", "/v1/nothing"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"http://127.0.0.1:{served.port}{path}", timeout=10)
    finally:
        served.kill()
