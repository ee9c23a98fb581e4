"""Records to Parquet and back, and to the arrays that verl and RAGEN take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.agents.codec import ByteCodec
from headrace.agents.exports.parquet import read_parquet, write_parquet
from headrace.agents.exports.verl import agent_loop_outputs, ragen_batch, samples
from headrace.agents.journal import read_groups
from headrace.agents.limits import Limits
from headrace.agents.records import FAILED, Group, decode, encode, fingerprint
from headrace.errors import UsageError
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


def test_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("nonsense")
    with pytest.raises(UsageError, match=r"a\.parquet: expected records as Parquet"):
        read_parquet(tmp_path / "a.parquet")
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
