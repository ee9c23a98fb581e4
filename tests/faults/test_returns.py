"""What environments return: every malformed return is one located error, everything unambiguous is taken as it is.

Fuzzed with 1,000 seeded odd returns: no raw exception, no hang, nothing wrongly accepted, nothing sound refused.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.envs.adapters.gymnasium_vector import GymnasiumVector
from headrace.envs.serial import SerialEnvs
from headrace.envs.spec import ActionRepeat
from headrace.envs.vector_env import EnvFailure, LiveEpisode, VectorEnv
from headrace.errors import EnvError, HeadraceError, NumericsError
from headrace.memory.slab import Slab
from support.chains import SOURCES, ChainEnv, Script, expected_stream, seed_of, streams_of
from support.command import assert_says
from support.faulty_envs import Faulty, Steady
from support.generators import quick, seeds
from support.odd_returns import SHARED_WAYS, SPACES, odd_case, odd_envs, odd_return, sharing_makers
from support.slabs import act_by_noise, action_of, filled_slabs, noise_actor, slab_for

ENVS = range(4, 7)
BAD = 1  # the position of the odd one
CASES, CHUNKS = 1_000, 10


class Broken(BaseException):
    """What a signal handler raises here, as a session's does."""


@pytest.fixture
def own_handler() -> Iterator[None]:
    """Ctrl-C is handled in Python, as during a session: what is raised without it is the environment's own."""

    def handle(number: int, frame: Any) -> None:
        raise Broken

    before = signal.signal(signal.SIGINT, handle)
    yield
    signal.signal(signal.SIGINT, before)


def played(envs: VectorEnv, n_steps: int = 8) -> Slab:
    """A slab, as an actor fills it."""
    slab = slab_for(envs, n_steps)
    noise_actor(envs, ENVS).fill(slab, act_by_noise(0))
    return slab


def raised_in(envs: VectorEnv) -> BaseException | None:
    try:
        played(envs)
    except BaseException as error:
        return error
    return None


# ------------------------------------------------------------------------------------------------------------- the fuzz


@pytest.mark.timeout(60)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.filterwarnings("default")  # numpy's warnings are no errors in a user's run
def test_a_thousand_odd_returns(chunk: int, own_handler: None) -> None:
    refused = accepted = 0
    for case in range(chunk * CASES // CHUNKS, (chunk + 1) * CASES // CHUNKS):
        space, odd, at = odd_case(case)
        what = f"case {case}: {space}, call {at}, {odd.place}: {odd.name}"
        error = raised_in(odd_envs(space, odd, at, ENVS, BAD))
        assert error is None or isinstance(error, HeadraceError), f"{what}: {type(error).__name__} came out raw"
        assert odd.is_malformed == (error is not None), f"{what}: {error or 'accepted'}"
        refused, accepted = refused + (error is not None), accepted + (error is None)
        if error is not None:
            index = ENVS[BAD]
            places = [f"env {index}, episode {index}:{n}, seed {seed_of(index, n)}, step " for n in (0, 1)]
            assert str(error).startswith(tuple(places)), f"{what}: {error}"
    assert refused > 50
    assert accepted > 3, "and what is sound is taken"


def test_what_is_taken_is_taken_as_it_is(own_handler: None) -> None:
    """For every sound way to say it: the slab holds that number."""
    seen: set[tuple[str, str]] = set()
    for case in range(3_000):
        rng = np.random.default_rng(case)
        space = str(rng.choice(list(SPACES)))
        odd = odd_return(rng, space)
        if odd.is_malformed:
            continue
        slab = played(odd_envs(space, odd, 1, ENVS, BAD), n_steps=2)
        seen.add((odd.place, space if odd.place == "obs" else odd.name))
        if odd.place == "obs":
            assert (slab.obs["obs"][1, BAD] == (0 if odd.name == "tensor" else 1)).all(), odd.name
        elif odd.place == "reward":
            assert slab.reward[0, BAD] == 0.5
        else:
            assert getattr(slab, odd.place)[0, BAD]
    assert {("obs", space) for space in SPACES} <= seen
    assert {place for place, _ in seen} == {"obs", "reward", "terminated", "truncated"}


# --------------------------------------------------------------------------------------------- each line of the issue


class Returning(Steady):
    """Steady, but one of its values is always this one."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self._parts = parts
        self.observation_space = parts.pop("space", self.observation_space)
        if parts.keys() & {"obs"}:
            self._seen = lambda: self.observation_space.sample()  # type: ignore[method-assign]

    def step(self, action: Any) -> Any:
        names = ("obs", "reward", "terminated", "truncated", "info")
        return tuple((dict(zip(names, super().step(action), strict=True)) | self._parts).values())


NAMED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "ragged": ({"obs": [[1.0], [1.0, 2.0], 3.0]}, ["no array of shape (3,)", "float32"]),
    "a reward of text": ({"reward": "1"}, ["the reward '1'", "expected a number"]),
    "a huge reward": ({"reward": 10**400}, ["the reward 1000", "fits float32"]),
    "a reward beyond float32": ({"reward": 1e39}, ["the reward 1e+39", "fits float32"]),
    "an observation beyond float32": ({"obs": np.array([1, 1e300, 1])}, ["1e+300 at (1,)", "too large for float32"]),
    "terminated no": ({"terminated": "no"}, ["terminated='no'", "expected True or False"]),
    "terminated NaN": ({"terminated": float("nan")}, ["terminated=nan", "expected True or False"]),
    "truncated None": ({"truncated": None}, ["truncated=None", "expected True or False"]),
    "a list of flags": ({"terminated": [False]}, ["terminated=[False]", "expected True or False"]),
    "a choice out of range": ({"obs": 7, "space": spaces.Discrete(5)}, ["the observation 7", "expected 0 to 4"]),
    "a choice before the first": (
        {"obs": 1, "space": spaces.Discrete(5, start=2)}, ["the observation 1", "expected 2 to 6"],
    ),
    "choices out of range": (
        {"obs": np.array([1, 4]), "space": spaces.MultiDiscrete([3, 4])},
        ["the observation 4 at (1,)", "expected 0 to 3 (MultiDiscrete)"],
    ),
    "bits out of range": (
        {"obs": np.array([0, 2], np.int8), "space": spaces.MultiBinary(2)}, ["2 at (1,)", "expected 0 to 1"],
    ),
    "300 in an int8": (
        {"obs": np.array([1, 300, 2]), "space": spaces.Box(-128, 127, (3,), np.int8)},
        ["300 at (1,)", "does not fit its dtype", "int8"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_the_message_says_expected_and_got(name: str) -> None:
    parts, said = NAMED[name]
    with (
        pytest.raises(EnvError) as caught,
        hr.PPO("MlpPolicy", Returning, env_kwargs=dict(parts), n_envs=2, n_steps=8, seed=7, topology="inline") as model,
    ):
        model.learn(32)
    assert_says(str(caught.value), ["env 0, episode 0:0, seed", "step 0", *said])


@pytest.mark.parametrize("place", ["inline", "threads", "processes"])
@pytest.mark.parametrize("fault", ["keyboard_interrupt", "system_exit"])
def test_what_an_environment_raises_to_end_the_program_is_its_failure(place: str, fault: str) -> None:
    options: dict[str, Any] = {"topology": place, "workers": "auto" if place == "inline" else 2}
    with (
        pytest.raises(EnvError) as caught,
        hr.PPO("MlpPolicy", Faulty, env_kwargs={"fault": fault}, n_envs=2, n_steps=8, seed=7, **options) as model,
    ):
        model.learn(64)
    assert_says(str(caught.value), [Faulty.PLACE, {"system_exit": "SystemExit: 3"}.get(fault, "KeyboardInterrupt")])


def test_an_environment_that_exits_in_its_reset_its_factory_or_its_close(own_handler: None) -> None:
    class Exits(Steady):
        def __init__(self, where: str) -> None:
            super().__init__()
            self._where = where
            self._exit("init")

        def _exit(self, where: str) -> None:
            if where == self._where:
                raise SystemExit(2)

        def reset(self, **kwargs: Any) -> Any:
            self._exit("reset")
            return super().reset(**kwargs)

        def close(self) -> None:
            self._exit("close")

    for where, said in (
        ("reset", "env 0, episode 0:0, seed"), ("init", "could not be made"), ("close", "could not be closed"),
    ):  # fmt: skip
        with (
            pytest.raises(EnvError, match="SystemExit") as caught,
            hr.PPO("MlpPolicy", Exits, env_kwargs={"where": where}, n_envs=2, n_steps=8, topology="inline") as model,
        ):
            model.learn(16)
        assert said in str(caught.value)


# ---------------------------------------------------------------------------------------- a signal is not its own fault


class Raises(ChainEnv):
    """Calls a function in its third step."""

    def __init__(self, call: Any) -> None:
        super().__init__(0, Script(1, longest=9))
        self._call, self._count = call, 0

    def step(self, action: Any) -> Any:
        self._count += 1
        if self._count == 3:
            self._call()
        return super().step(action)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def swallow_and_exit() -> None:
    try:
        interrupt()
    except BaseException:
        raise SystemExit(1) from None


def own(error: BaseException) -> Any:
    def call() -> None:
        raise error

    return call


def raised_by(call: Any) -> BaseException:
    envs = SerialEnvs(lambda: Raises(call), range(1), seed_of)
    try:
        filled_slabs(envs, range(1), 6, count=1)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_handlers_exception_goes_through(own_handler: None) -> None:
    assert isinstance(raised_by(interrupt), Broken)
    assert "env 0" in raised_by(interrupt).__notes__[0]
    assert isinstance(raised_by(swallow_and_exit), SystemExit), "an environment that reacts to a signal by leaving"


def test_the_environments_own_does_not(own_handler: None) -> None:
    for error in (KeyboardInterrupt(), SystemExit(1), Broken(), GeneratorExit()):
        assert isinstance(raised_by(own(error)), EnvError), error


def test_a_real_ctrl_c_is_never_taken_for_the_environments() -> None:
    """Python's own handler leaves no trace: a KeyboardInterrupt is then the user's, with a note."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    error = raised_by(interrupt)
    assert isinstance(error, KeyboardInterrupt)
    assert "env 0" in error.__notes__[0]
    assert isinstance(raised_by(own(SystemExit(1))), EnvError), "but no handler of Python's raises SystemExit"


def test_in_another_thread_everything_is_the_environments() -> None:
    found: list[BaseException] = []
    thread = threading.Thread(target=lambda: found.append(raised_by(own(KeyboardInterrupt()))))
    thread.start()
    thread.join()
    assert isinstance(found[0], EnvError)


@pytest.mark.parametrize("kind", ["method", "partial", "object", "builtin"])
def test_handlers_of_every_kind_are_known(kind: str) -> None:
    class Handler:
        def method(self, number: int, frame: Any) -> None:
            raise SystemExit(9)

        def __call__(self, number: int, frame: Any) -> None:
            raise SystemExit(9)

    handler: Any = {
        "method": Handler().method, "partial": functools.partial(Handler.method, None), "object": Handler(),
        "builtin": functools.partial(sys.exit),
    }[kind]  # fmt: skip
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, handler)
        error = raised_by(own(SystemExit(9))) if kind == "builtin" else raised_by(interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert isinstance(error, SystemExit), "where it can't be known, it is not swallowed"


# -------------------------------------------------------------------------------------------- last observations, check


class LastOdd(Returning):
    """The odd observation comes with the end."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = Steady.step(self, action)
        is_over = self._steps == 2
        if is_over:
            obs = self._parts["obs"]
        return obs, reward, is_over and self._parts["how"] == "terminated", is_over, info


@pytest.mark.parametrize("how", ["terminated", "truncated"])
@pytest.mark.parametrize("name", [name for name in NAMED if "obs" in NAMED[name][0]])
def test_the_last_observation_of_an_episode_is_read_as_the_others_are(name: str, how: str) -> None:
    parts, said = NAMED[name]
    envs = SerialEnvs(lambda: LastOdd(how=how, **parts), ENVS, seed_of)
    with pytest.raises(EnvError) as caught:
        played(envs)
    assert_says(str(caught.value), [f"env {ENVS[0]}, episode {ENVS[0]}:0, seed", "step 1", *said])


class NextOdd(Returning):
    """The odd observation is that of the second reset."""

    resets = 0

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        self.resets += 1
        return (self._parts["obs"] if self.resets == 2 else obs), info

    def step(self, action: Any) -> Any:
        return Steady.step(self, action)


@pytest.mark.parametrize("name", ["ragged", "an observation beyond float32", "a choice out of range", "300 in an int8"])
def test_a_reset_in_the_middle_of_a_run_is_not_mistaken_for_the_step_before_it(name: str) -> None:
    parts, said = NAMED[name]
    with pytest.raises(EnvError) as caught:
        played(SerialEnvs(lambda: NextOdd(**parts), ENVS, seed_of))
    assert_says(
        str(caught.value), [f"env {ENVS[0]}, episode {ENVS[0]}:0, seed", "step 4", *said, "from the reset that"]
    )


@pytest.mark.parametrize("name", [name for name in NAMED if name != "a reward beyond float32"])
def test_a_repeated_action_hides_nothing(name: str) -> None:
    parts, said = NAMED[name]
    envs = SerialEnvs(lambda: ActionRepeat(Returning(**parts), 3), ENVS, seed_of)
    with pytest.raises(EnvError) as caught:
        played(envs)
    assert_says(str(caught.value), [f"env {ENVS[0]}, episode {ENVS[0]}:0, seed", "step 0", *said])


@pytest.mark.parametrize("name", ["ragged", "a reward of text", "terminated no", "a choice out of range"])
def test_check_refuses_it_too(name: str) -> None:
    parts, said = NAMED[name]
    with pytest.raises(EnvError) as caught:
        hr.check_env(lambda: Returning(**parts))
    assert_says(str(caught.value), ["env 0 of the check: the environment returned", *said])


# --------------------------------------------------------------------------------------------------------- one and all


@pytest.mark.parametrize("way", SHARED_WAYS)
@quick
@given(seed=seeds, longest=st.integers(1, 6))
def test_instances_that_share_memory_are_read_in_time(way: str, seed: int, longest: int) -> None:
    script = Script(seed, longest)
    envs = SOURCES["serial"](sharing_makers(way, ENVS, script), ENVS, seed_of)
    slabs = filled_slabs(envs, ENVS, 7, count=3)
    for env_index, stream in zip(ENVS, streams_of(slabs), strict=True):
        assert stream == expected_stream(script, env_index, len(stream), action_of)


@pytest.mark.parametrize("way", SHARED_WAYS)
def test_replayed_instances_that_share_memory_are_read_in_time(way: str) -> None:
    script = Script(3, longest=1_000)
    live = [LiveEpisode(env, 0, seed_of(env, 0), np.zeros(env - 3, np.int64), 0) for env in ENVS]
    envs = SOURCES["serial"](sharing_makers(way, ENVS, script), ENVS, seed_of)
    first = {"obs": np.zeros((len(ENVS), 3), np.float32)}
    envs.restore(live, first)
    assert first["obs"].tolist() == [[env, 0, env - 3] for env in ENVS]


def test_instances_with_different_spaces_are_refused() -> None:
    sizes = iter([3, 3, 4])

    def make() -> gym.Env[Any, Any]:
        env = Steady()
        env.observation_space = spaces.Box(0, 100, (next(sizes),), np.float32)
        return env

    with pytest.raises(EnvError, match=r"env 6 has the observation space .*\(4,\).*expected .*\(3,\).*as env 4"):
        SerialEnvs(make, ENVS, seed_of)


def test_a_factory_that_makes_another_space_in_a_worker_is_refused(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> gym.Env[Any, Any]:
        made.append(1)
        env = Steady()
        if len(made) > 1:  # the first one is built to look at
            env.action_space = spaces.Discrete(3)
        return env

    with (
        pytest.raises(EnvError, match=r"env 0 has the action space .*n=3.*expected .*n=2"),
        hr.PPO("MlpPolicy", make, n_envs=1, n_steps=8, topology="inline") as model,
    ):
        model.learn(8)


def test_a_policy_that_fails_over_a_nan_is_not_blamed() -> None:
    """A NaN is found at the end of a slab; a policy may fail over it before."""

    def act(row: int, obs: Any, noise: Any, out: Any) -> int:
        if np.isnan(obs["obs"]).any():
            raise ValueError("expected a probability")
        out[:] = 0
        return 0

    envs = SerialEnvs(lambda: Faulty("nan_obs"), range(2), Faulty.seed_of)
    actor = noise_actor(envs, range(2), seed=Faulty.SEED)
    with pytest.raises(NumericsError, match=r"env 1, .* step 3: the observation that followed has NaN"):
        actor.fill(slab_for(envs, 32), act)


def test_a_policy_that_fails_by_itself_is_not_excused() -> None:
    def act(row: int, obs: Any, noise: Any, out: Any) -> int:
        raise ValueError("expected a probability")

    envs = SerialEnvs(Steady, range(2), seed_of)
    with pytest.raises(ValueError, match="expected a probability"):
        noise_actor(envs, range(2)).fill(slab_for(envs, 4), act)


# ---------------------------------------------------------------------------------------------------------------- pools


class OddPool(SyncVectorEnv):
    """A pool one of whose values is always this one."""

    def __init__(self, n: int, **parts: Any) -> None:
        super().__init__([lambda: ChainEnv(0, Script(1, longest=9))] * n, autoreset_mode=AutoresetMode.DISABLED)
        self._parts = parts

    def step(self, actions: Any) -> Any:
        names = ("obs", "reward", "terminated", "truncated", "info")
        return tuple((dict(zip(names, super().step(actions), strict=True)) | self._parts).values())


@pytest.mark.parametrize(
    ("parts", "position", "said"),
    [
        ({"terminated": np.array([False, False, 7])}, 2, "terminated=.*expected True or False"),
        ({"truncated": np.array([0.0, np.nan, 0.0])}, 1, "truncated=.*nan.*expected True or False"),
        ({"terminated": np.array(["no"] * 3)}, 0, "terminated of shape"),
        ({"terminated": None}, 0, "terminated of shape"),
        ({"terminated": [False] * 4}, 0, r"shape \(4,\).*expected 3"),
        ({"terminated": [[False], [False, True], 3]}, 0, "no array"),
        ({"reward": np.array([0.0, 1e39, 0.0])}, 1, "the reward 1e.39.*fits float32"),
        ({"reward": ["a", 2, 3]}, 0, "reward of shape"),
        ({"obs": np.zeros((3, 4), np.float32)}, 0, r"shape \(3, 4\), expected \(3, 3\)"),
        ({"obs": [[1.0], [1.0, 2.0], 3.0]}, 0, "no array"),
        ({"obs": np.zeros((3, 3), np.complex64)}, 0, "dtype complex64, expected float32"),
        ({"obs": np.full((3, 3), 1e300)}, 0, "1e.300 at .* is too large for float"),
    ],
)
def test_a_pools_returns_are_read_in_the_same_way(parts: dict[str, Any], position: int, said: str) -> None:
    envs = GymnasiumVector(OddPool(3, **parts), ENVS, seed_of)
    slab = slab_for(envs, 2)
    envs.begin(slab.rows[0].obs)
    slab.action[...] = 0
    with pytest.raises(EnvFailure, match=said) as caught:
        envs.step(slab.rows[0], lambda position, obs: None)
    assert caught.value.position == position


class Clinging(OddPool):
    """Can't be closed the first time."""

    is_stuck = True

    def close(self, **options: Any) -> None:
        if self.is_stuck:
            self.is_stuck = False
            raise RuntimeError("the door is stuck")
        super().close(**options)


def test_a_pool_that_can_not_be_closed_is_named() -> None:
    envs = GymnasiumVector(Clinging(3), ENVS, seed_of)
    with pytest.raises(EnvError, match=r"^Clinging: could not be closed: RuntimeError: the door is stuck$"):
        envs.close()
    envs.close()


def test_a_pool_that_says_0_and_1_is_understood() -> None:
    envs = GymnasiumVector(OddPool(3, terminated=[0, 1, 0], truncated=np.array([0.0, 0.0, 1.0])), ENVS, seed_of)
    slab = slab_for(envs, 2)
    envs.begin(slab.rows[0].obs)
    slab.action[...] = 0
    envs.step(slab.rows[0], lambda position, obs: None)
    assert slab.terminated[0].tolist() == [False, True, False]
    assert slab.truncated[0].tolist() == [False, False, True]
