"""The HTML trace: what it says of a run, and that no text in it is anything but text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.agents.codec import ByteCodec
from headrace.agents.engines.tiny import tiny_codec
from headrace.agents.pieces import pieces
from headrace.agents.records import Episode, Failure, Group, Turn, token_row
from headrace.cli.main import main
from headrace.views import trace
from headrace.views.trace import payload, render, write_trace

CODEC = ByteCodec()
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;owned\x07\u202e\u2028\x00&amp;'\""


def episode(said: str = "up", asked: str = "Where to?", member: int = 0, **more: Any) -> Episode:
    """One turn: a question that was given and an answer that was sampled."""
    given, sampled = CODEC.encode(asked), CODEC.encode(said)
    count = len(sampled)
    versions = [-1] * len(given) + [3] * (count - 1) + [4]
    row = token_row([*given, *sampled], [0] * len(given) + [1] * count, [0.0] * len(given) + [-0.5] * count, versions)
    turn = Turn(asked, said, ("up",), True, 0.5, 0, len(given), len(given) + count, 0.25, 0.125)
    facts: dict[str, Any] = {"group": 0, "member": member, "tag": "Env", "seed": 9, "status": "completed"}
    return Episode(**facts | {"rows": (row,), "turns": (turn,), "metrics": {"success": 1.0}} | more)


def group(*episodes: Episode, **more: Any) -> Group:
    return Group(0, "Env", 9, episodes, **more)


class Elements(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._is_inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._is_inside = tag == "script"
        if self._is_inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.scripts[-1] += data


def embedded(page: str) -> Any:
    return json.loads(Elements(page).scripts[0])


def test_what_was_given_and_what_was_sampled_are_apart() -> None:
    (one,) = payload([group(episode())], CODEC, 1)["episodes"]
    given, sampled = one["rows"][0]
    assert given == {"given": "Where to?", "count": 9}
    assert sampled == {"pieces": ["u", "p"], "ids": [117, 112], "log_probs": [-0.5, -0.5], "versions": [3, 4]}
    (turn,) = one["turns"]
    assert (turn["reward"], turn["engine"], turn["env"], turn["start"], turn["stop"]) == (0.5, 0.25, 0.125, 9, 11)


def test_the_mask_decides_and_not_the_turn() -> None:
    """A record whose mask and turns disagree is shown as what would be trained on."""
    one = episode()
    row = one.rows[0]
    masked = replace(one, rows=(replace(row, loss_mask=np.zeros_like(row.loss_mask)),))
    (shown,) = payload([group(masked)], CODEC, 1)["episodes"]
    assert shown["rows"] == [[{"given": "Where to?up", "count": 11}]]


def test_failures_and_late_groups_say_so() -> None:
    failed = episode(status="failed", failure=Failure("engine", "no answer"), rows=(), turns=())
    bad = payload([group(failed)], CODEC, 1)
    assert (bad["episodes"][0]["status"], bad["episodes"][0]["failure"]) == ("failed", ["engine", "no answer"])
    late = payload([group(episode(), lag=3, max_lag=1)], CODEC, 1)
    assert (late["episodes"][0]["status"], late["groups"][0]["lag"]) == ("late", 3)


def test_no_text_is_markup() -> None:
    """In every place that a model, an environment or a file can fill."""
    one = episode(EVIL, EVIL, tag=EVIL, system=EVIL, metrics={EVIL: float("nan")}, status="failed",
                  failure=Failure("env", EVIL))  # fmt: skip
    one = replace(one, turns=(replace(one.turns[0], actions=(EVIL,)),))
    page = render([group(one)], CODEC, f"run {EVIL}", 1)
    seen = Elements(page)
    assert [tag for tag, _ in seen.found].count("script") == 2
    assert {tag for tag, _ in seen.found} == {
        "html", "head", "meta", "title", "style", "body", "noscript", "div", "script",
    }  # fmt: skip
    assert not set(page) & set("\x00\x07\x1b\u202e")
    assert seen.scripts[0].isascii(), "U+2028 too is spelt out"
    assert "alert(1)" in seen.scripts[0]
    assert "<" not in seen.scripts[0]
    (shown,) = embedded(page)["episodes"]
    assert "\\x1b]0;owned\\x07\\u202e" in shown["system"]
    assert shown["metrics"] == {shown["system"].replace("\n", "\\n"): "nan"}


def test_nothing_else_runs_and_nothing_is_fetched() -> None:
    """The content policy names the hash of the one script and of the style; there is no address in the page."""
    page = render([group(episode())], CODEC, "run", 1)
    seen = Elements(page)
    policy = next(str(one["content"]) for tag, one in seen.found if one.get("http-equiv") == "Content-Security-Policy")
    script = base64.b64encode(hashlib.sha256(seen.scripts[1].encode()).digest()).decode()
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    css = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{css}'; script-src 'sha256-{script}'"
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page.replace(policy, "").replace("// ", ""))
    assert not [one for _, one in seen.found if {"src", "href", "style"} & one.keys()]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "fetch("):
        assert word not in seen.scripts[1]


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST_EPISODES", 5)
    groups = [replace(group(episode(), episode(member=1)), number=number) for number in range(4)]
    assert write_trace(groups, CODEC, "run", tmp_path / "a.html") == 4, "whole groups"
    data = embedded((tmp_path / "a.html").read_text())
    assert (data["total"], len(data["episodes"])) == (8, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_a_planted_link_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory from elsewhere: the page goes into it, and nowhere else."""
    from headrace.agents.exports.parquet import write_parquet

    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    write_parquet([group(episode())], folder / "records.parquet", CODEC)
    (folder / ".a.html.unfinished").symlink_to(victim)
    assert main(["agents", "show", str(folder), "--html", str(folder / "a.html")]) == 2
    assert "--html" in capsys.readouterr().err
    assert victim.read_text() == "mine"


TEXTS = ["plain words, and some more of them", "Grüße · 你好 · 🦉 end", "", "\ufffd\ufffd", "x" * 300]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("codec", [CODEC, tiny_codec(["plain words, Grüße"], 300)], ids=["bytes", "bpe"])
def test_pieces_are_the_text(codec: Any, text: str) -> None:
    ids = codec.encode(text)
    said = pieces(codec, ids)
    assert len(said) == len(ids)
    assert "".join(said) == codec.decode(ids)


def test_pieces_of_bytes_that_are_no_text() -> None:
    ids = [255, 128, 97, 240, 159, 166, 137, 98, 240, 159]
    said = pieces(CODEC, ids)
    assert len(said) == len(ids)
    assert "".join(said).replace("\ufffd", "") == "a🦉b"


def test_the_cost_of_pieces_grows_with_their_number() -> None:
    """Two decodings of a few tokens each; not all of the text again for each."""

    class Counting(ByteCodec):
        read = 0

        def decode(self, ids: Any) -> str:
            Counting.read += len(ids)
            return super().decode(ids)

    pieces(Counting(), [97] * 2000)
    assert Counting.read < 10 * 2000


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = tmp_path / "run", tmp_path / "pages" / "a.html"
    small = ("es_manager.train.group_size=2", "es_manager.train.env_groups=4",
             "es_manager.train.env_configs.n_groups=[1,1,1,1]")  # fmt: skip
    assert main(["agents", "rollout", "--run-dir", str(run), *small]) == 0
    capsys.readouterr()
    assert main(["agents", "show", str(run), "--html", str(page)]) == 0
    assert "8 episodes. Open it in a browser" in capsys.readouterr().out
    assert len(embedded(page.read_text())["episodes"]) == 8
    assert "<h1" not in page.read_text()
    assert main(["agents", "show", str(run), "2-1", "--html", str(page)]) == 0
    assert [one["id"] for one in embedded(page.read_text())["episodes"]] == ["2-0", "2-1"]
    for name, said in ((str(tmp_path), "expected a file, got a directory"), ("a.png", "ends in .html")):
        assert main(["agents", "show", str(run), "--html", name]) == 2
        assert said in capsys.readouterr().err


def test_a_folder_with_a_parquet_file_alone_has_its_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.agents.exports.parquet import write_parquet

    codec = tiny_codec(["Where to? up up"], 300)
    ids = codec.encode("Where to? up")
    row = token_row(ids, [0] * (len(ids) - 1) + [1], [0.0] * len(ids), [0] * len(ids))
    turn = Turn("Where to?", "up", ("up",), True, 0.0, 0, len(ids) - 1, len(ids))
    write_parquet([group(episode(rows=(row,), turns=(turn,)))], tmp_path / "records.parquet", codec)
    assert main(["agents", "show", str(tmp_path), "--html", str(tmp_path / "a.html")]) == 0
    (one,) = embedded((tmp_path / "a.html").read_text())["episodes"]
    assert one["rows"][0][-1]["pieces"][-1].endswith("p")
