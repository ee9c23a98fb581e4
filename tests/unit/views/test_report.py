"""The report: written for any run, however short or broken, in one file that fetches nothing and trusts no string."""

from __future__ import annotations

import base64
import json
import re
import struct
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.views.report import write_report

NASTY = "<script>alert('1')</script>&amp;\"><img src=x onerror=alert(2)> $\\frac{1}$"


def a_record(update: int) -> dict[str, Any]:
    return {
        "time/total_timesteps": 2048 * update,
        "time/time_elapsed": 0.05 * update,
        "time/fps": 40_960.0,
        "time/iterations": update,
        "rollout/ep_rew_mean": 20.0 + update,
        "train/approx_kl": 0.008,
        "train/entropy_loss": -0.6,
        "headrace/sps": 41_000.0,
        "headrace/time/env": 0.027,
        "headrace/time/sgd": 0.0165,
        "headrace/time/inference": 0.0065,
    }


def a_run(directory: Path, records: list[dict[str, Any]], **files: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


class Reader(HTMLParser):
    """What a browser would make of the page: elements with attributes, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data

    def rows(self) -> dict[str, str]:
        texts = [text for text in self.texts if text.strip()]
        return dict(pairwise(texts))


def read_report(run_dir: Path) -> Reader:
    """The page, after checks that hold for every report."""
    png = (run_dir / "report.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1200
    assert height > 600
    html = (run_dir / "report.html").read_text(encoding="utf-8")
    page = Reader(html)
    for tag, attributes in page.elements:
        assert tag not in {"script", "link", "iframe"}
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "srcset", "href"):
            assert (attributes.get(name) or "data:image/png;base64,").startswith("data:image/png;base64,")
    (image,) = [attributes for tag, attributes in page.elements if tag == "img"]
    assert base64.b64decode((image["src"] or "").partition(",")[2]) == png
    assert not list(run_dir.glob(".*")), "nothing unfinished is left"
    return page


def test_a_whole_run(tmp_path: Path) -> None:
    run_dir = a_run(
        tmp_path / "CartPole-v1__ppo__1",
        [a_record(update) for update in range(1, 81)],
        config={"seed": 1, "ppo": {"n_steps": 32, "target_kl": None, "net": {"arch": [64, 64]}}},
        versions={"torch": "2.13.0"},
        result={
            "mean_return": 97.5,
            "steps": 163_840,
            "sps": 40_000.4,
            "wall_time_s": 65.0,
            "weights_sha256": "ab" * 32,
            "exit_reason": "done",
            "ledger": {"produced": 10, "consumed": 7, "rejected": 1, "discarded": {"worker died": 2, "resume": 0}},
            "reward_threshold": 475,
            "episodes": 12,
            "eval_mean_reward": 98.5,
            "exit_code": 0,
            "where": {"topology": "processes", "workers": 2},
            "not_closed": "",
        },
    )
    write_report(run_dir)
    page = read_report(run_dir)
    rows = page.rows()
    assert rows["Episode return"] == "97.5", "the result goes before the last record"
    assert rows["Environment steps"] == "163,840"
    assert rows["Steps per second"] == "40,000"
    assert rows["Wall time"] == "1m 05s"
    assert rows["SHA-256 of the weights"] == "ab" * 32
    assert rows["Ended"] == "done"
    assert rows["Ledger, in steps"] == "10 produced = 7 consumed + 1 rejected + 2 discarded; worker died: 2"
    assert rows["reward_threshold"] == "475", "what the report has no words for is shown as it is"
    assert rows["Episodes finished"] == "12"
    assert rows["Last evaluation"] == "98.5"
    assert rows["Exit code"] == "0"
    assert rows["Where it ran"] == "topology: processes, workers: 2"
    assert not rows.keys() & {"episodes", "eval_mean_reward", "exit_code", "not_closed", "Could not be closed"}
    assert rows["ppo.n_steps"] == "32"
    assert rows["ppo.target_kl"] == "null"
    assert rows["ppo.net.arch"] == "[64, 64]"
    assert rows["torch"] == "2.13.0"
    assert (
        "54 % of the time was spent stepping the environments; 33 % taking gradient steps; 13 % choosing actions."
        in page.texts
    )
    folded = [attributes for tag, attributes in page.elements if tag == "details"]
    assert ["open" in attributes for attributes in folded] == [False, True]


def test_one_figure_serves_light_and_dark_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing costs a second of CPU: it happens once."""
    from headrace.views import figure

    drawn: list[str] = []
    original = figure.draw_figure
    monkeypatch.setattr(figure, "draw_figure", lambda records, title: drawn.append(title) or original(records, title))
    write_report(a_run(tmp_path / "run", [a_record(1)]))
    page = read_report(tmp_path / "run")
    assert drawn == ["run"]
    assert not [tag for tag, _ in page.elements if tag == "source"]
    style = (tmp_path / "run" / "report.html").read_text().partition("</style>")[0]
    assert re.search(r"prefers-color-scheme: dark\) \{[^@]*\.figure img \{ filter: invert", style)


def test_a_page_without_a_figure(tmp_path: Path) -> None:
    """Of a run that was broken off within seconds; the picture of an earlier session would be a lie."""
    run_dir = a_run(tmp_path / "run", [a_record(1)], result={"exit_reason": "SIGINT \ud800"})
    write_report(run_dir)
    write_report(run_dir, has_figure=False)
    assert not (run_dir / "report.png").exists()
    html = (run_dir / "report.html").read_text(encoding="utf-8")
    assert f"headrace report {run_dir}" in html
    assert "SIGINT \\ud800" in html
    assert "<img" not in html


def test_a_figure_that_can_not_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.views import figure

    def fails(records: object, title: str) -> bytes:
        raise OverflowError("of matplotlib")

    monkeypatch.setattr(figure, "draw_figure", fails)
    write_report(a_run(tmp_path / "run", [a_record(1)]))
    assert "could not be drawn (OverflowError)" in (tmp_path / "run" / "report.html").read_text()


def test_one_record_and_no_other_file(tmp_path: Path) -> None:
    record = a_record(1)
    del record["rollout/ep_rew_mean"]
    write_report(a_run(tmp_path / "run", [record]))
    rows = read_report(tmp_path / "run").rows()
    assert rows["Episode return"] == "-"
    assert rows["Environment steps"] == "2,048"
    assert "still going on" in rows["Ended"]


def test_nulls_and_records_that_hold_nothing_but_a_step(tmp_path: Path) -> None:
    nulls = dict.fromkeys(a_record(2)) | {"time/total_timesteps": 4096}
    write_report(a_run(tmp_path / "run", [a_record(1), nulls, {"time/total_timesteps": 6144}]))
    rows = read_report(tmp_path / "run").rows()
    assert rows["Episode return"] == "21.0", "the last number there was"
    assert rows["Environment steps"] == "6,144"


def test_a_run_that_died_before_its_first_update(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.json").write_text('{"seed": ')
    write_report(tmp_path)
    page = read_report(tmp_path)
    assert "The run recorded no time split." in page.texts
    assert "config.json" in caplog.text


def test_every_string_is_escaped(tmp_path: Path) -> None:
    name = NASTY.replace("/", "")  # a directory's name can hold all but a slash
    run_dir = a_run(
        tmp_path / name,
        [a_record(1)],
        config={NASTY: {NASTY: NASTY}},
        versions={NASTY: NASTY},
        result={"exit_reason": NASTY, "weights_sha256": NASTY, NASTY: NASTY, "ledger": {"discarded": {NASTY: 1}}},
    )
    write_report(run_dir)
    page = read_report(run_dir)
    rows = page.rows()
    assert rows["headrace · training report"] == name
    assert rows["Ended"] == NASTY
    assert rows["SHA-256 of the weights"] == NASTY
    assert rows["Ledger, in steps"].endswith(f"1 discarded; {NASTY}: 1")
    assert rows[f"{NASTY}.{NASTY}"] == NASTY
    assert page.texts.count(NASTY) == 7, "exit reason, hash, a result's key and value, a config value, a version twice"


def test_a_name_the_font_has_no_glyphs_for(tmp_path: Path) -> None:
    write_report(a_run(tmp_path / "环境__ppo", [a_record(1)]))
    assert read_report(tmp_path / "环境__ppo").rows()["headrace · training report"] == "环境__ppo"


class TestVerdict:
    def test_the_doctor_speaks_in_the_report_and_strips_show_who_waits(self, tmp_path: Path) -> None:
        workers = {"headrace/worker_0/env_s": 0.1, "headrace/worker_1/env_s": 0.9, "headrace/time/wait": 0.9}
        records = [
            {"time/iterations": number, "time/total_timesteps": 512 * number, "headrace/time/sgd": 0.1} | workers
            for number in range(1, 20)
        ]
        where = {"topology": "processes", "workers": 2, "shards": 2, "cores": 2}
        a_run(tmp_path / "run", records, result={"where": where}, config={"topology": {"n_envs": 8}})
        write_report(tmp_path / "run", has_figure=False)
        page = Reader((tmp_path / "run" / "report.html").read_text())
        text = " ".join(page.texts)
        assert "Imbalance between workers (80% of an update's time)" in text
        assert "The learner waits 90% of its time for rollouts; workers wait 10% of their time" in text
        assert "for the learner, and up to 80% for one another." in text, "worker 0 waits for worker 1"
        widths = [attrs["style"] for tag, attrs in page.elements if tag == "span" and "style" in attrs]
        assert widths == [
            "width:10.00%",
            "width:90.00%",
            "width:10.00%",
            "width:90.00%",
            "width:90.00%",
            "width:10.00%",
        ]

    def test_a_short_run_has_no_verdict(self, tmp_path: Path) -> None:
        write_report(a_run(tmp_path / "run", [a_record(1), a_record(2)]), has_figure=False)
        assert "What holds it up" not in (tmp_path / "run" / "report.html").read_text()
