"""Servers that go away, come back, ask for pauses or lose their weights: waited for, given what they lack, bounded."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import headrace as hr
from headrace.agents.codec import ByteCodec
from headrace.agents.engines.batching import Batched
from headrace.agents.engines.openai import OpenAIEngine
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.scripted import Latency, ScriptedModel, scripted
from headrace.agents.engines.servers import OutageError, Server, Servers, retry_after_s
from headrace.agents.faults import Faults
from headrace.agents.limits import Limits
from headrace.agents.records import EpisodeError, Group, fingerprint
from headrace.agents.serve import RunningServer
from headrace.cli.main import main
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


def client(*urls: str, **options: Any) -> OpenAIEngine:
    said = {"pause_s": 0.02, "request_s": 5.0, "is_text_only": False, "model": "headrace", "attempts": 8, **options}
    return OpenAIEngine(CODEC, Server(urls, **said))


def asked(seed: int, max_tokens: int = 40) -> Request:
    return Request(seed, 0, 0, PROMPT, max_tokens, seed)


def ask(engine: OpenAIEngine, seed: int = 1) -> Completion | EpisodeError:
    (answer,) = engine.generate([asked(seed)])
    return answer


def rolled(engine: Any, run_dir: Path | None = None, groups: int = 4, env: Any = None, **options: Any) -> list[Group]:
    env = env or spec(Counting)
    with hr.AgentRollouts([env], engine, 2, "threading", group_size=2, run_dir=run_dir, **options) as one:
        return one.run(groups)


# ------------------------------------------------------------------------------------------------ who is asked


def test_homes_are_bounded_and_found_at_once() -> None:
    """5,000 episodes took 6.9 s of the event loop."""
    servers, started = Servers([f"s{number}" for number in range(4)], most_homes=1000), time.process_time()
    for number in range(50_000):
        servers.of(f"{number}-0")
    assert time.process_time() - started < 5.0
    assert len(servers._home) == 1000
    assert servers.of("49999-0") == servers.of("49999-0")


def test_out_and_in_by_health() -> None:
    servers = Servers(["a", "b"])
    assert servers.of("x", 0.0) == "a"
    assert [servers.failed("a") for _ in range(3)] == [False, False, True]
    servers.take_out("a", "it fails")
    assert servers.of("x", 1.0) == "b", "moved"
    servers.take_out("b", "it is gone")
    assert servers.of("x", 2.0) is None
    assert servers.since_s == 2.0
    assert servers.waited_for(2.0) == "a (it fails); b (it is gone)"
    servers.back("a")
    assert servers.of("x", 3.0) == "a"
    assert servers.since_s == 2.0, "there, but it has not answered yet"
    servers.answered("a")
    assert servers.since_s is None
    assert servers.failed("a") is False, "counted anew"


def test_a_pause_that_was_asked_for_is_kept() -> None:
    servers = Servers(["a"])
    assert servers.limited("a", 3.0, 0.25, now_s=10.0) == 3.0
    assert servers.of("x", 12.9) is None
    assert servers.next_s() == 13.0
    assert servers.of("x", 13.0) == "a"
    assert [servers.limited("a", None, 0.25, 20.0) for _ in range(3)] == [0.5, 1.0, 2.0], "unnamed ones grow"


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": formatdate(1030, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(1030, usegmt=True), "date": formatdate(1010, usegmt=True)}, 20.0),
        ({"retry-after": formatdate(900, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after_in_both_forms(headers: dict[str, str], want: float | None) -> None:
    assert retry_after_s(headers, wall_s=1000.0) == want


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_rate_limit_costs_time_and_no_attempt(form: str, behind: Any) -> None:
    asks = "0.05" if form == "seconds" else formatdate(0, usegmt=True)
    with RunningServer(behind, faults=Faults(limited=0.6, retry_after=asks)) as server:
        engine = client(server.url, attempts=1)
        try:
            assert all(isinstance(ask(engine, seed), Completion) for seed in range(8))
            told = engine.statistics()
            assert told.limited > 0
            assert told.attempts == told.limited + 8
        finally:
            engine.close()


class Busy:
    """The first completion is refused; when each came is kept, and the moment before which none should have."""

    seed, slow_s = 0, 0.0

    def __init__(self, form: str) -> None:
        self.came_s: list[float] = []
        self.open_s, self._form = 0.0, form

    def drawn(self, rng: Any) -> str:
        self.came_s.append(time.time())
        return "limited" if len(self.came_s) == 1 else ""

    @property
    def retry_after(self) -> str:
        if self._form == "seconds":
            self.open_s = time.time() + 1.0
            return "1"
        self.open_s = float(int(time.time()) + 2)
        return formatdate(self.open_s, usegmt=True)


@pytest.mark.parametrize("form", ["seconds", "date"])
@pytest.mark.parametrize("is_text_only", [False, None], ids=["an answer", "the first look"])
def test_nothing_is_sent_before_the_time_that_a_server_names(form: str, is_text_only: bool | None, behind: Any) -> None:
    busy: Any = Busy(form)
    with RunningServer(behind, faults=busy) as server:
        engine = client(server.url, is_text_only=is_text_only)
        try:
            first = engine.submit(asked(1))
            wait_until(lambda: len(busy.came_s) > 1 or engine.statistics().limited == 1)
            assert isinstance(engine.submit(asked(2)).result(), Completion), "another request waits, too"
            assert isinstance(first.result(), Completion)
        finally:
            engine.close()
    assert len(busy.came_s) >= 3
    assert min(busy.came_s[1:]) >= busy.open_s - 0.01


@pytest.mark.parametrize(
    "asks", [Faults().retry_after, "0", formatdate(0, usegmt=True)], ids=["seconds", "0", "a date gone by"]
)
def test_a_limit_without_end_is_an_outage(asks: str, behind: Any) -> None:
    with RunningServer(behind, faults=Faults(limited=1.0, retry_after=asks)) as server:
        engine = client(server.url, outage_s=0.6)
        try:
            with pytest.raises(OutageError, match="rate limit"):
                engine.submit(asked(1)).result(20)
            assert engine.statistics().attempts < 10, "it is not asked again at once"
        finally:
            engine.close()


# ------------------------------------------------------------------------------------------------ outages


@pytest.mark.parametrize("backend", ["threading", "sequential"])
def test_a_run_whose_servers_are_all_gone_ends_in_order_and_goes_on(
    backend: str, behind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calm = rolled(behind, groups=12)
    slow = spec(Counting, step_s=0.05)  # the server is gone before the last of them asks
    server = RunningServer(behind)
    engine, waits, done = client(server.url, outage_s=1.0), list[str](), list[int]()
    engine.on_wait = waits.append

    def play(rollouts: hr.AgentRollouts) -> None:
        for group in rollouts.stream(12):
            done.append(group.number)
            if len(done) == 2:
                server.close()

    try:
        options: dict[str, Any] = {"run_dir": tmp_path, "limits": Limits(max_live=2, engine_s=0.5)}
        with (
            hr.AgentRollouts([slow], engine, 1, backend, group_size=2, **options) as rollouts,
            pytest.raises(OutageError, match=r"engine\.outage_s.*same run directory") as ended,
        ):
            play(rollouts)
    finally:
        engine.close()
        server.close()
    assert server.url in str(ended.value)
    assert any(server.url in text for text in waits)
    assert "no server can be asked, waiting for" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()[1:]]
    assert sorted(line["number"] for line in lines) == sorted(done), "nothing is spent on an outage"
    assert all(episode["failure"] is None for line in lines for episode in line["episodes"])
    with RunningServer(behind) as back:
        again = client(back.url)
        try:
            assert fingerprint(rolled(again, tmp_path, 12, slow)) == fingerprint(calm)
        finally:
            again.close()


def test_a_run_waits_for_its_servers(behind: Any) -> None:
    """All gone for longer than one answer may take, then back: nothing is lost."""
    calm = rolled(behind)
    server = RunningServer(behind)
    engine = client(server.url, attempts=2)
    waits: list[str] = []
    back: list[RunningServer] = []

    def come_back(text: str) -> None:
        waits.append(text)
        if not back:
            time.sleep(0.5)  # on the engine's own loop: nothing happens there but this wait
            back.append(RunningServer(behind, port=server.port))

    engine.on_wait = come_back
    try:
        server.close()
        assert fingerprint(rolled(engine, limits=Limits(engine_s=0.3))) == fingerprint(calm)
        assert waits
    finally:
        engine.close()
        for one in back:
            one.close()


class _SlowStart(Counting):
    """Nothing is asked in its first moments."""

    def reset(self, seed: int) -> str:
        time.sleep(0.3)
        return super().reset(seed)


@pytest.mark.parametrize("backend", ["threading", "sequential"])
def test_an_outage_that_was_told_is_over(backend: str, behind: Any) -> None:
    """The same engine goes on when its servers are back, and until then it waits as long again."""
    calm, slow = rolled(behind), spec(_SlowStart)
    server = RunningServer(behind)
    engine = client(server.url, outage_s=0.5)
    try:
        with hr.AgentRollouts([spec(Counting)], engine, 1, backend, group_size=2) as rollouts:
            server.close()
            for _ in range(2):
                began_s = time.monotonic()
                with pytest.raises(OutageError, match=r"engine\.outage_s"):
                    rollouts.run(4)
                assert time.monotonic() - began_s > 0.45
        with (
            RunningServer(behind, port=server.port),
            hr.AgentRollouts([replace(slow, tag="Counting")], engine, 1, backend, group_size=2) as rollouts,
        ):
            wait_until(lambda: not engine._fleet.servers.is_out(server.url), 20.0)
            assert fingerprint(rollouts.run(4)) == fingerprint(calm)
    finally:
        engine.close()
        server.close()


def test_a_wait_that_was_broken_off_does_not_count_for_the_next(behind: Any) -> None:
    server = RunningServer(behind)
    engine = client(server.url, outage_s=5.0)
    try:
        server.close()
        waits = engine.submit(asked(1))
        wait_until(lambda: engine._fleet.servers.since_s is not None and bool(engine.outage()), 20.0)
        waits.cancel()
        wait_until(lambda: engine._fleet.servers.since_s is None, 20.0)
    finally:
        engine.close()
        server.close()


def test_a_pause_longer_than_the_limit_is_told_at_the_start(behind: Any) -> None:
    """And nothing is sent before it is over."""
    busy: Any = Faults(limited=1.0, retry_after="100")
    with (
        RunningServer(behind, faults=busy) as server,
        mock.patch.object(Faults, "drawn", autospec=True, side_effect=Faults.drawn) as drawn,
        pytest.raises(HeadraceError, match="RateLimitError"),
    ):
        OpenAIEngine(CODEC, Server((server.url,), outage_s=0.3))
    assert drawn.call_count == 1


def test_the_command_ends_in_order_and_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = scripted(latency=Latency(0.02))
    server = RunningServer(slow)
    folder, back = tmp_path / "run", None
    command = [
        "agents", "rollout", "--run-dir", str(folder), "engine.kind=openai", f"engine.urls={server.url}",
        "engine.outage_s=0.5", "es_manager.train.env_groups=30", "es_manager.train.group_size=2", "limits.max_live=4",
        "es_manager.train.env_configs.tags=[Bandit]", "es_manager.train.env_configs.n_groups=[30]",
        "engine.price.prompt=2.0", "engine.price.answer=8.0", "agent_proxy.parallel_backend=threading",
    ]  # fmt: skip
    log = folder / "groups.jsonl"

    def close_on_the_way() -> None:
        wait_until(lambda: log.exists() and log.read_text().count("\n") > 3, 60.0)
        server.close()

    timer = threading.Thread(target=close_on_the_way)
    timer.start()
    try:
        assert main(command) == 1
        told = capsys.readouterr()
        assert "engine.outage_s" in told.err
        assert f"waiting for {server.url}" in told.out
        result = json.loads((folder / "result.json").read_text())
        assert result["groups"] < 30
        assert "engine.outage_s" in result["ended"]
        back = RunningServer(slow, port=server.port)
        assert main(command) == 0
    finally:
        timer.join()
        server.close()
        if back is not None:
            back.close()
        slow.close()
    result = json.loads((folder / "result.json").read_text())
    cost = result["cost"]
    assert (result["groups"], result["ended"]) == (30, "done")
    assert cost["requests"] >= 60
    assert cost["money"] == pytest.approx((2.0 * cost["prompt_tokens"] + 8.0 * cost["answer_tokens"]) / 1e6)
    assert "to pay" in capsys.readouterr().out


def test_one_bad_answer_at_the_start_does_not_make_a_run_text_only(behind: Any) -> None:
    for kind in ("garbage", "error", "limited", "wrong_logprobs"):
        with RunningServer(behind, faults=Faults(**{kind: 0.5}, seed=1)) as server:
            engine = OpenAIEngine(server=Server((server.url,), pause_s=0.02, attempts=12))
            assert not engine.is_text_only
            engine.close()


def test_a_server_that_can_take_no_weights_says_so(behind: Any) -> None:
    with RunningServer(behind) as server:
        other = client(f"{server.url.removesuffix('/v1')}")
        try:
            with pytest.raises(UsageError, match="has no route weights/pause"):
                other.publish(None)
            assert other.version == 0
        finally:
            other.close()


def test_a_server_with_another_tokenizer_is_not_asked(behind: Any, caplog: pytest.LogCaptureFixture) -> None:
    other = scripted(codec=ByteCodec(vocabulary=259))
    try:
        with RunningServer(behind) as one, RunningServer(other) as two:
            engine = OpenAIEngine(server=Server((one.url, two.url), pause_s=0.02))
            try:
                assert all(isinstance(ask(engine, seed), Completion) for seed in range(6))
                assert engine._fleet.servers.is_out(two.url) == ("vocabulary" in str(engine._fleet.codec))
            finally:
                engine.close()
    finally:
        other.close()


# ------------------------------------------------------------------------------------------------ failed groups


class _Flaky:
    """Fails as long as a file is there."""

    instructions, actions = "Say one.", ("one",)

    def __init__(self, switch: str) -> None:
        self._switch = Path(switch)

    def reset(self, seed: int) -> str:
        if self._switch.exists() and seed % 2 == 0:
            raise RuntimeError("the tool is away")
        return "Ready."

    def step(self, action: str) -> Any:
        from headrace.agents.environments.text_env import Step

        return Step("Done.", 1.0, True)

    def close(self) -> None:
        pass


def test_failed_groups_are_played_again_on_resume_with_a_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from headrace.agents.environments.text_env import TextEnvSpec

    switch, folder = tmp_path / "away", tmp_path / "run"
    env = TextEnvSpec("Flaky", _Flaky, {"switch": str(switch)})
    caplog.set_level("INFO", "headrace")

    def run(limits: Limits | None = None) -> tuple[list[str], list[int]]:
        played: list[int] = []
        with hr.AgentRollouts(
            [env], "scripted", 1, "sequential", group_size=2, run_dir=folder, limits=limits or Limits()
        ) as one:
            one.on_group = lambda group: played.append(group.number)
            return [group.status for group in one.run(8)], played

    switch.touch()
    first, played = run()
    failed = [number for number, status in enumerate(first) if status == "failed"]
    assert sorted(played) == list(range(8))
    assert 0 < len(failed) < 8
    second, played = run()
    assert (second, sorted(played)) == (first, failed), "once more, and only those"
    assert "failed before (env: Flaky raised in reset: RuntimeError: the tool is away; play 1 of 3)" in caplog.text
    third, played = run(Limits(plays=2))
    assert (third, played) == (first, []), "often enough"
    assert "stays failed (env: Flaky raised in reset" in caplog.text
    switch.unlink()
    last, played = run()
    assert (set(last), sorted(played)) == ({"completed"}, failed)
    assert run() == (last, [])
    assert json.loads((folder / "groups.jsonl").read_text().splitlines()[0])["format"] == 2


def test_logs_of_other_formats(tmp_path: Path, behind: Any) -> None:
    calm = rolled(behind, tmp_path)
    path = tmp_path / "groups.jsonl"
    header, *lines = path.read_text().splitlines(keepends=True)
    plain = json.loads(header)
    path.write_text(json.dumps({"identity": plain["identity"]}) + "\n" + "".join(lines[:2]))
    assert fingerprint(rolled(behind, tmp_path)) == fingerprint(calm), "one without a number is read"
    path.write_text(json.dumps(plain | {"format": 3}) + "\n" + "".join(lines))
    with pytest.raises(UsageError, match="its format is 3, this version reads 1 to 2"):
        rolled(behind, tmp_path)


# ------------------------------------------------------------------------------------------------ weights


class _Versioned(ScriptedModel):
    """What it says depends on its version: old weights would be seen."""

    def _answer(self, request: Request) -> Completion:
        answer = super()._answer(request)
        ids = [*CODEC.encode(f"<answer>{'one' if self.version % 2 else 'two'}</answer>"), CODEC.eos_id]
        return Completion(ids, [-0.5] * len(ids), [self.version] * len(ids), answer.text)


def test_weights_reach_every_server_and_every_token_says_so() -> None:
    models = [_Versioned(), _Versioned()]
    engines = [Batched(model) for model in models]
    try:
        with RunningServer(engines[0]) as one, RunningServer(engines[1]) as two:
            engine = client(one.url, two.url)
            try:
                assert engine.publish(None) == 1
                assert engine.publish(None, version=5) == 5
                assert [model.version for model in models] == [5, 5]
                for seed in range(4):
                    answer = ask(engine, seed)
                    assert isinstance(answer, Completion)
                    assert set(answer.versions) == {5}
            finally:
                engine.close()
    finally:
        for engine_behind in engines:
            engine_behind.close()


def test_a_server_that_restarts_with_old_weights_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Its answer is not taken, it gets the weights again, and the answer that counts is by the new ones."""
    before, after = Batched(_Versioned()), Batched(_Versioned())
    first = RunningServer(before)
    engine = client(first.url)
    try:
        engine.publish(None, version=3)
        known = ask(engine)
        first.close()
        with RunningServer(after, port=first.port):
            assert after.version == 0
            answer = ask(engine)
            assert answer == known
            assert after.version == 3
        assert "was given version 3" in caplog.text
    finally:
        first.close()
        engine.close()
        before.close()
        after.close()


def test_an_old_answer_is_refused_without_a_restart_in_sight() -> None:
    """The server goes back while it is asked: the versions of the answer itself say so."""
    model = _Versioned()
    engine_behind = Batched(model)
    try:
        with RunningServer(engine_behind) as server:
            engine = client(server.url)
            try:
                engine.publish(None, version=4)
                model.version = 2
                answer = ask(engine)
                assert isinstance(answer, Completion)
                assert set(answer.versions) == {4}
                assert model.version == 4
                model.version = 9  # never published
                answer = ask(engine)
                assert isinstance(answer, Completion)
                assert set(answer.versions) == {4}
                assert model.version == 4
            finally:
                engine.close()
    finally:
        engine_behind.close()


def test_a_server_that_is_away_gets_its_weights_before_it_is_asked() -> None:
    here, away = Batched(_Versioned()), Batched(_Versioned())
    gone = RunningServer(away)
    with RunningServer(here) as there:
        engine = client(there.url, gone.url)
        gone.close()
        try:
            assert engine.publish(None) == 1
            with RunningServer(away, port=gone.port):
                wait_until(lambda: not engine._fleet.servers.is_out(gone.url), 20.0)
                assert away.version == 1
        finally:
            engine.close()
    here.close()
    away.close()


def test_weights_that_only_some_servers_take_are_taken_back(tmp_path: Path) -> None:
    """A path that is there at one of two servers: nobody keeps it, and all are asked again."""
    from safetensors.torch import save_file
    from torch import zeros

    for name, files in (("one", "ab"), ("two", "a")):
        (tmp_path / name).mkdir()
        for file in files:
            save_file({"x": zeros(1)}, tmp_path / name / f"{file}.safetensors")
    behind = [Batched(_Versioned()) for _ in range(2)]
    one, two = (
        RunningServer(engine, weights_dir=tmp_path / name) for engine, name in zip(behind, ("one", "two"), strict=True)
    )
    engine = client(one.url, two.url)
    try:
        assert engine.publish("a.safetensors") == 1
        with pytest.raises(UsageError, match="refused version 2"):
            engine.publish("b.safetensors")
        wait_until(lambda: behind[0].version == 1 and not engine._fleet.servers.is_out(one.url), 20.0)
        attempts = engine.statistics().attempts
        for seed in range(6):
            answer = ask(engine, seed)
            assert isinstance(answer, Completion)
            assert set(answer.versions) == {1}
        assert engine.statistics().attempts == attempts + 6, "no attempt is lost to a server with other weights"
    finally:
        engine.close()
        for closed in (one, two, *behind):
            closed.close()


def test_real_weights_by_stream_and_by_path(tmp_path: Path) -> None:
    """A model behind HTTP after an update says what the same model says in process; what does not fit is refused."""
    from safetensors.torch import save_file

    from headrace.agents.engines.in_process import in_process
    from headrace.agents.engines.tiny import tiny_codec, tiny_model

    codec = tiny_codec(["Say one or two <answer>one</answer>"] * 4, 300)
    old, new = tiny_model(codec.vocabulary, 1), tiny_model(codec.vocabulary, 2)
    request = Request(0, 0, 0, codec.encode("Say one"), 12, 5)
    behind, direct = (in_process(old, codec, slots=4, max_context=256) for _ in range(2))
    direct.publish(new)
    want = direct.generate([request])
    (tmp_path / "weights").mkdir()
    save_file({name: one.clone() for name, one in new.state_dict().items()}, tmp_path / "weights" / "new.safetensors")
    try:
        with RunningServer(behind, weights_dir=tmp_path / "weights") as server:
            engine = OpenAIEngine(server=Server((server.url,), pause_s=0.02))
            try:
                assert engine.generate([request]) != want
                engine.publish(new)
                assert engine.generate([request]) == want, "by stream"
                engine.publish(old)
                assert engine.generate([request]) != want
                engine.publish("new.safetensors", version=1)
                assert engine.generate([request]) == want, "by path"
                with pytest.raises(UsageError, match=r"refused version 2: .*expected shape"):
                    engine.publish(tiny_model(codec.vocabulary, 1, width=32))
                for path in ("../secret.safetensors", "/etc/passwd", ".", "nothing.safetensors"):
                    with pytest.raises(UsageError, match=r"refused version 2: .*path: "):
                        engine.publish(path)
                assert engine.version == 1
                assert engine.generate([request]) == want
            finally:
                engine.close()
    finally:
        behind.close()
        direct.close()


def test_a_lag_bound_holds_over_servers(behind: Any) -> None:
    with RunningServer(behind) as server:
        engine = client(server.url)
        try:
            with hr.AgentRollouts(
                [spec(Counting)], engine, 2, "threading", group_size=2, max_lag=1, groups_per_update=2
            ) as rollouts:
                versions = []
                for count, group in enumerate(rollouts.stream(8), 1):
                    rows = [row.versions[row.loss_mask > 0] for one in group.episodes for row in one.rows]
                    versions.append(int(np.concatenate(rows).min()))
                    assert group.status == "completed"
                    assert engine.version - versions[-1] <= 1
                    if count % 2 == 0:
                        rollouts.publish(None)
            assert max(versions) > 0
        finally:
            engine.close()


# ------------------------------------------------------------------------------------------------ money


def test_answers_that_were_refused_are_paid_for(behind: Any) -> None:
    def paid(**faults: float) -> tuple[int, int, int]:
        with RunningServer(behind, faults=Faults(**faults)) as server:
            engine = client(server.url, attempts=30)
            try:
                assert all(isinstance(ask(engine, seed), Completion) for seed in range(8))
                told = engine.statistics()
                return told.prompt_tokens, told.answer_tokens, told.tokens
            finally:
                engine.close()

    calm, bad = paid(), paid(wrong_logprobs=0.5)
    assert calm[0] == 8 * len(PROMPT)
    assert calm[1] == calm[2] == bad[2]
    assert bad[0] > calm[0]
    assert bad[1] > calm[1]


def test_text_only_records_do_not_claim_to_have_cost_nothing(behind: Any, tmp_path: Path) -> None:
    """They hold no tokens; the server's own count is the session's."""
    with RunningServer(behind) as server:
        command = [
            "agents", "rollout", "--run-dir", str(tmp_path), "engine.kind=openai", f"engine.urls={server.url}",
            "es_manager.train.env_groups=1", "es_manager.train.group_size=2", "engine.price.answer=8.0",
            "es_manager.train.env_configs.tags=[Bandit]", "es_manager.train.env_configs.n_groups=[1]",
        ]  # fmt: skip
        with mock.patch.object(OpenAIEngine, "_speaks_tokens", mock.AsyncMock(return_value=False)):
            assert main(command) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["left_out"] == {"text_only": 2}
    assert result["cost"].pop("requests") >= 2
    assert result["cost"] == {"prompt_tokens": None, "answer_tokens": None, "money": None}
    session = json.loads((tmp_path / "log.txt").read_text().partition("this session: ")[2].splitlines()[0])
    assert session["answer_tokens"] > 0
    assert session["money"] > 0
