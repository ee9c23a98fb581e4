"""Recorded episodes of runs that were disturbed: they replay exactly, and a resumed run has one journal.

asynchronous, four workers, one killed every few updates     any of its episodes replays to the last bit
the run itself killed, then resumed                          the same journal as a run that nobody disturbed
a damaged journal, a full disk                               training goes on, and says so
"""

from __future__ import annotations

import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.episodes.journal_file import segments
from support.command import TESTS
from support.topology_runs import processes

OPTIONS: dict[str, Any] = {"n_envs": 6, "n_steps": 16, "batch_size": 48, "n_epochs": 1, "seed": 9}


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.views.report.write_report", lambda *args, **options: None)


@pytest.mark.parametrize(
    ("env", "kills", "sample"),
    [
        ("CartPole-v1", 4, 40),
        pytest.param("CartPole-v1", 20, 200, marks=pytest.mark.slow),
        pytest.param("support.bit_envs:Noisy", 20, 200, marks=pytest.mark.slow),
    ],
)
@pytest.mark.alone
def test_episodes_of_an_asynchronous_run_under_kills(env: str, kills: int, sample: int, tmp_path: Path) -> None:
    rng, updates = random.Random(1), 10 * (kills + 1) if sample == 40 else 12 * (kills + 1)
    words = OPTIONS | {"n_envs": 16, "n_steps": 32, "batch_size": 256, "max_lag": 1, **processes(4)}
    with hr.PPO("MlpPolicy", env, **words) as model:

        def strike(record: dict[str, float]) -> None:
            place = model.parts.reader.place
            if record["time/iterations"] % 10 == 0 and place.replaced.restarts < kills:
                os.kill(rng.choice(place.workers.pids), signal.SIGKILL)  # type: ignore[attr-defined]

        model.learn(updates * 512, strike, run_dir=tmp_path / "out")
        assert model.result is not None
        assert model.result.restarts >= kills - 1, "the last one may fall after the last update"
        ended = model.result.episodes
    episodes = hr.recorded_episodes(tmp_path / "out")
    assert len(episodes) == ended >= sample
    assert {one.worker for one in episodes} == {0, 1, 2, 3}
    assert any(one.first_version < one.last_version for one in episodes)
    for one in rng.sample(episodes, sample):
        result = hr.replay(tmp_path / "out", one.name)
        assert result.is_identical, result


RUN = """
import os, signal, sys
import headrace as hr
from headrace.views import report
report.write_report = lambda *args, **options: None

def die(record):
    if record["time/iterations"] == 7:
        os.kill(os.getpid(), signal.SIGKILL)

OPTIONS = dict(n_envs=6, n_steps=16, batch_size=48, n_epochs=1, seed=9, topology="inline")
with hr.PPO("MlpPolicy", "CartPole-v1", **OPTIONS) as model:
    model.learn(960, run_dir=sys.argv[1], checkpoint_every=300, callback=die)
"""


def journal_of(run_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in segments(run_dir / "journal")}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calm") / "out"
    with (
        pytest.MonkeyPatch.context() as patch,
        hr.PPO("MlpPolicy", "CartPole-v1", **OPTIONS, topology="inline") as model,
    ):
        patch.setattr("headrace.views.report.write_report", lambda *args, **options: None)
        model.learn(960, run_dir=folder, checkpoint_every=300)
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After update 7; the newest checkpoint is that of update 7 (672 steps) or earlier."""
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run([sys.executable, "-c", RUN, "out"], cwd=folder, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    return folder / "out"


def resumed(run_dir: Path) -> None:
    with hr.PPO.load(run_dir, topology="inline") as model:
        model.learn(960 - model.num_timesteps, run_dir=run_dir, checkpoint_every=300)


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def test_a_killed_run_that_goes_on_has_the_calm_runs_journal(calm: Path, killed: Path, tmp_path: Path) -> None:
    run_dir = copied(killed, tmp_path / "out")
    before = journal_of(run_dir)
    torn = max(segments(run_dir / "journal"))
    with torn.open("ab") as file:  # as if it had been killed while it wrote
        file.write(before[torn.name][:500])
    resumed(run_dir)
    assert journal_of(run_dir) == journal_of(calm)
    for one in hr.recorded_episodes(run_dir)[::5]:
        assert hr.replay(run_dir, one.name).is_identical


def test_a_damaged_journal_is_set_aside_and_the_run_goes_on(
    calm: Path, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = copied(killed, tmp_path / "out")
    (path,) = segments(run_dir / "journal")
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    resumed(run_dir)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    (said,) = [one for one in warnings if "is damaged" in one]
    assert "superseded/journal, recording begins anew" in said
    assert (run_dir / "superseded" / "journal" / path.name).read_bytes() == bytes(damaged)
    fresh, whole = hr.recorded_episodes(run_dir), {one.name: one for one in hr.recorded_episodes(calm)}
    assert fresh
    assert all(one == whole[one.name] for one in fresh), "those that began before are left out"
    assert hr.replay(run_dir, fresh[-1].name).is_identical


def test_a_full_disk_costs_episodes_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with hr.PPO("MlpPolicy", "CartPole-v1", **OPTIONS, topology="inline") as model:

        def fill_up(record: dict[str, float]) -> None:
            number = record["time/iterations"]
            size = (tmp_path / "out" / "journal" / "000001.bin").stat().st_size
            soft = size + 100 if 4 <= number < 6 else limits[0]
            resource.setrlimit(resource.RLIMIT_FSIZE, (max(soft, 1_000_000) if number < 4 else soft, limits[1]))

        try:
            model.learn(960, fill_up, run_dir=tmp_path / "out")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert any("recorded episodes could not be kept, training goes on" in one for one in said), said
    kept = hr.recorded_episodes(tmp_path / "out")
    assert kept
    for one in kept[::4]:
        assert hr.replay(tmp_path / "out", one.name).is_identical
