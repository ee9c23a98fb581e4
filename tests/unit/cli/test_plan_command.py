"""`headrace plan` with given numbers: the table, the JSON and the picture say the same, and bad numbers are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main

FOUNDING = ["plan", "--batch", "512", "--update-ms", "8", "--actor-sps", "1000"]


def test_table_json_and_plot_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, plot = tmp_path / "plan.json", tmp_path / "plan.png"
    options = ["--actors", "40", "--observation", "84x84x4:uint8", "--link", "1GB", "--actor-price", "0.04"]
    assert main([*FOUNDING, *options, "--json", str(answer), "--plot", str(plot)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "actors needed 64" in said
    assert "bound by the link" in said
    assert "observations compressed 2x: 40,000 steps/s" in said
    found = json.loads(answer.read_text())
    assert found["sizing"]["actors_needed"] == 64
    assert found["sizing"]["binding"] == "link"
    assert found["sizing"]["rate"] == pytest.approx(1e9 / (84 * 84 * 4 + 27))
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_is_not_bounded_is_null_in_json(tmp_path: Path) -> None:
    answer = tmp_path / "plan.json"
    assert main([*FOUNDING, "--json", str(answer)]) == 0
    assert json.loads(answer.read_text())["sizing"]["link_sps"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*FOUNDING, "--policy", "nonsense", "--n-envs", "64"], "--n-envs, --policy: expected --measure ENV, too"),
        ([*FOUNDING, "--net-arch", "512", "512", "--n-steps", "9"], "--n-steps, --net-arch: expected --measure ENV"),
        (["plan", "--measure", "No-v0", "--actor-sps", "3", "--rollout", "9"], "--actor-sps, --rollout: --measure"),
        (
            ["plan", "--measure", "No-v0", "--update-ms", "9", "--observation", "4", "--transition", "5MB"],
            "--update-ms, --observation, --transition: --measure finds that out",
        ),
        ([*FOUNDING, "--observation", "4", "--transition", "5MB"], "--observation, --transition: expected one of them"),
        ([*FOUNDING, "--n-epochs", "0"], "--n-epochs: expected a number larger than 0, got 0"),
        ([*FOUNDING, "--actors", "0"], "--actors: expected a number larger than 0, got 0"),
        (["plan", "--measure", "No-v0", "--batch", "0"], "--batch: expected a number larger than 0, got 0"),
        (["plan", "--measure", "No-v0", "--n-envs", "0"], "--n-envs: expected a number larger than 0, got 0"),
        (["plan", "--batch", "512"], "--update-ms: expected a number larger than 0"),
        ([*FOUNDING, "--actors", "-3"], "actors: expected a number larger than 0, got -3"),
        ([*FOUNDING, "--link", "10GB"], "--link: expected --observation or --transition as well"),
        ([*FOUNDING, "--link", "fast", "--transition", "1KB"], "--link: expected bytes, as in 28224, 28KB or 10GB"),
        ([*FOUNDING, "--observation", "84x84:float7"], "--observation: expected a shape and a dtype"),
        ([*FOUNDING, "--json", "/dev/null/x"], "--json /dev/null/x: can't be written"),
    ],
)
def test_bad_numbers_are_refused_in_the_users_words(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 2
    assert said in capsys.readouterr().err


def test_measured_numbers_and_what_every_place_would_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "plan.json"
    options = ["--n-envs", "4", "--n-steps", "32", "--batch", "64", "--n-epochs", "2", "--json", str(answer)]
    assert main(["plan", "--measure", "CartPole-v1", *options]) == 0
    found = json.loads(answer.read_text())
    job, places = found["job"], {(one["topology"], one["workers"], one["max_lag"]): one for one in found["forecast"]}
    assert (job["batch"], job["n_epochs"], job["rollout"]) == (64, 2, 128)
    assert job["step_bytes"] == 4 * 4 + 8 + 4 + 3 + 8 + 4  # the observation, then action, reward, flags, episode, step
    learning_s, collecting_s = 128 / found["sizing"]["rollout_demand"], 128 / job["actor_sps"]
    assert places["inline", 1, 0]["sps"] == pytest.approx(128 / (learning_s + collecting_s))
    assert "PPO's own demand" in capsys.readouterr().out
