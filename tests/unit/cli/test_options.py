"""Options as users type them: SB3's names, CleanRL's names, files, and which of them wins."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from headrace.cli.options import CLEANRL_NAMES, env_kwargs, parse, translate, value_of, with_file
from headrace.cli.train_command import TrainOptions
from headrace.errors import UsageError
from support.command import run


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        (["--n_steps", "8"], ["--n-steps", "8"]),
        (["--num-envs=4"], ["--n-envs=4"]),
        (["--num_steps", "8"], ["--n-steps", "8"]),
        (["--no-norm-adv"], ["--no-normalize-advantage"]),
        (["--track", "--wandb-project-name=a_b"], ["--wandb", "--wandb-project=a_b"]),
        (["--no_norm_adv"], ["--no-normalize-advantage"]),
        (["--env-id=CartPole-v1", "--no-cuda"], ["CartPole-v1", "--device=cpu"]),
        (["--cuda"], ["--device=cuda"]),
        (
            ["--algo", "ppo", "--n-timesteps=8", "--lr", "1e-3"],
            ["--algorithm", "ppo", "--total-timesteps=8", "--learning-rate", "1e-3"],
        ),
        (["my_module:my_env", "--env-kwargs", '{"a_b": 1}'], ["my_module:my_env", "--env-kwargs", '{"a_b": 1}']),
        (["--run-dir=my_runs/a_b"], ["--run-dir=my_runs/a_b"]),
    ],
)
def test_names_are_translated_values_are_not(typed: list[str], means: list[str]) -> None:
    assert translate(typed) == means


def test_every_cleanrl_name_means_an_option_we_have() -> None:
    ours = {name for part in (TrainOptions(), *vars(TrainOptions()).values()) for name in getattr(part, "__dict__", {})}
    assert {name.replace("-", "_") for name in CLEANRL_NAMES.values()} <= ours


@pytest.mark.parametrize(("typed", "means"), [("1e4", 10_000), ("1_000", 1_000), ("1.5e3", 1_500)])
def test_whole_numbers_may_be_written_as_people_write_them(typed: str, means: int) -> None:
    assert parse(TrainOptions, ["CartPole-v1", "--total-timesteps", typed], "train").session.total_timesteps == means


@pytest.mark.parametrize("typed", ["1e-4", "1.5", "1.5e0", "nan", "inf", "1e999", "-e5"])
def test_what_is_no_whole_number(typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(TrainOptions, ["CartPole-v1", f"--total-timesteps={typed}"], "train")
    assert f"expected a whole number, got '{typed}'" in " ".join(capsys.readouterr().err.split())


def test_a_device_that_there_is_not(tmp_path: Path) -> None:
    for asked in (("--env", "CartPole-v1", "--device", "cuda"), ("--env=CartPole-v1", "--cuda")):
        refused = run("train", *asked, cwd=tmp_path)
        assert refused.code == 2
        assert "device (learner_device): expected cpu, or a device that torch has here, got 'cuda" in refused.error
        assert "use device=cpu (--device cpu), also to load or resume" in refused.error


@pytest.mark.usefixtures("measures_cheap")
def test_cleanrl_and_sb3_names_come_to_the_same(tmp_path: Path) -> None:
    sb3 = ("--n-envs", "2", "--n-steps", "8", "--n-epochs", "3", "--batch-size", "4", "--clip-range", "0.1")
    cleanrl = ("--num-envs", "2", "--num_steps", "8", "--update-epochs", "3", "--minibatch-size", "4")
    common = ("--seed", "1", "--dry-run")
    one = run("train", "CartPole-v1", *sb3, "--no-normalize-advantage", *common, cwd=tmp_path)
    other = run(
        "train",
        "CartPole-v1",
        *cleanrl,
        "--clip-coef",
        "0.1",
        "--no-norm-adv",
        "--device",
        "cpu",
        *common,
        cwd=tmp_path,
    )
    assert one.code == 0
    assert "3 epochs of minibatches of 4" in one.out
    assert one == other


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["--config", "a"], "a"),
        (["--config=a"], "a"),
        (["--config"], None),
        (["--other", "--configs", "a"], None),
    ],
)
def test_an_option_is_found_before_parsing(argv: list[str], found: str | None) -> None:
    assert value_of("--config", argv) == found


def test_env_kwargs_are_a_json_object() -> None:
    assert env_kwargs('{"gravity": 3.7}') == {"gravity": 3.7}
    for bad in ("{", "3", '"text"'):
        with pytest.raises(UsageError, match="--env-kwargs"):
            env_kwargs(bad)


# ---------------------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Inner:
    rate: float | str = 0.1
    sizes: tuple[int, ...] = (64,)
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str = ""
    count: int = 1
    limit: float | None = None
    folder: Path | None = None
    is_quiet: bool = False
    env_kwargs: str = "{}"
    inner: Inner = field(default_factory=Inner)


GOOD: list[tuple[str, dict[str, Any]]] = [
    ("count = 3", {"count": 3}),
    ("limit = 2", {"limit": 2.0}),
    ('folder = "runs/x"', {"folder": Path("runs/x")}),
    ("is_quiet = true", {"is_quiet": True}),
    ("rate = 1", {"inner": Inner(rate=1.0)}),
    ('rate = "lin_1e-3"', {"inner": Inner(rate="lin_1e-3")}),
    ("sizes = [8, 9]", {"inner": Inner(sizes=(8, 9))}),
    ('kind = "b"', {"inner": Inner(kind="b")}),
    ("env_kwargs = {gravity = 3}", {"env_kwargs": '{"gravity": 3}'}),
    ("", {}),
]


@pytest.mark.parametrize(("text", "changed"), GOOD, ids=[text for text, _ in GOOD])
def test_a_file_gives_defaults_of_the_right_type(text: str, changed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert with_file(Outer(), path) == replace(Outer(), **changed)


BAD = [
    ("count = 1.5", "count: expected int, got 1.5"),
    ("count = true", "count: expected int, got True"),
    ("is_quiet = 1", "is_quiet: expected bool, got 1"),
    ('limit = "x"', "limit: expected float or nothing, got 'x'"),
    ("sizes = 8", "sizes: expected a list of int, got 8"),
    ('sizes = ["a"]', "sizes: expected int, got 'a'"),
    ('kind = "c"', "kind: expected 'a' or 'b', got 'c'"),
    ("rate = [1]", r"rate: expected float or str, got \[1\]"),
    ("cuont = 1", "unknown key 'cuont': did you mean count"),
    ("rats = 1", "unknown key 'rats': did you mean rate"),
    ("inner = 1", "unknown key 'inner'"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[text for text, _ in BAD])
def test_a_file_that_does_not_fit_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"--config .*run.toml: {message}"):
        with_file(Outer(), path)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('env = "Acrobot-v1"\nnum_envs = 3\nn_steps = 16\nbatch_size = 8\nseed = 5\n')
    outcome = run("train", "--config", "run.toml", "--n-steps", "32", "--dry-run", cwd=tmp_path)
    assert outcome.code == 0
    assert_plan(outcome.out, {"environment": "Acrobot-v1 x 3", "rollout": "32 x 3 = 96 steps", "seed": "5"})
    outcome = run("train", "CartPole-v1", "--config=run.toml", "--dry-run", cwd=tmp_path)
    assert_plan(outcome.out, {"environment": "CartPole-v1 x 3", "rollout": "16 x 3 = 48 steps"})


def test_a_runs_own_config_makes_the_same_run_again(tmp_path: Path) -> None:
    options = ("--n-envs", "2", "--n-steps", "8", "--net-arch", "8", "--learning-rate", "lin_1e-3", "--seed", "3")
    wrapped = ("--wrappers", "gymnasium.wrappers:FlattenObservation", "--action-repeat", "2")
    env = ("CartPole-v1", "--env-kwargs", '{"max_episode_steps": 9}', *wrapped)
    more = ("--total-timesteps", "32", "--clip-range-vf", "0.3", "--tags", "both", "--quiet")
    assert run("train", *env, *options, *more, "--run-dir", "one", cwd=tmp_path).code == 0
    again = run("train", "--config", "one/config.json", "--run-dir", "two", "--quiet", cwd=tmp_path)
    assert again.code == 0, again.err
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("one", "two")]
    assert configs[0] == configs[1]
    hashes = [json.loads((tmp_path / name / "result.json").read_text())["weights_sha256"] for name in ("one", "two")]
    assert hashes[0] == hashes[1]


def assert_plan(plan: str, expected: dict[str, str]) -> None:
    lines = dict(line.split(maxsplit=1) for line in plan.splitlines() if not line.startswith("why"))
    for name, value in expected.items():
        assert lines[name].startswith(value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replay", "out", "0:0", "--env_kwargs", "{}"), "--env-kwargs: expected --env as well"),
        (("replay", "out", "0:0", "--sort", "return"), "--sort: expected --list as well"),
        (("rollouts", "out", "--to", "x.parquet", "--wrappers", "a:b"), "--wrappers: expected --env as well"),
        (("train", "CartPole-v1", "--n-eval-episodes", "3"), "--n-eval-episodes: expected --eval-every as well"),
    ],
)
def test_options_of_an_option_that_was_not_given(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """They would be taken and have no effect."""
    outcome = run(*words, cwd=tmp_path)
    assert (outcome.code, outcome.err) == (2, f"headrace: error: {said}\n")
