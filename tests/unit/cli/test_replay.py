"""`headrace replay`: what it prints, its exit codes, and that every "identical" is one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import headrace as hr
from headrace.episodes import journal_file
from headrace.episodes.journal_file import segments
from headrace.errors import ConsentError, EnvError, JournalError, ReplayError, UsageError
from support.bit_envs import Noisy
from support.command import assert_says, files_in, run

OPTIONS = ("--n-envs", "3", "--n-steps", "16", "--batch-size", "16", "--n-epochs", "1", "--seed", "4", "--quiet")
STEPS = ("--total-timesteps", "480")


class Painted(Noisy):
    """Noisy with a picture: a bar as long as its first number."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        picture = np.zeros((40, 60, 3), np.uint8)
        picture[10:30, : int(np.clip(30 + 10 * self._x[0], 1, 60))] = (0, 200, 0)
        return picture


class Drifting(Noisy):
    """Class C: rewards depend on how many episodes its instance has lived through."""

    def __init__(self) -> None:
        super().__init__()
        self._lived = 0

    def reset(self, **options: Any) -> Any:
        self._lived += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + self._lived, terminated, truncated, info


def make_pool(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.make_vec("CartPole-v1", num_envs, "sync")


def train(env: Any, run_dir: Path, steps: int = 480, **options: Any) -> Path:
    words = {"n_envs": 3, "n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 4, "topology": "inline", **options}
    with hr.PPO("MlpPolicy", env, **words) as model:
        model.learn(steps, run_dir=run_dir)
    return run_dir


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second each, and nothing of them is looked at here."""
    monkeypatch.setattr("headrace.views.report.write_report", lambda *args, **options: None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert run("train", "CartPole-v1", *OPTIONS, *STEPS, "--run-dir", "out", cwd=folder).code == 0
    return folder


def listed(folder: Path, *options: str) -> list[dict[str, Any]]:
    outcome = run("replay", "out", "--list", "--json", *options, cwd=folder)
    assert (outcome.code, outcome.err) == (0, "")
    found: list[dict[str, Any]] = json.loads(outcome.out)
    return found


def test_every_episode_of_a_run_is_identical(trained: Path) -> None:
    episodes = listed(trained)
    lines = (trained / "out" / "episodes.jsonl").read_text().splitlines()
    assert len(episodes) == len(lines) > 10
    before = files_in(trained)
    for one in episodes:
        result = hr.replay(trained / "out", (one["env_index"], one["episode"]))
        assert result.is_identical, result
        assert result.replayed.length == one["length"]
        assert result.replayed.total_reward == one["total_reward"]
        assert f"{result.replayed.checksum:016x}" == one["checksum"]
    assert files_in(trained) == before


@pytest.mark.parametrize("word", ["1:2", "1,2", " 1 : 2 "])
def test_what_it_prints(word: str, trained: Path) -> None:
    outcome = run("replay", "out", word, cwd=trained)
    assert (outcome.code, outcome.err) == (0, "")
    first, header, *rows, last = outcome.out.splitlines()
    assert first.startswith("episode 1:2, seed ")
    assert header.split() == ["recorded", "replayed"]
    assert [row.split()[0] for row in rows] == ["length", "return", "ended", "checksum"]
    assert all(row.split()[1] == row.split()[2] for row in rows)
    assert last == "identical"
    data = json.loads(run("replay", "out", word, "--json", cwd=trained).out)
    assert data["is_identical"] is True
    assert data["recorded"]["checksum"] == data["replayed"]["checksum"]


def test_the_list_and_its_orders(trained: Path) -> None:
    outcome = run("replay", "out", "--list", cwd=trained)
    header, *rows, last = outcome.out.splitlines()
    assert header.split() == ["episode", "return", "length", "ended", "worker", "versions", "update"]
    assert len(rows) == len(listed(trained))
    assert last == f"{len(rows)} of {len(rows)} recorded episodes"
    by_return = [one["total_reward"] for one in listed(trained, "--sort", "return")]
    assert by_return == sorted(by_return, reverse=True)
    by_length = [one["length"] for one in listed(trained, "--sort", "length")]
    assert by_length == sorted(by_length, reverse=True)
    by_version = [one["first_version"] for one in listed(trained, "--sort", "version")]
    assert by_version == sorted(by_version)
    assert by_version[-1] > 0
    assert len(listed(trained, "--limit", "2")) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("out", "1"), 2, ["expected an episode as ENVIRONMENT:NUMBER, such as 3:17, got '1'"]),
        (("out", "-1:2"), 2, []),
        (("out",), 2, ["expected an episode such as 3:17", "--list"]),
        ((), 2, ["expected a run directory"]),
        (("nowhere", "1:1"), 2, ["nowhere: expected a run directory with config.json, found none"]),
        (("out/checkpoints", "1:1"), 2, ["expected a run directory"]),
        (("out", "1:999"), 1, ["episode 1:999 is not recorded as a whole", "of environment 1 it has 0 to", "--list"]),
        (("out", "77:0"), 1, ["it has none of environment 77"]),
        (("out", "--list", "--limit", "-1"), 2, ["--limit"]),
        (("out", "1:1", "--render", "film.avi"), 2, [".gif, .png (animated) or .webp", "film.avi"]),
        (("out", "1:1", "--render", "no/film.gif"), 2, ["existing directory"]),
        (("--diff", "out", "nowhere"), 1, ["nowhere: there is no such directory"]),
        (("nowhere", "--list"), 1, ["nowhere: there is no such directory"]),
        (("out", "1:1", "--env-kwargs", '{"sutton_barto_reward": true}'), 2, ["--env-kwargs: expected --env as well"]),
        (("out", "1:1", "--action-repeat", "2"), 2, ["--action-repeat: expected --env as well"]),
        (("--diff", "out"), 2, ["--diff: expected two run directories, got 1"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_gets_one_clear_error(words: tuple[str, ...], code: int, said: list[str], trained: Path) -> None:
    outcome = run("replay", *words, cwd=trained)
    assert outcome.code == code, outcome
    if said:
        assert_says(outcome.error, said)


def test_an_episode_that_runs_on_can_not_be_replayed_yet(trained: Path) -> None:
    last = max(one["episode"] for one in listed(trained) if one["env_index"] == 0)
    outcome = run("replay", "out", f"0:{last + 1}", cwd=trained)
    assert outcome.code == 1
    assert_says(outcome.only_error, [f"episode 0:{last + 1} had not ended"])


# ------------------------------------------------------------------------------------------------- where it must say no


def copied(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "out", tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("place", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("words", [("out", "0:0"), ("out", "--list"), ("--diff", "out", "out")], ids=" ".join)
def test_one_altered_byte_of_the_journal_fails(
    words: tuple[str, ...], place: float, trained: Path, tmp_path: Path
) -> None:
    (path,) = segments(copied(trained, tmp_path) / "journal")
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)
    outcome = run("replay", *words, cwd=tmp_path)
    assert outcome.code == 1
    assert_says(outcome.only_error, ["000001.bin is damaged", "does not match"])


def test_another_seed_is_another_run(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"seed": 5}))
    with pytest.raises(JournalError, match=r"config.json has seed 5, its journal 4"):
        hr.replay(folder, "0:0")


@pytest.mark.parametrize(
    "words", [("--env-kwargs", '{"sutton_barto_reward": true}'), ("--action-repeat", "2")], ids=str
)
def test_another_environment_differs_and_says_where(words: tuple[str, str], trained: Path) -> None:
    outcome = run("replay", "out", "1:2", "--env", "CartPole-v1", *words, cwd=trained)
    assert outcome.code == 1
    last = outcome.out.splitlines()[-1]
    assert re.match(r"differs: an observation, a reward or a flag of (step 0|one of the steps 0 to \d+) is not", last)
    assert "headrace check" in last
    outcome = run("replay", "out", "1:2", "--env", "CartPole-v1", "--json", *words, cwd=trained)
    assert json.loads(outcome.out)["is_identical"] is False
    assert outcome.code == 1


def test_where_it_begins_to_differ(tmp_path: Path) -> None:
    """In the second rollout of an episode: what comes before it is said to be identical."""
    folder = train("support.bit_envs:LongWalk", tmp_path / "out", 600)

    class Kinked(gym.Wrapper[Any, Any, Any, Any]):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            obs, reward, *flags = super().step(action)
            return obs, reward + (0.25 if self.steps == 21 else 0.0), *flags

    spec = hr.EnvSpec("support.bit_envs:LongWalk", wrappers=(Kinked,))
    result = hr.replay(folder, "2:0", env=spec)
    assert not result.is_identical
    assert result.difference is not None
    assert_says(
        result.difference, ["of one of the steps 16 to 31 is not", "the steps before it are identical, 16 of 120"]
    )
    assert hr.replay(folder, "2:0").is_identical


def test_other_versions_are_named_where_it_differs(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path)
    versions = json.loads((folder / "versions.json").read_text())
    (folder / "versions.json").write_text(json.dumps(versions | {"gymnasium": "0.1"}))
    spec = hr.EnvSpec("CartPole-v1", {"sutton_barto_reward": True})
    assert "gymnasium 0.1 then" in str(hr.replay(folder, "0:0", env=spec).difference)
    assert hr.replay(folder, "0:0").difference is None


def test_class_c_differs_after_the_first_episode(tmp_path: Path) -> None:
    folder = train(Drifting, tmp_path / "out")
    spec = hr.EnvSpec(Drifting)
    assert hr.replay(folder, "0:0", env=spec).is_identical
    result = hr.replay(folder, "0:1", env=spec)
    assert result.difference is not None
    assert "class C (headrace check)" in result.difference


def test_class_b_is_refused_by_name(tmp_path: Path) -> None:
    folder = train(make_pool, tmp_path / "out")
    with pytest.raises(ReplayError, match=r"env 0, episode 0:0.* make_pool is class B"):
        hr.replay(folder, "0:0", env=hr.EnvSpec(make_pool))
    assert len(hr.recorded_episodes(folder)) > 5
    assert run("replay", "--diff", "out", "out", cwd=tmp_path).code == 0


def test_an_environment_of_other_actions_is_refused(trained: Path) -> None:
    with pytest.raises(ReplayError, match=r"expected actions of float32 and shape .*got int64"):
        hr.replay(trained / "out", "0:0", env="Pendulum-v1")


class Raises(Noisy):
    def step(self, action: Any) -> Any:
        raise RuntimeError("enough")


def test_an_environment_that_raises_is_named(tmp_path: Path) -> None:
    folder = train("support.bit_envs:Noisy", tmp_path / "out")
    with pytest.raises(
        EnvError, match=r"env 1, episode 1:0, seed .*, step 0: the environment raised RuntimeError: enough"
    ):
        hr.replay(folder, (1, 0), env=Raises)


def test_functions_must_be_given_again(tmp_path: Path) -> None:
    folder = train(Noisy, tmp_path / "out")
    with pytest.raises(UsageError, match="built by functions"):
        hr.replay(folder, "0:0")
    assert hr.replay(folder, "0:0", env=Noisy).is_identical


def test_an_instance_may_be_given_as_to_load(tmp_path: Path) -> None:
    folder = train(Noisy(), tmp_path / "out")
    assert hr.replay(folder, "0:0", env=Noisy()).is_identical


class Clings(Noisy):
    def close(self) -> None:
        raise RuntimeError("the door is stuck")


class Leaves(Noisy):
    def reset(self, **options: Any) -> Any:
        raise SystemExit(3)


def test_an_environment_that_can_not_be_closed_or_ends_the_program(tmp_path: Path) -> None:
    folder = train("support.bit_envs:Noisy", tmp_path / "out")
    with pytest.raises(EnvError, match=r"Clings: could not be closed: RuntimeError: the door is stuck"):
        hr.replay(folder, "0:0", env=Clings)
    with pytest.raises(
        EnvError, match=r"episode 0:0, seed .*, step 0: the environment reset\(.*\) raised SystemExit: 3"
    ):
        hr.replay(folder, "0:0", env=Leaves)


@pytest.mark.parametrize("episode", [(1,), (1, -2), (True, 1), "x", 7, None])
def test_an_episode_id_in_python(episode: Any, trained: Path) -> None:
    with pytest.raises(UsageError, match="expected an episode as ENVIRONMENT:NUMBER"):
        hr.replay(trained / "out", episode)


def test_a_run_from_elsewhere_asks_for_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = train("support.bit_envs:Noisy", tmp_path / "out")
    assert hr.replay(folder, "0:0").is_identical
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(tmp_path / "another"))
    with pytest.raises(ConsentError, match=r"support.bit_envs:Noisy.*imports support.bit_envs"):
        hr.replay(folder, "0:0")
    assert run("replay", "out", "0:0", cwd=tmp_path).code == 2
    assert hr.replay(folder, "0:0", trust=True).is_identical
    assert hr.replay(folder, "0:0", env="support.bit_envs:Noisy").is_identical
    assert run("replay", "out", "0:0", "--trust", cwd=tmp_path).code == 0
    assert run("replay", "out", "0:0", "--env", "support.bit_envs:Noisy", cwd=tmp_path).code == 0


# ----------------------------------------------------------------------------------------------------- what is recorded


@pytest.mark.parametrize("env", ["Pendulum-v1", "support.bit_envs:Pixels", "support.bit_envs:Probe", "FrozenLake-v1"])
def test_other_spaces(env: str, tmp_path: Path) -> None:
    """Numbers beyond their bounds, images, truncations, observations that are one number."""
    policy = "CnnPolicy" if env.endswith("Pixels") else "MlpPolicy"
    words = {"n_envs": 2, "n_steps": 50, "batch_size": 50, "n_epochs": 1, "seed": 4, "topology": "inline"}
    if env == "FrozenLake-v1":
        words |= {"env_kwargs": {"is_slippery": True}}
    with hr.PPO(policy, env, **words) as model:
        model.learn(500, run_dir=tmp_path / "out")
    episodes = hr.recorded_episodes(tmp_path / "out")
    assert episodes
    for one in episodes[::4]:
        assert hr.replay(tmp_path / "out", one.name).is_identical


def test_an_environment_of_32_bit_seeds(tmp_path: Path) -> None:
    """The run found out that it takes no longer ones; whoever names the environment need not know that."""
    folder = train("support.faulty_envs:ShortSeeds", tmp_path / "out")
    (one, *_) = hr.recorded_episodes(folder)
    result = hr.replay(folder, one.name)
    assert result.is_identical
    assert result.seed < 1 << 32
    assert hr.replay(folder, one.name, env=hr.EnvSpec("support.faulty_envs:ShortSeeds")).is_identical
    assert hr.replay(folder, one.name, env="support.faulty_envs:ShortSeeds").is_identical


def test_nothing_is_kept_if_so_wanted(tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=16, batch_size=16, topology="inline") as model:
        model.learn(64, run_dir=tmp_path / "out", keep_episodes_mb=0)
    assert not (tmp_path / "out" / "journal").exists()
    with pytest.raises(JournalError, match="found none"):
        hr.replay(tmp_path / "out", "0:0")
    with pytest.raises(UsageError, match="keep_episodes_mb: expected a whole number of at least 0"):
        hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=16, batch_size=16).learn(64, keep_episodes_mb=-1)


def test_two_runs_of_one_seed(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path)
    again = ("train", "CartPole-v1", *OPTIONS, *STEPS)
    assert run(*again, "--topology", "threads", "--workers", "2", "--run-dir", "again", cwd=tmp_path).code == 0
    outcome = run("replay", "--diff", "out", "again", cwd=tmp_path)
    assert (outcome.code, outcome.out.splitlines()[-1]) == (0, "identical in all that both have recorded")
    assert run(*again, "--learning-rate", "1e-2", "--run-dir", "faster", cwd=tmp_path).code == 0
    outcome = run("replay", "--diff", "out", "faster", cwd=tmp_path)
    assert outcome.code == 1
    assert "another option: algorithm.learning_rate: 0.0003 and 0.01" in outcome.out
    last = outcome.out.splitlines()[-1]
    assert last.startswith("they part ways in update ")
    assert "the action is " in last
    parting = json.loads(run("replay", "--diff", "out", "faster", "--json", cwd=tmp_path).out)["parting"]
    assert parting["update"] > 1, "the first rollouts were made with the same weights"
    assert run(*again[:-1], "480", "--seed", "5", "--run-dir", "other", cwd=tmp_path).code == 0
    outcome = run("replay", "--diff", folder, "other", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["expected two runs of one seed, got 4", "and 5"])


# ------------------------------------------------------------------------------------------------------------- a video


@pytest.mark.parametrize("suffix", ["gif", "png", "webp"])
def test_a_video(suffix: str, tmp_path: Path) -> None:
    folder = train(Painted, tmp_path / "out")
    one = max(hr.recorded_episodes(folder), key=lambda one: one.length)
    result = hr.replay(folder, one.name, env=Painted, render=tmp_path / f"film.{suffix}")
    assert result.is_identical
    with Image.open(tmp_path / f"film.{suffix}") as film:
        assert film.size == (60, 40)
        lengths, duration_ms = set(), 0.0  # frames that are alike are one that lasts longer
        for number in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(number)
            lengths.add(int((np.asarray(film.convert("RGB"))[20, :, 1] > 100).sum()))
            duration_ms += film.info["duration"]
    assert duration_ms == 40 * (one.length + 1), "25 frames a second"
    assert len(lengths) > 3, "it moves"


def test_a_video_of_an_environment_without_pictures_is_one_error(tmp_path: Path) -> None:
    folder = train("support.bit_envs:Noisy", tmp_path / "out")
    outcome = run("replay", "out", "0:0", "--render", "film.gif", cwd=tmp_path)
    assert outcome.code == 1
    assert_says(outcome.error, ["could not be made", "render_mode"])
    assert not (tmp_path / "film.gif").exists()
    assert folder.exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--nan-policy", "clamp"), "with nan_policy=clamp episodes are not recorded"),
        (("--keep-episodes-mb", "0"), "its keep_episodes_mb was 0"),
    ],
)
def test_a_run_that_recorded_nothing_says_why(options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    small = ("--n-envs", "2", "--n-steps", "4", "--total-timesteps", "8", "--quiet", "--run-dir", "out")
    assert run("train", "CartPole-v1", *small, *options, cwd=tmp_path).code == 0
    for command in (("out", "0:0"), ("out", "--list")):
        outcome = run("replay", *command, cwd=tmp_path)
        assert outcome.code == 1
        assert f"out: expected recorded episodes, found none: {why}" in outcome.err


def test_options_that_differ_are_shown_as_plain_text(trained: Path, tmp_path: Path) -> None:
    """A config.json from elsewhere may hold anything; where actors run is no difference."""
    folder = copied(trained, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["algorithm"]["gamma"] = "\x1b[2J\nidentical"
    config["algorithm"]["n_epochs"] = "9" * 100_000
    config["topology"] |= {"inference": "central", "inference_servers": 2, "hang_floor_s": 3.0}
    (folder / "config.json").write_text(json.dumps(config))
    outcome = run("replay", "--diff", str(trained / "out"), str(folder), cwd=tmp_path)
    assert outcome.code == 0
    options = [line for line in outcome.out.splitlines() if line.startswith("another option: ")]
    assert options[1] == r"another option: algorithm.gamma: 0.99 and \x1b[2J\nidentical"
    assert len(options) == 2
    assert len(options[0]) < 400


def test_runs_that_have_no_episode_in_common_are_not_called_identical(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path)
    parts = journal_file._whole_frames(folder / "journal")
    moved = [
        journal_file._frame(head | ({"env_start": 9} if "update" in head else {}), [np.frombuffer(body, np.uint8)])
        for _, _, head, body in parts
    ]
    segments(folder / "journal")[0].write_bytes(b"".join(moved))
    outcome = run("replay", "--diff", str(trained / "out"), str(folder), cwd=tmp_path)
    assert (outcome.code, outcome.out) == (1, "")
    assert_says(outcome.only_error, ["expected episodes that both have recorded, found none"])


def test_help_shows_what_diff_takes(tmp_path: Path) -> None:
    assert "--diff RUN RUN" in run("replay", "--help", cwd=tmp_path).out
