"""What new users try first, and get wrong: the answer is one line in their words (docs/stumbles.md lists the tries)."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import headrace as hr
from headrace import agents
from headrace.errors import EnvError, HeadraceError, SchemaError, UsageError
from headrace.keywords import in_words
from headrace.planning.sizing import Job, size, what_helps
from headrace.telemetry.sinks import Sinks
from support.command import run
from support.faulty_envs import Steady

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 1, "seed": 1, "topology": "inline"}


@pytest.fixture(scope="module")
def model() -> Any:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as made:
        made.learn(64, check_episodes=0)
        yield made


# ------------------------------------------------------------------------------------------------ names from elsewhere


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("lr", "unknown option lr: did you mean learning_rate?"),
        ("update_epochs", "did you mean n_epochs?"),
        ("total_timesteps", "it is an option of learn: model.learn(..., total_timesteps=...)"),
        ("run_dir", "it is an option of learn"),
        ("net_arch", "it belongs to policy_kwargs"),
        ("max_episode_steps", 'env_kwargs={"max_episode_steps": ...} sets it'),
        ("num_minibatches", "batch_size is the size of one minibatch"),
    ],
)
def test_options_that_are_elsewhere(option: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hr.PPO("MlpPolicy", "CartPole-v1", **{option: 1})
    assert said in str(caught.value)
    assert "expected some of" not in str(caught.value)


def test_a_wrong_option_is_not_answered_with_those_that_are_refused() -> None:
    with pytest.raises(UsageError, match="expected some of") as caught:
        hr.PPO("MlpPolicy", "CartPole-v1", frobnicate=1)
    assert "use_sde" not in str(caught.value)
    assert "_init_setup_model" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: hr.IMPALA("MlpPolicy", "CartPole-v1", n_epochs=3), "n_epochs: it is an option of hr.PPO only"),
        (lambda: hr.Collector("CartPole-v1", n_step=3), r"Collector: unknown option n_step: did you mean n_steps\?"),
        (lambda: hr.Collector("CartPole-v1", gamma=0.9), "Collector: .*gamma: it is an option of hr.PPO only"),
        (lambda: hr.Collector("CartPole-v1", norm_obs=True), "norm_obs: it is an option of hr.PPO and hr.IMPALA"),
        (lambda: hr.IMPALA("MlpPolicy", "CartPole-v1", preset="atari"), "preset: it is an option of hr.PPO only"),
        (lambda: hr.PPO("CartPole-v1", "MlpPolicy"), r"got the policy's name 'MlpPolicy'; the order is hr.PPO\(policy"),
        (lambda: hr.PPO("MlpPolicy", "CartPole-v1", topology="proces"), "got 'proces'; did you mean processes"),
        (lambda: hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, workers=3), "expected at most n_envs = 2.*raise n_envs"),
        (lambda: hr.RolloutWriter("run", "file.parquet"), "RolloutWriter: expected an hr.Collector, got str"),  # type: ignore[arg-type]
        (lambda: hr.evaluate_policy("model"), "expected a model or a collector, got str; load it first: hr.PPO.load"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_is_in_the_wrong_place(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        make()
    assert "ray" not in str(caught.value), "what is not built is not offered"


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="got 'mps': ") as caught:
        hr.PPO("MlpPolicy", "CartPole-v1", device="mps")
    assert len(str(caught.value)) < 300, "torch's own message goes on for a page"


def test_names_of_other_libraries(model: hr.PPO) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'make_vec_env'; pass the id to hr.PPO, with n_envs="):
        hr.make_vec_env  # noqa: B018
    with pytest.raises(ImportError, match=r"name 'make_vec_env' from 'headrace'; pass the id to hr.PPO, with n_envs="):
        from headrace import make_vec_env  # noqa: F401
    with pytest.raises(AttributeError, match=r"PPO has no attribute 'set_env'; save it, and PPO.load\(path, env=...\)"):
        model.set_env(1)
    with pytest.raises(AttributeError, match=r"PPO has no attribute 'colour'$"):
        model.colour  # noqa: B018
    with pytest.raises(UsageError, match=r"learn: unknown option call_back: did you mean callback\?"):
        model.learn(64, call_back=print)
    assert not hasattr(model, "rollout_buffer")
    assert repr(model) == "PPO('MlpPolicy', 'CartPole-v1', n_envs=4) at 64 steps"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: model.save("x", exclude=["env"]), "save: unknown option exclude: leave it out: all that a run"),
        (lambda model: model.predict(np.zeros(4), determinstic=True), "predict: .* did you mean deterministic"),
        (lambda model: model.learn(total_steps=64), r"total_steps: did you mean total_timesteps\?"),
        (lambda model: model.learn(), "learn: missing a required argument: 'total_timesteps'"),
        (lambda model: model.learn(64, wandb_mode="offline"), r"wandb_mode: .* wandb=\{'mode': ...\}"),
        (lambda model: model.learn(64, track=True), r"track: did you mean wandb\?"),
        (lambda _: hr.CheckpointCallback(savefreq=3), r"CheckpointCallback: .* did you mean save_freq\?"),  # type: ignore[call-arg]
        (lambda _: hr.EvalCallback(eval_frequency=3), r"EvalCallback: .* did you mean eval_freq\?"),  # type: ignore[call-arg]
        (lambda model: hr.evaluate_policy(model, n_episodes=3), r"did you mean n_eval_episodes\?"),  # type: ignore[call-arg]
        (lambda _: hr.check_env("CartPole-v1", True, True), "check_env: .*positional"),  # type: ignore[misc]
        (lambda _: hr.check_env("CartPole-v1", wrn=True), "check_env: .* wrn: expected some of action_masks"),  # type: ignore[call-arg]
        (lambda _: hr.check_env("CartPole-v1", warn=True), "warn: leave it out: what was found"),  # type: ignore[call-arg]
        (lambda _: hr.AgentRollouts(["Bandit"], njobs=2), r"AgentRollouts: .* did you mean n_jobs\?"),  # type: ignore[call-arg]
        (lambda _: agents.Rules(max_turns=3), r"Rules: unknown option max_turns: did you mean max_turn\?"),
        (lambda _: agents.in_process(None, None, slot=3), "in_process: expected a causal model of transformers"),
        (lambda _: hr.PPO("CartPole-v1"), "PPO: missing a required argument: 'env'"),  # type: ignore[call-arg]
        (lambda _: hr.IMPALA(), "IMPALA: missing a required argument: 'policy'"),  # type: ignore[call-arg]
    ],
)  # fmt: skip
def test_arguments_that_a_call_does_not_take(call: Any, said: str, model: hr.PPO) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        call(model)
    assert "__init__" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(("option", "meant"), [("lr", "learning_rate"), ("ent_coeff", "ent_coef")])
def test_load_says_which_option_was_meant(option: str, meant: str, model: hr.PPO, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    with pytest.raises(UsageError, match=rf"load: unknown option {option}: did you mean {meant}\?"):
        hr.PPO.load(tmp_path / "saved", **{option: 0.1})


_ARE_MADE_HERE = {"Batch", "Evaluation", "Codec", "Completion", "Engine", "EngineStatistics", "Episode", "Failure",
                  "Group", "Request", "Step", "TextEnv", "TokenRow", "Turn", "fingerprint"}  # fmt: skip
_PUBLIC = [getattr(home, name) for home in (hr, agents) for name in home.__all__ if name not in _ARE_MADE_HERE]
_CALLED = [one for one in _PUBLIC if callable(one) and not (isinstance(one, type) and issubclass(one, Exception))]


@pytest.mark.parametrize("called", _CALLED, ids=lambda one: one.__name__)
def test_no_public_call_answers_with_a_type_error_of_python(called: Any) -> None:
    """A UsageError for scripts, and still a TypeError, for code that tries which keywords there are."""
    with pytest.raises(UsageError, match=r"frobnicate|missing a required argument") as caught:
        called(frobnicate=1)
    assert isinstance(caught.value, TypeError) or "unknown option frobnicate" in str(caught.value)
    parameters = inspect.signature(called).parameters
    assert not {"given", "named"} <= set(parameters), "the signature is the call's own"


def test_an_error_from_within_a_call_stays_as_it_is() -> None:
    @in_words()
    def broken(number: int) -> int:
        return number + "1"  # type: ignore[operator,no-any-return]

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        broken(1)
    assert not isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--anneal-lr"], "unknown option --anneal-lr: --learning-rate lin_3e-4 falls linearly to 0"),
        (["--no-clip-vloss"], "unknown option --no-clip-vloss: leave it out (--clip-range-vf 0.2 does it)"),
        (["--eval-freq", "100"], "unknown option --eval-freq: --eval-every is the number of steps"),
        (["--tensorboard-log=logs"], "every run directory has TensorBoard files; --run-dir says where"),
        (["--num_minibatches=4"], "--batch-size is the size of one minibatch"),
        (["--lstm-hidden-size", "8"], "lstm_hidden_size: it is for recurrent policies such as MlpLstmPolicy"),
        (["--cnn", "small"], "cnn: MlpPolicy has no convolutions"),
        (["--wandb-project-name", "p"], "--wandb-project: expected --wandb as well"),
        (["--wandb-mode=offline"], "--wandb-mode: expected --wandb as well"),
        (["--no-track", "--wandb-name", "n"], "--wandb-name: expected --wandb as well"),
    ],
)
def test_flags_that_have_another_form(words: list[str], said: str, tmp_path: Path) -> None:
    outcome = run("train", "CartPole-v1", *words, "--dry-run", cwd=tmp_path)
    assert outcome.code == 2
    assert said in outcome.only_error


def test_a_number_that_may_be_left_out_is_refused_in_plain_words(tmp_path: Path) -> None:
    outcome = run("plan", "--batch", "x", "--update-ms", "1", "--actor-sps", "1", cwd=tmp_path)
    assert outcome.code == 2
    assert "expected a whole number, got 'x'" in outcome.err
    assert "NoneType" not in outcome.err


# ------------------------------------------------------------------------------------------------------- environments


class OldReset(Steady):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed, options=options)[0]


class OldStep(Steady):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class Silent(Steady):
    def step(self, action: Any) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (OldReset, "an environment of the old gym returns the observation alone: return observation, {}"),
        (OldStep, "an environment of the old gym returns one flag: return terminated and truncated in its place"),
        (Silent, "raised RuntimeError without a message, from `raise RuntimeError` (test_first_tries.py:"),
    ],
)
def test_what_old_and_silent_environments_do(env: Any, said: str) -> None:
    with pytest.raises(EnvError) as caught, hr.PPO("MlpPolicy", env, **SMALL) as made:
        made.learn(64, check_episodes=0)
    assert said in str(caught.value)


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sim.py").write_text(
        "import gymnasium as gym\n\n\ndef make():\n"
        "    try:\n        import Box2D_of_mine\n    except ImportError as error:\n"
        "        raise gym.error.DependencyNotInstalled('Sim is not installed, run `pip install sim`') from error\n"
    )
    for command in ("train", "check"):
        outcome = run(command, "sim:make", cwd=tmp_path)
        assert outcome.code == 1
        assert "Sim is not installed, run `pip install sim`" in outcome.only_error
        assert "Traceback" not in outcome.err


def sim_that_is_missing(env: Any) -> Any:
    raise gym.error.DependencyNotInstalled("opencv is not installed, run `pip install opencv`")


def test_a_wrapper_whose_package_is_missing_is_one_line() -> None:
    with pytest.raises(EnvError, match="sim_that_is_missing raised DependencyNotInstalled: opencv") as caught:
        hr.PPO("MlpPolicy", Steady, wrappers=[sim_that_is_missing], **SMALL)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "words", [["plan", "--batch", "4", "--update-ms", "1", "--actor-sps", "5"], ["sweep", "CartPole-v1"]]
)
def test_a_picture_without_matplotlib_is_refused_at_once(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = run(*words, "--plot", "plot.png", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.only_error.endswith(
        "--plot: expected matplotlib to be installed; pip install 'headrace[plots]', or leave it out"
    )


def test_the_atari_preset_elsewhere_says_where_its_options_come_from() -> None:
    with pytest.raises(HeadraceError, match="'frameskip'; the preset atari sets it, for ids that begin with ALE/"):
        hr.PPO("CnnPolicy", "CartPole-v1", preset="atari")


def vectors(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.make_vec("CartPole-v1", num_envs)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("envpool:Pong-v5", 'give EnvPool its own options, as env_kwargs {"stack_num": 4'),
        (vectors, "put its wrappers inside your factory, and its numbers as options"),
    ],
)
def test_the_atari_preset_around_vectors_is_named(env: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the preset atari wraps single environments") as caught:
        hr.PPO("CnnPolicy", env, preset="atari")
    assert said in str(caught.value)
    name = env if isinstance(env, str) else f"{__name__}:vectors"
    outcome = run("train", name, "--preset", "atari", cwd=tmp_path)
    assert outcome.code == 2
    assert said in outcome.only_error
    with pytest.raises(UsageError, match="wrappers and action_repeat go inside a factory"):
        hr.PPO("CnnPolicy", env, action_repeat=2)


class Choosy(Steady):
    """Forbids one of its actions, and means it."""

    def step(self, action: Any) -> Any:
        if action == 0:
            raise RuntimeError("forbidden")
        return super().step(action)

    def action_masks(self) -> list[int]:
        return [0, *[1] * (int(self.action_space.n) - 1)]  # type: ignore[attr-defined]


def test_masks_are_kept_by_the_check() -> None:
    with pytest.raises(EnvError, match="forbidden"):
        hr.check_env(Choosy)
    found = hr.check_env(Choosy, action_masks=True)
    assert found.env_class == "A"
    columns = {line[:14] for line in found.text().splitlines()}
    assert all(column.endswith(" ") for column in columns), "one column of names"


# ---------------------------------------------------------------------------------------------------------- the model


def test_predict_names_what_it_was_given(model: hr.PPO) -> None:
    with pytest.raises(SchemaError, match=r"shape \(4,\).*got a tuple.*returns \(observation, info\), pass the first"):
        model.predict((np.zeros(4), {}))
    with pytest.raises(SchemaError, match=r"shape \(4,\) or \[n, \.\.\.\], got None"):
        model.predict(None)


def test_load_takes_an_instance_and_says_in_words_what_does_not_fit(model: hr.PPO, tmp_path: Path) -> None:
    model.save(tmp_path / "saved")
    env = gym.make("CartPole-v1")
    hashes = []
    for given in (env, None):
        with hr.PPO.load(tmp_path / "saved", env=given) as loaded:
            assert (loaded.get_env().envs[0].unwrapped is env.unwrapped) is (given is env)
            loaded.learn(64, check_episodes=0)
            hashes.append(loaded.run.hashes())
    assert hashes[0] == hashes[1], "the instance is built anew, and the run goes on bit for bit"
    with pytest.raises(
        SchemaError, match=r"observation_space: expected Box\(shape=\(3,\).*got Box\(shape=\(4,\)"
    ) as caught:
        hr.PPO.load(tmp_path / "saved", env=gym.make("Pendulum-v1"))
    assert "Field" not in str(caught.value)


@pytest.mark.parametrize("where", [{"topology": "inline"}, {"topology": "processes", "workers": 2}], ids=str)
def test_weights_that_the_user_loads_act_at_once(where: dict[str, Any]) -> None:
    """Otherwise the first rollout after it comes from the old weights, and its ratios are not 1."""
    errors: list[float] = []
    lags: list[float] = []
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL | where) as made:
        other = {name: tensor * 0 + 0.1 for name, tensor in made.policy.state_dict().items()}
        made.policy.load_state_dict(other)
        made.learn(64, lambda record: errors.append(record["headrace/first_ratio_error"]), check_episodes=0)
        made.policy.load_state_dict(other)
        made.learn(64, lambda record: lags.append(record["headrace/lag"]), check_episodes=0, reset_num_timesteps=False)
    assert errors[0] < 1e-6
    assert lags[0] == 0.0, "no rollout of the second session was ordered in the first"


def test_the_plan_names_options_without_effect() -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL | {"batch_size": 4096}, inference_servers=2) as made:
        plan = made.plan()
    assert "16 x 4 = 64 steps, fewer than batch_size 4,096: one minibatch" in plan
    assert "1 epoch of minibatches" in plan
    assert "inference_servers: no effect" in plan


def test_a_batch_is_shown_in_a_line() -> None:
    with hr.Collector("CartPole-v1", n_envs=2, n_steps=4, seed=1, topology="inline") as rollouts:
        assert repr(next(rollouts)) == "Batch(n_steps=4, n_envs=2, obs (4, 2, 4), action (4, 2))"


def test_a_change_that_brings_nothing_is_no_help() -> None:
    job = Job(batch=64, update_s=1e-3, actor_sps=300)
    assert what_helps(job, size(job)) == [], "214 actors give 64,200 steps/s, the learner takes 64,000"


def test_what_wandb_says_reaches_the_terminal() -> None:
    class Gone:
        title = "W&B"

        def write(self, record: dict[str, float]) -> None:
            raise OSError("it has ended: no API key")

        def close(self) -> None: ...

    said: list[str] = []
    sinks = Sinks([Gone()], said.append)
    sinks.write({"a": 1.0})
    sinks.write({"a": 2.0})
    sinks.close()
    assert said == [
        "warning: W&B could not keep a record, training goes on: it has ended: no API key",
        "warning: W&B lost 2 records in all",
    ]
