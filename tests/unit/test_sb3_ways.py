"""What SB3's users bring: environment instances, its keywords, get_env, callbacks. Each has the effect it has there."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import FrameStackObservation

import headrace as hr
from headrace.envs.instances import Copies, spec_of
from headrace.errors import CheckpointError, UsageError
from support.command import PATHS
from support.faulty_envs import Steady

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "seed": 1, "topology": "inline"}
ROLLOUT = 64


def weights_of(model: hr.PPO) -> str:
    return model.run.hashes()["weights_sha256"]


# ------------------------------------------------------------------------------------------- environments of the user's


SCRIPT = """
    import gymnasium as gym
    import headrace as hr
    from support.faulty_envs import Steady

    class Mine(Steady):
        def __init__(self, length=5):
            super().__init__(length)

    gym.register("Mine-v0", "__main__:Mine", max_episode_steps=3)
    gym.register("Mine-v1", Mine, kwargs={"length": 4})
    for name in ("Mine-v0", "Mine-v1"):
        for place in ({"topology": "inline"}, {"topology": "processes", "workers": 2}):
            options = dict(n_envs=4, n_steps=8, batch_size=16, n_epochs=1, seed=1)
            with hr.PPO("MlpPolicy", name, **options, **place) as model:
                model.learn(64)
                print(name, model.run.hashes()["weights_sha256"])
"""


def test_an_environment_that_a_script_registers_works_in_workers(tmp_path: Path) -> None:
    """Its entry point may be a name in the script, or the class itself; both with what the entry says besides."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": PATHS, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    first, second, third, fourth = ran.stdout.split("\n")[:4]
    assert first == second
    assert third == fourth
    assert first.split()[1] != third.split()[1]


def test_wrappers_with_keyword_arguments(tmp_path: Path) -> None:
    """As pairs; by name they also go into a checkpoint, and a class is told apart by what it was given."""
    named = [("gymnasium.wrappers:FrameStackObservation", {"stack_size": 3}), "gymnasium.wrappers:FlattenObservation"]
    with hr.PPO("MlpPolicy", "CartPole-v1", wrappers=named, **SMALL) as model:
        model.learn(ROLLOUT)
        model.save(tmp_path / "saved")
        bits = weights_of(model)
    with hr.PPO.load(tmp_path / "saved") as model:
        assert model.parts.config.env.make().observation_space.shape == (12,)
    classes = [(FrameStackObservation, {"stack_size": 3}), gym.wrappers.FlattenObservation]
    with hr.PPO("MlpPolicy", "CartPole-v1", wrappers=classes, **SMALL) as model:
        assert weights_of(model.learn(ROLLOUT)) == bits


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (("gymnasium.wrappers:FrameStackObservation", 3), r"expected a wrapper or \(wrapper, kwargs\)"),
        ((FrameStackObservation, {"stack_size": 3}, 1), r"expected a wrapper or \(wrapper, kwargs\)"),
        (3, "expected module:attribute or a callable, got 3"),
        ((3, {}), "expected module:attribute or a callable, got 3"),
    ],
)
def test_what_is_no_wrapper(wrapper: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        hr.EnvSpec("CartPole-v1", wrappers=(wrapper,))


def test_a_wrappers_text_that_is_no_json() -> None:
    spec = hr.EnvSpec("CartPole-v1", wrappers=("gymnasium.wrappers:FrameStackObservation {3}",))
    with pytest.raises(UsageError, match=r"expected module:attribute \{\"key\": value\}"):
        spec.make()


def test_a_wrapper_with_a_dot_for_a_colon() -> None:
    spec = hr.EnvSpec("CartPole-v1", wrappers=("gymnasium.wrappers.FlattenObservation",))
    with pytest.raises(UsageError, match=r"did you mean gymnasium\.wrappers:FlattenObservation\?"):
        spec.make()


class Recorded(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that Gymnasium can't rebuild: it does not record its arguments."""


def changed(**attributes: float) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1")
    for name, value in attributes.items():
        setattr(env.unwrapped, name, value)
    return env


@pytest.mark.parametrize(
    ("make", "encoded"),
    [
        (lambda: gym.make("CartPole-v1"), ("CartPole-v1", {}, [])),
        (lambda: gym.make("CartPole-v1", render_mode="human"), ("CartPole-v1", {}, [])),
        (lambda: gym.make("CartPole-v1", max_episode_steps=9), ("CartPole-v1", {"max_episode_steps": 9}, [])),
        (lambda: gym.make("Pendulum-v1", g=5.0), ("Pendulum-v1", {"g": 5.0}, [])),
        (
            lambda: FrameStackObservation(gym.make("CartPole-v1"), 2),
            (
                "CartPole-v1",
                {},
                [
                    "gymnasium.wrappers.stateful_observation:FrameStackObservation "
                    '{"padding_type": "reset", "stack_size": 2}'
                ],
            ),
        ),
    ],
    ids=["plain", "shown", "limited", "kwargs", "wrapped"],
)
def test_an_instance_is_built_anew_from_its_spec(make: Any, encoded: tuple[str, dict[str, Any], list[str]]) -> None:
    env = make()
    spec = spec_of(env)
    saved = spec.encode()
    assert (saved["env"], saved["kwargs"], saved["wrappers"]) == encoded
    assert "spec of the instance" in spec.origin
    another = spec.make()
    assert another.observation_space == env.observation_space
    assert another.spec is not None
    assert env.spec is not None
    assert another.spec.max_episode_steps == env.spec.max_episode_steps


@pytest.mark.parametrize(
    "make",
    [
        lambda: Steady(7),  # no spec
        lambda: Recorded(gym.make("CartPole-v1")),  # a spec that can't be built
        lambda: changed(gravity=20.0),  # a spec that would build another one
    ],
    ids=["no spec", "wrapper", "changed"],
)
def test_an_instance_whose_spec_does_not_say_everything_is_copied(make: Any) -> None:
    env = make()
    spec = spec_of(env)
    assert isinstance(spec.env, Copies)
    assert "deep copies" in spec.origin
    copies = [spec.make(), spec.make()]
    assert copies[0].unwrapped is not copies[1].unwrapped
    for one in copies:
        assert one.unwrapped is not env.unwrapped
        assert vars(one.unwrapped).get("gravity") == vars(env.unwrapped).get("gravity")
        assert type(one) is type(env)


def test_an_instance_that_can_be_built_neither_way() -> None:
    env = Steady()
    env.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"can't be built anew: .* copying it failed .* lambda: make"):
        hr.PPO("MlpPolicy", env)


def test_an_instance_trains_as_its_id_does_in_every_place() -> None:
    """One environment, as in SB3, if nothing else is said; the instance itself is not touched."""
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        bits = weights_of(model.learn(2 * ROLLOUT))
    env = gym.make("CartPole-v1")
    with hr.PPO("MlpPolicy", env, **SMALL | {"topology": "processes", "workers": 2}) as model:
        assert weights_of(model.learn(2 * ROLLOUT)) == bits
        assert "built anew from the spec" in model.plan()
    assert hr.check_env(env).text().splitlines()[:4] == hr.check_env("CartPole-v1").text().splitlines()[:4]
    assert not env.get_wrapper_attr("has_reset")
    with hr.PPO("MlpPolicy", env, n_steps=16, batch_size=16) as model:
        assert model.parts.config.topology.n_envs == 1
    with hr.PPO("MlpPolicy", Steady(6), **SMALL | {"topology": "processes", "workers": 2}) as model:
        bits = weights_of(model.learn(ROLLOUT))
    with hr.PPO("MlpPolicy", lambda: Steady(6), **SMALL) as model:
        assert weights_of(model.learn(ROLLOUT)) == bits


# ------------------------------------------------------------------------------------------------------------- get_env


def test_the_quickstart_of_sb3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed in its import only; the window is SDL's dummy."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(CartPoleEnv.metadata, "render_fps", 10_000)  # nobody watches, so nobody waits
    PPO = hr.PPO
    env = gym.make("CartPole-v1", render_mode="human")

    model = PPO("MlpPolicy", env, verbose=1)
    model.learn(total_timesteps=10_000)

    vec_env = model.get_env()
    obs = vec_env.reset()
    ended = 0
    for _ in range(1000):
        action, _state = model.predict(obs, deterministic=True)
        obs, reward, done, info = vec_env.step(action)
        vec_env.render()
        ended += done[0]
        assert (obs.shape, reward.shape, done.shape, len(info)) == ((1, 4), (1,), (1,), 1)
    env.close()
    model.close()
    assert vec_env.envs[0] is env
    assert 2 <= ended <= 20, "it has learned to balance for some time"


def test_get_env_steps_as_sb3_does() -> None:
    with hr.PPO("MlpPolicy", Steady, **SMALL) as model:
        vec_env = model.get_env()
        first = vec_env.reset()
        assert first.shape == (4, 3)
        for _ in range(4):
            obs, rewards, dones, infos = vec_env.step(np.ones(4, int))
            assert not dones.any()
        obs, rewards, dones, infos = vec_env.step(np.ones(4, int))
        assert dones.all()  # five steps, cut by a limit
        assert rewards.dtype == np.float32
        for index, info in enumerate(infos):
            assert info["TimeLimit.truncated"]
            assert (info["episode"]["r"], info["episode"]["l"]) == (5.0, 5)
            assert not np.array_equal(info["terminal_observation"], obs[index])
        assert vec_env.seed(3) == [3, 4, 5, 6]
        again = vec_env.reset()
        vec_env.seed(3)
        assert np.array_equal(vec_env.reset(), again)
        vec_env.set_attr("_length", 2, indices=[0])
        assert vec_env.get_attr("_length") == [2, 5, 5, 5]
        with pytest.raises(UsageError, match="expected 4 actions, one for each environment, got 2"):
            vec_env.step([0, 0])
        with pytest.raises(UsageError, match="expected 4 actions, one for each environment, got 0"):
            vec_env.step(0)
        vec_env.close()


class OneBuffer(Steady):
    """All instances write their observations into the same memory, and say nothing in info."""

    memory = np.zeros(3, np.float32)

    def _seen(self) -> Any:
        self.memory[:] = super()._seen()
        return self.memory

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


def test_get_env_copies_observations_as_it_gets_them() -> None:
    seen = []
    for env in (Steady, OneBuffer):
        with hr.PPO("MlpPolicy", env, **SMALL) as model:
            vec_env = model.get_env()
            seen.append([vec_env.reset()])
            for _ in range(5):
                obs, _, _, infos = vec_env.step(np.ones(4, int))
                seen[-1].append(obs)
            seen[-1] += [info["terminal_observation"] for info in infos]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*seen, strict=True))


# ------------------------------------------------------------------------------------------------------------ keywords


def test_device() -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", device="cpu", **SMALL):
        pass
    with pytest.raises(UsageError, match=r"device \(learner_device\): expected cpu, or .* got 'cuda'"):
        hr.PPO("MlpPolicy", "CartPole-v1", device="cuda", **SMALL)
    with pytest.raises(UsageError, match="use_sde=True: state-dependent exploration is not built"):
        hr.PPO("MlpPolicy", "CartPole-v1", use_sde=True, **SMALL)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: hr.PPO("MlpPolicy", "CartPole-v1", learning_rat=1),
            "PPO: unknown option learning_rat: did you mean le",
        ),
        (lambda: hr.PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arc": []}), "net_arc: did you mean net_arch"),
        (lambda: hr.PPO("MlpPolicy", "CartPole-v1").learn(9, eval_evry=3), "learn: .* did you mean eval_every"),
    ],
)
def test_unknown_options_get_suggestions_and_no_class_names(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        call()
    assert "__init__" not in str(caught.value)
    assert "Config" not in str(caught.value)


def test_tensorboard_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory per call of learn, numbered as SB3 does; it goes on in the last one unless steps begin anew."""
    with hr.PPO("MlpPolicy", "CartPole-v1", tensorboard_log=tmp_path / "tb", **SMALL) as model:
        model.learn(ROLLOUT)
        model.learn(ROLLOUT)
        assert [path.name for path in (tmp_path / "tb").iterdir()] == ["PPO_1"]
        assert model.num_timesteps == 2 * ROLLOUT
        model.learn(ROLLOUT, tb_log_name="first", reset_num_timesteps=True)
        assert model.num_timesteps == ROLLOUT
        model.learn(ROLLOUT, tb_log_name="second", reset_num_timesteps=False)  # as on SB3's page about TensorBoard
        model.learn(ROLLOUT, tb_log_name="second", reset_num_timesteps=False)
        assert model.num_timesteps == 3 * ROLLOUT
        model.save(tmp_path / "model")
    with hr.PPO.load(tmp_path / "model", tensorboard_log=tmp_path / "tb", verbose=1) as model:
        model.learn(ROLLOUT)
    assert "step 256/256" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "tb").iterdir()} == {"PPO_1", "first_1", "second_1", "PPO_2"}
    assert len((tmp_path / "tb" / "second_1" / "metrics.jsonl").read_text().splitlines()) == 2
    for name in ("PPO_1", "first_1", "second_1", "PPO_2"):
        assert list((tmp_path / "tb" / name).glob("events.out.tfevents.*")), name


def test_a_run_of_tensorboard_may_have_a_folder_in_its_name(tmp_path: Path) -> None:
    for _ in range(2):
        with hr.PPO("MlpPolicy", "CartPole-v1", tensorboard_log=tmp_path, **SMALL) as model:
            model.learn(ROLLOUT, tb_log_name="group/first")
            model.learn(ROLLOUT, tb_log_name="group/first")
    assert {path.name for path in (tmp_path / "group").iterdir()} == {"first_1", "first_2"}


def test_log_interval(tmp_path: Path) -> None:
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(6 * ROLLOUT, log_interval=3, run_dir=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["time/iterations"] for line in lines] == [3, 6]


# ----------------------------------------------------------------------------------------------------------- callbacks


class Counts(hr.BaseCallback):
    """Writes down all that it is called for."""

    def __init__(self, stop_at: int = 10**9) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.seen: list[int] = []
        self._stop_at = stop_at

    def _on_training_start(self) -> None:
        self.calls.append("training_start")

    def _on_rollout_start(self) -> None:
        self.calls.append("rollout_start")

    def _on_step(self) -> bool:
        self.seen.append(self.num_timesteps)
        self.calls.append("step")
        self.logger.record("mine/calls", self.n_calls)
        return self.num_timesteps < self._stop_at

    def _on_rollout_end(self) -> None:
        self.calls.append("rollout_end")
        assert "time/fps" in self.locals["record"]

    def _on_training_end(self) -> None:
        self.calls.append("training_end")


class Duck:
    """No base class, only SB3's methods."""

    def __init__(self) -> None:
        self.steps = 0

    def init_callback(self, model: Any) -> None: ...

    def on_training_start(self, locals_: Any, globals_: Any) -> None: ...

    def on_rollout_start(self) -> None: ...

    def update_locals(self, locals_: Any) -> None: ...

    def on_step(self) -> bool:
        self.steps += 1
        return True

    def on_rollout_end(self) -> None: ...

    def on_training_end(self) -> None: ...


def test_objects_functions_and_lists(tmp_path: Path) -> None:
    """on_step comes once per row of a rollout, with the steps up to there; what is recorded is in the metrics."""
    counts, duck, records = Counts(), Duck(), []
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(2 * ROLLOUT, callback=[counts, [duck, records.append]], run_dir=tmp_path / "run")
    assert counts.seen == list(range(4, 2 * ROLLOUT + 1, 4))
    steps = ["step"] * 16
    assert counts.calls == [
        "training_start", "rollout_start", *steps, "rollout_end", "rollout_start", *steps, "rollout_end",
        "training_end",
    ]  # fmt: skip
    assert duck.steps == 32
    assert len(records) == 2
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["mine/calls"] for line in lines] == [16, 32]


def test_an_object_ends_training_in_the_middle_of_a_rollout() -> None:
    counts = Counts(stop_at=ROLLOUT + 8)
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(10 * ROLLOUT, callback=counts)
        assert model.num_timesteps == 2 * ROLLOUT  # the update is done by then
        assert model.result is not None
        assert model.result.exit_reason == "stopped by callback"
    assert counts.seen[-1] == ROLLOUT + 8
    assert counts.calls[-2:] == ["step", "training_end"], "as in SB3, the rollout has no end then"


def test_what_is_no_callback() -> None:
    with (
        hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model,
        pytest.raises(UsageError, match="callback: expected a fu"),
    ):
        model.learn(ROLLOUT, callback=3)


def test_checkpoint_and_evaluation_callbacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Frequencies are steps of one environment, as in SB3: 8 of them are 32 steps of four."""
    evaluations = hr.EvalCallback(
        eval_freq=24, n_eval_episodes=3, log_path=str(tmp_path / "log"), best_model_save_path=str(tmp_path / "best"),
    )  # fmt: skip
    saves = hr.CheckpointCallback(save_freq=16, save_path=str(tmp_path / "saves"), name_prefix="cart")
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(3 * ROLLOUT, callback=[evaluations, saves])
        bits = weights_of(model)
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        assert weights_of(model.learn(3 * ROLLOUT)) == bits, "looking changes nothing"
    assert {path.name for path in (tmp_path / "saves").iterdir()} == {
        "cart_64_steps", "cart_128_steps", "cart_192_steps",
    }  # fmt: skip
    stored = np.load(tmp_path / "log" / "evaluations.npz")
    assert stored["timesteps"].tolist() == [96, 192]
    assert stored["results"].shape == stored["ep_lengths"].shape == (2, 3)
    assert evaluations.best_mean_reward == stored["results"].mean(1).max()
    with hr.PPO.load(tmp_path / "best" / "best_model") as model:
        assert model.num_timesteps in (128, 192)
    assert "Eval num_timesteps=96" in capsys.readouterr().out


def test_training_stops_at_a_reward() -> None:
    stop = hr.StopTrainingOnRewardThreshold(reward_threshold=1.0)
    evaluations = hr.EvalCallback(callback_on_new_best=stop, eval_freq=16, n_eval_episodes=2, verbose=0)
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(50 * ROLLOUT, callback=evaluations)
        assert model.num_timesteps == ROLLOUT
    never = hr.EvalCallback(
        callback_on_new_best=hr.StopTrainingOnRewardThreshold(501.0), eval_freq=16, n_eval_episodes=2, verbose=0
    )
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(2 * ROLLOUT, callback=never)
        assert model.num_timesteps == 2 * ROLLOUT
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model, pytest.raises(UsageError, match="callback_on_new_best"):
        model.learn(ROLLOUT, callback=hr.StopTrainingOnRewardThreshold(1.0))


class Paid(Steady):
    """A return of five, whatever is done."""

    def step(self, action: Any) -> Any:
        obs, _, *ends = super().step(action)
        return obs, 1.0, *ends


class Episodes(hr.BaseCallback):
    """What SB3's users read in `locals`: which environments ended an episode in this row, and how it went."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[int, int, float, int]] = []

    def _on_step(self) -> bool:
        for index, (done, info) in enumerate(zip(self.locals["dones"], self.locals["infos"], strict=True)):
            assert done == ("episode" in info)
            if done:
                self.ended.append((self.num_timesteps, index, info["episode"]["r"], info["episode"]["l"]))
        return True


@pytest.mark.parametrize("place", [{}, {"topology": "processes", "workers": 2}], ids=["inline", "processes"])
def test_locals_have_the_episodes_at_the_row_where_they_ended(place: dict[str, Any], tmp_path: Path) -> None:
    """Also in a model that goes on in the middle of its episodes; what there is not is said so."""
    seen = Episodes()
    with hr.PPO("MlpPolicy", Paid, **SMALL | place) as model:  # episodes of five steps, all at the same time
        model.learn(2 * ROLLOUT, callback=seen)
        model.save(tmp_path / "saved")
        assert [episode["l"] for episode in model.ep_info_buffer] == [5] * 24
    assert seen.ended == [(4 * row, env, 5.0, 5) for row in range(5, 33, 5) for env in range(4)]
    with hr.PPO.load(tmp_path / "saved", env=Paid) as model:
        again = Episodes()
        model.learn(ROLLOUT, callback=again)
        assert [one[0] for one in again.ended[::4]] == [4 * row for row in (35, 40, 45)]

        class Rewards(hr.BaseCallback):
            def _on_step(self) -> bool:
                return bool(self.locals["rewards"])

        with pytest.raises(
            UsageError, match=r"locals\['rewards'\] is not there.*There are dones, infos, n_steps, record"
        ):
            model.learn(ROLLOUT, callback=Rewards())


def test_a_function_of_locals_and_globals_is_called_for_every_row() -> None:
    rows: list[int] = []
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(ROLLOUT, callback=lambda locals_, globals_: rows.append(locals_["n_steps"]))
        assert rows == list(range(16))
        model.learn(10 * ROLLOUT, callback=lambda locals_, _: locals_["n_steps"] < 3)
        assert model.num_timesteps == 2 * ROLLOUT


def test_lists_of_callbacks_as_an_object() -> None:
    counts, inner = Counts(), Counts(stop_at=ROLLOUT + 12)
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(5 * ROLLOUT, callback=hr.CallbackList([counts, hr.CallbackList([inner])]))
    assert counts.seen == inner.seen
    assert counts.calls == inner.calls
    assert counts.seen[-1] == ROLLOUT + 12
    assert "time/fps" in counts.locals["record"]


def test_further_reasons_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    with hr.PPO("MlpPolicy", Paid, **SMALL) as model:
        model.learn(
            50 * ROLLOUT, callback=hr.StopTrainingOnMaxEpisodes(4, verbose=1)
        )  # for each environment, so 16 in all
        assert model.num_timesteps == 2 * ROLLOUT
    assert capsys.readouterr().out == "Training ends: 16 episodes after 80 steps\n"
    every, counts = hr.EveryNTimesteps(40, inner := Counts()), Counts()
    with hr.PPO("MlpPolicy", Paid, **SMALL) as model:
        model.learn(2 * ROLLOUT, callback=[every, counts])
    assert inner.seen == [40, 80, 120]
    stale = hr.StopTrainingOnNoModelImprovement(max_no_improvement_evals=2, min_evals=1, verbose=1)
    evaluations = hr.EvalCallback(callback_after_eval=stale, eval_freq=16, n_eval_episodes=1, verbose=0)
    with hr.PPO("MlpPolicy", Paid, **SMALL) as model:  # its return is always 5
        model.learn(50 * ROLLOUT, callback=evaluations)
        assert model.num_timesteps == 4 * ROLLOUT
    assert capsys.readouterr().out == "Training ends: no new best mean reward in 3 evaluations\n"
    assert evaluations.evaluations_timesteps == [64, 128, 192, 256]
    assert evaluations.evaluations_results == [[5.0]] * 4


def test_means_of_what_callbacks_record() -> None:
    class Means(hr.BaseCallback):
        def _on_step(self) -> bool:
            self.logger.record_mean("mine/row", self.locals["n_steps"])
            return True

    records: list[dict[str, float]] = []

    class Last(hr.BaseCallback):
        def _on_rollout_start(self) -> None:
            records.append(dict(self.locals.get("record", {})))

    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(2 * ROLLOUT, callback=[Means(), Last()])
        assert records[1]["mine/row"] == 7.5
        with pytest.raises(UsageError, match=r"logger.record\('mine/text', ...\): expected a number, got str"):
            model.logger.record("mine/text", "much")
        with pytest.raises(UsageError, match=r"record\['mine/text'\]: expected a number, got str"):
            model.learn(ROLLOUT, callback=lambda record: record.update({"mine/text": "much"}))


def test_checkpoint_callback_with_all_of_sb3s_arguments(tmp_path: Path) -> None:
    hr.CheckpointCallback(8, str(tmp_path), "rl_model", False, True, 2)
    with pytest.raises(UsageError, match="save_replay_buffer: there is none"):
        hr.CheckpointCallback(8, str(tmp_path), save_replay_buffer=True)
    for wrong in (0, "x", None):
        with pytest.raises(UsageError, match="save_freq: expected a whole number"):
            hr.CheckpointCallback(wrong, str(tmp_path))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="eval_freq: expected a whole number"):
            hr.EvalCallback(eval_freq=wrong)  # type: ignore[arg-type]


def test_get_env_is_one_object_that_evaluate_policy_takes() -> None:
    with hr.PPO("MlpPolicy", Paid, **SMALL) as model:
        vec_env = model.get_env()
        assert model.get_env() is vec_env
        assert hr.evaluate_policy(model, vec_env, n_eval_episodes=6) == (5.0, 0.0)
        rewards, lengths = hr.evaluate_policy(model, vec_env, n_eval_episodes=10, return_episode_rewards=True)
        assert (rewards, lengths) == ([5.0] * 10, [5] * 10)
        watched = hr.EvalCallback(vec_env, eval_freq=16, n_eval_episodes=4, verbose=0)
        model.learn(ROLLOUT, callback=watched)
        assert watched.last_mean_reward == 5.0
        vec_env.close()
        assert model.get_env() is not vec_env


def test_get_env_makes_more_of_its_environments(tmp_path: Path) -> None:
    """SB3's page about policies: load(path, env=model.get_env()), and a second model over the same environments."""
    with hr.PPO("MlpPolicy", "CartPole-v1", env_kwargs={"max_episode_steps": 7}, **SMALL) as model:
        model.learn(ROLLOUT)
        model.save(tmp_path / "model")
        vec_env, weights = model.get_env(), model.result.weights_sha256
        with hr.PPO("MlpPolicy", vec_env, **{name: SMALL[name] for name in SMALL if name != "n_envs"}) as second:
            assert second.n_envs == SMALL["n_envs"]
            second.learn(ROLLOUT)
            assert second.result.weights_sha256 == weights
        model.learn(ROLLOUT)
        with hr.PPO.load(tmp_path / "model", env=vec_env) as loaded:
            loaded.learn(ROLLOUT)
            assert loaded.result.weights_sha256 == model.result.weights_sha256
            assert hr.evaluate_policy(loaded, n_eval_episodes=2, deterministic=False)[0] <= 7
        with pytest.raises(UsageError, match="env_kwargs: an instance was made already"):
            hr.PPO("MlpPolicy", vec_env, env_kwargs={"max_episode_steps": 8})


def test_attributes_of_sb3s_models() -> None:
    """Read, they are what was given; set, they would change nothing, and are refused."""
    with hr.PPO("MlpPolicy", "CartPole-v1", gamma=0.9, learning_rate="lin_1e-3", **SMALL) as model:
        assert (model.gamma, model.learning_rate, model.n_epochs) == (0.9, "lin_1e-3", SMALL["n_epochs"])
        assert (model.n_envs, model.n_steps, model.seed) == (SMALL["n_envs"], SMALL["n_steps"], 1)
        assert model.observation_space.shape == (4,)
        assert model.action_space.n == 2
        for name in ("ent_coef", "n_steps", "seed"):
            with pytest.raises(UsageError, match=rf"{name} can't be set, .* given to PPO\(...\) or load\(path, ...\)"):
                setattr(model, name, 1)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"can't be copied or pickled: model.save\(folder\) and PPO.load"):
                copied(model)
        model.mine = 3
        assert model.mine == 3
        with pytest.raises(
            AttributeError, match="logger has no attribute 'output_formats': it has record, record_mean"
        ):
            model.logger.output_formats  # noqa: B018


def test_a_callback_may_make_the_directory_that_it_saves_to(tmp_path: Path) -> None:
    """SB3's SaveOnBestTrainingRewardCallback does; what is in a directory is still never overwritten."""
    (tmp_path / "best").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model:
        model.learn(ROLLOUT)
        model.save(tmp_path / "best")
        with pytest.raises(CheckpointError, match="full exists and is no checkpoint"):
            model.save(tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    hr.PPO.load(tmp_path / "best").close()


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    """Also in the files of a run, and with the same weights as Python's numbers."""
    ints = {name: np.int64(SMALL[name]) for name in ("n_envs", "n_steps", "batch_size", "n_epochs", "seed")}
    floats = {"learning_rate": np.float64(1e-3), "gamma": np.float32(0.5), "ent_coef": torch.tensor(0.25)}
    plain = {"learning_rate": 1e-3, "gamma": 0.5, "ent_coef": 0.25}
    hashes = []
    for number, options in enumerate((SMALL | ints | floats | {"normalize_advantage": np.bool_(True)}, SMALL | plain)):
        with hr.PPO("MlpPolicy", "CartPole-v1", **options) as model:
            model.learn(np.int64(ROLLOUT), run_dir=tmp_path / str(number), log_interval=np.int64(1))
            model.save(tmp_path / f"model{number}")
            hashes.append(model.result.weights_sha256)
        hr.PPO.load(tmp_path / f"model{number}").close()
    assert hashes[0] == hashes[1]
    with pytest.raises(UsageError, match=r"n_steps: expected a whole number, got 1\.5"):
        hr.PPO("MlpPolicy", "CartPole-v1", n_steps=np.float64(1.5))
