"""`headrace plan` with given numbers: the table, the JSON and the picture say the same, and bad numbers are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.memory.schema import rollout_schema
from headrace.memory.spaces import Box, Discrete
from headrace.planning.link import sent_bytes
from headrace.planning.sizing import Job, size
from headrace.presets import PRESETS, Preset

FOUNDING = ["plan", "--batch", "512", "--update-ms", "8", "--actor-sps", "1000"]


def test_table_json_and_plot_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, plot = tmp_path / "plan.json", tmp_path / "plan.png"
    options = ["--actors", "40", "--observation", "84x84x4:uint8", "--link", "1GB", "--actor-price", "0.04"]
    assert main([*FOUNDING, *options, "--json", str(answer), "--plot", str(plot)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "actors needed 64" in said
    assert "bound by the link" in said
    assert "observations compressed 2x: 40,000 steps/s" in said
    found = json.loads(answer.read_text())
    assert found["sizing"]["actors_needed"] == 64
    assert found["sizing"]["binding"] == "link"
    assert found["sizing"]["rate"] == pytest.approx(1e9 / (84 * 84 * 4 + 27))
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_else_could_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Worked out by hand: 1 GB/s over 4 MB/s is 250 actors; 64,000 steps/s are 3 x 8,000 and 40 x 1,000."""
    answer = tmp_path / "plan.json"
    link = ["--transition", "4KB", "--link", "1GB", "--weights", "1MB", "--actors", "80", "--buffer", "1e6"]
    prices = ["--actor-price", "0.04", "--learner-price", "2", "--machines", "large=0.3:8000:3", "slow=9:1"]
    assert main([*FOUNDING, *link, *prices, "--json", str(answer)]) == 0
    said = capsys.readouterr().out
    assert "link would carry    500 actors: compress observations 2x" in said
    assert "link would carry    1,000 actors: send deltas (25% of the bytes change)" in said
    assert "link would carry    8 machines: move the policy to the data (1 MB of weights to each, 125.0 times" in said
    assert "16,000 transitions/s more than the learner uses; a buffer of 1,000,000 is full of them after 62.5 s" in said
    assert "3 large, 40 actor (64,000 steps/s): 2.50 an hour, 0.0195 a million steps with the learner" in said
    found = json.loads(answer.read_text())["alternatives"]
    assert [one["most_actors"] for one in found["levers"]] == [500, 1000]
    assert found["moved"]["most_machines"] == 8
    assert found["surplus"] == {"per_s": 16_000, "buffer_s": 62.5}
    assert found["cheapest"]["machines"] == {"large": 3, "actor": 40}
    assert found["price_per_million"] == pytest.approx(4.5 / 3600 / 64_000 * 1e6)


def test_what_the_numbers_do_not_answer_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FOUNDING, "--transition", "40KB"]) == 0
    assert main([*FOUNDING, "--transition", "40KB", "--link", "1GB", "--actors", "80"]) == 0  # carries less than that
    said = capsys.readouterr().out
    assert not [word for word in ("surplus", "policy to the data", "cheapest") if word in said]


def test_small_numbers_keep_their_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """A simulator that takes 2.5 s a step; by hand: 2 s x 8 minibatches x 4 epochs for 16 steps are 0.25 a second."""
    learner = ["--batch", "2", "--update-ms", "2000", "--rollout", "16", "--n-epochs", "4"]
    assert main(["plan", *learner, "--actor-sps", "0.4", "--transition", "2499B", "--actor-price", "0.001"]) == 0
    said = capsys.readouterr().out
    for part in (
        "PPO's own demand    0.25 transitions/s",
        "an actor supplies   0.4 steps/s",
        "bandwidth           1 KB/s an actor, 1 KB/s all",  # 999.6
        "price               0.001 an hour",
        "surplus             0.15 transitions/s",
        "rate of the whole   0.25 steps/s",
    ):
        assert part in said


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PDF", b"%PDF"), ("a.png", b"\x89PNG")])
def test_a_picture_is_what_its_name_says(name: str, start: bytes, tmp_path: Path) -> None:
    assert main([*FOUNDING, "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("actors", [1, 8, 60, 80, 400])
def test_the_note_of_a_picture_lies_on_no_line(actors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    from headrace.views.plan_figure import draw_plan

    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k))[1])
    job = Job(512, 0.008, 1_000, actors=actors, step_bytes=28_251, link_bytes_per_s=2.5e9)
    draw_plan(job, size(job))
    (axes,) = drawn[0].axes
    assert axes.get_title("left").startswith(f"{actors} actor{'s' * (actors > 1)}: ")
    assert axes.get_ylim()[1] > 2.5e9 / 28_251, "the link is in the picture, where actors may reach it"
    assert axes.get_legend() is None, "it stands below the panel: lines may run anywhere in that"
    assert not axes.texts, "among the lines it crosses one of them sooner or later"


def test_what_is_not_bounded_is_null_in_json(tmp_path: Path) -> None:
    answer = tmp_path / "plan.json"
    assert main([*FOUNDING, "--json", str(answer)]) == 0
    assert json.loads(answer.read_text())["sizing"]["link_sps"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([*FOUNDING, "--policy", "nonsense", "--n-envs", "64"], "--n-envs, --policy: expected --measure ENV, too"),
        (
            [*FOUNDING, "--preset", "atari", "--env-kwargs", "{}", "--wrappers", "a:b"],
            "--env-kwargs, --wrappers, --preset:",
        ),
        (["plan", "--measure", "No-v0", "--preset", "none"], "preset: expected one of atari, got 'none'"),
        ([*FOUNDING, "--net-arch", "512", "512", "--n-steps", "9"], "--n-steps, --net-arch: expected --measure ENV"),
        (["plan", "--measure", "No-v0", "--actor-sps", "3", "--rollout", "9"], "--actor-sps, --rollout: --measure"),
        (
            ["plan", "--measure", "No-v0", "--update-ms", "9", "--observation", "4", "--transition", "5MB"],
            "--update-ms, --observation, --transition: --measure finds that out",
        ),
        ([*FOUNDING, "--observation", "4", "--transition", "5MB"], "--observation, --transition: expected one of them"),
        ([*FOUNDING, "--n-epochs", "0"], "--n-epochs: expected a number larger than 0, got 0"),
        (
            ["plan", "--batch", "1", "--update-ms", "1e-300", "--actor-sps", "1e-300"],
            "--update-ms: expected a number bet",
        ),
        ([*FOUNDING, "--actors", "1" + 400 * "0"], "--actors: expected a number between 1e-18 and 1e+18"),
        ([*FOUNDING, "--transition", "1" + 40 * "0", "--link", "1B"], "--transition: expected a number between"),
        ([*FOUNDING, "--observation", "0x4"], "--observation: expected a number larger than 0"),
        ([*FOUNDING, "--observation", "4:object"], "--observation: expected a shape and a dtype"),
        ([*FOUNDING, "--actors", "0"], "--actors: expected a number larger than 0, got 0"),
        (["plan", "--measure", "No-v0", "--batch", "0"], "--batch: expected a number larger than 0, got 0"),
        (["plan", "--measure", "No-v0", "--n-envs", "0"], "--n-envs: expected a number larger than 0, got 0"),
        (["plan", "--batch", "512"], "--update-ms: expected a number larger than 0"),
        ([*FOUNDING, "--actors", "-3"], "actors: expected a number larger than 0, got -3"),
        ([*FOUNDING, "--link", "10GB"], "--link: expected --observation or --transition as well"),
        ([*FOUNDING, "--weights", "1MB"], "--weights: expected --link, too"),
        ([*FOUNDING, "--buffer", "0"], "--buffer: expected a number larger than 0, got 0"),
        ([*FOUNDING, "--machines", "large"], "--machines: expected NAME=PRICE_PER_HOUR:STEPS_PER_SECOND"),
        ([*FOUNDING, "--machines", "a=1:2:0.5"], "for 3 at most, got 'a=1:2:0.5'"),
        ([*FOUNDING, "--machines", "a=1:2", "a=2:3"], "--machines: expected a name of its own for each"),
        ([*FOUNDING, "--machines", "a=1:900:3"], "no fleet of these machines produces 64,000 steps per second"),
        (
            [*FOUNDING, "--link", "10", "--transition", "1KB"],
            "--link: expected a unit, as in 10GB or 25Gbit (per",
        ),
        ([*FOUNDING, "--transition", "0"], "--transition: expected a number larger than 0"),
        ([*FOUNDING, "--link", "0GB", "--transition", "1KB"], "--link: expected a number larger than 0"),
        ([*FOUNDING, "--actor-price", "-1"], "--actor-price: expected a number of at least 0, got -1"),
        ([*FOUNDING, "--learner-price", "nan"], "--learner-price: expected a number of at least 0, got nan"),
        ([*FOUNDING, "--plot", "/dev/null/x.txt"], "--plot /dev/null/x.txt: expected a name that ends"),
        ([*FOUNDING, "--plot", "/dev/null/x"], "--plot /dev/null/x: expected a name that ends in .png, .svg or .pdf"),
        ([*FOUNDING, "--link", "fast", "--transition", "1KB"], "--link: expected bytes, as in 28224, 28KB or 10GB"),
        ([*FOUNDING, "--observation", "84x84:float7"], "--observation: expected a shape and a dtype"),
        ([*FOUNDING, "--json", "/dev/null/x"], "--json /dev/null/x: can't be written"),
    ],
)
def test_bad_numbers_are_refused_in_the_users_words(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("command", [["plan", "--measure"], ["sweep"]])
def test_what_cant_be_written_is_refused_before_anything_is_measured(
    command: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken.png").mkdir()
    for path, why in (("none/a.png", "No such file or directory"), ("taken.png", "Is a directory")):
        assert main([*command, "no_such_module:Env", option, str(tmp_path / path)]) == 2
        assert f"{option} {tmp_path / path}: can't be written: {why}" in capsys.readouterr().err


def test_measured_numbers_and_what_every_place_would_reach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = tmp_path / "plan.json"
    options = ["--n-envs", "4", "--n-steps", "32", "--batch", "64", "--n-epochs", "2", "--json", str(answer)]
    assert main(["plan", "--measure", "CartPole-v1", *options]) == 0
    found = json.loads(answer.read_text())
    job, places = found["job"], {(one["topology"], one["workers"], one["max_lag"]): one for one in found["forecast"]}
    assert (job["batch"], job["n_epochs"], job["rollout"]) == (64, 2, 128)
    assert job["step_bytes"] == 4 * 4 + 8 + 4 + 3 + 8 + 4  # the observation, then action, reward, flags, episode, step
    learning_s, collecting_s = 128 / found["sizing"]["rollout_demand"], 128 / job["actor_sps"]
    assert places["inline", 1, 0]["sps"] == pytest.approx(128 / (learning_s + collecting_s))
    assert "PPO's own demand" in capsys.readouterr().out


def test_a_measured_run_takes_the_memory_that_is_said_and_has_no_minibatch_larger_than_its_rollout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = tmp_path / "plan.json"
    options = ["--n-envs", "4", "--n-steps", "32", "--n-epochs", "1", "--batch", "5000", "--json", str(answer)]
    assert main(["plan", "--measure", "CartPole-v1", *options]) == 0
    job, sizing = (json.loads(answer.read_text())[name] for name in ("job", "sizing"))
    assert (job["batch"], job["rollout"]) == (128, 128)
    assert sizing["demand"] == pytest.approx(sizing["rollout_demand"]), "one minibatch of all rows, used once"
    schema = rollout_schema(Box((4,), "float32", (), ()), Discrete(2), 32, 4)
    assert sizing["ring_bytes"] == pytest.approx(2 * schema.size_bytes), "what is reserved with max_lag 1"
    assert job["observation_bytes"] == 16
    assert "memory of rollouts" in capsys.readouterr().out


def test_an_environment_is_measured_as_it_would_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its preset's wrappers and numbers, its arguments; what is typed wins."""
    numbers = {"n_envs": 2, "n_steps": 16, "n_epochs": 3, "batch_size": 8, "policy": "MlpPolicy"}
    timed = Preset({"max_episode_steps": 30}, ("gymnasium.wrappers:TimeAwareObservation",), numbers)
    monkeypatch.setitem(PRESETS, "timed", timed)
    answer = tmp_path / "plan.json"
    assert main(["plan", "--measure", "CartPole-v1", "--preset", "timed", "--batch", "16", "--json", str(answer)]) == 0
    job = json.loads(answer.read_text())["job"]
    assert (job["batch"], job["n_epochs"], job["rollout"]) == (16, 3, 32)
    one = rollout_schema(Box((5,), "float64", (), ()), Discrete(2), 16, 2)  # the time is the fifth number
    assert job["step_bytes"] == sent_bytes(one)


def test_arguments_reach_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--measure", "CartPole-v1", "--env-kwargs", '{"no_such": 1}']) != 0
    assert "no_such" in capsys.readouterr().err
    assert main(["plan", "--measure", "CartPole-v1", "--wrappers", "gymnasium.wrappers:NoSuch"]) != 0
    assert "NoSuch" in capsys.readouterr().err
