"""W&B beside a run: the real package, offline; and one that fails, hangs or is not there."""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.telemetry import wandb_sink
from headrace.telemetry.sinks import STEP_TAG, Sinks
from headrace.telemetry.wandb_sink import WandbConfig, WandbSink, wandb_config
from support.command import TINY, run


def fake_wandb(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A package of that name, for the process that would import the real one."""
    (folder / "fake" / "wandb").mkdir(parents=True)
    (folder / "fake" / "wandb" / "__init__.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(folder / "fake"))


def scanned(path: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """What a .wandb file holds: the start of the run, and its history. It is a log of protocol buffers in blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, whole = path.read_bytes(), 7, b""
    start: dict[str, Any] = {}
    history: list[dict[str, float]] = []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # a block's end that holds no header
            position += 32768 - position % 32768
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind not in (1, 4):  # more of it follows
            continue
        record = Record.FromString(whole)
        whole = b""
        if record.WhichOneof("record_type") == "run":
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            start = {"id": record.run.run_id, "project": record.run.project, "name": record.run.display_name}
            start["config"] = config
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return start, history


def test_offline_it_has_the_metrics_the_config_and_goes_on_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="pip install 'headrace[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    names = ("--wandb", "--wandb-project", "water", "--wandb-name", "first")
    for more in (("train", "CartPole-v1", *TINY, "--total-timesteps", "16", "--run-dir", "run"),
                 ("train", "--resume", "run", "--quiet", "--total-timesteps", "24")):  # fmt: skip
        assert run(*more, *names, "--check-episodes", "0", cwd=tmp_path).code == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    (first, one), (second, other) = map(scanned, files)
    kept = json.loads((tmp_path / "run" / "wandb.json").read_text())
    assert first["id"] == second["id"] == kept["id"]
    assert (first["project"], first["name"]) == ("water", "first")
    assert first["config"]["algorithm"]["batch_size"] == 4
    assert first["config"]["seed"] == 7
    assert [row[STEP_TAG] for row in (*one, *other)] == [8, 16, 24] == [row[STEP_TAG] for row in records]
    for sent, written in zip((*one, *other), records, strict=True):
        assert {tag: sent[tag] for tag in written if written[tag] is not None} == {
            tag: value for tag, value in written.items() if value is not None
        }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "raise ImportError('broken install')",
            "W&B did not close cleanly: it ended with exit code 1: ImportError: brok",
        ),
        ("import time\ndef init(**options):\n    time.sleep(1000)", "W&B did not close cleanly: it did not finish"),
    ],
    ids=["fails", "hangs"],
)
def test_a_wandb_that_fails_or_hangs_costs_its_records_and_no_more(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_wandb(tmp_path, monkeypatch, body)
    monkeypatch.setattr(WandbSink, "patience_s", 0.5 if "sleep" in body else 20.0)
    monkeypatch.setattr(wandb_sink, "require", lambda extra, option: None)
    monkeypatch.setattr(wandb_sink, "_MOST_WAITING_BYTES", 1 << 14)
    plain, with_wandb = (
        hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=4, batch_size=4, n_epochs=1, topology="inline", seed=3)
        for _ in range(2)
    )
    with plain, with_wandb:
        plain.learn(400, check_episodes=0)
        with_wandb.learn(400, check_episodes=0, run_dir=tmp_path / "run", wandb=True)
        assert with_wandb.result is not None
        assert plain.result is not None
        assert with_wandb.result.weights_sha256 == plain.result.weights_sha256
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 50
    text = (tmp_path / "run" / "log.txt").read_text()
    assert said in text
    if "sleep" in body:
        assert "W&B takes no records" in text
    assert text.count("could not keep a record") <= 1


def test_it_ends_with_a_run_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its input is its end; so a killed run leaves no process."""
    fake_wandb(tmp_path, monkeypatch, "class Run:\n    log = define_metric = finish = lambda self, *_, **__: None\n"
               "def init(**options):\n    return Run()\n")  # fmt: skip
    monkeypatch.setattr(wandb_sink, "require", lambda extra, option: None)
    program = (
        "import os, sys; from headrace.telemetry import wandb_sink; wandb_sink.require = lambda *_: None\n"
        "sink = wandb_sink.WandbSink(wandb_sink.WandbConfig(), None, {}); sink.write({'a': 1.0})\n"
        "print(sink._process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert select.select([child], [], [], 60)[0], "it lives on"
    os.close(child)


def test_what_is_asked_for_is_checked_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"wandb: expected wandb to be installed; pip install 'headrace\[wandb\]'"):
        wandb_config(True)
    outcome = run("train", "CartPole-v1", *TINY, "--wandb", "--run-dir", "run", cwd=tmp_path)
    assert outcome.code == 2
    assert "pip install 'headrace[wandb]'" in outcome.err
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_config(True) is None
    monkeypatch.delitem(sys.modules, "wandb")
    for asked in ({"projekt": "x"}, 3):
        with pytest.raises(UsageError, match="wandb: expected True, a project, or a dict with some of project, entity"):
            wandb_config(asked)
    with pytest.raises(UsageError, match="wandb mode: expected online, offline or disabled, got 'on'"):
        wandb_config({"mode": "on"})


def test_a_file_can_not_send_a_run_to_wandb(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("wandb = true\n")
    outcome = run("train", "CartPole-v1", "--config", "mine.toml", *TINY, cwd=tmp_path)
    assert outcome.code == 2
    assert "wandb is for the command line only" in outcome.err


def test_a_record_is_dropped_as_a_whole_when_the_pipe_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does get through is whole lines, in order."""
    fake_wandb(
        tmp_path,
        monkeypatch,
        """
import os
class Run:
    def define_metric(self, *_, **__): pass
    def log(self, record): print("logged", int(record["number"]), len(record), flush=True)
    def finish(self): pass
def init(dir, **options):
    with open(os.path.join(dir, "go")) as gate: gate.read()
    return Run()
""",
    )
    monkeypatch.setattr(wandb_sink, "require", lambda extra, option: None)
    monkeypatch.setattr(wandb_sink, "_MOST_WAITING_BYTES", 1 << 15)
    os.mkfifo(tmp_path / "go")
    sink = WandbSink(WandbConfig(), tmp_path, {})
    sinks = Sinks([sink])
    for number in range(400):
        sinks.write({"number": float(number)} | {f"tag/{index}": 0.5 for index in range(100)})
    (tmp_path / "go").write_text("")
    sinks.close()
    logged = [line.split()[1:] for line in (tmp_path / "wandb.log").read_text().splitlines() if "logged" in line]
    numbers = [int(number) for number, _ in logged]
    assert 0 < len(numbers) < 400
    assert numbers == sorted(set(numbers)), "in order; the reader may begin while others are dropped"
    assert {count for _, count in logged} == {"101"}
