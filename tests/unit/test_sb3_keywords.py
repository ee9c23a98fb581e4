"""Every keyword of SB3's PPO: it has an effect, or is refused by name. None is swallowed. Policy options are data."""

from __future__ import annotations

import functools
import inspect
import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.cli.main import main
from headrace.envs.adapters.gymnasium_spaces import describe_action
from headrace.errors import HeadraceError, UsageError
from headrace.inference.local import LocalInference
from headrace.learning.closed_form import ClosedFormEvaluator
from headrace.learning.fast_path import supports
from headrace.policies.config import ACTIVATIONS, PolicyConfig
from headrace.policies.networks import MlpPolicy, build_policy
from headrace.policies.noise_spec import NoiseSpec
from support.faulty_envs import Steady
from support.torch_policy import TorchPolicy

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "seed": 1, "topology": "inline"}

SB3_PPO = (  # the signature of stable_baselines3.PPO, 2.x
    "policy", "env", "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range",
    "clip_range_vf", "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "use_sde", "sde_sample_freq",
    "rollout_buffer_class", "rollout_buffer_kwargs", "target_kl", "stats_window_size", "tensorboard_log",
    "policy_kwargs", "verbose", "seed", "device", "_init_setup_model",
)  # fmt: skip
SB3_POLICY = (  # of ActorCriticPolicy, without what PPO passes itself
    "net_arch", "activation_fn", "ortho_init", "use_sde", "log_std_init", "full_std", "use_expln", "squash_output",
    "features_extractor_class", "features_extractor_kwargs", "share_features_extractor", "normalize_images",
    "optimizer_class", "optimizer_kwargs",
)  # fmt: skip

EFFECTS: dict[str, Any] = {  # a value that leads to other weights than the default
    "learning_rate": 1e-2,
    "n_steps": 24,
    "batch_size": 16,
    "n_epochs": 3,
    "gamma": 0.9,
    "gae_lambda": 0.5,
    "clip_range": 1e-6,
    "clip_range_vf": 0.001,
    "normalize_advantage": False,
    "ent_coef": 0.5,
    "vf_coef": 0.1,
    "max_grad_norm": 0.01,
    "target_kl": 1e-9,
    "seed": 2,
    "env": "MountainCar-v0",
}
ELSEWHERE = {  # tested with what they change, in this file or in test_sb3_ways
    "policy", "policy_kwargs", "stats_window_size", "tensorboard_log", "verbose", "device",
}  # fmt: skip
REFUSED: dict[str, tuple[Any, Any]] = {  # what is taken as it asks for nothing, what is refused
    "use_sde": (False, True),
    "sde_sample_freq": (-1, 4),
    "rollout_buffer_class": (None, dict),
    "rollout_buffer_kwargs": (None, {"a": 1}),
    "_init_setup_model": (True, False),
}
POLICY_REFUSED: dict[str, tuple[Any, Any]] = {
    "use_sde": (False, True),
    "full_std": (True, False),
    "use_expln": (False, True),
    "squash_output": (False, True),
    "optimizer_class": (torch.optim.Adam, torch.optim.RMSprop),
    "optimizer_kwargs": ({"eps": 1e-5}, {"weight_decay": 0.1}),
}
POLICY_EFFECTS: dict[str, Any] = {
    "net_arch": [32, 16],
    "activation_fn": nn.ReLU,
    "ortho_init": False,
    "log_std_init": -1.0,
}


@functools.cache
def weights(env: str = "CartPole-v1", policy: str = "MlpPolicy") -> str:
    return trained(env=env, policy=policy)


def trained(policy: Any = "MlpPolicy", env: Any = "CartPole-v1", **options: Any) -> str:
    with hr.PPO(policy, env, **SMALL | options) as model:
        model.learn(128)
        return model.run.hashes()["weights_sha256"]


def test_every_keyword_of_sb3_is_decided() -> None:
    assert set(SB3_PPO) == set(EFFECTS) | set(REFUSED) | ELSEWHERE
    assert set(SB3_PPO) <= set(inspect.signature(hr.PPO).parameters)
    extractors = {f"features_extractor_{name}" for name in ("class", "kwargs")}  # tests/unit/policies/test_extractors
    extractors |= {"share_features_extractor", "normalize_images"}
    assert set(SB3_POLICY) == set(POLICY_EFFECTS) | set(POLICY_REFUSED) | extractors
    positional = [name for name, one in inspect.signature(hr.PPO).parameters.items() if one.kind < one.KEYWORD_ONLY]
    assert tuple(positional) == SB3_PPO[: len(positional)], "by position they mean the same"


@pytest.mark.parametrize("name", EFFECTS)
def test_a_keyword_has_an_effect(name: str) -> None:
    assert trained(**{name: EFFECTS[name]}) != weights()


@pytest.mark.parametrize("name", REFUSED)
def test_a_keyword_that_is_not_built(name: str) -> None:
    taken, refused = REFUSED[name]
    assert trained(**{name: taken}) == weights()
    with pytest.raises(UsageError, match=rf"^{name}=.*: .*(leave it out|hr.Collector)"):
        hr.PPO("MlpPolicy", "CartPole-v1", **SMALL, **{name: refused})


@pytest.mark.parametrize("name", POLICY_EFFECTS)
def test_a_policy_keyword_has_an_effect(name: str) -> None:
    kwargs = {name: POLICY_EFFECTS[name]}
    assert trained(env="Pendulum-v1", policy_kwargs=kwargs) != weights("Pendulum-v1")


@pytest.mark.parametrize("name", POLICY_REFUSED)
def test_a_policy_keyword_that_is_not_built(name: str) -> None:
    taken, refused = POLICY_REFUSED[name]
    assert trained(policy_kwargs={name: taken}) == weights()
    with pytest.raises(UsageError, match=rf"^{name}.*(leave it out|of your own)"):
        hr.PPO("MlpPolicy", "CartPole-v1", policy_kwargs={name: refused}, **SMALL)


def test_schedules() -> None:
    """As functions of the progress left; SB3's clip_range_vf may be one, too."""
    for name in ("learning_rate", "clip_range", "clip_range_vf", "ent_coef"):
        start = 1e-6 if name == "clip_range" else 0.01
        falling = trained(**{name: lambda progress, start=start: start * progress})
        assert falling == trained(**{name: f"lin_{start}"})
        assert falling != trained(**{name: start})
        with pytest.raises(UsageError, match=f"{name}: .* calling it with 1.0 raised TypeError"):
            hr.PPO("MlpPolicy", "CartPole-v1", **{name: lambda: 1.0})  # type: ignore[arg-type, misc]
        with pytest.raises(UsageError, match=f"{name}: "):
            hr.PPO("MlpPolicy", "CartPole-v1", **{name: lambda _: -1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "ent_coef"])
@pytest.mark.parametrize(
    ("later", "says"),
    [
        (float("nan"), "its function returns nan for 0.75"),
        (-1e-3, "its function returns -0.001 for 0.75"),
        (None, "calling it with 0.75 raised TypeError"),
    ],
)
def test_a_schedule_that_goes_wrong_later_is_named_before_it_is_used(name: str, later: Any, says: str) -> None:
    """A learning rate of NaN would make NaN of every parameter."""
    rate = {name: lambda left: 1e-3 if left > 0.8 else later}
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL | rate) as model:
        with pytest.raises(UsageError, match=f"^{name}: .*{says}"):
            model.learn(4 * model.n_steps * model.n_envs)
        assert model.run.updates == 1
        assert all(bool(torch.isfinite(one).all()) for one in model.policy.parameters())


def test_stats_window_size(tmp_path: Path) -> None:
    """The mean of the last so many episodes; a resumed run may have another one."""
    means = {}
    for size in (1, 100):
        with hr.PPO("MlpPolicy", "CartPole-v1", stats_window_size=size, **SMALL) as model:
            model.learn(512, run_dir=tmp_path / str(size))
            recent = list(model.ep_info_buffer)
        lines = (tmp_path / str(size) / "metrics.jsonl").read_text().splitlines()
        means[size] = json.loads(lines[-1])["rollout/ep_rew_mean"]
        assert means[size] == np.mean([episode["r"] for episode in recent])
        assert len(recent) == 1 or size == 100
    assert means[1] != means[100]
    argv = ["train", "--resume", str(tmp_path / "100"), "--stats-window-size", "2", "--total-timesteps", "1024"]
    assert main([*argv, "--quiet"]) == 0
    for wrong in (0, 20_000, 1.5, "x"):
        with pytest.raises(UsageError, match="stats_window_size: expected"):
            hr.PPO("MlpPolicy", "CartPole-v1", stats_window_size=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("shown", [{"progress_bar": True}, {}], ids=["progress_bar", "verbose"])
def test_what_is_shown(shown: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, is_shown in ((0, "progress_bar" in shown), (1, True)):
        with hr.PPO("MlpPolicy", "CartPole-v1", verbose=verbose, **SMALL) as model:
            model.learn(128, **shown)
        printed = capsys.readouterr()
        assert bool(printed.out + printed.err) == is_shown


# ------------------------------------------------------------------------------------------------------- policy_kwargs


def layers(model: hr.PPO, tower: str) -> list[int]:
    return [len(one.bias) for one in getattr(model.policy, tower)[:-1]]


@pytest.mark.parametrize(
    ("net_arch", "actor", "critic"),
    [
        ([32], [32], [32]),
        ([], [], []),
        ((8, 8, 8, 8), [8] * 4, [8] * 4),
        ({"pi": [16, 8], "vf": [32]}, [16, 8], [32]),
        ({"pi": [16]}, [16], []),
        ({"vf": [16]}, [], [16]),
        ({"pi": [], "vf": [8, 8, 8]}, [], [8, 8, 8]),
    ],
    ids=str,
)
def test_net_arch(net_arch: Any, actor: list[int], critic: list[int], tmp_path: Path) -> None:
    """Of any depth, the same in workers, and back from a checkpoint, which goes on to the same bits."""
    kwargs = {"net_arch": net_arch, "activation_fn": nn.SiLU}
    with hr.PPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs, **SMALL) as model:
        assert (layers(model, "actor"), layers(model, "critic")) == (actor, critic)
        model.learn(64)
        model.save(tmp_path / "saved")
        bits = model.learn(64).run.hashes()
    with hr.PPO.load(tmp_path / "saved") as model:
        assert (layers(model, "actor"), layers(model, "critic")) == (actor, critic)
        assert model.learn(64).run.hashes() == bits


@pytest.mark.parametrize(
    "kwargs",
    [
        {"net_arch": {"pi": [20, 9], "vf": [33]}, "activation_fn": nn.ELU},
        {"net_arch": [33], "activation_fn": nn.GELU, "ortho_init": False},
    ],
    ids=["elu", "gelu"],
)
def test_the_same_bits_in_every_place(kwargs: dict[str, Any]) -> None:
    bits = trained(policy_kwargs=kwargs)
    for place in ({"topology": "threads", "workers": 2}, {"topology": "processes", "workers": 2}, {"shards": 4}):
        assert trained(policy_kwargs=kwargs, **place) == bits


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [7, 64])
def test_rows_come_out_the_same_anywhere_in_a_tile(activation: Any, width: int) -> None:
    """Bit for bit, whatever the function and the number of numbers."""
    config = PolicyConfig(net_arch=(width,), activation=activation)
    module = build_policy(config, _space(gym.spaces.Box(-9, 9, (5,))), _space(gym.spaces.Box(-1, 1, (3,))), 0)
    rng = np.random.default_rng(0)
    obs, order = torch.from_numpy(rng.normal(0, 3, (8, 5)).astype(np.float32)), torch.from_numpy(rng.permutation(8))
    with torch.inference_mode():
        there, moved = module.act(obs, None), module.act(obs[order].contiguous(), None)
    assert torch.equal(there[order], moved)
    if activation != "tanh":
        kind = {"leaky_relu": nn.LeakyReLU, "relu": nn.ReLU, "identity": nn.Identity}.get(activation)
        kind = kind or next(one for one in vars(nn).values() if getattr(one, "__name__", "").lower() == activation)
        x = torch.linspace(-3, 3, 7 * width)
        assert torch.equal(module._activate(x), kind()(x)) or torch.allclose(module._activate(x), kind()(x), atol=1e-6)


def _space(space: Any) -> Any:
    return describe_action(space, "here")


FAST = [
    {},
    {"net_arch": (32, 24)},
    {"activation": "relu"},
    {"ortho_init": False},
    {"net_arch": (9,), "net_arch_vf": (9,)},
]
SLOW = [{"net_arch": (32,), "net_arch_vf": (16,)}, {"activation": "elu"}, {"activation": "gelu", "ortho_init": False}]


@pytest.mark.parametrize("options", [*FAST, *SLOW], ids=str)
def test_fast_paths_take_what_they_know_and_agree_with_autograd(options: dict[str, Any]) -> None:
    """The hand-written backward pass for the plain MLP; autograd for the rest. Both learn the same, up to rounding."""
    spaces = _space(gym.spaces.Box(-9, 9, (5,))), _space(gym.spaces.Discrete(3))
    module = build_policy(PolicyConfig(**options), *spaces, 0)
    assert isinstance(module, MlpPolicy)
    assert supports(module) == (options in FAST)
    acts_compiled = options in FAST or "net_arch_vf" in options  # acting needs the actor alone
    assert (LocalInference(module, *spaces, 4).plain is not None) == acts_compiled
    obs, actions = torch.randn(32, 5, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3
    if options in FAST:
        for fast, slow in zip(
            ClosedFormEvaluator(module).evaluate(obs, actions), module.evaluate(obs, actions), strict=True
        ):
            assert torch.allclose(fast, slow, atol=1e-5)
        return
    with pytest.raises(UsageError, match=r"gradients=closed_form: expected MlpPolicy .* use auto"):
        hr.PPO("MlpPolicy", "CartPole-v1", gradients="closed_form", policy_kwargs=options, **SMALL)
    assert trained(policy_kwargs=options) == trained(policy_kwargs=options, gradients="autograd")


def test_ortho_init_is_torchs_own_initialisation() -> None:
    """Numbers of the same distribution as torch draws, biases too."""
    spaces = _space(gym.spaces.Box(-9, 9, (100,))), _space(gym.spaces.Discrete(3))
    module = build_policy(PolicyConfig(ortho_init=False), *spaces, 0)
    for layer in (*module.actor, *module.critic):  # type: ignore[misc, union-attr]
        usual = nn.Linear(layer.in_features, layer.out_features)
        bound = layer.in_features**-0.5
        for mine, torchs in ((layer.weight, usual.weight), (layer.bias, usual.bias)):
            assert mine.abs().max() <= bound
            if mine.numel() > 1000:
                assert abs(mine.std() / torchs.std() - 1) < 0.05
        assert layer.bias.abs().max() > 0
    orthogonal = build_policy(PolicyConfig(), *spaces, 0).actor[1]  # type: ignore[index, union-attr]
    assert torch.allclose(orthogonal.weight @ orthogonal.weight.t(), 2 * torch.eye(64), atol=1e-4)


class Pictures(gym.Env[Any, Any]):
    """Images of noise."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.integers(0, 255, (36, 36, 1), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.integers(0, 255, (36, 36, 1), np.uint8), 1.0, self.np_random.random() < 0.2, False, {}


def test_cnn_policy_has_layers_after_its_convolutions(tmp_path: Path) -> None:
    small = SMALL | {"n_envs": 2, "n_steps": 8, "batch_size": 8, "n_epochs": 1}
    seen = set()
    for kwargs in (
        {},
        {"net_arch": [16]},
        {"net_arch": {"pi": [], "vf": [16]}},
        {"net_arch": [16], "activation_fn": nn.ReLU},
    ):
        with hr.PPO("CnnPolicy", Pictures, policy_kwargs=kwargs, **small) as model:
            model.learn(16)
            model.save(tmp_path / "saved" / str(len(seen)))
            seen.add(model.run.hashes()["weights_sha256"])
            names = {name for name, _ in model.policy.named_parameters()}
            assert ("actor.0.weight" in names) == (kwargs.get("net_arch") == [16])
        with hr.PPO.load(tmp_path / "saved" / str(len(seen) - 1), env=Pictures) as model:
            model.learn(16)
    assert len(seen) == 4
    with pytest.raises(UsageError, match="activation=relu: CnnPolicy has no hidden layers unless net_arch says so"):
        hr.PPO("CnnPolicy", Pictures, policy_kwargs={"activation_fn": nn.ReLU}, **small)


def test_policy_options_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are in config.json, and a resumed run keeps them; another value is refused by name."""
    argv = [
        "train", "CartPole-v1", "--n-envs", "4", "--n-steps", "16", "--batch-size", "32", "--n-epochs", "2",
        "--seed", "1", "--topology", "inline", "--total-timesteps", "128", "--quiet", "--run-dir", f"{tmp_path}/run",
    ]  # fmt: skip
    options = ["--net-arch", "16", "8", "--net-arch-vf", "32", "--activation", "elu", "--no-ortho-init"]
    assert main([*argv, *options]) == 0
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    kwargs = {"net_arch": {"pi": [16, 8], "vf": [32]}, "activation_fn": nn.ELU, "ortho_init": False}
    wanted = {"net_arch": [16, 8], "net_arch_vf": [32], "activation": "elu", "ortho_init": False}
    assert saved["policy"] == saved["policy"] | wanted
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["weights_sha256"] == trained(policy_kwargs=kwargs)
    resume = ["train", "--resume", str(tmp_path / "run"), "--total-timesteps", "256", "--quiet"]
    capsys.readouterr()
    assert main([*resume, "--activation", "relu"]) == 2
    assert "activation is 'elu', got 'relu'" in capsys.readouterr().err
    assert main(resume) == 0
    assert main(["train", "--config", str(tmp_path / "run" / "config.json"), "--dry-run"]) == 0


# ------------------------------------------------------------------------------------------- wrong types, values, words


OURS = re.compile(r"\w*Config\b|__init__|\bTopology\b|PathLike|dataclass|positional argument")
WRONG: dict[str, list[Any]] = {
    "policy": [None, 3, "MlpPolcy", "MultiInputPolicy", MlpPolicy, nn.Linear(4, 2), object()],
    "env": [None, 3, "CartPole-v9", "NoSuch", object(), "module:", ":x", []],
    "learning_rate": [None, "fast", -1, float("nan"), [1e-3], True],
    "n_steps": [0, -1, "16", 1.5],
    "batch_size": [0, "32", 1.5, None],
    "n_epochs": [0, "2", None],
    "gamma": [2, -1, "x", None, float("nan")],
    "gae_lambda": [2, "x", None],
    "clip_range": ["wide", -1, None],
    "clip_range_vf": ["wide", 0, -1],
    "normalize_advantage": ["yes", 1, None],
    "ent_coef": ["x", -1, None],
    "vf_coef": ["x", None, -1, float("nan"), float("inf")],
    "max_grad_norm": [0, "x", None, float("nan")],
    "target_kl": [0, -1, "x", float("nan")],
    "stats_window_size": [0, "x"],
    "n_envs": [0, "x", 1.5],
    "env_kwargs": [3, "x", ["a"]],
    "wrappers": [3, "TimeLimit", [3]],
    "action_repeat": [0, "x", None],
    "policy_kwargs": [3, "x", ["a"], {"net_arch": 64}, {"net_arch": "64"}, {"net_arch": [0]}, {"net_arch": [1.5]},
                      {"net_arch": [{"pi": [64]}]}, {"net_arch": {"actor": [64]}}, {"net_arch": {"pi": 64}},
                      {"activation_fn": "nn.ReLU"}, {"activation_fn": nn.Linear}, {"activation_fn": nn.ReLU()},
                      {"activation": "swish"}, {"ortho_init": "no"}, {"log_std_init": "x"}, {"tile": 2}, {"tile": "x"},
                      {"activation": "relu", "activation_fn": nn.ReLU}, {"net_arch_vf": [8]},
                      {"activaton_fn": nn.ReLU}],
    "seed": [-1, 1.5, "x"],
    "verbose": ["x", None, 1.5],
    "device": ["cuda", "gpu", 3, None],
    "learner_device": ["cuda", "gpu", 3],
    "tensorboard_log": [3, True],
    "gradients": ["fast", None], "learner_threads": [0, "x"], "late": ["drop", None],
    "late_clip": [0, "x", float("nan")],
    "topology": ["cluster", 3], "workers": [0, "many", 1.5], "inference": ["remote", 3],
    "max_lag": [-1, "x"], "shards": [-1, "x"], "start_method": ["fork", 3], "spares": [-1, "x"],
    "pick_up_rows": [-2, "x"], "publish_every": ["1m", 0, -1], "batch": ["all", 3], "nan_policy": ["skip", 3],
    "out_of_bounds": ["clip", 3], "hang_floor_s": [0, "x"], "hang_ceiling_s": [-1, "x"],
    "preset": ["atary", 3],
    "double_buffering": ["yes", 3, ["on"]],
    "inference_device": ["gpu", "cuda:x", "emulated:2ms", 3, "cuda:0,cuda:1", [], [3]],
    "action_masks": ["yes", 1, None], "norm_obs": ["yes", 1, None], "norm_reward": ["yes", 1, None],
    "clip_obs": [0, "x", None, float("nan"), 5.0], "clip_reward": [0, "x", None, float("nan"), 5.0],
    "norm_obs_keys": [3, "obs", [3], ["obs"]],
    "inference_servers": [0, "x"], "inference_max_batch": [-1, "x"], "inference_max_wait_ms": [-1, "x"],
    "worker_max_memory_mb": [-1, "x"], "worker_max_episodes": [-1, "x"], "env_retries": [-1, "x"],
    "tune": [0, -1, "x", None, float("nan"), 1e9],
}  # fmt: skip


def test_wrong_values_are_refused_in_the_users_words() -> None:
    """Every keyword of PPO, several wrong values each: an error that names it, and nothing of ours."""
    assert set(WRONG) == set(inspect.signature(hr.PPO).parameters) - set(REFUSED) - {"unknown"}
    bad = []
    for name, values in WRONG.items():
        for value in values:
            options = {"policy": "MlpPolicy", "env": Steady} | SMALL | {name: value}
            try:
                hr.PPO(**options).close()
            except HeadraceError as error:
                if OURS.search(str(error)) or (name not in str(error) and name != "policy_kwargs"):
                    bad.append((name, value, str(error)))
            except Exception as error:
                bad.append((name, value, f"{type(error).__name__}: {error}"))
            else:
                bad.append((name, value, "was taken"))
    assert not bad, "\n".join(map(str, bad))


LEARN: dict[str, list[Any]] = {
    "total_timesteps": [0, -1, "x", None, 1.5],
    "callback": [3, "x", [3], object()],
    "log_interval": [0, "x", None],
    "tb_log_name": [3],
    "run_dir": [3],
    "eval_every": [-1, "x"], "n_eval_episodes": [0, "x"], "stop_reward": ["x"], "checkpoint_every": [-1, "x"],
    "keep_checkpoints": [-1, "x"], "keep_episodes_mb": [-1, "x"], "check_episodes": [-1, "x"],
    "stall_after_s": [-1, "x"], "tags": ["tb", 3], "evaluate_every": [3],
}  # fmt: skip


def test_wrong_values_of_learn() -> None:
    bad = []
    with hr.PPO("MlpPolicy", Steady, **SMALL) as model:
        for name, values in LEARN.items():
            for value in values:
                try:
                    model.learn(**{"total_timesteps": 64} | {name: value})
                except UsageError as error:
                    if OURS.search(str(error)) or name not in str(error):
                        bad.append((name, value, str(error)))
                except Exception as error:
                    bad.append((name, value, f"{type(error).__name__}: {error}"))
                else:
                    bad.append((name, value, "was taken"))
    assert not bad, "\n".join(map(str, bad))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--net-arch", "x"], "expected whole numbers, as in 64 64, got 'x'"),
        (["--net-arch", "0"], "net_arch: expected whole numbers of at least 1"),
        (["--activation", "swish"], "swish"),
        (["--activaton", "relu"], "--activation"),
        (["--policy", "MlpPolcy"], "did you mean MlpPolicy"),
        (["--stats-window-size", "0"], "stats_window_size: expected 1 to 10,000"),
        (["--lerning-rate", "1"], "--learning-rate"),
        (["--clip-range-vf", "wide"], "clip_range_vf: expected a number or lin_NUMBER"),
        (["--ortho_init", "x"], "unrecognized|ortho-init|x"),
    ],
    ids=str,
)
def test_the_command_line_speaks_of_options(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main(["train", "CartPole-v1", *argv, "--dry-run"])
    except SystemExit as end:  # the parser's own end
        code = end.code
    printed = capsys.readouterr()
    said = " ".join((printed.out + printed.err).split())
    assert code == 2, said
    assert re.search(words, said), said
    assert not OURS.search(said), said


def test_a_policy_of_ones_own_has_its_own_layers() -> None:
    with pytest.raises(UsageError, match="policy_kwargs: net_arch is for MlpPolicy and CnnPolicy"):
        hr.PPO(TorchPolicy(), "CartPole-v1", policy_kwargs={"net_arch": [8]})
    named = type("MlpPolicy", (TorchPolicy,), {})
    with pytest.raises(UsageError, match="a class of your own can't be named MlpPolicy"):
        hr.PPO(named(), "CartPole-v1")
    with hr.PPO(TorchPolicy(), "CartPole-v1", policy_kwargs={"tile": 16}, **SMALL) as model:
        assert model.parts.tile == 16
    assert TorchPolicy.noise == NoiseSpec("gumbel", 2)


def test_impala_knows_the_same_words() -> None:
    small = {name: SMALL[name] for name in ("n_envs", "n_steps", "batch_size", "seed", "topology")}
    with pytest.raises(UsageError, match="IMPALA: unknown option gama: did you mean gamma"):
        hr.IMPALA("MlpPolicy", "CartPole-v1", gama=1)
    with pytest.raises(UsageError, match=r"device \(learner_device\): expected cpu"):
        hr.IMPALA("MlpPolicy", "CartPole-v1", device="cuda")
    with hr.IMPALA("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": {"pi": [8], "vf": [9]}}, **small) as model:
        model.learn(64)
