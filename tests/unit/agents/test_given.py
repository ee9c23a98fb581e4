"""What users hand over in another form: one instead of several, a text instead of a path, nothing at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import agents
from headrace.errors import UsageError


@pytest.fixture(scope="module")
def groups() -> Iterator[list[agents.Group]]:
    with hr.AgentRollouts(["Bandit"], n_jobs=1, backend="sequential", group_size=2) as rollouts:
        yield rollouts.run(2)


def test_one_address_is_one_server() -> None:
    url = "http://127.0.0.1:1/v1"
    assert agents.Server(url).urls == agents.Server([url]).urls == agents.Server((url,)).urls == (url,)
    with closing(agents.scripted()) as engine, agents.RunningServer(engine) as server:
        for given in (server.url, [server.url]):
            client = agents.OpenAIEngine(server=given)
            assert client.model == "headrace"
            client.close()


def test_paths_may_be_texts(groups: list[agents.Group], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert agents.write_parquet(groups, "x.parquet") == Path("x.parquet")
    assert agents.fingerprint(agents.read_parquet("x.parquet")) == agents.fingerprint(groups)
    with pytest.raises(UsageError, match=r"tokenizer there: expected a folder with tokenizer\.json"):
        agents.TokenizerCodec.from_folder("there")


def test_one_group_is_a_list_of_one(groups: list[agents.Group], tmp_path: Path) -> None:
    assert agents.summary(groups[0]) == agents.summary([groups[0]])
    assert agents.fingerprint(groups[0]) == agents.fingerprint(groups[:1])
    assert len(agents.ragen_batch(groups[0], 0)["group_ids"]) == len(agents.agent_loop_outputs(groups[0])) == 2
    assert len(agents.read_parquet(agents.write_parquet(groups[0], tmp_path / "one.parquet"))) == 1
    with hr.AgentRollouts(["Bandit"], n_jobs=1, backend="sequential", group_size=2) as rollouts:
        assert agents.fingerprint(rollouts.play(1)) == agents.fingerprint(groups[1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda one: agents.Server(8000), "urls: expected the address of a server, .* got 8000"),
        (lambda one: agents.OpenAIEngine("http://127.0.0.1:1/v1"), "codec: expected .* an address goes to server="),
        (lambda one: agents.OpenAIEngine(server=8000), "urls: expected the address of a server"),
        (lambda one: agents.write_parquet(one, None), "path: expected a path, got None"),
        (lambda one: agents.write_parquet(one, "no/where.parquet"), "path: expected a file in an existing directory"),
        (lambda one: agents.write_parquet(one, "x.parquet", "tiny"), "codec: expected the engine's codec, got 'tiny'"),
        (lambda one: agents.write_parquet("x.parquet", one), "path: expected a path"),
        (lambda one: agents.read_parquet(None), "path: expected a path, got None"),
        (lambda one: agents.ragen_batch(one, None), "pad_id: expected the id of the padding token, got None"),
        (lambda one: agents.ragen_batch("groups", 0), "groups: expected groups, as rollouts.run"),
        (lambda one: agents.agent_loop_outputs(3), "groups: expected groups, as rollouts.run"),
        (lambda one: agents.summary(one[0].episodes), "groups: expected groups, as rollouts.run"),
        (lambda one: agents.TokenizerCodec.from_folder(None), "folder: expected a path, got None"),
        (lambda one: agents.in_process(None, None), "in_process: expected a causal model of transformers, got None"),
        (lambda one: agents.in_process("Qwen/Qwen3-0.6B", agents.ByteCodec()), r"AutoModelForCausalLM.from_pretrained"),
        (lambda one: agents.in_process(agents.tiny_model(258), None), "expected the model's codec, .* got None"),
        (lambda one: agents.scripted(latency=0.1), r"latency: expected Latency\(...\), got 0.1"),
        (lambda one: agents.scripted(batching=8), r"batching: expected Batching\(...\), got 8"),
        (lambda one: agents.trl_dataset("8"), "groups: expected a whole number"),
        (lambda one: agents.trl_rollout_func(None), "rollouts: expected AgentRollouts, got None"),
        (lambda one: agents.RunningServer(None), "engine: expected an engine"),
        (lambda one: agents.TextEnvSpec("mine", "envs:Mine"), "mine: expected what makes environments"),
        (lambda one: agents.adapted(None), "adapted: expected a class or a function"),
        (lambda one: agents.tiny_codec(8), "texts: expected texts, got 8"),
    ],
)  # fmt: skip
def test_what_is_something_else_is_one_line(call: Any, said: str, groups: list[agents.Group]) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        call(groups)
    assert "\n" not in str(caught.value)
