"""Stop at any update, save, load, go on: the run that was never stopped comes out. Here, and in a fresh process."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.session import SessionConfig
from support.bit_runs import (
    UPDATES,
    WORKLOADS,
    Part,
    Trace,
    Workload,
    advance,
    calm,
    go_on,
    go_on_in_fresh_process,
    play_to,
    trace_of,
)

every_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)


def random_stop(name: str) -> int:
    return random.Random(f"stop {name}").randrange(1, UPDATES)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Part]]:
    """Every workload, saved at its random update; half of them run as several shards."""
    folder = tmp_path_factory.mktemp("stopped")
    return {
        name: (folder / name, play_to(folder / name, workload, random_stop(name), shards=1 + 3 * (i % 2)))
        for i, (name, workload) in enumerate(WORKLOADS.items())
    }


@pytest.fixture(scope="module")
def resumed_elsewhere(stopped: dict[str, tuple[Path, Part]]) -> dict[Path, Trace]:
    return go_on_in_fresh_process({path: WORKLOADS[name] for name, (path, _) in stopped.items()})


@every_workload
def test_resume_in_the_same_process(workload: Workload, stopped: dict[str, tuple[Path, Part]]) -> None:
    path, before = stopped[workload.name]
    assert go_on(path, workload).after(before) == calm(workload.name)


@every_workload
def test_resume_in_a_fresh_process(
    workload: Workload, stopped: dict[str, tuple[Path, Part]], resumed_elsewhere: dict[Path, Trace]
) -> None:
    path, before = stopped[workload.name]
    assert resumed_elsewhere[path].after(before) == calm(workload.name)


@pytest.mark.parametrize("shards", [1, 5])
@pytest.mark.parametrize("name", ["noisy", "long", "own_policy"])
def test_stop_and_go_on_again_and_again(name: str, shards: int, tmp_path: Path) -> None:
    """A journal that was restored must be as good as one that was written."""
    workload = WORKLOADS[name]
    stops = [0, 1, 2, 9, UPDATES - 1]
    before = play_to(tmp_path / "0", workload, 0, shards=shards)
    for stop, next_stop in pairwise(stops):
        with workload.load(tmp_path / str(stop)) as model:
            part = advance(model, workload, next_stop - stop)
            before = Part(before.episodes + part.episodes, before.losses + part.losses)
            model.save(tmp_path / str(next_stop))
    assert go_on(tmp_path / str(stops[-1]), workload).after(before) == calm(name)


@pytest.mark.full
@pytest.mark.parametrize("stop", range(1, UPDATES))
@every_workload
def test_resume_from_every_update(workload: Workload, stop: int, tmp_path: Path) -> None:
    before = play_to(tmp_path / "saved", workload, stop)
    assert go_on(tmp_path / "saved", workload).after(before) == calm(workload.name)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_snapshot_in_memory_stays_what_it_was(name: str) -> None:
    """Going on after taking it must not change it."""
    workload = WORKLOADS[name]
    with workload.start() as model:
        before = advance(model, workload, 3)
        snapshot = model.run.snapshot()
        advance(model, workload, 2)
        again = type(model).from_snapshot(snapshot)
    with again:
        assert trace_of(again, advance(again, workload, UPDATES - 3)).after(before) == calm(name)


@pytest.mark.parametrize("name", ["mlp", "long"])
def test_a_run_that_goes_back(name: str) -> None:
    """The same run, restored to an earlier point of itself."""
    workload = WORKLOADS[name]
    with workload.start(shards=4) as model:
        before = advance(model, workload, 3)
        snapshot = model.run.snapshot()
        advance(model, workload, 4)
        model.run.restore(snapshot)
        assert trace_of(model, advance(model, workload, UPDATES - 3)).after(before) == calm(name)


def test_a_session_that_was_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way a user goes: run directory, a stop in the middle, load from the directory, train to the end."""
    monkeypatch.setattr("headrace.views.report.write_report", lambda run_dir: None)  # takes longer than the training
    workload, config = WORKLOADS["mlp"], SessionConfig(WORKLOADS["mlp"].total_timesteps, checkpoint_every=4000)
    with workload.start() as model:
        model.train(config, tmp_path, show=False, callback=lambda record: record["time/iterations"] < 7)
        assert model.result is not None
        assert model.result.updates == 7
    with workload.load(tmp_path) as model:
        result = model.train(config, tmp_path, show=False)
    want = calm("mlp")
    assert (result.weights_sha256, result.optimizer_sha256) == (want.weights_sha256, want.optimizer_sha256)
    assert result.ledger == want.ledger
    assert json.loads((tmp_path / "result.json").read_text()) == asdict(result)
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [{key: line[key] for key in line if key != "steps"} for line in lines] == want.episodes
