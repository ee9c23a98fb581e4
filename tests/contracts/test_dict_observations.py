"""Observations of several arrays, whatever steps the environments: the leaves are what was returned, faults are named.

The oracle is a loop over the bare environments, driven by the actions that a batch shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import headrace as hr
from headrace.envs.seeds import Purpose, leaf
from headrace.envs.spec import EnvSpec
from headrace.errors import EnvError, NumericsError, SchemaError, UsageError
from support.dict_envs import FAULTS, Nested, Signpost, Strange
from support.faulty_envs import DictObservation

SEED, N_ENVS, N_STEPS = 7, 5, 9
SMALL: dict[str, Any] = {"n_envs": N_ENVS, "n_steps": N_STEPS, "seed": SEED}


def flat(obs: Any, path: str = "") -> dict[str, Any]:
    """An observation by name, as the oracle has it."""
    if not isinstance(obs, dict | tuple):
        return {path[:-1]: obs}
    entries = obs.items() if isinstance(obs, dict) else enumerate(obs)
    return {name: one for key, below in entries for name, one in flat(below, f"{path}{key}/").items()}


class Oracle:
    """One environment, one step at a time."""

    def __init__(self, env: gym.Env[Any, Any], index: int) -> None:
        self._env, self._index, self._episode = env, index, 0
        self.obs = self._reset()

    def step(self, action: Any) -> Any:
        """The observation in which an episode was cut, or None."""
        obs, _, terminated, truncated, _ = self._env.step(np.clip(action, -1, 1))
        self.obs = flat(obs)
        if not (terminated or truncated):
            return None
        self._episode += 1
        last, self.obs = self.obs, self._reset()
        return None if terminated else last

    def _reset(self) -> Any:
        return flat(self._env.reset(seed=leaf(SEED, Purpose.ENV, self._index, self._episode))[0])


def same(leaves: dict[str, Any], obs: dict[str, Any], *at: int) -> bool:
    return leaves.keys() == obs.keys() and all(
        leaf[at].tobytes() == np.asarray(obs[name], leaf.dtype).tobytes() for name, leaf in leaves.items()
    )


@pytest.mark.parametrize(
    "place",
    [
        {"topology": "inline"},
        {"topology": "inline", "shards": 3},
        {"topology": "threads", "workers": 2},
        {"topology": "processes", "workers": 2},
    ],
    ids=["inline", "three shards", "threads", "processes"],
)
def test_a_collector_gives_what_the_environments_returned(place: dict[str, Any]) -> None:
    oracles = [Oracle(Nested(side=8), index) for index in range(N_ENVS)]
    cut = 0
    with hr.Collector(
        "support.dict_envs:Nested", "MultiInputPolicy", env_kwargs={"side": 8}, **SMALL, **place
    ) as rollouts:
        for _, batch in zip(range(4), rollouts, strict=False):
            finals = dict(zip(batch.final_row.tolist(), range(len(batch.final_row)), strict=True))
            for t in range(N_STEPS):
                for env, oracle in enumerate(oracles):
                    assert same(batch.obs, oracle.obs, t, env)
                    last = oracle.step(batch.actions[t, env])
                    assert (last is not None) == (t * N_ENVS + env in finals)
                    if last is not None:
                        cut += 1
                        assert same(batch.final_obs, last, finals[t * N_ENVS + env])
            for env, oracle in enumerate(oracles):
                assert same(batch.last_obs, oracle.obs, env)
    assert cut > 3


def pool(num_envs: int, mode: str) -> gym.vector.VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([lambda: Nested(side=4)] * num_envs, autoreset_mode=AutoresetMode[mode])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_pools_that_reset_themselves(mode: str) -> None:
    """Their first rows are the serial loop's, until the first reset of their own; final observations are real ones."""
    options: dict[str, Any] = {**SMALL, "topology": "inline"}
    with (
        hr.Collector(pool, "auto", env_kwargs={"mode": mode}, **options) as pooled,
        hr.Collector(Nested, "auto", env_kwargs={"side": 4}, **options) as serial,
    ):
        first, wanted = next(pooled), next(serial)
        is_first = (wanted.episode == 0) & (first.episode == 0) & first.valid
        assert is_first.sum() > N_STEPS
        for name, array in wanted.obs.items():
            assert (first.obs[name][is_first] == array[is_first]).all()
        cut = 0
        for _ in range(4):
            batch = next(pooled)
            is_cut = batch.truncated & ~batch.terminated & batch.valid
            assert sorted(batch.final_row.tolist()) == np.flatnonzero(is_cut).tolist()
            cut += len(batch.final_row)
            for row, mode_of_arm in zip(batch.final_row, batch.final_obs["arm/mode"], strict=True):
                wanted_reward = batch.final_obs["arm/row"][batch.final_row.tolist().index(row)].sum() - mode_of_arm
                assert batch.reward.reshape(-1)[row] == pytest.approx(wanted_reward, abs=1e-5)
    assert cut


@pytest.mark.parametrize("at", [0, 3, Signpost.LIMIT], ids=["reset", "step", "final"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_place_and_key(fault: str, at: int) -> None:
    place = rf"^env 0, episode 0:0, seed {leaf(SEED, Purpose.ENV, 0, 0)}, step {max(at - 1, 0)}: the environment "
    with (
        pytest.raises(EnvError, match=f"{place}returned {FAULTS[fault][1]}"),
        hr.Collector(
            Strange, "auto", env_kwargs={"fault": fault, "at": at}, n_envs=2, n_steps=10, seed=SEED, topology="inline"
        ) as rollouts,
    ):
        next(rollouts)


def test_the_place_is_that_of_the_environment() -> None:
    strange = {"fault": "extra", "at": 2, "only": leaf(SEED, Purpose.ENV, 2, 1)}
    options: dict[str, Any] = {"n_envs": 3, "n_steps": 20, "seed": SEED, "topology": "inline"}
    with (
        pytest.raises(EnvError, match=r"^env 2, episode 2:1, seed \d+, step 1: .*'speed'"),
        hr.Collector(Strange, "auto", env_kwargs=strange, **options) as rollouts,
    ):
        next(rollouts)


class Blank(Signpost):
    """NaN and an infinity in one leaf, in the third step of every episode."""

    def _seen(self) -> Any:
        obs = super()._seen()
        return obs | {"position": np.array([np.nan, np.inf], np.float32)} if self._steps == 3 else obs


def test_numbers_that_are_none_are_named_with_their_leaf() -> None:
    options: dict[str, Any] = {"n_envs": 2, "n_steps": 10, "seed": SEED, "topology": "inline"}
    with (
        pytest.raises(NumericsError, match=r"^env 0, .* step 2: the observation/position that followed has NaN"),
        hr.Collector(Blank, "auto", **options) as rollouts,
    ):
        next(rollouts)
    with hr.Collector(Blank, "auto", nan_policy="clamp", **options) as rollouts:
        batch = next(rollouts)
        assert batch.obs["position"][3, 0].tolist() == [0.0, 1.0]
        assert batch.obs["goal"][3].any()


def test_a_recorded_episode_replays(tmp_path: Path) -> None:
    env, options = "support.dict_envs:Nested", {"n_envs": 3, "n_steps": 30, "batch_size": 45, "seed": 2}
    with hr.PPO("auto", env, env_kwargs={"side": 4}, topology="inline", **options) as model:
        model.learn(180, run_dir=tmp_path / "run")
    found = [one for one in hr.recorded_episodes(tmp_path / "run") if one.is_finished]
    assert {one.truncated for one in found} == {True, False}
    assert all(hr.replay(tmp_path / "run", (one.env_index, one.episode)).is_identical for one in found)
    other = EnvSpec(env, {"side": 4, "limit": 10})
    last = next(one for one in found if one.truncated)
    assert not hr.replay(tmp_path / "run", (last.env_index, last.episode), env=other).is_identical


@pytest.mark.parametrize(
    ("env", "policy", "said"),
    [
        (Signpost, "MlpPolicy", "use MultiInputPolicy or auto"),
        (Signpost, "CnnPolicy", "expected uint8 images .* use policy MultiInputPolicy"),
        ("CartPole-v1", "MultiInputPolicy", "use MlpPolicy or auto"),
    ],
)
def test_a_policy_that_does_not_fit(env: Any, policy: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        hr.PPO(policy, env, topology="inline", n_envs=2, n_steps=4)


def test_auto_takes_it_and_check_knows_it() -> None:
    with hr.PPO("auto", DictObservation, topology="inline", n_envs=2, n_steps=4, batch_size=8, seed=1) as model:
        assert type(model.policy).__name__ == "MultiInputPolicy"
        assert "Dict -> " in model.plan()
    found = hr.check_env("support.dict_envs:Nested")
    assert found.env_class == "A"
    assert "observation   arm/mode: Discrete(n=3, int64)" in found.text()


def test_predict_takes_what_an_environment_gives() -> None:
    envs = [Nested(side=8) for _ in range(3)]
    seen = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]
    batched = gym.vector.utils.concatenate(
        envs[0].observation_space, seen, gym.vector.utils.create_empty_array(envs[0].observation_space, 3)
    )
    with hr.PPO("auto", Nested, env_kwargs={"side": 8}, topology="inline", n_envs=2, n_steps=4, batch_size=8) as model:
        alone = [model.predict(obs, deterministic=True)[0] for obs in seen]
        together, _ = model.predict(batched, deterministic=True)
        assert together.shape == (3, 2)
        assert np.stack(alone).tobytes() == together.tobytes()
        assert model.predict(seen[0])[0].shape == (2,)
        with pytest.raises(SchemaError, match=r"^predict: an observation without 'action'"):
            model.predict({})
        with pytest.raises(SchemaError, match=r"^predict: expected as many rows .*'arm/row': 2"):
            model.predict(batched | {"arm": batched["arm"] | {"row": batched["arm"]["row"][:2]}})
        mean, _ = hr.evaluate_policy(model, n_eval_episodes=3)
        assert np.isfinite(mean)
