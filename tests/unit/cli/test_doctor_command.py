"""`headrace doctor RUN`: verdict, evidence and advice from a run's files; files from elsewhere give one clear line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.api.model import Model
from headrace.cli.doctor_command import read_evidence
from headrace.cli.doctor_measuring import accepted, can_be_tried, same_disk
from headrace.cli.main import main
from headrace.clock import now_s
from headrace.planning.advice import Advice
from headrace.run_lock import RunLock, is_live
from support.diversity_envs import OwnGenerator


def a_run(folder: Path, updates: int = 20, result: Any = None, **times: float) -> Path:
    """A run directory, as far as the doctor looks at it."""
    folder.mkdir()
    lines = [
        {"time/iterations": number, "time/total_timesteps": 512 * number}
        | {f"headrace/time/{name}": seconds for name, seconds in times.items()}
        for number in range(1, updates + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps({"topology": {"n_envs": 8}, "session": {"log_interval": 1}}))
    (folder / "result.json").write_text(json.dumps(result or {"where": {"topology": "inline", "cores": 2}}))
    return folder


def test_text_and_json_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "doctor.json"
    assert main(["doctor", str(a_run(tmp_path / "run", log=0.7, env=0.3)), "--json", str(answer)]) == 0
    said, found = capsys.readouterr().out, json.loads(answer.read_text())
    assert "ended, 512 steps/s over 19 updates" in said
    assert "Logging-bound (70% of an update's time) and env-bound (30%)." in said
    assert "write metrics less often: --log-interval 10" in said
    assert found["verdict"]["names"] == ["logging-bound", "env-bound"]
    assert found["updates"] == 19
    first = found["advice"][0]
    assert (first["options"], first["is_applicable"]) == (["--log-interval", "10"], True)
    assert first["gain"] == pytest.approx(1 / 0.37)
    assert not found["is_live"]


def test_a_run_that_is_going_on_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", env=1.0)
    assert not is_live(run)
    with RunLock.take(run):
        assert is_live(run)
        assert main(["doctor", str(run)]) == 0
    assert "still running" in capsys.readouterr().out


def test_a_run_in_its_first_seconds_is_not_called_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with RunLock.take(run):
        assert main(["doctor", str(run)]) == 2
        said = capsys.readouterr().err
        assert f"{run}: the run has begun and has no records yet; try again in a moment" in said
        (run / "metrics.jsonl").touch()
        assert main(["doctor", str(run)]) == 0
        assert "Too short to say: 0 updates" in capsys.readouterr().out
        assert main(["doctor", str(tmp_path / "none")]) == 2
    (run / "metrics.jsonl").unlink()
    assert main(["doctor", str(run)]) == 2
    assert capsys.readouterr().err.count("expected a run directory with a metrics.jsonl") == 2


def test_too_short_a_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(a_run(tmp_path / "run", updates=3, env=1.0)), "--apply"]) == 0
    said = capsys.readouterr().out
    assert "Too short to say: 2 updates after the first one" in said
    assert "no advice that is an option" in said
    assert main(["doctor", str(a_run(tmp_path / "two", updates=2, env=1.0))]) == 0
    said = capsys.readouterr().out
    assert "steps/s over 1 update\n" in said
    assert "1 update after the first one" in said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("result.json", "[" * 100_000, "can't be read"),
        ("result.json", '{"where": ', "can't be read"),
        ("config.json", "no json", "can't be read"),
        ("metrics.jsonl", None, "expected a run directory with a metrics.jsonl"),
    ],
)
def test_files_that_are_damaged_give_one_line(
    name: str, content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", env=1.0)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content)
    assert main(["doctor", str(run)]) != 0
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_odd_numbers_and_lines_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", env=0.9, sgd=0.1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"headrace/time/env": 1e308, "time/iterations": null}\n[1]\n{"headrace/time/env": "x"}\n{"torn')
    assert main(["doctor", str(run)]) == 0
    assert "bound" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--apply"], "--apply, --seconds, --rounds, --trust: expected a run directory, too: headrace doctor RUN"),
        (["--rounds", "3"], "expected a run directory, too: headrace doctor RUN"),
        (
            ["{run}", "--seconds", "1", "--rounds", "3", "--trust"],
            "--seconds, --rounds, --trust: expected --apply, too",
        ),
        (["{run}", "--apply", "--rounds", "0"], "--seconds, --rounds: expected more than 0"),
        (["{run}", "--clean"], "--clean and --need are about this machine: headrace doctor, without a run"),
    ],
)
def test_options_of_a_run_and_of_the_machine(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run", env=0.9, sgd=0.1)
    assert main(["doctor", *(word.format(run=run) for word in argv)]) == 2
    assert said in capsys.readouterr().err


def test_what_environments_have_in_common_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An environment that does not use its seed: other detectors' findings are notes of the verdict."""
    run = tmp_path / "run"
    with hr.PPO(
        "MlpPolicy", OwnGenerator, n_envs=8, n_steps=32, batch_size=64, n_epochs=1, seed=1, topology="inline"
    ) as model:
        model.learn(8 * 32 * 8, run_dir=run, check_episodes=0)
    assert main(["doctor", str(run)]) == 0
    assert "start states: " in capsys.readouterr().out


def test_a_run_of_agents_is_called_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "groups.jsonl").write_text("{}\n")
    assert main(["doctor", str(tmp_path)]) == 2
    assert f"{tmp_path}: a run of LLM agents" in capsys.readouterr().err


def test_a_run_without_its_configuration_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", log=0.7, env=0.3)
    (run / "config.json").unlink()
    assert main(["doctor", str(run), "--apply"]) == 2
    captured = capsys.readouterr()
    assert "-bound" in captured.out, "the verdict is there all the same"
    assert f"--apply: {run} has no config.json" in captured.err
    assert "--config" not in captured.err


@pytest.mark.parametrize(
    ("room", "key", "value", "said"),
    [
        ("env", "env", {"callable": "make_it"}, "the environment make_it"),
        ("env", "wrappers", [{"callable": "Wrap"}], "wrapper 1 Wrap"),
        ("env", "kwargs", {"table": {"object": "ndarray"}}, "the argument table"),
        ("algorithm", "learning_rate", {"callable": "falling"}, "learning_rate falling"),
    ],
)
def test_what_a_file_cannot_hold_is_named(
    room: str, key: str, value: Any, said: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = json.loads((run / "config.json").read_text())
    config[room][key] = value
    (run / "config.json").write_text(json.dumps(config))
    assert main(["doctor", str(run), "--apply", "--trust"]) == 2
    captured = capsys.readouterr().err
    assert f"was built with {said}, which a file can't hold" in captured
    assert "pass " not in captured


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of small updates, most of whose time is learning."""
    folder = tmp_path_factory.mktemp("doctor") / "run"
    with hr.PPO(
        "MlpPolicy", "CartPole-v1", n_envs=2, n_steps=32, batch_size=2, n_epochs=10, seed=1, topology="inline"
    ) as model:
        model.learn(64 * 50, run_dir=folder, check_episodes=0)
    return folder


def test_a_real_run_and_its_advice_tried(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "doctor.json"
    short = ["--seconds", "0.05", "--rounds", "1"]
    assert main(["doctor", str(trained), "--apply", "--trust", *short, "--json", str(answer)]) == 0
    said, found = capsys.readouterr().out, json.loads(answer.read_text())
    assert found["verdict"]["sentence"] in said
    assert found["verdict"]["shares"]["learner-bound"] > 0.2
    assert any("--batch-size" in one["options"] for one in found["advice"]), "minibatches were measured"
    best = next(one for one in found["advice"] if one["is_applicable"])
    assert found["applied"]["options"] == best["options"]
    assert found["applied"]["achieved"] > 0
    assert "predicted" in said


def test_advice_that_would_be_refused_is_not_given(trained: Path, tmp_path: Path) -> None:
    data = json.loads((trained / "config.json").read_text())
    evidence = read_evidence(trained)
    kept, refused = (
        Advice("", 2.0, 1.0, options)
        for options in (("--n-epochs", "5"), ("--topology", "processes", "--workers", "3"))  # of 2 environments
    )
    advice = Advice("write a faster environment", 2.0, 1.0)
    assert accepted(data, evidence, [kept, refused, advice]) == [kept, advice]
    assert accepted({}, evidence, [kept, refused]) == [kept, refused], "nothing is known of it"


def test_what_a_file_names_is_not_imported_unasked(trained: Path, tmp_path: Path) -> None:
    """As for --resume: a configuration that this user's run did not write is a stranger's."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("metrics.jsonl", "result.json"):
        (run / name).write_bytes((trained / name).read_bytes())
    config = json.loads((trained / "config.json").read_text())
    config["env"]["env"] = "owned:Env"
    (run / "config.json").write_text(json.dumps(config))
    (tmp_path / "owned.py").write_text("raise SystemExit('hello from owned')")
    command = [sys.executable, "-m", "headrace", "doctor", "run", "--apply"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "owned:Env" in done.stderr
    assert "--trust" in done.stderr
    assert "hello from owned" not in done.stderr


def test_short_runs_write_to_the_disk_of_the_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that its slow disk holds up would look quick in a temporary directory that lies in memory."""
    seen: list[Path] = []
    train = Model.train

    def watched(model: Model, how: Any, run_dir: Path, **more: Any) -> Any:
        seen.append(run_dir)
        return train(model, how, run_dir, **more)

    monkeypatch.setattr(Model, "train", watched)
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    short = ["--apply", "--trust", "--seconds", "0.05", "--rounds", "1"]
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")
    assert main(["doctor", str(run), *short]) == 0
    assert {one.parent.parent for one in seen} == {tmp_path}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run"], "and leave nothing there"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert same_disk(run) is None, "where temporary files lie on the same disk, they go there"


def test_what_short_runs_do_not_show_is_not_tried() -> None:
    """They have no live view: without it nothing would change, and nothing be achieved."""
    assert not can_be_tried(Advice("no live view", 2.0, 1.0, ("--quiet",)))
    assert not can_be_tried(Advice("a faster environment", 2.0, 1.0))
    assert can_be_tried(Advice("fewer logs", 2.0, 1.0, ("--log-interval", "10")))


def test_a_run_that_records_few_updates_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", updates=3, env=1.0)
    (run / "config.json").write_text(json.dumps({"session": {"log_interval": 1000}}))
    assert main(["doctor", str(run)]) == 0
    assert "One update of 1,000 is recorded (--log-interval)" in capsys.readouterr().out


def test_a_short_run_that_takes_long_to_start_is_not_called_slow(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time that it may take begins with its first update; where that is all there is, nothing is achieved by it."""
    spent, train, clock = [0.0], Model.train, now_s

    def late(model: Model, *args: Any, **more: Any) -> Any:
        spent[0] += 100.0
        return train(model, *args, **more)

    monkeypatch.setattr(Model, "train", late)
    monkeypatch.setattr("headrace.clock.now_s", lambda: clock() + spent[0])
    short = ["doctor", str(trained), "--apply", "--trust", "--seconds", "0.05", "--rounds", "1"]
    assert main(short) == 0
    assert "achieved 0.00x" not in capsys.readouterr().out

    def hurried(model: Model, *args: Any, callback: Any, **more: Any) -> Any:
        return train(model, *args, callback=lambda record: False, **more)

    monkeypatch.setattr(Model, "train", hurried)
    assert main(short) == 1
    captured = capsys.readouterr()
    assert "achieved" not in captured.out
    assert "too few updates in this time to compare; give --seconds more" in captured.err
