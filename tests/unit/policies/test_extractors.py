"""Feature extractors of the user's own, shared and separate ones, and images that are not scaled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.errors import CheckpointError, ConsentError, UsageError
from headrace.memory.spaces import Box, Dict, Discrete
from headrace.policies.config import PolicyConfig
from headrace.policies.networks import build_policy
from support.bit_envs import Cards
from support.dict_envs import Nested, Signpost
from support.doctored import doctor

SMALL: dict[str, Any] = {"n_envs": 4, "n_steps": 8, "batch_size": 16, "seed": 3, "topology": "inline"}


class Whole(nn.Module):
    """As SB3's BaseFeaturesExtractor has it, over a whole Dict."""

    def __init__(self, observation_space: Any, features_dim: int = 5) -> None:
        super().__init__()
        self.features_dim = features_dim
        size = sum(int(np.prod(one.shape)) for one in observation_space.spaces.values())
        self.layer = nn.Linear(size, features_dim)
        self.scale = nn.Parameter(torch.randn(features_dim))  # nothing of ours starts it

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return torch.tanh(self.layer(torch.cat([one.flatten(1) for one in obs.values()], -1))) * self.scale


class Conv(nn.Module):
    """Over one image, channels first."""

    def __init__(self, observation_space: Any, features_dim: int = 7) -> None:
        super().__init__()
        self.features_dim, self.seen = features_dim, observation_space
        self.layer = nn.Conv2d(observation_space.shape[0], features_dim, (3, 1))

    def forward(self, obs: Tensor) -> Tensor:
        assert obs.dtype == torch.float32
        assert float(obs.max()) <= 1.0
        return self.layer(obs).amax((2, 3))


class TooFew(Whole):
    def forward(self, obs: Any) -> Tensor:
        return super().forward(obs)[:, 1:]


def grown(features: Any, name: str) -> dict[str, Any]:
    return {"features_extractor_class": features, "features_extractor_kwargs": {"features_dim": 6} if name else {}}


CLASSES = {
    "whole": {"features_extractor_class": Whole, "features_extractor_kwargs": {"features_dim": 6}},
    "one leaf": {
        "features_extractor_class": {"goal": Conv},
        "features_extractor_kwargs": {"goal": {"features_dim": 4}},
    },
    "by name": {"features_extractor_class": f"{__name__}:Whole"},
    "one each": {"features_extractor_class": Whole, "share_features_extractor": False},
}


@pytest.mark.parametrize("name", CLASSES)
def test_it_is_trained_the_same_anywhere_and_resumes(name: str, tmp_path: Path) -> None:
    options = SMALL | {"policy_kwargs": CLASSES[name]}
    with hr.PPO("MultiInputPolicy", "support.dict_envs:Signpost", **options) as model:
        before = model.run.hashes()
        records = [model.run.update(10**6).record for _ in range(2)]
        model.save(tmp_path / "saved")
        middle = model.run.hashes()
        assert before != middle
        assert max(record["headrace/first_ratio_error"] for record in records) < 1e-5
        model.run.update(10**6)
        wanted = model.run.hashes()
        sees = "Conv 4" if name == "one leaf" else "Whole"
        assert f"features     {'goal ' if name == 'one leaf' else ''}{sees}" in model.plan()
        assert ("one extractor each" in model.plan()) == (name == "one each")
        assert model.plan().endswith("gradients autograd") or "gradients autograd" in model.plan()
    with hr.PPO.load(tmp_path / "saved", topology="processes", workers=2) as again:
        assert again.run.hashes() == middle
        again.run.update(10**6)
        assert again.run.hashes() == wanted


def test_one_leaf_sees_what_sb3_would_give_it() -> None:
    with hr.PPO("auto", Signpost, policy_kwargs=CLASSES["one leaf"], **SMALL) as model:
        module = next(one for one in model.policy.modules() if isinstance(one, Conv))
        assert module.seen.shape == (1, Signpost.CELLS, 1)
        assert str(module.seen.dtype) == "uint8"
        kinds = [type(one).__name__ for one in model.policy.encode.extractors]  # type: ignore[union-attr]
        assert kinds == ["OwnEncoder", "VectorEncoder"]


def test_it_starts_from_the_runs_seed_alone() -> None:
    found = []
    for state, seed in ((1, 3), (2, 3), (1, 4)):
        torch.manual_seed(state)
        with hr.PPO("auto", Signpost, policy_kwargs=CLASSES["whole"], **SMALL | {"seed": seed}) as model:
            found.append(model.run.hashes()["weights_sha256"])
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        (grown(TooFew, "x"), r"TooFew: expected forward to return float32 \[N, 6\].*got torch.float32 \[3, 5\]"),
        (grown(nn.Linear, ""), r"features_extractor_class Linear raised TypeError"),
        (grown(nn.Identity, ""), "Identity: expected a torch module with a features_dim"),
        (grown(3, ""), "features_extractor_class: expected a class"),
        (grown({}, ""), "features_extractor_class: expected a class, or one for at least one array, got {}"),
        (grown({"wheel": Conv}, ""), "there is no observation 'wheel'; expected some of goal, position"),
        ({"features_extractor_kwargs": {"features_dim": 3}}, "they are for features_extractor_class"),
        (grown("no_such_module:X", ""), "no_such_module"),
    ],
)
def test_what_is_no_extractor_is_refused(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hr.PPO("auto", Signpost, policy_kwargs=kwargs, **SMALL).close()


class Counted(nn.Linear):
    def __init__(self, observation_space: Any, features_dim: int = 3) -> None:
        self.features_dim = np.int64(features_dim)  # as np.prod counts
        super().__init__(observation_space.shape[0], int(features_dim))


def test_a_width_that_numpy_counted(tmp_path: Path) -> None:
    own = {"features_extractor_class": Counted, "features_extractor_kwargs": {"features_dim": np.int64(5)}}
    with hr.PPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=8, policy_kwargs=own, topology="inline") as model:
        assert "Counted 5" in model.plan()
        model.save(tmp_path / "model")
    hr.PPO.load(tmp_path / "model", policy_kwargs=own).close()


@pytest.mark.parametrize("policy", ["MultiInputPolicy", "MultiInputLstmPolicy"])
def test_an_array_without_numbers_is_named(policy: str) -> None:
    space = Dict((("full", Box((2,), "float32", (-1.0,), (1.0,))), ("hollow", Box((0,), "float32", (-1.0,), (1.0,)))))
    with pytest.raises(UsageError, match=r"observation/hollow: expected at least one number, got Box\(shape=\(0,\)"):
        build_policy(PolicyConfig(policy), space, Discrete(2), 1)


@pytest.mark.parametrize("leaf", ["action_mask", "observation"])
def test_with_masks_extractors_are_those_of_the_rest(leaf: str) -> None:
    kwargs = {"features_extractor_class": {leaf: Conv}}
    with pytest.raises(UsageError, match=f"there is no observation '{leaf}'; expected some of one array"):
        hr.PPO("auto", Cards, policy_kwargs=kwargs, action_masks=True, **SMALL).close()


def test_a_file_of_others_names_nothing_that_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hr.PPO("auto", "support.dict_envs:Signpost", policy_kwargs=CLASSES["whole"], **SMALL) as model:
        model.learn(32).save(tmp_path / "saved")

    def claim(state: Any) -> None:
        state["config"]["policy"]["features_extractor_class"] = {"": "canary_module:Extractor"}

    other = doctor(tmp_path / "saved", tmp_path / "other", claim)
    monkeypatch.setenv("HEADRACE_KEY_FILE", str(tmp_path / "another"))
    with pytest.raises(ConsentError, match=r'features_extractor_class "canary_module:Extractor" .*features_dim'):
        hr.PPO.load(other, env=hr.EnvSpec("support.dict_envs:Signpost"))
    with pytest.raises(UsageError, match="load the run and export"):
        hr.export_policy(tmp_path / "saved", tmp_path / "it.onnx")
    for path in (tmp_path / "saved", other):  # named by the user, so nothing of the file is
        hr.PPO.load(path, env=hr.EnvSpec("support.dict_envs:Signpost"), policy_kwargs=CLASSES["whole"]).close()
    for broken in ({"": 3}, [], {"": {"x": 1}}):
        path = doctor(
            tmp_path / "saved", tmp_path / f"broken {broken}",
            lambda state, it=broken: state["config"]["policy"].update(features_extractor_class=it),
        )  # fmt: skip
        with pytest.raises(CheckpointError, match="features_extractor_class"):
            hr.PPO.load(path, trust=True)


def test_a_class_without_a_name_is_given_again(tmp_path: Path) -> None:
    class Local(Whole):
        pass

    given = {"features_extractor_class": Local}
    with hr.PPO("auto", "support.dict_envs:Signpost", policy_kwargs=given, **SMALL) as model:
        model.learn(32).save(tmp_path / "saved")
        want = model.run.hashes()
    with pytest.raises(UsageError, match=r"Local.*pass policy_kwargs=... again"):
        hr.PPO.load(tmp_path / "saved")
    with hr.PPO.load(tmp_path / "saved", policy_kwargs=given) as again:
        assert again.run.hashes() == want


def test_separate_convolutions_and_unscaled_images() -> None:
    image, action = Box((36, 36, 3), "uint8", (0.0,), (255.0,)), Discrete(3)
    shared, apart = (
        build_policy(PolicyConfig("CnnPolicy", share_features_extractor=flag), image, action, 1)
        for flag in (True, False)
    )
    count = [sum(one.numel() for one in policy.parameters()) for policy in (shared, apart)]
    heads = 512 * 4 + 4
    assert count[1] - heads == 2 * (count[0] - heads)
    obs = torch.randint(0, 256, (5, 36, 36, 3), dtype=torch.uint8)
    value = apart.value(obs).sum()  # type: ignore[operator]
    value.backward()
    assert all(one.grad is None for one in apart.encode.parameters())  # type: ignore[union-attr]
    assert all(one.grad is not None for one in apart.encode_vf.parameters())  # type: ignore[union-attr]
    for name in ("CnnPolicy", "MlpPolicy"):
        raw, scaled = (
            build_policy(PolicyConfig(name, normalize_images=flag), image, action, 1) for flag in (False, True)
        )
        got, want = (one.params(part) for one, part in ((raw, obs // 255), (scaled, obs // 255 * 255)))  # type: ignore[operator]
        assert torch.equal(got, want)


def test_an_image_among_several_has_convolutions_of_its_own() -> None:
    with hr.PPO("MultiInputPolicy", Nested, **SMALL) as model:
        assert "pair/1 convolutions 256" in model.plan()
        assert "arm/mode flat 3" in model.plan()
