"""Environments that go wrong in one known place, and spaces that headrace does not take.

    Steady            nothing wrong: a walk driven by its own generator; episodes of a fixed length, cut by a limit
    Faulty            Steady, but for one fault at (env index, episode, step), and nowhere else
    Announces         Steady, but it tells a test when it is in a given step, and waits there for a signal
    Busy              Steady, but a step costs processor time
    UsesGlobalRandom, CarriesState, CarriesStateLate     not a function of seed and actions
    SeedsGlobalRandom, SharesItsWalk, DrawsOwnActions, CountsInstances     the same, but for one instance alone they are
    ShortSeeds        Steady, but it takes 32-bit seeds only

Named as support.faulty_envs:X they can be found by a fresh process that has tests/ on its path.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from headrace.envs.seeds import Purpose, leaf

Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Steady(gym.Env[Any, Any]):
    """Every observation is drawn from the generator of its seed; the reward is the action."""

    def __init__(self, length: int = 5, dtype: str = "float32") -> None:
        self.observation_space = spaces.Box(0, 100, (3,), np.dtype(dtype).type)
        self.action_space = spaces.Discrete(2)
        self._length, self._dtype = length, dtype
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        self._steps += 1
        return self._seen(), float(action), False, self._steps >= self._length, {}

    def _seen(self) -> Any:
        return self.np_random.uniform(0, 100, 3).astype(self._dtype)


class Toils(Steady):
    """A slow step that holds the GIL."""

    def step(self, action: Any) -> Step:
        total = 0
        for number in range(400_000):  # not by the clock: that runs on while another thread has the GIL
            total += number
        return super().step(action)


class Faulty(Steady):
    """Goes wrong in one step of one episode of one environment, wherever that is hosted: it knows it by its seed."""

    ENV, EPISODE, STEP, SEED = 1, 2, 3, 7  # the run's seed must be this one
    PLACE = f"env {ENV}, episode {ENV}:{EPISODE}, seed {leaf(SEED, Purpose.ENV, ENV, EPISODE)}, step {STEP}"
    is_mended: ClassVar[bool] = False

    def __init__(self, fault: str = "step_raises", dtype: str = "float32") -> None:
        super().__init__(dtype=dtype)
        self._fault = fault
        self._is_faulty_episode = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._is_faulty_episode = not self.is_mended and seed == self.fault_seed()
        if self._is_faulty_episode and self._fault == "reset_raises":
            raise RuntimeError("the simulator did not come up")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, info = super().step(action)
        if not self._is_faulty_episode or self._steps != self.STEP + 1:
            return obs, reward, terminated, truncated, info
        match self._fault:
            case "step_raises":
                raise RuntimeError("the simulator fell over")
            case "nan_reward":
                reward = float("nan")
            case "text_reward":
                reward = "much"
            case "nan_obs":
                obs[1] = np.nan
            case "inf_obs":
                obs[1] = np.inf
            case "shape":
                obs = np.append(obs, obs[0])
            case "dtype":
                obs = obs.astype(np.float64)
            case "keyboard_interrupt":
                raise KeyboardInterrupt
            case "system_exit":
                raise SystemExit(3)
            case "four_values":
                return obs, reward, truncated, info  # type: ignore[return-value]  # the old Gym's step
        return obs, reward, terminated, truncated, info

    @classmethod
    def seed_of(cls, env_index: int, episode: int) -> int:
        """The tree's leaf, for a run with its seed."""
        return leaf(cls.SEED, Purpose.ENV, env_index, episode)

    @classmethod
    def fault_seed(cls) -> int:
        """The seed of the faulty episode."""
        return leaf(cls.SEED, Purpose.ENV, cls.ENV, cls.EPISODE)


class FaultyStart(Steady):
    """Its first observations are not numbers."""

    def _seen(self) -> Any:
        return np.full(3, np.inf, np.float32)


class FaultyClose(Steady):
    """Can't be closed."""

    def close(self) -> None:
        raise RuntimeError("the simulator does not answer")


class TiredClose(Steady):
    """Can't be closed any more once it was played."""

    def step(self, action: Any) -> Step:
        self.is_played = True
        return super().step(action)

    def close(self) -> None:
        if getattr(self, "is_played", False):
            raise RuntimeError("the simulator does not answer")


class Announces(Steady):
    """Tells a test where it is: in one step it touches a file, then holds on for whatever the test sends.

    Which step of which instance of the process, which file and how long come by environment variables: they are no part
    of the run. A negative hold swallows the first interruption, as a bare `except:` in somebody's simulator does.
    """

    made: ClassVar[int] = 0

    def __init__(self, length: int = 37) -> None:
        super().__init__(length)
        self._is_it = os.environ.get("ANNOUNCE_INSTANCE") == str(Announces.made)
        self._steps_taken = 0
        Announces.made += 1

    def step(self, action: Any) -> Step:
        self._steps_taken += 1
        if self._is_it and self._steps_taken == int(os.environ["ANNOUNCE_STEP"]):
            self._announce(Path(os.environ["ANNOUNCE_FILE"]), float(os.environ["ANNOUNCE_HOLD_S"]))
        return super().step(action)

    def _announce(self, file: Path, hold_s: float) -> None:
        try:
            file.touch()  # a signal may follow at once
            time.sleep(abs(hold_s))
        except BaseException:
            if hold_s >= 0:
                raise
            file.with_name("swallowed").touch()
            time.sleep(-hold_s)


class Busy(Steady):
    """Burns processor time, as a simulation does."""

    BURN_S = 0.002

    def step(self, action: Any) -> Step:
        until = time.perf_counter() + self.BURN_S
        while time.perf_counter() < until:
            pass
        return super().step(action)


class UsesGlobalRandom(Steady):
    """Draws from numpy's global generator, which no reset seeds."""

    def step(self, action: Any) -> Step:
        _, *rest = super().step(action)
        return np.random.uniform(0, 100, 3).astype(np.float32), *rest  # type: ignore[return-value]


class CarriesState(Steady):
    """Episodes get longer with every reset of the same instance, as with episodic lives or a curriculum."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._length += 1
        return super().reset(seed=seed)


class CarriesStateLate(Steady):
    """The same, but the first four episodes are as they should be."""

    def __init__(self) -> None:
        super().__init__()
        self._resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._resets += 1
        self._length = 5 if self._resets <= 4 else 6
        return super().reset(seed=seed)


class DictObservation(Steady):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "lives": spaces.Discrete(3)})


class TextObservation(Steady):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Text(8)


class IntegerAction(Steady):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(0, 9, (2,), np.int32)


class TupleAction(Steady):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])


def raises() -> gym.Env[Any, Any]:
    """A factory that does not get far."""
    raise OSError("no licence for the simulator")


def makes_a_number() -> Any:
    return 3


NUMBER = 3


class SeedsGlobalRandom(Steady):
    """Repeatable alone: reset seeds the global generator. Beside another instance, the two disturb one another."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        np.random.seed(None if seed is None else seed % 2**32)
        return super().reset(seed=seed)

    def _seen(self) -> Any:
        return np.random.uniform(0, 100, 3).astype(self._dtype)


class SharesItsWalk(Steady):
    """All instances walk on one array of the class."""

    walk = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.walk[:] = self.np_random.uniform(0, 1, 3)
        return self.walk.copy(), {}

    def step(self, action: Any) -> Step:
        self.walk += 1
        return self.walk.copy(), *super().step(action)[1:]


class DrawsOwnActions(Steady):
    """Its reward hangs on a draw from its own action_space, which belongs to it and is seeded by nothing."""

    def step(self, action: Any) -> Step:
        obs, _, terminated, truncated, facts = super().step(action)
        return obs, float(sum(self.action_space.sample() for _ in range(8))), terminated, truncated, facts


class CountsInstances(Steady):
    """Knows which instance of its process it is."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self._number = self.made

    def step(self, action: Any) -> Step:
        return self._seen() * 0 + self._number, *super().step(action)[1:]


class ShortSeeds(Steady):
    """As environments with numpy's RandomState are."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._state = np.random.RandomState(seed)
        self._steps = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        return self._state.uniform(0, 100, 3).astype(self._dtype)


class OneGenerator(SyncVectorEnv):
    """A pool whose environments draw from one generator."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([Steady] * num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        for env in self.envs:
            env.unwrapped.np_random = self.envs[0].unwrapped.np_random
        return result


class NeverTheSame(SyncVectorEnv):
    """A pool that looks at the clock."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([Steady] * num_envs)

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        return obs, reward + time.time_ns() % 1000, *rest
