"""`check_env`: the class of an environment, with its evidence, and what a step costs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import headrace as hr
from headrace.errors import EnvError
from headrace.evaluation import trace
from headrace.evaluation.check import Checked
from headrace.evaluation.trace import Job, Trace, played
from support.bit_envs import Pixels
from support.faulty_envs import (
    Busy,
    CarriesState,
    CarriesStateLate,
    CountsInstances,
    DrawsOwnActions,
    NeverTheSame,
    OneGenerator,
    SeedsGlobalRandom,
    SharesItsWalk,
    ShortSeeds,
    Steady,
    UsesGlobalRandom,
)


def vector_of(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return SyncVectorEnv([Steady] * num_envs)


def default_pool(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Gymnasium's default takes an environment's own vector form, which has one generator and takes one seed."""
    return gym.make_vec("CartPole-v1", num_envs=num_envs)


def test_class_a_a_function_of_seed_and_actions() -> None:
    found = hr.check_env("CartPole-v1")
    assert found.env_class == "A"
    assert "are the same to the last bit in a fresh process, and each one alone" in found.evidence
    assert found.step_us is not None
    assert found.slowest_step_us is not None
    assert 0 < found.step_us <= found.slowest_step_us
    assert "guarantee     a run stops and resumes bit for bit" in found.text()
    assert "seeds" not in found.text()


ALONE = "played alone in a fresh process, differs in"
AGAIN = "played again in a fresh process, differs in"


@pytest.mark.parametrize(
    ("spec", "evidence"),
    [
        pytest.param(
            hr.EnvSpec("CartPole-v1", wrappers=(gym.wrappers.NormalizeObservation,)),
            f"env 0, episode 0:1, {ALONE} the observation of the reset",
            id="running normalisation",
        ),
        pytest.param(
            hr.EnvSpec("CartPole-v1", wrappers=(gym.wrappers.NormalizeReward,)),
            f"env 0, episode 0:1, {ALONE} the reward of step 0",
            id="running normalisation of rewards",
        ),
        pytest.param(
            hr.EnvSpec(UsesGlobalRandom),
            f"env 0, episode 0:0, {ALONE} the observation after step 0",
            id="global",
        ),
        pytest.param(hr.EnvSpec(CarriesState), f"env 0, episode 0:1, {ALONE} the flags of step 5", id="across resets"),
        pytest.param(
            hr.EnvSpec(CarriesStateLate), f"env 0, episode 0:4, {ALONE} the flags of step 4", id="across some resets"
        ),
        pytest.param(
            hr.EnvSpec(SeedsGlobalRandom),
            f"env 0, episode 0:0, {ALONE} the observation after step 0",
            id="seeds",
        ),
        pytest.param(
            hr.EnvSpec(SharesItsWalk), f"env 0, episode 0:0, {ALONE} the observation after step 0", id="shared array"
        ),
        pytest.param(hr.EnvSpec(DrawsOwnActions), f"env 0, episode 0:0, {ALONE} the reward of step", id="own actions"),
        pytest.param(
            hr.EnvSpec(CountsInstances), f"env 0, episode 0:0, {ALONE} the observation after step 0", id="instances"
        ),
    ],
)
def test_class_c_with_the_first_difference_named(spec: hr.EnvSpec, evidence: str) -> None:
    """Each of them is class A for a check that plays one instance, or that seeds what training does not."""
    found = hr.check_env(spec)
    assert found.env_class == "C"
    assert found.evidence.startswith(evidence)
    assert "NOT: same bits" in found.text()


LONG = {"length": 10_000}


@pytest.mark.parametrize("kept", [gym.wrappers.NormalizeObservation, gym.wrappers.NormalizeReward])
def test_what_is_carried_over_a_reset_is_found_where_episodes_are_long(kept: Any) -> None:
    """No episode ends by itself while it is played: one of them is left for the next."""
    found = hr.check_env(hr.EnvSpec(Steady, LONG, wrappers=(kept,)))
    assert found.env_class == "C"
    assert found.evidence.startswith(f"env 0, episode 0:1, {ALONE}")


class NoEarlyResets(gym.Wrapper[Any, Any, Any, Any]):
    """As SB3's Monitor is by its own choice."""

    is_over = True

    def reset(self, **options: Any) -> Any:
        if not self.is_over:
            raise RuntimeError("tried to reset before the end")
        self.is_over = False
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.is_over = terminated or truncated
        return obs, reward, terminated, truncated, info


def test_long_episodes_of_class_a_and_those_that_can_not_be_left() -> None:
    found = hr.check_env(hr.EnvSpec(Steady, LONG))
    assert (found.env_class, found.evidence[:25]) == ("A", "4 episodes of 3 instances")
    found = hr.check_env(hr.EnvSpec(Steady, LONG, wrappers=(NoEarlyResets,)))
    assert (found.env_class, found.evidence[:25]) == ("A", "3 episodes of 3 instances")


def test_two_hosts_at_once_are_part_of_the_check(tmp_path: Path) -> None:
    """An environment that leaves something behind, where the next process finds it."""
    mark = tmp_path / "mark"

    class Leaves(Steady):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            reward += mark.exists() and os.getpid() != here
            mark.touch()
            return obs, reward, *rest

    here = os.getpid()
    found = hr.check_env(Leaves)
    assert found.env_class == "C"
    assert ALONE in found.evidence or AGAIN in found.evidence


@pytest.mark.parametrize(
    ("pool", "env_class", "evidence", "guarantee"),
    [
        (vector_of, "B", "depends on its own seed and actions", "on any number of shards and workers"),
        (OneGenerator, "B", "in a pool of half the size, differs in", "NOT: same bits on another number of shards"),
        (default_pool, "B", "in a pool of half the size, differs in", "NOT: same bits on another number of shards"),
        (NeverTheSame, "C", f"env 0, episode 0:0, {AGAIN} the reward of step", "NOT: same bits"),
    ],
)
def test_pools_are_played_too(pool: Any, env_class: str, evidence: str, guarantee: str) -> None:
    found = hr.check_env(pool)
    assert (found.env_class, found.step_us) == (env_class, None)
    assert evidence in found.evidence
    assert ("resets itself" in found.evidence) == (env_class == "B")
    assert guarantee in found.text()
    assert "step cost" not in found.text()


def test_environments_that_take_short_seeds_are_found_and_served(tmp_path: Path) -> None:
    found = hr.check_env(ShortSeeds)
    assert (found.env_class, found.seed_bits) == ("A", 32)
    assert "seeds         32 bits" in found.text()
    hashes = set()
    for topology in ({"topology": "inline"}, {"topology": "processes", "workers": 2}):
        with hr.PPO("MlpPolicy", "support.faulty_envs:ShortSeeds", n_envs=4, n_steps=8, seed=3, **topology) as model:
            assert model.parts.config.env.seed_bits == 32
            model.learn(64)
            model.save(tmp_path / "model")
            with hr.PPO.load(tmp_path / "model", trust=True) as loaded:
                assert loaded.parts.config.env.seed_bits == 32, "recorded in the configuration"
                loaded.learn(64)
                hashes.add(loaded.run.hashes()["weights_sha256"])
    assert len(hashes) == 1


def a_step_us() -> float:
    """Of Busy, timed here: what the machine makes of its 2 ms at the moment."""
    env, times = Busy(length=1000), []
    env.reset(seed=1)
    for _ in range(100):
        begun = time.perf_counter()
        env.step(0)
        times.append(time.perf_counter() - begun)
    return 1e6 * float(np.median(times))


@pytest.mark.alone
def test_what_a_step_costs_is_measured() -> None:
    """Not what an episode of five does; on a busy machine a step takes longer, here and there."""
    before = a_step_us()
    found = hr.check_env(Busy)
    assert found.step_us is not None
    assert 2_000 <= found.step_us < 3 * max(before, a_step_us())
    assert f"step cost     {found.step_us:.1f} us" in found.text()
    assert "at most" in found.text()


def test_spaces_and_progress_are_told() -> None:
    said: list[str] = []
    found = hr.check_env(hr.EnvSpec(Steady, {"length": 3}), progress=said.append)
    assert isinstance(found, Checked)
    assert "observation   Box(shape=(3,), float32)" in found.text()
    assert "action        Discrete(n=2, int64)" in found.text()
    assert said == [
        "playing 3 instances in turn",
        "playing the same again in a fresh process, and every episode alone in another one",
    ]
    assert "15 episodes of 3 instances (45 steps)" in found.evidence


def test_a_slow_environment_is_judged_by_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a thousand steps of a second each; all processes play equally far."""

    class Slow(Steady):
        def step(self, action: Any) -> Any:
            time.sleep(0.02)
            return super().step(action)

    monkeypatch.setattr("headrace.evaluation.check.MOST_S", 0.1)
    found = hr.check_env(lambda: Slow(length=10_000))
    assert found.env_class == "A"
    steps = int(found.evidence.split("(")[1].split()[0])
    assert 3 <= steps <= 3 * 6


def test_an_environment_that_raises_is_named_with_its_cause() -> None:
    class Breaks(Steady):
        def step(self, action: Any) -> Any:
            raise RuntimeError("the simulator fell over")

    with pytest.raises(
        EnvError, match=r"Breaks: env 0 of the check: the environment raised RuntimeError: the s"
    ) as caught:
        hr.check_env(Breaks)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_one_that_breaks_only_elsewhere_shows_the_other_processes_traceback() -> None:
    here = trace.__file__  # any fact of this process that the other one does not share would do

    def make() -> gym.Env[Any, Any]:
        if "pytest" not in sys.modules:
            raise OSError(f"no display, unlike {here}")
        return Steady()

    with pytest.raises(EnvError, match=r"(?s)could not be played in a fresh process .*Traceback.*no display"):
        hr.check_env(make)


def test_a_module_of_the_current_directory_is_found_by_the_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_env_of_test_check.py").write_text(
        "from support.faulty_envs import Steady\nclass Local(Steady): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert hr.check_env("local_env_of_test_check:Local").env_class == "A"


# --------------------------------------------------------------------------------------------------------------- traces


def a_trace(**changed: Any) -> Trace:
    arrays = {
        "obs": np.arange(8, dtype=np.uint8).reshape(4, 2),
        "reward": np.array([1.0, np.nan, 3.0], np.float32),
        "flags": np.array([[False, False], [False, False], [False, True]]),
    }
    return Trace(**(arrays | changed))


def with_change(name: str, index: Any, value: Any) -> Trace:
    array = np.copy(getattr(a_trace(), name))
    array[index] = value
    return a_trace(**{name: array})


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (a_trace(), None),
        (with_change("obs", (0, 0), 5), "the observation of the reset"),
        (with_change("obs", (3, 1), 5), "the observation after step 2"),
        (with_change("reward", 0, 2.0), "the reward of step 0: 1.0 and 2.0"),
        (with_change("flags", (2, 0), True), "the flags of step 2"),
        (a_trace(obs=a_trace().obs[:3], reward=a_trace().reward[:2], flags=a_trace().flags[:2]), "the length: 3 and 2"),
    ],
)
def test_where_two_traces_part(other: Trace, difference: str | None) -> None:
    for found in (a_trace().difference(other), other.difference(a_trace())):
        assert (found is None) if difference is None else found is not None
    found = a_trace().difference(other)
    assert difference is None or (found or "").startswith(difference)


def traced(env: Any, episode: int, seed: int = 1) -> Trace:
    return played(hr.EnvSpec(env), Job(range(2, 3), 5, episode), seed)[2, episode]


def test_a_trace_depends_on_seed_env_and_episode_only() -> None:
    first = traced(Steady, 2)
    assert first.difference(traced(Steady, 2)) is None
    assert first.difference(traced(Steady, 3)) is not None
    assert first.difference(traced(Steady, 2, seed=2)) is not None
    together = played(hr.EnvSpec(Steady), Job(range(4), 15), 1)
    assert first.difference(together[2, 2]) is None
    assert first.difference(together[1, 2]) is not None


def test_of_large_observations_digests_are_kept() -> None:
    first = traced(Pixels, 2)
    assert first.obs.shape == (6, 32)
    assert first.difference(traced(Pixels, 2)) is None
    assert first.difference(traced(Pixels, 3)) == "the observation of the reset"


def test_actions_come_from_a_description_of_the_space_and_leave_the_environments_own_alone() -> None:
    """A check that seeded or drew from env.action_space would hide environments that use it themselves."""
    seen: list[Any] = []

    class Watched(Steady):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Discrete(3, start=-1, seed=5)
            seen.append(self.action_space)

        def step(self, action: Any) -> Any:
            assert action in self.action_space
            assert isinstance(action, np.integer)
            return super().step(action)

    played(hr.EnvSpec(Watched), Job(range(2), 20), 1)
    untouched = gym.spaces.Discrete(3, start=-1, seed=5)
    want = [untouched.sample() for _ in range(10)]
    assert all([space.sample() for _ in range(10)] == want for space in seen)
