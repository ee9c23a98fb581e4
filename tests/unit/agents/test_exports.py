"""Records to Parquet and back, and to the arrays that verl and RAGEN take."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as parquet
import pytest

import headrace as hr
from headrace.agents.codec import CHATML, ByteCodec, TokenizerCodec
from headrace.agents.engines.batching import Batched
from headrace.agents.engines.protocol import Completion, Request, checked
from headrace.agents.engines.scripted import ScriptedModel, scripted
from headrace.agents.engines.tiny import tiny_codec
from headrace.agents.environments.text_env import Step, TextEnvSpec
from headrace.agents.episode import Rules
from headrace.agents.exports.parquet import read_parquet, write_parquet
from headrace.agents.exports.trl import trl_dataset, trl_rollout_func
from headrace.agents.exports.verl import agent_loop_outputs, left_out_episodes, ragen_batch, samples
from headrace.agents.group_log import read_groups
from headrace.agents.limits import Limits
from headrace.agents.records import FAILED, EpisodeError, Group, decode, encode, fingerprint
from headrace.collecting.groups import GroupSource
from headrace.errors import HeadraceError, UsageError
from support.agent_envs import Counting, Raising, spec


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    envs = [spec(Counting), "FrozenLake", spec(Raising, every=1, where="none"), spec(Raising, tag="Bad", every=2)]
    with hr.AgentRollouts(envs, backend="sequential", group_size=3, limits=Limits(attempts=1)) as one:
        return one.run(12)


def test_some_failed(groups: list[Group]) -> None:
    assert {group.status for group in groups} == {"completed", "failed"}


def test_json_comes_back(groups: list[Group]) -> None:
    again = [decode(encode(group)) for group in groups]
    assert fingerprint(again) == fingerprint(groups)
    assert again[0].episodes[0].turns == groups[0].episodes[0].turns


def test_parquet_comes_back(groups: list[Group], tmp_path: Path) -> None:
    path = write_parquet(groups, tmp_path / "records.parquet")
    again = read_parquet(path)
    assert fingerprint(again) == fingerprint(groups)
    assert [group.status for group in again] == [group.status for group in groups]
    assert not list(tmp_path.glob(".*")), "nothing half written"


def test_bad_files_are_named(groups: list[Group], tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("nonsense")
    with pytest.raises(UsageError, match=r"a\.parquet: expected records as Parquet"):
        read_parquet(tmp_path / "a.parquet")
    table = parquet.read_table(write_parquet(groups, tmp_path / "b.parquet"))
    at = table.schema.get_field_index("metrics")
    parquet.write_table(table.set_column(at, "metrics", [["{"] * len(table)]), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match=r"b\.parquet: expected records as Parquet: JSONDecodeError"):
        read_parquet(tmp_path / "b.parquet")
    (tmp_path / "a.jsonl").write_text('{"identity": {}}\n{"number": 1}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl: expected the groups\.jsonl"):
        read_groups(tmp_path / "a.jsonl")


def test_the_batch_is_the_records(groups: list[Group]) -> None:
    batch = ragen_batch(groups, pad_id=0)
    rows = samples(groups)
    whole = [group for group in groups if group.status != FAILED]
    assert batch["left_out"] == len(groups) - len(whole) > 0
    assert len(rows) == sum(len(group.episodes) for group in whole) == len(batch["input_ids"])
    length = batch["responses"].shape[1]
    assert (batch["input_ids"][:, -length:] == batch["responses"]).all()
    for at, one in enumerate(rows):
        mask = batch["attention_mask"][at].astype(bool)
        row = one.episode.rows[one.row]
        ids = batch["input_ids"][at][mask]
        assert ids.tolist() == row.ids[: len(ids)].tolist(), "left-padded, in order, nothing between"
        kept = batch["responses"][at][batch["loss_mask"][at] == 1]
        assert kept.tolist() == row.ids[row.loss_mask == 1].tolist()
        assert batch["rm_scores"][at].sum() == pytest.approx(one.episode.reward, abs=1e-5)
        assert not batch["rm_scores"][at][batch["loss_mask"][at] == 0].any(), "rewards lie on sampled tokens"
        positions = batch["position_ids"][at][mask]
        assert positions.tolist() == list(range(len(positions)))
        assert len(batch["messages_list"][at]) == 2 * len(one.episode.turns)
    assert (np.diff(batch["group_ids"]) >= 0).all()
    assert len(set(batch["env_ids"].tolist())) == len(rows)
    assert any("pass@" in name for name in batch["metrics"])


def test_agent_loop_outputs(groups: list[Group]) -> None:
    codec = ByteCodec()
    for told in agent_loop_outputs(groups):
        lengths = {len(told[name]) for name in ("response_ids", "response_mask", "response_logprobs")}
        assert len(lengths) == 1
        assert told["response_mask"][0] == told["response_mask"][-1] == 1
        assert "<|im_start|>assistant" in codec.decode(told["prompt_ids"])
        assert told["num_turns"] >= 2


def test_a_system_message_is_part_of_the_conversation(tmp_path: Path) -> None:
    rules = Rules(system="Be brief.")
    with hr.AgentRollouts([spec(Counting)], backend="sequential", group_size=1, rules=rules) as rollouts:
        groups = rollouts.run(1)
    (again,) = read_parquet(write_parquet(groups, tmp_path / "a.parquet"))
    for episode in (groups[0].episodes[0], again.episodes[0], decode(encode(groups[0])).episodes[0]):
        assert episode.messages[0] == {"role": "system", "content": "Be brief."}
        assert [one["role"] for one in episode.messages[1:3]] == ["user", "assistant"]
    assert ragen_batch(groups, 0)["messages_list"][0][0]["role"] == "system"


def test_two_plays_of_a_group_are_not_mixed_into_one(tmp_path: Path) -> None:
    with hr.AgentRollouts([spec(Counting)], backend="sequential", group_size=2) as rollouts:
        groups = rollouts.run(1)
    with pytest.raises(UsageError, match=r"expected every number once, got group 0 more than once"):
        write_parquet([*groups, *groups], tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_text_that_is_none_reaches_every_file(tmp_path: Path) -> None:
    """Lone surrogates, in what an environment raised or a model said, are spelt out, not the end of the records."""

    class Odd(Counting):
        def step(self, action: str) -> Step:
            raise RuntimeError("half a \ud83d face")

    with hr.AgentRollouts([spec(Odd)], backend="sequential", group_size=1, limits=Limits(attempts=1)) as rollouts:
        groups = rollouts.run(1)
    assert groups[0].failures[0].message.endswith("half a \\ud83d face")
    assert fingerprint(read_parquet(write_parquet(groups, tmp_path / "a.parquet"))) == fingerprint(groups)
    request = Request(0, 0, 0, [1], 8, 0)
    said = checked(request, Completion((), (), (), "\udc80"), ByteCodec(), True)
    assert said.text == "\\udc80"
    with pytest.raises(EpisodeError, match="expected text"):
        checked(request, Completion((), (), (), None), ByteCodec(), True)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- TRL


class Trainer:
    """What a rollout_func asks of one."""

    model = accelerator = None

    def __init__(self) -> None:
        self.accelerator = mock.Mock(unwrap_model=lambda model: model)


def played(*numbers: int, env: Any = None, spare: int = 2, **options: Any) -> dict[str, Any]:
    with hr.AgentRollouts([env or spec(Counting)], backend="sequential", group_size=2, **options) as rollouts:
        play = trl_rollout_func(rollouts, spare)
        prompts = [row["prompt"] for number in numbers for row in [trl_dataset(number + 1)[number]] * 2]
        return play(prompts, Trainer())


def test_every_prompt_has_its_completion() -> None:
    told = played(3, 0, 3)
    assert {name: len(values) for name, values in told.items()} == dict.fromkeys(told, 6)
    assert told["completion_ids"][0] == told["completion_ids"][4], "the same group"


def test_groups_without_a_word_are_replaced_or_told() -> None:
    """A prompt too long for max_context is answered by nobody: no sample can be made up for it."""
    with pytest.raises(HeadraceError, match="group 0 and 2 in its place: have an episode in which nothing was said"):
        played(0, rules=Rules(max_context=130))


def test_groups_that_fail_are_replaced_or_told() -> None:
    with pytest.raises(HeadraceError, match="group 1 and 2 in its place: failed, last: Raising could not be built"):
        played(1, env=spec(Raising, where="build"), limits=Limits(attempts=1))


def test_the_journal_does_not_answer_for_new_weights(tmp_path: Path) -> None:
    for _ in range(2):
        told = played(0, run_dir=tmp_path)
        assert len(told["completion_ids"]) == 2


class Settings:
    """Of a trainer, as GRPOConfig has them."""

    def __init__(self, **given: Any) -> None:
        usual = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
        vars(self).update({**usual, "generation_kwargs": None, "max_completion_length": 4096, **given})


def trained(rules: Rules | None = None, env: Any = None, **given: Any) -> dict[str, Any]:
    trainer: Any = Trainer()
    trainer.args = Settings(**given)
    with hr.AgentRollouts([env or spec(Counting)], backend="sequential", group_size=2, rules=rules) as rollouts:
        return trl_rollout_func(rollouts)([trl_dataset(1)[0]["prompt"]] * 2, trainer)


def test_settings_that_agree_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    trained()
    trained(top_k=-1, min_p=0.0)
    trained(Rules(temperature=0.7), temperature=0.7)
    trained(Rules(top_p=0.9, top_k=50), top_p=0.9, top_k=50)
    trained(Rules(top_k=-1), top_k=0)
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


def test_another_temperature_is_refused() -> None:
    with pytest.raises(UsageError, match=r"temperature: Counting samples with 1, the trainer learns with 0\.9"):
        trained(temperature=0.9)
    own = TextEnvSpec("Own", Counting, {}, {"temperature": 0.5})
    with pytest.raises(UsageError, match=r"Own samples with 0\.5, the trainer learns with 1"):
        trained(env=own)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"top_p": 0.9}, "the trainer's top_p is 0.9, Counting samples with top_p = 1.0"),
        ({"top_k": 50}, "the trainer's top_k is 50, Counting samples with top_k = 0"),
        ({"min_p": 0.1}, "the trainer's min_p is 0.1"),
        ({"repetition_penalty": 1.2}, "the trainer's repetition_penalty is 1.2"),
        ({"generation_kwargs": {"num_beams": 2}}, "generation_kwargs {'num_beams': 2} are not used"),
        ({"max_completion_length": 100}, "max_completion_length is 100, Counting has max_tokens = 128"),
        ({"max_completion_length": 130}, "completions are longer than the trainer's max_completion_length = 130"),
    ],
)
def test_settings_that_differ_are_named(given: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture) -> None:
    trained(**given)
    assert said in caplog.text


class TextOnly(Batched):
    """The scripted engine without its tokens."""

    is_text_only = True

    def generate(self, requests: Sequence[Request]) -> list[Completion | EpisodeError]:
        return [Completion((), (), (), f"<think>a</think><answer>{one.seed % 2}</answer>") for one in requests]


def test_text_only_episodes_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    engine = TextOnly(ScriptedModel())
    try:
        with hr.AgentRollouts([spec(Counting)], engine, backend="sequential", group_size=3) as rollouts:
            groups = rollouts.run(2)
            with pytest.raises(UsageError, match="gives text only, so nothing can be trained on"):
                trl_rollout_func(rollouts)([trl_dataset(1)[0]["prompt"]] * 3, Trainer())
        with (
            hr.AgentRollouts([spec(Counting)], engine, group_size=2, max_lag=1, groups_per_update=1) as rollouts,
            pytest.raises(UsageError, match="can't be learned from"),
        ):
            GroupSource(rollouts)
    finally:
        engine.close()
    assert [group.status for group in groups] == ["completed"] * 2
    batch = ragen_batch(groups, 0)
    assert (batch["left_out"], batch["left_out_episodes"], len(batch["input_ids"])) == (2, {"text_only": 6}, 0)
    assert agent_loop_outputs(groups) == []
    assert "left out: 6 text_only" in caplog.text


def test_everything_left_out_has_its_reason(groups: list[Group]) -> None:
    failed = sum(len(group.episodes) for group in groups if group.status == FAILED)
    assert left_out_episodes(groups) == {"failed": failed}
    late = [replace(group, lag=3, max_lag=1) for group in groups if group.status != FAILED]
    assert left_out_episodes(late) == {"late": sum(len(group.episodes) for group in late)}
    rules = Rules(max_context=130)
    with hr.AgentRollouts([spec(Counting)], backend="sequential", group_size=3, rules=rules) as rollouts:
        silent = rollouts.run(1)
    assert left_out_episodes(silent) == {"silent": 3}
    assert ragen_batch(silent, 0)["left_out"] == 1
    everyone = [*groups, *late, *silent]
    assert len(samples(everyone)) + sum(left_out_episodes(everyone).values()) == sum(
        len(group.episodes) for group in everyone
    )


def test_a_group_that_is_replaced_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(HeadraceError, match="in its place: failed"):
        played(1, env=spec(Raising, where="build"), limits=Limits(attempts=1))
    assert "group 1 is left out and another one takes its place: 2 failed" in caplog.text


def test_answers_that_a_forked_conversation_leaves_behind_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    """TRL takes one sequence an episode: where the template drops earlier thoughts, only the last answer is in it."""
    template = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
    codec = TokenizerCodec(tiny_codec(["Say one or two <think>a</think><answer>one</answer>"] * 4, 300).tokenizer_json)
    for used, mentioned in ((codec, False), (replace(codec, template=template), True)):
        caplog.clear()
        engine = scripted(lambda prompt, rng: "<think>a</think><answer>one</answer>", codec=used)
        try:
            with hr.AgentRollouts([spec(Counting)], engine, backend="sequential", group_size=2) as rollouts:
                told = trl_rollout_func(rollouts)([trl_dataset(1)[0]["prompt"]] * 2, Trainer())
        finally:
            engine.close()
        answers = [sum(after > before for before, after in pairwise([0, *mask])) for mask in told["env_mask"]]
        assert answers == ([1, 1] if mentioned else [4, 4])
        assert ("only the answers since the last rewriting are trained on" in caplog.text) == mentioned
