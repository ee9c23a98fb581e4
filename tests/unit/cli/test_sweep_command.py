"""`headrace sweep`: table, knees, JSON and picture of a small sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.planning.sweep import Point, curve_of


def test_a_small_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, plot = tmp_path / "sweep.json", tmp_path / "sweep.png"
    options = ["--n-envs", "1", "8", "--repetitions", "2", "--accelerator", "emulated:20ms+1us"]
    assert main(["sweep", "CartPole-v1", *options, "--json", str(answer), "--plot", str(plot)]) == 0
    said = capsys.readouterr().out
    curves = {curve["name"]: curve for curve in json.loads(answer.read_text())["curves"]}
    assert list(curves) == ["environments", "policy", "policy on emulated:20ms+1us", "both"]
    for curve in curves.values():
        assert [point["batch"] for point in curve["points"]] == [1, 8]
        assert all(len(point["sps"]) == 2 and min(point["sps"]) > 0 for point in curve["points"])
        assert f"{curve['name']}: {curve['explained']}" in said
    for place in (0, 1):  # what both take is what each takes: far from any other number, however busy the machine is
        alone = [max(curves[name]["points"][place]["sps"]) for name in ("environments", "policy")]
        both = curves["both"]["points"][place]["sps"]
        together = 1 / sum(1 / one for one in alone)
        assert all(together / 20 < one < 2 * min(alone) for one in both), (both, alone)
    device = curves["policy on emulated:20ms+1us"]
    assert (device["knee"], device["is_still_rising"]) == (8, True)
    assert max(device["points"][0]["sps"]) <= 1 / 0.020
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rate", [9.3, 3_000.0, 21_500.0, 78_000.0])
def test_a_picture_has_every_curve_and_says_how_high_it_is(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    from headrace.views.sweep_figure import draw_sweep

    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))[1])
    draw_sweep("an environment", [curve_of(f"curve {n}", [Point(2, (rate,))]) for n in range(15)])
    (axes,) = drawn[0].axes
    least, most = axes.get_ylim()
    assert len(axes.get_legend().get_texts()) == 15
    assert [tick for tick in axes.get_yticks() if least <= tick <= most]


def test_a_sweep_with_a_policy_that_remembers(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--n-envs", "2", "--repetitions", "1", "--policy", "MlpLstmPolicy", "--accelerator", "emulated:1ms+0us"]
    assert main(["sweep", "CartPole-v1", *options]) == 0
    said = capsys.readouterr().out
    assert said.count(": one batch size (B = 2) shows no knee: give several") == 4
    assert "+-" not in said
    assert "*" not in said
    assert "policy on emulated:1ms+0us: " in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--n-envs", "0"], "--n-envs: expected numbers of at least 1"),
        (["--plot", "/dev/null/x.txt"], "--plot /dev/null/x.txt: expected a name that ends in .png, .svg or .pdf"),
        (["--repetitions", "0"], "--repetitions: expected at least 1"),
        (["--accelerator", "gpu"], "--accelerator: expected cpu, cuda"),
        (["--accelerator", "cuda:7"], "--accelerator=cuda:7: torch finds no CUDA device here; an emulated one is"),
        (["--workers", "2", "3"], "--workers: expected at most 1, as many as environments (--n-envs)"),
    ],
)
def test_bad_options(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "CartPole-v1", "--n-envs", "1", "--repetitions", "1", *options]) == 2
    assert said in capsys.readouterr().err
