"""Bad input: refused at the door, with one clear error line and exit code 2, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from torch import nn

import headrace as hr
from headrace.errors import UsageError
from support.command import TINY, Outcome, assert_says, files_in, run
from support.faulty_envs import Steady

STEADY, FAULTY = "support.faulty_envs:Steady", "support.faulty_envs:Faulty"


def train(*arguments: str | Path, cwd: Path) -> Outcome:
    return run("train", *arguments, *TINY, cwd=cwd)


# ------------------------------------------------------------------------------------------------ on the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CartPol-v1"], ["unknown environment 'CartPol-v1'", "did you mean CartPole-v1"]),
        (["cartpole"], ["unknown environment 'cartpole'", "did you mean CartPole-v1"]),
        (["no_such_module:Env"], ["'no_such_module:Env'", "No module named 'no_such_module'", "pip install"]),
        (["no_such_module:Env-v0"], ["'no_such_module:Env-v0'", "No module named 'no_such_module'"]),
        (["support.faulty_envs:Missing"], ["has no attribute 'Missing'", "module:attribute"]),
        (["support.faulty_envs:NUMBER"], ["expected something callable, got int"]),
        (["support.faulty_envs:DictObservation"], ["MlpPolicy", "MultiInputPolicy or auto"]),
        (["support.faulty_envs:TextObservation"], ["unsupported observation space Text", "wrapper"]),
        (["support.faulty_envs:IntegerAction"], ["float action Box", "int32", "MultiDiscrete"]),
        (["support.faulty_envs:TupleAction"], ["unsupported action space Tuple", "wrapper"]),
        ([STEADY, "--env-kwargs", "{"], ["--env-kwargs", "expected JSON", "'{'"]),
        ([STEADY, "--env-kwargs", "[1]"], ["--env-kwargs", "JSON object", "'[1]'"]),
        ([STEADY, "--wrappers", "TimeLimit"], ["wrapper 'TimeLimit'", "expected module:attribute"]),
        ([STEADY, "--wrappers", "gymnasium.wrappers:Nothing"], ["has no attribute 'Nothing'"]),
        ([STEADY, "--action-repeat", "0"], ["action_repeat", "at least 1", "0"]),
        ([STEADY, "--policy", "LstmPolicy"], ["policy", "CnnPolicy", "MlpPolicy", "'LstmPolicy'"]),
        ([STEADY, "--policy", "CnnPolicy"], ["CnnPolicy: expected uint8 images", "use policy MlpPolicy"]),
        ([STEADY, "--tile", "2"], ["tile", "at least 4", "2"]),
    ],
)
def test_an_environment_or_policy_that_can_not_be(arguments: list[str], said: list[str], tmp_path: Path) -> None:
    outcome = train(*arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, said)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--n-steps", "0", ["n_steps", "at least 1", "0"]),
        ("--batch-size", "-1", ["batch_size", "at least 1", "-1"]),
        ("--n-epochs", "0", ["n_epochs", "at least 1"]),
        ("--gamma", "2", ["gamma", "from 0 to 1", "2.0"]),
        ("--gae-lambda", "-0.1", ["gae_lambda", "from 0 to 1", "-0.1"]),
        ("--learning-rate", "fast", ["learning_rate", "lin_NUMBER", "'fast'"]),
        ("--learning-rate", "lin_-1", ["learning_rate", "at least 0", "'lin_-1'"]),
        ("--clip-range", "-0.2", ["clip_range", "at least 0", "-0.2"]),
        ("--ent-coef", "nan", ["ent_coef", "at least 0", "nan"]),
        ("--max-grad-norm", "0", ["max_grad_norm", "more than 0"]),
        ("--target-kl", "0", ["target_kl", "more than 0"]),
        ("--n-envs", "0", ["n_envs", "at least 1", "0"]),
        ("--shards", "3", ["shards", "n_envs = 2", "3"]),
        ("--workers", "0", ["workers: expected auto or a number of at least 1", "'0'"]),
        ("--max-lag", "-1", ["max_lag: expected 0 or more", "-1"]),
        ("--start-method", "fork", ["start_method: expected forkserver or spawn", "'fork'"]),
        ("--pick-up-rows", "-2", ["pick_up_rows: expected -1 (auto), 0 or more", "-2"]),
        ("--pick-up-rows", "4", ["pick_up_rows needs max_lag of at least 1"]),
        ("--batch", "newest", ["batch: expected every_shard or first_come", "'newest'"]),
        ("--batch", "first_come", ["batch=first_come needs max_lag of at least 1"]),
        ("--publish-every", "often", ["publish_every: expected updates", "'often'"]),
        ("--seed", "-1", ["seed", "at least 0", "-1"]),
        ("--total-timesteps", "0", ["total_timesteps", "at least 1", "0"]),
        ("--checkpoint-every", "-1", ["checkpoint_every", "at least 0", "-1"]),
        ("--n-eval-episodes", "0", ["n_eval_episodes", "at least 1", "0"]),
        ("--stop-reward", "10", ["stop_reward", "eval_every"]),
    ],
)
def test_an_option_value_that_can_not_be(option: str, value: str, said: list[str], tmp_path: Path) -> None:
    outcome = run("train", STEADY, *TINY, f"{option}={value}", cwd=tmp_path)  # given twice: the later one counts
    assert outcome.code == 2
    assert_says(outcome.only_error, said)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("topology", "ray"),
        ("topology", "fused"),
    ],
)
def test_an_option_value_that_is_not_built_yet(option: str, value: str, tmp_path: Path) -> None:
    outcome = train(STEADY, f"--{option}", value, cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, [f"{option.replace('-', '_')}={value} is not built yet", "use"])
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--topology=inline", "--workers=2"], ["workers=2", "topology=inline has none"]),
        (["--topology=threads", "--workers=3"], ["workers: expected at most n_envs = 2", "3"]),
        (["--topology=processes", "--workers=3"], ["workers: expected at most n_envs = 2", "3"]),
        (["--topology=processes", "--workers=2", "--shards=1"], ["shards: expected at least workers = 2", "1"]),
        (["--topology=threads", "--inference=central"], ["inference=central needs topology=processes", "threads"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith("--") else "",
)
def test_options_that_can_not_be_together(options: list[str], said: list[str], tmp_path: Path) -> None:
    outcome = train(STEADY, *options, cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, said)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize(("option", "value"), [("topology", "cluster"), ("inference", "remote"), ("workers", "some")])
def test_an_option_value_that_will_never_be(option: str, value: str, tmp_path: Path) -> None:
    outcome = train(STEADY, f"--{option}", value, cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, [f"{option}: expected", "auto", repr(value)])


COMMANDS = "train, eval, agents, replay, rollouts, check, export, plan, sweep, doctor, report"


@pytest.mark.parametrize("command", ["record", "bench", "watch"])
def test_a_command_that_is_not_built_yet(command: str, tmp_path: Path) -> None:
    outcome = run(command, "CartPole-v1", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, [f"command {command} is not built yet", COMMANDS])


@pytest.mark.parametrize(("command", "said"), [("trian", "did you mean train?"), ("fly", COMMANDS)])
def test_a_command_that_will_never_be(command: str, said: str, tmp_path: Path) -> None:
    outcome = run(command, cwd=tmp_path)
    assert outcome.code == 2
    assert said in outcome.only_error


def test_no_environment_at_all(tmp_path: Path) -> None:
    outcome = run("train", cwd=tmp_path)
    assert (outcome.code, outcome.only_error) == (2, "expected an environment: headrace train ENV, or --resume RUN")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nsteps", "3"], "--n-steps"),
        (["--n-steps", "many"], "--n-steps"),
        (["--tags", "wandb"], "cleanrl"),
        (["--config"], "--config"),
    ],
)
def test_an_option_that_can_not_be_parsed(arguments: list[str], said: str, tmp_path: Path) -> None:
    outcome = run("train", STEADY, *arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n_stepz = 3", ["unknown key 'n_stepz'", "did you mean n_steps?"]),
        ("frobnicate = 3", ["unknown key 'frobnicate'", "--help"]),
        ("n_steps = ", ["expected TOML", "line 1"]),
        ('gamma = "high"', ["gamma: expected float", "'high'"]),
        ("n_steps = 3.5", ["n_steps: expected int", "3.5"]),
        ("n_envs = true", ["n_envs: expected int", "True"]),
        ("net_arch = 64", ["net_arch: expected", "64"]),
        ('net_arch = ["a"]', ["net_arch: expected int", "'a'"]),
        ('tags = "wandb"', ["tags: expected", "'wandb'"]),
        ("env_kwargs = 3", ["env_kwargs: expected str", "3"]),
        ("gamma = 2", ["gamma", "from 0 to 1", "2.0"]),
        ('topology = "fused"', ["topology=fused is not built yet"]),
        ("workers = 2", ["workers: expected str", "2"]),
        ("publish_every = 2", ["publish_every: expected str", "2"]),
        ('batch = "first_come"', ["batch=first_come", "max_lag of at least 1"]),
        ('start_method = "fork"', ["start_method: expected forkserver or spawn", "'fork'"]),
    ],
)
def test_a_config_file_that_can_not_be(text: str, said: list[str], tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(text + "\n")
    outcome = run("train", STEADY, "--config", "run.toml", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, said)
    assert files_in(tmp_path) == {"run.toml"}


@pytest.mark.parametrize(("text", "said"), [("{", "expected TOML (or JSON"), ("[1]", "expected keys and values")])
def test_a_json_config_that_can_not_be(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    outcome = run("train", STEADY, "--config", "run.json", cwd=tmp_path)
    assert outcome.code == 2
    assert said in outcome.only_error


def test_a_config_file_that_is_not_there(tmp_path: Path) -> None:
    outcome = run("train", STEADY, "--config", "none.toml", cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, ["--config none.toml", "can't be read"])


@pytest.mark.parametrize("run_dir", ["file", "file/below", "/proc/headrace"])
def test_a_run_directory_that_can_not_be_written(run_dir: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    outcome = train(STEADY, "--run-dir", run_dir, cwd=tmp_path)
    assert outcome.code == 2
    assert_says(outcome.only_error, [f"run directory {run_dir}", "can't be written", "--run-dir"])
    assert files_in(tmp_path) == {"file"}
    assert (tmp_path / "file").read_text() == "mine"


# -------------------------------------------------------------------------------------------------------- from Python


class NoValue(nn.Module):
    noise, largest_tile = hr.NoiseSpec("gumbel", 2), 16

    def act(self, obs: Any, noise: Any) -> Any: ...

    def evaluate(self, obs: Any, actions: Any) -> Any: ...


class OddNoise(NoValue):
    noise = "gumbel"  # type: ignore[assignment]

    def value(self, obs: Any) -> Any: ...


PPO = hr.PPO
BAD_MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "spec of an instance": (lambda: hr.EnvSpec(gym.make("CartPole-v1")), "hr.check_env take, but not hr.EnvSpec"),  # type: ignore[arg-type]
    "no environment": (lambda: PPO("MlpPolicy", None), "got NoneType"),  # type: ignore[arg-type]
    "list of functions": (lambda: PPO("MlpPolicy", [Steady]), "got list; pass one function, n_envs is how many"),  # type: ignore[arg-type]
    "n_steps": (lambda: PPO("MlpPolicy", Steady, n_steps=0), "n_steps: .* at least 1, got 0"),
    "gamma": (lambda: PPO("MlpPolicy", Steady, gamma=2.0), "gamma: .* from 0 to 1, got 2.0"),
    "schedule": (lambda: PPO("MlpPolicy", Steady, clip_range="cos_1"), "clip_range: .* lin_NUMBER, got 'cos_1'"),
    "seed": (lambda: PPO("MlpPolicy", Steady, seed=1.5), "seed: expected a whole number"),  # type: ignore[arg-type]
    "not built": (lambda: PPO("MlpPolicy", Steady, topology="ray"), "topology=ray is not built yet"),
    "central": (
        lambda: hr.Collector(Steady, "MlpPolicy", inference="central", topology="inline"),
        "inference=central needs topology=processes, got inline",
    ),
    "servers": (
        lambda: PPO("MlpPolicy", Steady, topology="processes", workers=1, inference="central", inference_servers=2),
        "inference_servers: expected at most shards = 1, got 2",
    ),
    "workers": (
        lambda: hr.Collector(Steady, "MlpPolicy", n_envs=2, topology="threads", workers=3),
        "workers: expected at most n_envs = 2, got 3",
    ),
    "inline workers": (
        lambda: PPO("MlpPolicy", Steady, topology="inline", workers=2),
        "workers=2: topology=inline has none",
    ),
    "shards": (
        lambda: PPO("MlpPolicy", Steady, topology="processes", workers=2, shards=1),
        "shards: expected at least workers = 2, got 1",
    ),
    "first come": (lambda: PPO("MlpPolicy", Steady, batch="first_come"), "batch=first_come needs max_lag"),
    "pick up": (lambda: PPO("MlpPolicy", Steady, pick_up_rows=8), "pick_up_rows needs max_lag"),
    "publish": (lambda: PPO("MlpPolicy", Steady, publish_every="1m"), "publish_every: expected updates.*got '1m'"),
    "start method": (lambda: PPO("MlpPolicy", Steady, start_method="fork"), "start_method: .*got 'fork'"),
    "no policy": (lambda: PPO(nn.Linear(3, 2), Steady), "Linear is no policy: it lacks noise, .*, value"),
    "half a policy": (lambda: PPO(NoValue(), Steady), "NoValue is no policy: it lacks value; see"),
    "odd noise": (lambda: PPO(OddNoise(), Steady), "OddNoise.noise: expected a NoiseSpec, got 'gumbel'"),
    "a class": (
        lambda: PPO(nn.Linear, Steady),
        "expected a policy name or a torch.nn.Module, got the class Linear; pass an in",
    ),  # type: ignore[arg-type]
    "policy_kwargs": (
        lambda: PPO("MlpPolicy", Steady, policy_kwargs={"colour": 3}),
        "unknown option colour: expected some of .*net_arch",
    ),
    "net_arch": (lambda: PPO("MlpPolicy", Steady, policy_kwargs={"net_arch": {"pi": 8}}), "net_arch: .* .64, 64."),
    "EnvSpec": (lambda: PPO("MlpPolicy", hr.EnvSpec(Steady), env_kwargs={"length": 3}), "EnvSpec has its own kwargs"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_model_that_can_not_be(name: str) -> None:
    make, message = BAD_MODELS[name]
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("wrong", [{"gamma": "high"}, {"n_envs": "2"}, {"vf_coef": "x"}], ids=str)
def test_an_option_of_the_wrong_type(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}: expected"):
        PPO("MlpPolicy", Steady, **wrong)


def test_learning_options_that_can_not_be() -> None:
    with PPO("MlpPolicy", Steady, n_envs=2, n_steps=8) as model:
        with pytest.raises(UsageError, match=r"unknown option frequency: expected some of .*eval_every"):
            model.learn(16, frequency=4)
        with pytest.raises(UsageError, match=r"total_timesteps: .* at least 1, got 0"):
            model.learn(0)
    with pytest.raises(UsageError, match="this model was closed"):
        model.learn(16)
