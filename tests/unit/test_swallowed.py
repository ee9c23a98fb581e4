"""Options that would have had no effect where they stand: each is refused by name, or has one."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import headrace as hr
from headrace.errors import UsageError

SMALL: dict[str, Any] = {"n_envs": 2, "n_steps": 8, "batch_size": 8, "seed": 1, "topology": "inline"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: hr.IMPALA("MlpPolicy", "CartPole-v1", options=3, **SMALL), "IMPALA: unknown option options"),
        (lambda: hr.PPO("MlpPolicy", "CartPole-v1", unknown=3, **SMALL), "PPO: unknown option unknown"),
        (
            lambda: hr.Collector("CartPole-v1", norm_obs=True),
            "Collector: unknown option norm_obs: it is an option of hr.PPO and hr.IMPALA",
        ),
        (
            lambda: hr.PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"norm_obs": True}),
            r"policy_kwargs: norm_obs is an option of its own: hr.PPO\(..., norm_obs=...\)",
        ),
        (
            lambda: hr.PPO("auto", "CartPole-v1", policy_kwargs={"cnn": "small"}),
            r"cnn: auto takes MlpPolicy for Box\(.*, which has no convolutions; leave it out",
        ),
        (
            lambda: hr.PPO("CnnPolicy", gym.make("CartPole-v1"), preset="atari"),
            "preset atari: it makes and wraps environments itself; pass the id, not an instance",
        ),
    ],
)
def test_an_option_that_nothing_reads_is_refused(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


class Pictures(gym.Env[Any, Any]):
    """Images of 30 x 30, too small for the Nature CNN."""

    observation_space = gym.spaces.Box(0, 255, (30, 30, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((30, 30, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((30, 30, 3), np.uint8), 1.0, False, self.np_random.random() < 0.2, {}


def test_auto_looks_at_the_convolutions_that_were_asked_for() -> None:
    for kwargs, name in (({"cnn": "small"}, "CnnPolicy"), ({}, "MlpPolicy")):
        with hr.PPO("auto", Pictures, policy_kwargs=kwargs, **SMALL) as model:
            assert type(model.policy).__name__ == name


@pytest.mark.parametrize("option", [{"checkpoint_every": 16}, {"tags": "both"}, {"keep_checkpoints": 1}], ids=str)
def test_options_about_files_need_a_place_for_them(option: dict[str, Any], tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        with pytest.raises(UsageError, match=rf"^{next(iter(option))}: expected run_dir as well; without one"):
            model.learn(16, **option)
        model.learn(16, run_dir=tmp_path / "run", **option)


def test_a_name_of_tensorboards_without_its_folder_is_a_warning(tmp_path: Path) -> None:
    """SB3 takes it for nothing, so scripts have it; here it says so."""
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        with pytest.warns(UserWarning, match="tb_log_name='x' has no effect without tensorboard_log") as seen:
            model.learn(16, tb_log_name="x")
        assert seen[0].filename == __file__
        with pytest.warns(UserWarning, match="has no effect beside run_dir"):
            model.learn(16, tb_log_name="x", run_dir=tmp_path / "run")


def test_spaces_of_a_pool_are_those_of_one_environment() -> None:
    def pool(num_envs: int) -> Any:
        return gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")

    one = gym.make("CartPole-v1")
    with hr.PPO("MlpPolicy", pool, **SMALL) as model:
        assert model.observation_space == one.observation_space
        assert model.action_space == one.action_space


# ------------------------------------------------------------------------------------------- callbacks in callbacks


def test_a_list_knows_whose_callback_it_is() -> None:
    """SB3 passes the parent through, so that reasons to stop may stand in a list."""
    stop = hr.StopTrainingOnNoModelImprovement(max_no_improvement_evals=0, min_evals=0)
    seen: list[int] = []
    evaluations = hr.EvalCallback(
        callback_on_new_best=hr.CallbackList([hr.StopTrainingOnRewardThreshold(1e9)]),
        callback_after_eval=[stop, lambda locals_, globals_: seen.append(1)],
        eval_freq=8, n_eval_episodes=1, verbose=0,
    )  # fmt: skip
    with hr.PPO("MlpPolicy", "CartPole-v1", learning_rate=0.0, **SMALL) as model:
        model.learn(160, callback=evaluations)
        assert model.result is not None
        assert model.result.exit_reason == "stopped by callback"
    assert len(seen) == 2, "the second evaluation is as good as the first one"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: hr.CallbackList([lambda record: True]), "CallbackList: expected an object with on_step"),
        (lambda: hr.EvalCallback(callback_after_eval=lambda record: True), "EvalCallback: expected an object with on_"),
        (lambda: hr.EvalCallback(callback_on_new_best=3), "expected a function of the update's record, an object"),
        (lambda: hr.EveryNTimesteps(4, lambda record: True), "EveryNTimesteps: expected an object with on_step"),
        (lambda: hr.StopTrainingOnRewardThreshold("475"), "reward_threshold: expected a number, got '475'"),  # type: ignore[arg-type]
        (lambda: hr.StopTrainingOnNoModelImprovement("3"), "max_no_improvement_evals: expected a whole number"),  # type: ignore[arg-type]
    ],
)
def test_what_another_callback_can_not_call(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


def test_wrappers_with_arguments_are_well_typed() -> None:
    """A user's mypy takes what headrace takes, of every one of its classes."""
    kinds = [inspect.signature(one).parameters["wrappers"].annotation for one in (hr.PPO, hr.IMPALA, hr.Collector)]
    assert kinds == ["Sequence[Wrapper]"] * 3
