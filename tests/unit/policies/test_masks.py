"""Action masks: forbidden actions are never taken, have probability 0 and no gradient; bad masks are located errors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import headrace as hr
from headrace.cli.main import main
from headrace.envs.masks import ActionMasks, keep_lawful
from headrace.envs.masks import masked as masked_spec
from headrace.errors import EnvError, SchemaError, UsageError
from headrace.memory.spaces import MultiDiscrete
from headrace.policies.distributions import Bernoulli, Categorical, Distribution, MultiCategorical
from headrace.policies.masks import MaskedPolicy, MaskedRecurrentPolicy, masked
from headrace.policies.policy import Evaluation
from support.bit_envs import Cards, Hand

SMALL: dict[str, Any] = {"n_envs": 3, "n_steps": 16, "batch_size": 24, "n_epochs": 2, "seed": 1, "topology": "inline"}
ENVS: dict[str, Any] = {"by info": Cards, "by a method": Hand}


@pytest.mark.parametrize(
    ("distribution", "width"),
    [(Categorical(5), 5), (MultiCategorical((3, 2, 4), (3,)), 9), (Bernoulli((4,)), 8)],
    ids=["Discrete", "MultiDiscrete", "MultiBinary"],
)
def test_probability_gradient_and_entropy(distribution: Distribution, width: int) -> None:
    """Against a distribution over the allowed choices alone, one row at a time."""
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(64, distribution.params, generator=generator, requires_grad=True)
    mask = (torch.rand(64, width, generator=generator) < 0.5).to(torch.int8)
    parts = {5: [5], 9: [3, 2, 4], 8: [2] * 4}[width]
    start = 0
    for count in parts:  # one choice of each is allowed at least
        mask[torch.arange(64), start + torch.randint(count, (64,), generator=generator)] = 1
        start += count
    noise = torch.randn(64, distribution.noise.width, generator=generator) * 5
    seen = masked(distribution, params, mask)
    for actions in (distribution.act(seen, noise), distribution.act(seen, None)):
        rows = actions.reshape(64, -1).long() + torch.tensor(np.cumsum([0, *parts[:-1]]))
        assert (mask.gather(1, rows) == 1).all(), "a forbidden action"
    log_prob, entropy = distribution.evaluate(seen, actions)
    (log_prob.sum() + entropy.sum()).backward()
    assert torch.isfinite(log_prob).all()
    assert params.grad is not None
    assert torch.isfinite(params.grad).all()
    for row in range(64):
        want, uncertainty, start, at = 0.0, 0.0, 0, 0
        for part, count in enumerate(parts):
            logits = (
                params[row, start : start + count] if width != 8 else torch.stack([torch.zeros(()), params[row, part]])
            )
            allowed = mask[row, at : at + count].bool()
            log_p = torch.log_softmax(logits[allowed].detach(), 0)
            chosen = int(actions.reshape(64, -1)[row, part])
            want += float(log_p[int(allowed[:chosen].sum())])
            uncertainty -= float((log_p.exp() * log_p).sum())
            start, at = start + count, at + count
        assert log_prob[row].item() == pytest.approx(want, abs=1e-5)
        assert entropy[row].item() == pytest.approx(uncertainty, abs=1e-5)
    if width != 8:
        assert (params.grad[mask == 0] == 0).all(), "forbidden choices get no gradient"
        assert (params.grad[mask == 1] != 0).any()
    else:
        forced = (mask.reshape(64, 4, 2) == 0).any(-1)
        assert (params.grad[forced] == 0).all()


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
def test_forbidden_actions_are_never_taken(env: Any, pairs: bool, tmp_path: Path) -> None:
    """In training, evaluation, prediction, after loading, with get_env; the environment asserts."""
    with hr.PPO("MlpPolicy", env, env_kwargs={"pairs": pairs}, **SMALL, action_masks=True) as model:
        assert isinstance(model.policy, MaskedPolicy)
        model.learn(200)
        for deterministic in (True, False):
            hr.evaluate_policy(model, n_eval_episodes=5, deterministic=deterministic)
        hr.evaluate_policy(model, env(pairs=pairs), n_eval_episodes=2)
        hr.evaluate_policy(model, env=hr.EnvSpec(env, {"pairs": pairs}), n_eval_episodes=2)
        played = model.get_env()
        obs = played.reset()
        for _ in range(20):
            obs, *_ = played.step(model.predict(obs)[0])
        one = env(pairs=pairs)
        obs, _ = one.reset(seed=1)
        counts = (5, 4) if pairs else (6,)
        mask = np.concatenate([np.arange(n) == n - 2 for n in counts])
        for _ in range(20):
            assert (model.predict(obs, action_masks=mask)[0] == [n - 2 for n in counts]).all()
        many, _ = model.predict(np.stack([obs] * 7), action_masks=np.stack([mask] * 7), deterministic=True)
        assert (many.reshape(7, -1) == [n - 2 for n in counts]).all()
        model.save(tmp_path / "saved")
        want = model.predict(obs, action_masks=~mask, deterministic=True)[0]
        for masks, said in (
            (None, "pass action_masks"),
            (mask[1:], "expected action_masks of shape"),
            (0 * mask, "no action"),
            (0.5 * mask, "expected 0 and 1, got"),
            (mask[None], "expected one observation of every array, or a batch of every array"),
        ):
            with pytest.raises((UsageError, SchemaError), match=said):
                model.predict(obs, action_masks=masks)
    with hr.PPO.load(tmp_path / "saved", env=env, weights_only=True) as model:
        assert (model.predict(obs, action_masks=~mask, deterministic=True)[0] == want).all()
    if not pairs:
        hr.export_policy(tmp_path / "saved", tmp_path / "policy.onnx")


@pytest.mark.parametrize(
    ("policy", "env"), [("MlpLstmPolicy", partial(Cards, pairs=True)), ("MlpGruPolicy", Hand)], ids=["LSTM", "GRU"]
)
def test_a_policy_that_remembers_never_takes_them_either(policy: str, env: Any, tmp_path: Path) -> None:
    """The same, with the state beside the mask; a state does not depend on what is allowed."""
    small = {"lstm_hidden_size": 8, "net_arch": [8]}
    with hr.PPO(policy, env, policy_kwargs=small, norm_obs=True, **SMALL, action_masks=True) as model:
        assert isinstance(model.policy, MaskedRecurrentPolicy)
        model.learn(150)
        for deterministic in (True, False):
            hr.evaluate_policy(model, n_eval_episodes=5, deterministic=deterministic)
        played = model.get_env()
        obs, state, starts = played.reset(), None, np.ones(3, bool)
        for _ in range(20):
            actions, state = model.predict(obs, state=state, episode_start=starts)
            obs, _, starts, _ = played.step(actions)
        seen, starts = obs["observation"], np.array([True, False, False])
        counts = (5, 4) if env is not Hand else (6,)
        masks = np.stack([np.concatenate([np.arange(n) == i for n in counts]) for i in range(3)])
        for _ in range(20):
            actions, after = model.predict(seen, state=state, episode_start=starts, action_masks=masks)
            assert (actions.reshape(3, -1) == np.arange(3)[:, None]).all()
        assert (after == model.predict(seen, state=state, episode_start=starts, action_masks=~masks)[1]).all()
        assert (after != model.predict(seen, action_masks=masks)[1]).any(), "what it remembers matters"
        by_policy, state_there = model.policy.predict({"observation": seen, "action_mask": masks}, state, starts)
        assert (by_policy == actions).all()
        np.testing.assert_allclose(state_there, after, atol=1e-6)
        tensors = {"observation": torch.from_numpy(seen), "action_mask": torch.from_numpy(masks)}
        with torch.no_grad():
            distribution, _ = model.policy.get_distribution(tensors)
        assert float(distribution.entropy().abs().max()) < 1e-6, "one action is allowed"
        with pytest.raises(UsageError, match="pass action_masks"):
            model.predict(seen, state=state)
        model.save(tmp_path / "saved")
    with hr.PPO.load(tmp_path / "saved", env=env, weights_only=True) as model:
        again = model.predict(seen, state=state, episode_start=starts, action_masks=masks)[1]
        assert (again == after).all()


class Bits(gym.Env[Any, Any]):
    """Every second step the first bit must be 1."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Discrete(3), spaces.MultiBinary(2)
        self._steps = 0

    def action_masks(self) -> Any:
        return np.array([self._steps % 2, 1, 1, 1])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._steps % 3, 1.0, self._steps == 5, False, {}


def test_masked_bits_are_exported(tmp_path: Path) -> None:
    """Exporting compares the file's actions with the policy's, for several numbers of rows."""
    with hr.PPO("MlpPolicy", Bits, **SMALL, action_masks=True) as model:
        assert hr.export_policy(model, tmp_path / "policy.onnx").is_file()


def test_a_mask_alone_is_no_observation() -> None:
    def only() -> gym.Env[Any, Any]:
        space = spaces.Dict({"action_mask": spaces.MultiBinary(4)})
        return gym.wrappers.TransformObservation(Bits(), lambda _: {"action_mask": np.ones(4, np.int8)}, space)

    with pytest.raises(UsageError, match="action_masks: expected observations beside action_mask, got none"):
        hr.PPO("MultiInputPolicy", only, **SMALL, action_masks=True).close()


def refused(said: str) -> Any:
    return pytest.raises(EnvError, match=said)


class Told(gym.Env[Any, Any]):
    """Returns the masks that it was given, one after the other; then it ends."""

    def __init__(self, masks: list[Any]) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(3, start=4)
        self._masks, self._t = masks, 0

    def _info(self) -> dict[str, Any]:
        mask = self._masks[self._t]
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(2, np.float32), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._masks[self._t][action - 4], "the mask counts from the first action, whatever its number"
        self._t += 1
        return np.zeros(2, np.float32), 0.0, self._t == len(self._masks) - 1, False, self._info()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([0, 0, 0], r"returned the action mask \[0, 0, 0\], which allows no action"),
        ([1, 0], r"gave an action mask of int64 of shape \(2,\), expected 3 entries"),
        (None, r"gave no action mask; expected 3 entries of 0 and 1 in info.*leave action_masks out"),
        ([1, 2, 0], r"returned the action mask \[1, 2, 0\], expected 3 of 0 and 1"),
    ],
)
def test_bad_masks_are_located(bad: Any, said: str) -> None:
    """Env, episode and step; but the mask in which an episode ends may be anything, or missing."""
    for last in ([0, 0, 0], [], "over", None):
        fine = {"masks": [[1, 0, 1], [0, 1, 0], last]}
        with hr.PPO("MlpPolicy", Told, env_kwargs=fine, **SMALL, action_masks=True) as model:
            model.learn(48)
    place = r"env 0, episode 0:0, seed \d+, step 0.*"
    spoilt = {"masks": [[1, 0, 1], bad, None]}
    with hr.PPO("MlpPolicy", Told, env_kwargs=spoilt, **SMALL, action_masks=True) as model, refused(place + said):
        model.learn(48)


class Careless(nn.Module):
    """A policy of the user's own that looks at no mask."""

    largest_tile = 16

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(7, 16)
        self.own = Categorical(6)
        self.noise = self.own.noise

    def act(self, obs: dict[str, torch.Tensor], noise: torch.Tensor | None) -> torch.Tensor:
        return self.own.act(self.inside(obs["observation"])[:, :6], noise)

    def evaluate(self, obs: dict[str, torch.Tensor], actions: torch.Tensor) -> Evaluation:
        out = self.inside(obs["observation"])
        return Evaluation(*self.own.evaluate(out[:, :6], actions), out[:, 6])

    def value(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.inside(obs["observation"])[:, 6]


class Careful(Careless):
    """The same, with the mask."""

    def act(self, obs: dict[str, torch.Tensor], noise: torch.Tensor | None) -> torch.Tensor:
        return self.own.act(self._logits(obs)[:, :6], noise)

    def evaluate(self, obs: dict[str, torch.Tensor], actions: torch.Tensor) -> Evaluation:
        out = self._logits(obs)
        return Evaluation(*self.own.evaluate(out[:, :6], actions), out[:, 6])

    def _logits(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        out = self.inside(obs["observation"])
        return torch.cat([torch.where(obs["action_mask"] > 0, out[:, :6], -1e8), out[:, 6:]], -1)


def test_a_policy_of_the_users_own() -> None:
    with hr.PPO(Careful(), Cards, **SMALL, action_masks=True) as model:
        model.learn(96)
    said = r"env \d, episode \d:\d.*step \d+.*was sent the action \d, which its action mask"
    with hr.PPO(Careless(), Cards, **SMALL, action_masks=True) as model, refused(said):
        model.learn(96)


class InObservation(gym.Wrapper[Any, Any, Any, Any]):
    """As PettingZoo's environments have it."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        mask = spaces.Box(0, 1, (6,), np.int8)
        self.observation_space = spaces.Dict({"observation": env.observation_space, "action_mask": mask})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**options)
        return {"observation": obs, "action_mask": info.pop("action_mask").astype(np.int8)}, info

    def step(self, action: Any) -> Any:
        obs, *others, info = self.env.step(action)
        mask = info.pop("action_mask", np.zeros(6)).astype(np.int8)
        return {"observation": obs, "action_mask": mask}, *others, info


def test_wherever_the_mask_comes_from_it_is_the_same_run() -> None:
    hashes = []
    for env, wrappers in ((Cards, ()), (Hand, ()), (Cards, (InObservation,))):
        with hr.PPO("MlpPolicy", env, wrappers=wrappers, **SMALL, action_masks=True) as model:
            model.learn(96)
            hashes.append(model.run.hashes())
    assert hashes[0] == hashes[1] == hashes[2]


def test_a_masked_environment_is_checked_with_actions_that_it_allows() -> None:
    assert hr.check_env(masked_spec(hr.EnvSpec("support.bit_envs:Cards", {"pairs": True}))).env_class == "A"


def test_a_built_in_policy_that_is_passed_on_fits_or_is_refused() -> None:
    for masks in (False, True):
        with hr.PPO("MlpPolicy", Hand, **SMALL, action_masks=masks) as model:
            policy = model.policy
        with hr.PPO(policy, Hand, **SMALL, action_masks=masks) as again:
            assert type(again.policy) is type(policy)
        if not masks:
            said = r"this MlpPolicy was made for the observation Box\(.*the environment has "
            with pytest.raises(UsageError, match=rf"{said}Dict\(.*with action_masks, pass the policy by its name"):
                hr.PPO(policy, Hand, **SMALL, action_masks=True)
            with pytest.raises(UsageError, match=rf"{said}Box"):
                hr.PPO(policy, "CartPole-v1", **SMALL)


def test_a_collector_has_masks_in_its_batches() -> None:
    with hr.Collector(
        Hand, "MlpPolicy", n_envs=3, n_steps=16, seed=1, topology="inline", action_masks=True
    ) as rollouts:
        batch = next(rollouts)
        taken = np.take_along_axis(batch.obs["action_mask"], batch.actions[..., None], -1)
        assert set(batch.obs) == {"observation", "action_mask"}
        assert (taken == 1).all()


def test_made_up_actions_become_lawful() -> None:
    space = MultiDiscrete((3, 2), (2,), (0, 0))
    actions = np.array([[0, 0], [2, 1]])
    keep_lawful(space, actions, {"obs/action_mask": np.array([[0, 0, 1, 0, 1], [1, 0, 1, 1, 1]], np.int8)})
    assert actions.tolist() == [[2, 1], [2, 1]]


def test_what_is_refused_and_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="action_masks: expected Discrete, MultiDiscrete or MultiBinary actions, got Box"
    ):
        hr.PPO("MlpPolicy", "Pendulum-v1", **SMALL, action_masks=True)
    with pytest.raises(UsageError, match="action_masks needs single environments"):
        hr.PPO("MlpPolicy", "gymnasium:make_vec", env_kwargs={"id": "CartPole-v1"}, **SMALL, action_masks=True)
    with pytest.raises(UsageError, match=r"sent 2 times \(action_repeat\) may be forbidden after the first"):
        hr.PPO("MlpPolicy", Hand, **SMALL, action_masks=True, action_repeat=2)
    other = pytest.raises(UsageError, match="made with action_masks=True")
    with hr.PPO("MlpPolicy", "CartPole-v1", **SMALL) as model, other:
        model.predict(np.zeros(4, np.float32), action_masks=[1, 1])
    run = tmp_path / "run"
    arguments = ["support.bit_envs:Hand", "--action-masks", "--n-envs", "2", "--n-steps", "32", "--seed", "1"]
    where = ["--topology", "inline", "--total-timesteps", "64", "--run-dir", str(run)]
    assert main(["train", *arguments, *where]) == 0
    assert main(["eval", str(run), "--n-eval-episodes", "2"]) == 0
    assert main(["replay", str(run), "0:0"]) == 0
    assert main(["replay", str(run), "0:0", "--env", "support.bit_envs:Hand"]) == 0
    with hr.PPO.load(run) as model:
        assert model.parts.config.policy.action_masks
        assert isinstance(model.parts.config.env.make(), ActionMasks)
