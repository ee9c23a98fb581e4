"""Diversity from the files of real, short runs: each verdict where it is true, and where it would be a lie."""

from __future__ import annotations

import math
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.planning.finding import Finding
from headrace.planning.recorded_diversity import diversity_findings, start_finding
from headrace.views.report import write_report
from support import diversity_envs as envs
from support.torch_policy import TorchPolicy


def train(run_dir: Path, env: Any, policy: Any = "MlpPolicy", steps: int = 2_048, **options: Any) -> list[Finding]:
    usual = {"n_envs": 8, "n_steps": 32, "batch_size": 64, "n_epochs": 1, "topology": "inline", "seed": 3}
    with closing(hr.PPO(policy, env, **(usual | options))) as model:
        model.learn(steps, run_dir=run_dir)
    findings = diversity_findings(run_dir)
    assert [one.name for one in findings] == ["start states", "action streams", "policy entropy"]
    return findings


def levels(findings: list[Finding]) -> list[str]:
    return [one.level for one in findings]


def test_an_environment_that_takes_no_notice_of_its_seed(tmp_path: Path) -> None:
    findings = train(tmp_path / "run", envs.OwnGenerator)
    assert levels(findings) == ["problem", "ok", "ok"]
    assert "8 of 8 environments" in findings[0].found
    assert findings[0].evidence["distinct_starts"] == 256 / 8


@pytest.mark.parametrize("steps", [512, 8_192], ids=["too short for a verdict", "long enough"])
def test_the_report_says_that_environments_begin_alike_and_only_if_they_do(tmp_path: Path, steps: int) -> None:
    for env, is_said in ((envs.OwnGenerator, True), (envs.Walk, False)):
        run_dir = tmp_path / env.__name__
        found = train(run_dir, env, steps=steps)[0]
        write_report(run_dir, has_figure=False)
        assert (escape(found.sentence) in (run_dir / "report.html").read_text()) == is_said
        assert start_finding(run_dir) == found  # what the doctor says, from the beginning of the journal


def test_without_a_journal_the_report_says_nothing_of_starts(tmp_path: Path) -> None:
    with closing(hr.PPO("MlpPolicy", envs.OwnGenerator, n_envs=8, n_steps=32, topology="inline", seed=3)) as model:
        model.learn(2_048, run_dir=tmp_path / "run", keep_episodes_mb=0)
    assert "start states" not in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (envs.Walk, "all different"),
        (envs.OneStart, "the environment has one start"),
        (envs.FewStarts, "3 different"),
        (envs.Levels, "14 different"),
        ("FrozenLake-v1", "the environment has one start"),
    ],
)
def test_starts_that_are_as_they_should_be(tmp_path: Path, env: Any, words: str) -> None:
    findings = train(tmp_path / "run", env)
    assert levels(findings) == ["ok", "ok", "ok"]
    assert words in findings[0].found


def test_shards_in_processes_are_put_side_by_side(tmp_path: Path) -> None:
    findings = train(tmp_path / "run", envs.OwnGenerator, topology="processes", workers=2, steps=1_024)
    assert findings[0].evidence["pairs_alike"] == 28
    assert findings[1].evidence["rows"] == 128
    assert findings[1].evidence["environments"] == 8


def test_a_policy_that_takes_one_noise_for_all(tmp_path: Path) -> None:
    findings = train(tmp_path / "run", envs.Marked, envs.Deaf())
    assert levels(findings) == ["ok", "problem", "ok"]
    assert findings[1].evidence["agreement"] > 0.95
    honest = train(tmp_path / "honest", envs.Marked, TorchPolicy())
    assert levels(honest) == ["ok", "ok", "ok"]


def test_a_policy_that_hardly_draws_is_correlated_only_where_starts_are(tmp_path: Path) -> None:
    settled = train(tmp_path / "settled", envs.Walk, envs.Settled())
    assert levels(settled) == ["ok", "ok", "ok"]
    assert float(str(settled[1].evidence["agreement"])) > 0.6
    alike = train(tmp_path / "alike", envs.OwnGenerator, envs.Settled())
    assert levels(alike) == ["problem", "problem", "ok"]
    assert "different starts" in alike[1].advice


def test_an_entropy_that_is_gone_for_nothing_and_one_that_is_gone_for_good_returns(tmp_path: Path) -> None:
    """What pays is soon all that is done: in one task returns fall with it, in the other they rise."""
    options: dict[str, Any] = {"steps": 8_192, "n_epochs": 4, "learning_rate": 0.02}
    fallen = train(tmp_path / "fallen", envs.Treadmill, **options)
    assert levels(fallen) == ["ok", "ok", "warning"]
    options["learning_rate"] = 0.1
    at_once = train(tmp_path / "at_once", envs.Treadmill, **(options | {"n_epochs": 10}))
    assert float(str(at_once[2].evidence["start"])) == pytest.approx(math.log(2), abs=0.01)
    assert at_once[2].level == "warning", "nothing was left of it after the first update"
    options["learning_rate"] = 0.02
    learned = train(tmp_path / "learned", envs.Target, **options)
    assert levels(learned) == ["ok", "ok", "ok"]
    assert "the policy has settled" in learned[2].found


def test_files_that_are_missing_damaged_or_from_elsewhere_are_one_line_each(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, envs.OwnGenerator, steps=1_024)
    (run / "metrics.jsonl").write_text('{"train/entropy_loss": null}\n[1]\n{"time/iterations": 1e300}\nnonsense\n')
    (run / "episodes.jsonl").write_text('{"steps": "x"}\n{"steps": 1, "total_reward": 1e400}\n[]\n7\n')
    findings = diversity_findings(run)
    assert levels(findings) == ["problem", "ok", "ok"], "starts are judged all the same"
    assert all("not judged" in one.found for one in findings[1:])

    journal = run / "journal" / "000001.bin"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    findings = diversity_findings(run)
    assert levels(findings) == ["ok", "ok", "ok"]
    assert all("is damaged" in one.found and "\n" not in one.found for one in findings)

    journal.unlink()
    journal.parent.rmdir()
    assert all("recorded no episodes" in one.found for one in diversity_findings(run))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/zero")
    assert "metrics.jsonl can't be read" in diversity_findings(run)[2].found
    with pytest.raises(UsageError, match="expected a run directory, found none"):
        diversity_findings(tmp_path / "nothing")


def test_a_run_without_records_is_not_judged(tmp_path: Path) -> None:
    hr.PPO("MlpPolicy", envs.Walk, n_envs=2, n_steps=8, batch_size=16, topology="inline").learn(
        64, run_dir=tmp_path / "run", keep_episodes_mb=0
    )
    assert all(one.found.startswith("not judged") for one in diversity_findings(tmp_path / "run"))
