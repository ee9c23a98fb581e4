"""A plain `pip install headrace`: a run works without the extras and says in one line what it left out."""

from __future__ import annotations

import html
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.evaluation.video import require_video_name
from headrace.extras import has, left_out
from support.command import TINY

LINE = "left out: TensorBoard files and the picture of the report; pip install 'headrace[tensorboard,plots]' adds that"
BARE = """
import sys
sys.modules.update(dict.fromkeys(("matplotlib", "tensorboardX", "PIL", "wandb")))  # importing them fails
from headrace.cli.main import main
sys.exit(main())
"""


def bare(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BARE, *arguments], cwd=cwd, capture_output=True, text=True)


def test_a_run_goes_without_and_says_so_once(tmp_path: Path) -> None:
    done = bare("train", "CartPole-v1", *TINY, "--total-timesteps", "16", "--run-dir", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == LINE
    assert done.stdout.count("left out") == 1
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"metrics.jsonl", "result.json", "report.html"} <= written
    assert not any(name.startswith("events.") or name == "report.png" for name in written)
    assert LINE in (tmp_path / "run" / "log.txt").read_text()
    assert "WARNING" not in (tmp_path / "run" / "log.txt").read_text()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["exit_reason"] == "done"
    assert "pip install 'headrace[plots]'" in html.unescape((tmp_path / "run" / "report.html").read_text())
    again = bare("report", "run", cwd=tmp_path)
    assert again.stdout.splitlines()[1:] == [
        "left out: the picture of the report; pip install 'headrace[plots]' adds that"
    ]


def test_a_video_needs_what_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"render: expected PIL to be installed; pip install 'headrace\[plots\]'"):
        require_video_name(tmp_path / "x.gif")


def test_what_is_asked_for_by_name_is_an_error_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError, match=r"tensorboard_log: expected tensorboardX .*pip install 'headrace\[tensorb"):
        hr.PPO("MlpPolicy", "CartPole-v1", tensorboard_log=tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


def test_a_folder_named_wandb_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves one in the working directory."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not has("wandb")


def test_with_everything_there_is_nothing_to_say() -> None:
    assert left_out("plots", "tensorboard") == ""


def test_the_package_itself_needs_none_of_them() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = " ".join(project["dependencies"]).lower()
    assert not [name for name in ("matplotlib", "tensorboard", "pillow", "wandb") if name in named]
    assert {"plots", "tensorboard", "wandb"} <= set(project["optional-dependencies"])
