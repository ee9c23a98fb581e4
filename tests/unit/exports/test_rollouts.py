"""Exported rollouts are what the environment gave, and a file is there as a whole or not at all.

run directory or collector --> Parquet, Minari --read with pyarrow, minari--> compared with an environment that is
                                                                              stepped by hand with seed and actions
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import minari
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.episodes.journal_file import segments
from headrace.errors import HeadraceError, JournalError, ReplayError, UsageError
from support.bit_envs import Noisy, Probe
from support.command import run
from support.worker_envs import pool

Array = npt.NDArray[Any]
SMALL: dict[str, Any] = {"n_envs": 3, "n_steps": 32, "seed": 4, "topology": "inline"}
SPACES = [("vector", "box"), ("image", "discrete"), ("discrete", "discrete_from_3"), ("float64", "multi_discrete_2d")]
TARGETS = ["out.parquet", "minari:tests/out-v0"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("headrace.views.report.write_report", lambda *args, **options: None)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(env: Any, folder: Path, **options: Any) -> Path:
    with hr.PPO("MlpPolicy", env, batch_size=48, n_epochs=1, **SMALL, **options) as model:
        model.learn(5 * 96, run_dir=folder / "run")
    return folder / "run"


def leftovers(folder: Path) -> list[str]:
    """What is neither the run nor a finished export."""
    return [path.name for path in folder.rglob("*") if path.name.startswith(".") and path.name != ".lock"]


# --------------------------------------------------------------------------------------------------------- reading back


def array_of(table: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    column = table[name].combine_chunks()
    if shape and np.dtype(dtype) == np.uint8:
        return np.frombuffer(b"".join(column.to_pylist()), np.uint8).reshape(-1, *shape)
    flat = column.flatten() if shape else column
    return np.asarray(flat.to_numpy(zero_copy_only=False), dtype).reshape(-1, *shape)


def from_parquet(path: str, env: Any) -> Iterator[dict[str, Any]]:
    """Episodes, in the order of the file's rows."""
    table = pq.read_table(path)
    seen, done = env.observation_space, env.action_space
    keys = list(zip(table["env_index"].to_pylist(), table["episode"].to_pylist(), strict=True))
    for key in dict.fromkeys(keys):
        rows = table.filter([one == key for one in keys])
        last = rows.slice(len(rows) - 1)
        final = last.filter(last["final_observation"].is_valid())
        assert rows["final_observation"].null_count >= len(rows) - 1, "in an episode's last row or nowhere"
        yield {
            "id": key,
            "seed": rows["seed"][0].as_py(),
            "step": rows["step"].to_pylist(),
            "observations": array_of(rows, "observation", seen.shape, seen.dtype),
            "final": array_of(final, "final_observation", seen.shape, seen.dtype),
            "actions": array_of(rows, "action", done.shape, done.dtype),
            "rewards": rows["reward"].to_numpy(),
            "terminations": rows["terminated"].to_numpy(),
            "truncations": rows["truncated"].to_numpy(),
            "version": rows["version"].to_numpy(),
            "log_prob": rows["log_prob"].to_numpy(),
            "value": rows["value"].to_numpy(),
        }


def from_minari(dataset_id: str) -> Iterator[dict[str, Any]]:
    dataset = minari.load_dataset(dataset_id)
    for episode in dataset:
        (about,) = dataset.storage.get_episode_metadata([episode.id])
        count = len(episode.rewards)
        assert {len(array) for array in episode.infos.values()} == {count + 1}, "an entry for each observation"
        yield {
            "id": (int(about["headrace_env_index"]), int(about["headrace_episode"])),
            "seed": about["seed"],
            "step": list(range(count)),
            "observations": episode.observations[:-1],
            "final": episode.observations[-1:],
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminations": episode.terminations,
            "truncations": episode.truncations,
            **{name: array[:-1] for name, array in episode.infos.items()},
        }


def read(target: str, env: Any) -> list[dict[str, Any]]:
    is_minari = target.startswith("minari:")
    return list(from_minari(target.removeprefix("minari:")) if is_minari else from_parquet(target, env))


def require_true(episode: dict[str, Any], env: Any, has_final: bool = True) -> None:
    """The oracle: reset with the seed, send the actions, look."""
    obs, _ = env.reset(seed=episode["seed"])
    assert episode["step"] == list(range(len(episode["rewards"])))
    for step, action in enumerate(episode["actions"]):
        np.testing.assert_array_equal(episode["observations"][step], obs)
        assert episode["observations"].dtype == np.asarray(obs).dtype
        obs, reward, terminated, truncated, _ = env.step(action)
        assert episode["rewards"][step] == np.float32(reward)
        assert (episode["terminations"][step], episode["truncations"][step]) == (terminated, truncated)
    if has_final:
        np.testing.assert_array_equal(episode["final"][0], obs)
        assert terminated or truncated


# --------------------------------------------------------------------------------------------------------------- a run


@pytest.mark.parametrize(("observation", "action"), SPACES)
def test_a_run_is_exported_as_it_was(observation: str, action: str, folder: Path) -> None:
    """Both kinds of file, whatever the spaces: every recorded episode, to the last bit, with its end and its id."""
    kwargs = {"observation": observation, "action": action, "limit": 20}
    home = trained("support.bit_envs:Probe", folder, env_kwargs=kwargs)
    recorded = {(one.env_index, one.episode): one for one in hr.recorded_episodes(home)}
    assert {one.terminated for one in recorded.values()} == {True, False}, "both ends are tried"
    env = Probe(**kwargs)  # type: ignore[arg-type]
    for target in TARGETS:
        done = hr.export_rollouts(home, target, trust=True)
        episodes = read(target, env)
        assert [one["id"] for one in episodes] == list(recorded), "in the order they ended"
        assert done == type(done)(len(recorded), sum(one.length for one in recorded.values()))
        for one in episodes:
            require_true(one, env)
            was = recorded[one["id"]]
            np.testing.assert_array_equal(one["version"], was.versions)
            assert (one["version"][0], one["version"][-1]) == (was.first_version, was.last_version)
    metadata = json.loads(pq.read_schema("out.parquet").metadata[b"headrace"])
    assert metadata["observation_space"]["shape" if observation != "discrete" else "n"]
    assert (metadata["seed"], metadata["format"]) == (4, 1)
    assert leftovers(folder) == []


def test_a_clipped_action_is_written_as_it_was_sent(folder: Path) -> None:
    home = trained("support.bit_envs:Probe", folder, env_kwargs={"action": "box"})
    hr.export_rollouts(home, "out.parquet", trust=True)
    table = pq.read_table("out.parquet")
    sent, chosen = (array_of(table, name, (2,), np.float32) for name in ("action", "policy_action"))
    assert np.abs(chosen).max() > 1
    np.testing.assert_array_equal(sent, np.clip(chosen, -1, 1))


@pytest.mark.parametrize("target", TARGETS)
def test_what_differs_is_not_exported(target: str, folder: Path) -> None:
    """An altered journal, another environment, Ctrl-C: an error, and nothing is left."""
    home = trained(Noisy, folder)
    total = len(hr.recorded_episodes(home))

    def interrupt(episodes: int, of: int, steps: int) -> None:
        assert of == total
        if episodes == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hr.export_rollouts(home, target, Noisy, progress=interrupt)
    with pytest.raises(ReplayError, match=r"episode \d:0, seed \d+: .*is not the recorded one.*nothing was written"):
        hr.export_rollouts(home, target, _Louder)
    (journal,) = segments(home / "journal")
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(bytes(data))
    with pytest.raises(JournalError):
        hr.export_rollouts(home, target, Noisy)
    assert not (folder / "out.parquet").exists()
    assert not list((folder / "minari").rglob("*out-v0*"))
    assert leftovers(folder) == []


def test_a_full_disk_is_an_error_and_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5's library would crash the process, so Minari's is found out before it is asked to write."""
    home = trained(Noisy, folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(HeadraceError, match=r"out.parquet: can't be written: .*make room"):
            hr.export_rollouts(home, "out.parquet", Noisy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=100_000))
    with pytest.raises(HeadraceError, match=r"minari:out-v0: can't be written: .*needs up to .* 100,000 are free"):
        hr.export_rollouts(home, "minari:out-v0", Noisy)
    assert not (folder / "out.parquet").exists()
    assert leftovers(folder) == []


class _Louder(Noisy):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + 1e-3, *rest


def test_names_are_refused_before_anything_runs(folder: Path) -> None:
    home = trained(Noisy, folder)
    (folder / "there.parquet").touch()
    hr.export_rollouts(home, "minari:there-v0", Noisy)
    for target, says in (
        ("out.csv", "expected a name that ends in .parquet, or minari:ID"),
        ("there.parquet", "it exists already"),
        ("nowhere/out.parquet", "expected a file in an existing directory"),
        ("minari:no id", "expected an id such as cartpole/mine-v0"),
        ("minari:there-v0", "there is one already"),
    ):
        with pytest.raises(UsageError, match=says):
            hr.export_rollouts(home, target, Noisy)
    assert leftovers(folder) == []


def test_a_model_is_no_run_directory(folder: Path) -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model, pytest.raises(UsageError) as error:
        hr.export_rollouts(model, "out.parquet")  # type: ignore[arg-type]
    assert "expected a run directory, got PPO('MlpPolicy', 'CartPole-v1', n_envs=3)" in str(error.value)
    assert "run_dir" in str(error.value)
    assert not Path("out.parquet").exists()


def test_rows_are_written_as_they_come(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds a row group, not the file."""
    from headrace.exports import minari as dataset
    from headrace.exports import parquet

    home = trained(Noisy, folder)
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 64)
    monkeypatch.setattr(dataset, "_GROUP_EPISODES", 3)
    done = hr.export_rollouts(home, "out.parquet", Noisy)
    groups = pq.ParquetFile("out.parquet").metadata
    longest = max(one.length for one in hr.recorded_episodes(home))
    sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    assert sum(sizes) == done.steps
    assert max(sizes) < 64 + longest
    assert min(sizes[:-1]) >= 64
    hr.export_rollouts(home, "minari:out-v0", Noisy)
    assert [one["id"] for one in read("minari:out-v0", Noisy())] == [one["id"] for one in read("out.parquet", Noisy())]


def test_the_command(folder: Path) -> None:
    made = run("train", "CartPole-v1", "--n-envs", "4", "--n-steps", "64", "--batch-size", "64", "--total-timesteps",
               "512", "--run-dir", "run", "--quiet", cwd=folder)  # fmt: skip
    assert made.code == 0, made
    done = run("rollouts", "run", "--to", "out.parquet", cwd=folder)
    table = pq.read_table(folder / "out.parquet")
    assert f"{len(table):,} steps, identical to the recorded ones, in out.parquet" in done.out
    assert done.code == 0
    again = run("rollouts", "run", "--to", "out.parquet", cwd=folder)
    assert again.code == 2
    assert "exists already" in again.only_error


# --------------------------------------------------------------------------------------------------------- a collector


@pytest.mark.parametrize(("observation", "action"), SPACES[:2])
def test_a_collectors_batches_are_exported_as_they_were(observation: str, action: str, folder: Path) -> None:
    """Parquet: every step. Minari: whole episodes, with the observation in which each was truncated or terminated."""
    kwargs = {"observation": observation, "action": action, "limit": 20}
    kept = []
    with (
        hr.Collector(Probe, env_kwargs=kwargs, **SMALL) as rollouts,
        hr.RolloutWriter(rollouts, "out.parquet") as steps,
        hr.RolloutWriter(rollouts, "minari:out-v0") as episodes,
    ):
        for batch in islice(rollouts, 4):
            steps.write(batch)
            episodes.write(batch)
            kept.append(batch.copy())
        ended = sum(int((one.terminated | one.truncated).sum()) for one in kept)
    env = Probe(**kwargs)  # type: ignore[arg-type]
    rows = {one["id"]: one for one in read("out.parquet", env)}
    whole = read("minari:out-v0", env)
    assert steps.episodes == episodes.episodes == ended == len(whole)
    assert steps.steps == 4 * 96 == sum(len(one["rewards"]) for one in rows.values())
    assert {bool(one["terminations"][-1]) for one in whole} == {True, False}
    for one in rows.values():
        is_cut = one["truncations"][-1] and not one["terminations"][-1]
        assert len(one["final"]) == is_cut, "batches hold it where a limit cut an episode"
        require_true(one, env, has_final=is_cut)
    for one in whole:
        require_true(one, env)
        for name in ("log_prob", "value", "version"):
            np.testing.assert_array_equal(one[name], rows[one["id"]][name])
    first = np.concatenate([one.log_prob[:, 0] for one in kept])
    mine = np.concatenate([one["log_prob"] for key, one in rows.items() if key[0] == 0])
    np.testing.assert_array_equal(mine, first)


def test_a_writer_that_came_late_or_fails(folder: Path) -> None:
    with hr.Collector(Probe, env_kwargs={"limit": 20}, **SMALL) as rollouts:
        next(rollouts)
        with hr.RolloutWriter(rollouts, "minari:late-v0") as writer:
            for batch in islice(rollouts, 2):
                writer.write(batch)
        late = read("minari:late-v0", Probe())
        assert len(late) == writer.episodes > 0
        for one in late:
            require_true(one, Probe(limit=20))  # none of them lacks its beginning
        with pytest.raises(UsageError, match="no whole episode"), hr.RolloutWriter(rollouts, "minari:none-v0"):
            pass
        for target in TARGETS:
            with pytest.raises(ZeroDivisionError), hr.RolloutWriter(rollouts, target) as writer:  # noqa: PT012
                writer.write(next(rollouts))
                raise ZeroDivisionError
    assert not (folder / "out.parquet").exists()
    assert not list((folder / "minari").rglob("none-v0"))
    assert leftovers(folder) == []


def test_a_vector_environment_gives_steps_but_no_episodes(folder: Path) -> None:
    options = {**SMALL, "n_envs": 2}
    with hr.Collector(pool, "MlpPolicy", **options) as rollouts:
        with hr.RolloutWriter(rollouts, "out.parquet") as writer:
            for batch in islice(rollouts, 3):
                writer.write(batch)
                kept = batch.steps
        with pytest.raises(HeadraceError, match="class B"):
            hr.RolloutWriter(rollouts, "minari:out-v0")
    table = pq.read_table("out.parquet")
    assert len(table) == writer.steps > kept
    assert leftovers(folder) == []
