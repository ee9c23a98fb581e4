"""`headrace agents`: what its commands print, leave behind and return."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from headrace.agents import compare
from headrace.agents.exports.parquet import read_parquet
from headrace.agents.records import fingerprint
from headrace.cli.main import main

SMALL = (
    "es_manager.train.env_groups=4",
    "es_manager.train.env_configs.n_groups=[1,1,1,1]",
    "es_manager.train.group_size=2",
    "engine.latency.jitter_s=0.002",
)


def agents(*words: str) -> int:
    return main(["agents", *words])


def test_a_rollout_leaves_its_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert agents("rollout", "--config-name", "base", "--run-dir", str(folder), *SMALL) == 0
    out = capsys.readouterr().out
    assert "8 / 8 episodes" in out
    for part in ("turns/s", "tokens/s", "batch", "groups failed", "pass@2", "4 groups, 0 of them failed"):
        assert part in out
    assert {path.name for path in folder.iterdir()} == {
        "codec.json",
        "groups.jsonl",
        "log.txt",
        "records.parquet",
        "result.json",
    }
    result = json.loads((folder / "result.json").read_text())
    assert result["fingerprint"] == fingerprint(read_parquet(folder / "records.parquet"))
    assert "sequential: asked for" in (folder / "log.txt").read_text()


def test_episodes_without_an_answer_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their first prompt leaves no room for one: they end well, with a reward of 0."""
    assert agents("rollout", "--run-dir", str(tmp_path), *SMALL, "agent_proxy.max_context=130") == 0
    assert "8 episodes have no answer: their first prompt and max_tokens exceed max_context" in capsys.readouterr().out


def test_result_json_is_json_whatever_environments_report(tmp_path: Path) -> None:
    with mock.patch("headrace.agents.metrics.summary", return_value={"Bandit/a": float("nan"), "Bandit/reward": 1.0}):
        assert agents("rollout", "--config-name", "base", "--run-dir", str(tmp_path), *SMALL) == 0
    result = json.loads((tmp_path / "result.json").read_text(), parse_constant=pytest.fail)
    assert result["metrics"] == {"Bandit/a": None, "Bandit/reward": 1.0}


def test_overrides_stand_on_both_sides_of_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert agents("rollout", *SMALL[:2], "--config-name", "base", SMALL[2], "--run-dir", str(folder), SMALL[3]) == 0
    assert "8 / 8 episodes" in capsys.readouterr().out
    assert agents("show", "--", str(folder)) == 0
    with pytest.raises(SystemExit):
        agents("rollout", "--nonsense", SMALL[0])
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err


def test_base_and_base_parallel_agree(tmp_path: Path) -> None:
    for name in ("base", "base-parallel"):
        more = ("agent_proxy.parallel_backend=threading", "agent_proxy.parallel_n_jobs=3") if "p" in name[4:] else ()
        assert agents("rollout", "--config-name", name, "--run-dir", str(tmp_path / name), *SMALL, *more) == 0
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("base", "base-parallel")]
    assert results[0] == results[1]


def test_an_interrupted_rollout_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    command = ("rollout", "--run-dir", str(folder), *SMALL)
    assert agents(*command) == 0
    whole = (folder / "result.json").read_text()
    lines = (folder / "groups.jsonl").read_text().splitlines(keepends=True)
    (folder / "groups.jsonl").write_text("".join(lines[:3]))
    assert agents(*command) == 0
    assert (folder / "result.json").read_text() == whole
    assert "2 groups come from the group log" in (folder / "log.txt").read_text()


def test_show_lists_and_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    agents("rollout", "--run-dir", str(folder), *SMALL)
    capsys.readouterr()
    assert agents("show", str(folder)) == 0
    listing = capsys.readouterr().out
    assert listing.count("\n") == 9
    assert "0-0       Bandit" in listing
    assert agents("show", str(folder / "records.parquet"), "1-1") == 0
    told = capsys.readouterr().out
    assert "episode 1-1  FrozenLake" in told
    assert "turn 1" in told
    assert "⟦" in told
    assert "reward" in told
    assert agents("show", str(folder), "9-9") == 2
    assert "expected one of 0-0, 0-1" in capsys.readouterr().err


def test_show_prints_no_terminal_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model, an environment and a file may say anything: retitle the window, overwrite a line, hide one."""
    folder = tmp_path / "run"
    agents("rollout", "--run-dir", str(folder), *SMALL)
    header, *lines = (folder / "groups.jsonl").read_text().splitlines()
    group = json.loads(lines[0])
    code = "\x1b]0;owned\x07\x1b[2J\rerased\u202e"
    for episode in group["episodes"]:
        episode["tag"] += code
        episode["failure"] = {"boundary": "env", "message": f"one\ntwo{code}"}
        for turn in episode["turns"]:
            turn["prompt"] += code
            turn["answer"] += code
            turn["actions"] = [code]
    (folder / "groups.jsonl").write_text("\n".join([header, json.dumps(group)]) + "\n")
    capsys.readouterr()
    for arguments in ((), (f"{group['number']}-0",)):
        assert agents("show", str(folder / "groups.jsonl"), *arguments) == 0
        told = capsys.readouterr().out
        assert not set(told) & set("\x1b\x07\r\u202e")
        assert "\\x1b]0;owned\\x07\\x1b[2J\\x0derased\\u202e" in told
        assert arguments or told.count("\n") == 1 + len(group["episodes"]), "a line an episode, whatever it says"


def test_a_real_models_tokens_are_shown_by_its_own_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    small = ("engine.kind=tiny", "engine.steps=40", "agent_proxy.max_turn=2", "agent_proxy.max_context=1024")
    more = ("agent_proxy.max_tokens=16", "es_manager.train.env_configs.tags=[Bandit]", "es_manager.train.env_groups=1")
    none = ("es_manager.train.env_configs.n_groups=null", "es_manager.train.group_size=2")
    assert agents("rollout", "--run-dir", str(folder), *small, *more, *none) == 0
    capsys.readouterr()
    for path in (folder, folder / "records.parquet", folder / "groups.jsonl"):
        assert agents("show", str(path), "0-1") == 0
        told = capsys.readouterr().out
        (episode,) = (one for one in read_parquet(folder / "records.parquet")[0].episodes if one.member == 1)
        assert episode.turns[0].answer.splitlines()[0][:8] in told


def test_compare_shows_what_workers_are_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The row that counts has an environment that waits, and is what auto chose; the cheap ones have rows too."""
    plot, file = tmp_path / "a.png", tmp_path / "a.json"
    command = ("compare", "--config-name", "base-parallel", "--plot", str(plot), "--json", str(file))
    groups = ("es_manager.train.env_groups=12", "es_manager.train.env_configs.n_groups=[3,3,3,3]", *SMALL[2:])
    assert agents(*command, *groups) == 0
    out = capsys.readouterr().out
    assert out.count("ok  ") == 6
    assert "FAIL" not in out
    assert "pass@2" in out
    assert "Lookup was put beside the configured environments" in out
    (row,) = (line for line in out.splitlines() if " <- " in line)
    assert "auto: threading, n_jobs=" in row
    assert "cheap ones only   sequential" in out
    assert plot.stat().st_size > 5000
    numbers = json.loads(file.read_text())
    assert numbers["agree"]
    assert numbers["speed_up"] > 1.5, "calls of 20 to 50 ms wait side by side, however busy the machine is"
    assert numbers["all"][1]["backend"] == "threading"
    assert numbers["cheap"][0]["backend"] == "sequential"
    assert "threading" in [row["backend"] for row in numbers["cheap"]], "workers, whatever auto thinks of them"
    assert "Lookup/success" in numbers["metrics"]["parallel"]


def test_compare_of_cheap_environments_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert agents("compare", "--cheap-only", "--plot", str(tmp_path / "a.png"), *SMALL) == 0
    out = capsys.readouterr().out
    assert "Lookup" not in out
    assert "cheap ones only" not in out, "they are all"
    assert "threading, n_jobs=" in out


def test_compare_adds_nothing_to_environments_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("custom_envs.Own.env_type=support.agent_envs:Counting", "es_manager.train.env_configs.tags=[Own,Bandit]")
    counts = ("es_manager.train.env_groups=8", "es_manager.train.env_configs.n_groups=[4,4]", SMALL[2])
    assert agents("compare", "--plot", str(tmp_path / "a.png"), *own, *counts) == 0
    out = capsys.readouterr().out
    assert "Lookup" not in out
    assert "cheap ones only   sequential" in out


def test_tags_print_no_terminal_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration file names them, and it may come from elsewhere."""
    (tmp_path / "odd.yaml").write_text(
        'custom_envs: {"A\\e]0;owned\\a": {env_type: bandit}}\n'
        'es_manager: {train: {env_groups: 4, group_size: 2, env_configs: {tags: ["A\\e]0;owned\\a"]}}}\n'
    )
    config = ("--config-name", str(tmp_path / "odd.yaml"))
    assert agents("rollout", *config, "--run-dir", str(tmp_path / "run")) == 0
    assert agents("compare", "--cheap-only", *config, "--plot", str(tmp_path / "a.png")) == 0
    assert agents("show", str(tmp_path / "run")) == 0
    said = capsys.readouterr()
    assert not set(said.out + said.err) & set("\x1b\x07")
    assert said.out.count("A\\x1b]0;owned\\x07") > 3


def test_compare_that_disagrees_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison can fail: one record of the parallel run is another's."""
    honest = compare._side

    def cheating(backend: str, *rest: object) -> compare.Side:
        side = honest(backend, *rest)  # type: ignore[arg-type]
        if backend != "auto":
            return side
        others = side.groups[1:]
        return replace(side, groups=(*others, others[-1]))

    with mock.patch.object(compare, "_side", cheating):
        assert agents("compare", "--plot", str(tmp_path / "a.png"), *SMALL) == 1
    assert "FAIL  identical records" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("rollout", "agent_proxy.max_trun=3"), "did you mean agent_proxy.max_turn?"),
        (("rollout", "--config-name", "bas"), "did you mean base?"),
        (("show", "nowhere"), "no such file"),
        (("serve", "--host", "0.0.0.0"), "expected a loopback address, or a token"),
        (("serve", "--port", "99999"), "--port: expected 1 to 65535, got 99999"),
        (("rollout", "--run-dir", "/dev/null/x"), "--run-dir /dev/null/x: expected a directory"),
        (("compare", "--plot", "/dev/null/x.png"), "--plot /dev/null: expected a directory"),
        (("compare", "--plot", "/tmp"), "expected a file, got a directory"),
        (("compare", "--plot", "picture.doc"), "expected a name that ends in .png, .svg or .pdf"),
        (("compare", "--json", "/tmp"), "--json /tmp: expected a file, got a directory"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert agents(*words) == 2
    assert told in capsys.readouterr().err


def test_a_port_that_another_program_has_is_told_before_anything_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, mock.patch("headrace.agents.build.engine_of") as engine_of:
        port = other.getsockname()[1]
        assert agents("serve", "--port", str(port)) == 2
    told = capsys.readouterr()
    assert f"--port {port}: can't listen at 127.0.0.1: Address already in use; choose another" in told.err
    assert "serving" not in told.out
    engine_of.assert_not_called()


@pytest.mark.parametrize("command", ["", "rollout", "compare", "serve", "show"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        agents(*([command] if command else []), "--help")
    assert ended.value.code == 0
    assert "usage: headrace agents" in capsys.readouterr().out


def test_a_rollout_without_a_result_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every group failed: the records are there, and the exit code and one line say so."""
    broken = ("custom_envs.Odd.env_type=support.agent_envs:Raising", "custom_envs.Odd.env_config.every=1")
    tags = ("es_manager.train.env_configs.tags=[Odd]", "es_manager.train.env_configs.n_groups=null")
    where = ("custom_envs.Odd.env_config.where=build",)
    assert agents("rollout", "--run-dir", str(tmp_path / "run"), *SMALL, *tags, *broken, *where) == 1
    told = capsys.readouterr()
    assert "no group has a result; most often env: Odd could not be built: OSError: no display" in told.err
    assert len(read_parquet(tmp_path / "run" / "records.parquet")) == 4


def test_another_engine_is_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resumed with other tokens: refused, and what lies there stays readable."""
    folder = tmp_path / "run"
    assert agents("rollout", "--run-dir", str(folder), *SMALL) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "log.txt"}
    tiny = ("engine.kind=tiny", "engine.steps=0", "agent_proxy.max_context=1024")
    assert agents("rollout", "--run-dir", str(folder), *SMALL, *tiny) == 2
    assert "its rules is" in capsys.readouterr().err
    assert agents("rollout", "--run-dir", str(folder), *SMALL, *tiny[:2]) == 2
    assert "its codec is" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "log.txt"} == before
