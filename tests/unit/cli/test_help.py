"""What the command line says before anything runs, and how fast: help, versions, and what stays unimported."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli.main import COMMANDS, main
from support.command import run

HELP_S = 0.5
HEAVY = ("torch", "gymnasium", "numpy", "matplotlib", "rich", "tyro", "tensorboardX", "safetensors")


def test_help_lists_every_command_and_how_to_go_on(tmp_path: Path) -> None:
    outcome = run("--help", cwd=tmp_path)
    assert outcome.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in outcome.out
    assert "headrace train CartPole-v1" in outcome.out
    assert run("-h", cwd=tmp_path) == outcome == run("help", cwd=tmp_path)


def test_without_a_command_it_is_help_but_not_a_success(tmp_path: Path) -> None:
    outcome = run(cwd=tmp_path)
    assert (outcome.code, outcome.out) == (2, run("--help", cwd=tmp_path).out)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", ["--n-envs", "--n-steps", "--total-timesteps", "--resume", "--dry-run", "--config", "--topology"]),
        ("eval", ["--n-eval-episodes", "--reward-threshold", "--deterministic", "--env"]),
        ("check", ["--env-kwargs", "--wrappers", "--action-repeat", "--seed"]),
    ],
)
def test_help_of_a_command(command: str, options: list[str], tmp_path: Path) -> None:
    outcome = run(command, "--help", cwd=tmp_path)
    assert outcome.code == 0
    assert outcome.out.startswith(f"usage: headrace {command} ")
    for option in options:
        assert option in outcome.out
    assert "\x1b[" not in outcome.out


COMMAND_LINES = [[name] for name in COMMANDS] + [["agents", name] for name in ("rollout", "compare", "serve", "show")]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [*COMMAND_LINES, ["train", "--algorithm", "impala"]], ids=" ".join)
def test_help_is_written_as_people_write(
    command: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No types of Python, no reprs, no classes of ours, nothing that is not built; within the terminal's width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for word in ("None", "{", "True", "False", "STR", "INT", "FLOAT", "''", "Config", "(default: )", "ray", "fused"):
        assert word not in text.replace("--reward-threshold", "").replace("array", ""), word
    assert max(map(len, text.splitlines())) <= columns
    assert "--no-quiet" not in text


def test_help_has_choices_defaults_and_what_a_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("n_envs = 48\n")
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "mine.toml"), "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for entry in (
        "--topology auto|inline|threads|processes ",
        "--net-arch N ... Hidden layers of the actor and of the critic; if not given, 64 64 (MlpPolicy) or none",
        "--learning-rate X|lin_X Adam's step size; a schedule. (default: 0.0003)",
        "--n-envs N Number of environments in all. (default: 48)",
        "--config FILE Defaults",
        "--quiet No live view. ",
        "--normalize-advantage, --no-normalize-advantage Normalise",
    ):
        assert entry in text, entry


def test_help_wins_over_whatever_else_is_asked_for(tmp_path: Path) -> None:
    assert run("train", "--resume", "nowhere", "--help", cwd=tmp_path).out.startswith("usage: headrace train ")


def test_version(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).out == f"headrace {__version__}\n"


def test_help_answers_at_once() -> None:
    """In seconds of computing, which other programs on the machine do not change; it waits for nothing."""

    def took() -> float:
        began = computed_by_children()
        subprocess.run([sys.executable, "-m", "headrace", "--help"], check=True, capture_output=True)
        return computed_by_children() - began

    times = [took() for _ in range(5)]
    assert statistics.median(times) < HELP_S, f"{times}"


def computed_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def imported_by(program: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after running a program."""
    seen = f"{program}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    out = subprocess.run([sys.executable, "-c", seen], check=True, capture_output=True, text=True).stdout
    return set(out.splitlines()[-1].split())


def test_importing_headrace_imports_nothing_heavy() -> None:
    assert imported_by("import headrace; headrace.__version__; dir(headrace)") == set()


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("from headrace.cli.main import main; main(['--help'])") == set()


@pytest.mark.parametrize("arguments", [["train", "--help"], ["train", "CartPole-v1", "--topology", "ray"]])
def test_help_and_refusals_of_train_do_not_wait_for_torch(arguments: list[str]) -> None:
    program = f"from headrace.cli.main import main\ntry: main({arguments})\nexcept SystemExit: pass"
    assert "torch" not in imported_by(program)


def test_a_name_brings_what_it_needs() -> None:
    assert "torch" in imported_by("import headrace; headrace.PPO")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "CartPole-v1", "--n-envs", "x"], "--n-envs: expected a whole number, got 'x'"),
        (["train", "CartPole-v1", "--n-envs", "1.5"], "--n-envs: expected a whole number, got '1.5'"),
        (["train", "CartPole-v1", "--gamma", "much"], "--gamma: expected a number, got 'much'"),
    ],
)
def test_what_is_no_number_is_refused_in_plain_words(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said in told
    assert "literal" not in told


@pytest.mark.parametrize(("command", "word"), [("check", "ENV"), ("eval", "RUN"), ("export", "RUN")])
def test_what_is_missing_has_the_name_that_the_help_uses(
    command: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command])
    assert f"Missing from headrace {command}: {word} " in " ".join(capsys.readouterr().err.replace("│", " ").split())
