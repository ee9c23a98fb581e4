"""Environments that return one odd thing, a seeded generator of odd things, and environments that share their buffers.

    odd_return(rng, space name) -> Odd(place, make, is_malformed)      Oddity plays soundly but for it

`place` is where it is returned: obs, reward, terminated, truncated, step (the whole tuple), reset (the whole pair).
`is_malformed` False: it means one thing, and must be taken as that.
"""

from __future__ import annotations

import decimal
import fractions
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from headrace.envs.serial import SerialEnvs
from support.chains import ChainEnv, Script, seed_of

SPACES: dict[str, gym.Space[Any]] = {
    "vector": spaces.Box(-5.0, 5.0, (3,), np.float32),
    "double": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "small": spaces.Box(-128, 127, (3,), np.int8),
    "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "choice": spaces.Discrete(5, start=-2),
    "choices": spaces.MultiDiscrete([3, 4], start=[0, 1]),
    "bits": spaces.MultiBinary(4),
}


class Odd(NamedTuple):
    """One odd thing to return."""

    place: str
    name: str
    make: Callable[[], Any]
    is_malformed: bool


class Oddity(gym.Env[Any, Any]):
    """Observations are samples of its space; in its `at`-th call (0: the first reset) it returns the odd thing."""

    def __init__(self, space: str, odd: Odd | None, at: int = 0) -> None:
        self.observation_space, self.action_space = SPACES[space], spaces.Discrete(4)
        self._odd, self._at, self._calls = odd, at, 0
        self._rng = np.random.default_rng(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._returned({"obs": self._seen()}, lambda parts: (parts["obs"], {}), ("obs", "reset"))

    def step(self, action: Any) -> Any:
        parts = {"obs": self._seen(), "reward": 0.5, "terminated": self._calls % 5 == 4, "truncated": False}
        return self._returned(parts, lambda parts: (*parts.values(), {}), (*parts, "step"))

    def _returned(self, parts: dict[str, Any], put: Callable[[dict[str, Any]], Any], places: Sequence[str]) -> Any:
        is_now, self._calls = self._calls == self._at and self._odd is not None, self._calls + 1
        if is_now and self._odd is not None and self._odd.place in places:
            odd = self._odd.make()
            if self._odd.place in parts:
                return put(parts | {self._odd.place: odd})
            return odd
        return put(parts)

    def _seen(self) -> Any:
        space = self.observation_space
        if isinstance(space, spaces.Box):
            return self._rng.integers(0, 2, space.shape).astype(space.dtype)[()]
        if isinstance(space, spaces.Discrete):
            return int(space.start)
        return np.array(space.start) if isinstance(space, spaces.MultiDiscrete) else np.zeros(4, np.int8)


# ----------------------------------------------------------------------------------------------------------- odd things


class Failing:
    """Raises whenever it is looked at."""

    def __init__(self, error: BaseException, *methods: str) -> None:
        self.__dict__.update(error=error, methods=methods)

    def __getattr__(self, name: str) -> Any:
        if name in self.methods:
            raise self.error
        raise AttributeError(name)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error

    def __float__(self) -> float:
        raise self.error

    def __bool__(self) -> bool:
        raise self.error

    def __eq__(self, other: object) -> bool:
        raise self.error

    def __repr__(self) -> str:
        raise self.error

    __hash__ = None  # type: ignore[assignment]


class Endless(Sequence[float]):
    """Says that it has three numbers, and never ends."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        return 1.0

    def __iter__(self) -> Any:
        return itertools.repeat(1.0)


class OwnError(BaseException):
    """An environment may raise anything."""


def _raising(error: Callable[[], BaseException]) -> Callable[[], Any]:
    def make() -> Any:
        raise error()

    return make


ERRORS: list[Callable[[], BaseException]] = [
    lambda: RuntimeError("boom"), lambda: KeyError("missing"), lambda: StopIteration(), lambda: MemoryError(),
    lambda: RecursionError("too deep"), lambda: KeyboardInterrupt(), lambda: SystemExit(3), lambda: SystemExit("bye"),
    lambda: GeneratorExit(), lambda: OwnError("mine"), lambda: AssertionError(), lambda: OSError(5, "no device"),
    lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), lambda: ExceptionGroup("two", [ValueError("a")]),
]  # fmt: skip

Choose = Callable[[np.random.Generator], tuple[str, Callable[[], Any], bool]]


def _observation(space: gym.Space[Any]) -> list[Choose]:
    shape, dtype = space.shape or (), np.dtype(space.dtype)  # type: ignore[arg-type]

    def wrong_shape(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        other = tuple(int(n) for n in rng.integers(0, 4, rng.integers(0, 4)))
        other = (*shape, 2) if other == shape else other
        return f"shape {other}", lambda: np.zeros(other, dtype), True

    def wrong_lists(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        ragged: list[Any] = [[1.0] * int(n) for n in rng.permutation([1, 2, 3])]
        return "ragged lists", lambda: ragged, True

    def wrong_dtype(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        kinds = ["complex64", "U3", "S2", "datetime64[s]", "O", "V4"] + ([] if dtype.kind == "f" else ["float32", "f8"])
        kind = str(rng.choice(kinds))
        return f"dtype {kind}", lambda: np.zeros(shape, kind), True

    def words(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        odd: list[Any] = [
            None, "north", "", b"abc", {}, {"obs": 1}, {1.0, 2.0}, object(), lambda: 1, type, iter([1.0]), ..., 1j,
            NotImplemented, range(10**12), [range(10**12)] * 3, Endless(), [Endless()] * 3, np.str_("1"),
            [None] * 3, ["1"] * 3, [10**400] * 3, deque([1.0] * 99), slice(1), (1.0, [2.0], 3.0), memoryview(b"ab"),
        ]  # fmt: skip
        thing = odd[int(rng.integers(len(odd)))]
        is_fine = isinstance(thing, Endless) and shape == (3,) and dtype == np.float32  # three numbers, as it says
        return f"{type(thing).__name__}", lambda: thing, not is_fine

    def recursive(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        loop: list[Any] = []
        loop.extend([loop] * (shape[0] if shape else 1))
        return "a list of itself", lambda: loop, True

    def failing(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        error = ERRORS[int(rng.integers(len(ERRORS)))]()
        return f"array that raises {type(error).__name__}", lambda: Failing(error, "shape", "dtype", "__len__"), True

    def tensor(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        has_gradient = bool(rng.integers(2))
        is_malformed = has_gradient or dtype.kind != "f"
        return "tensor", lambda: torch.zeros(shape, requires_grad=has_gradient), is_malformed

    def masked(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        return "masked", lambda: np.ma.masked_all(shape, dtype), True

    def not_finite(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        kind = np.float32 if dtype.kind != "f" else dtype
        return "not finite", lambda: np.full(shape, rng.choice([np.nan, np.inf, -np.inf]), kind), True

    def beyond(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        """A whole number that the space does not have, or its dtype can't hold."""
        values = [300, -300, 2**40, -(2**40), 2**63 - 1, -(2**63)]
        value = values[int(rng.integers(len(values)))]
        if dtype.kind == "f":
            return "too large a float", lambda: np.full(shape, 1e39 if dtype == np.float32 else np.inf), True
        whole = np.full(shape, value, np.int64)
        return f"{value}", lambda: whole[()] if not shape else whole, True

    def sound(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        """Other ways to say it that are unambiguous."""
        plain = np.full(shape, 1, dtype)
        ways: list[Any] = [plain, plain.copy(order="F"), plain.astype(dtype.newbyteorder())]
        ways += [np.full((*shape, 2), 1, dtype)[..., 0], plain.astype(np.int8)]
        ways += [plain.tolist()]
        if dtype not in (np.uint8, np.int8):
            ways += [plain.astype(bool)]
        if dtype.kind in "iu":
            ways += [np.full(shape, 1, np.int64), np.full(shape, 1, np.uint16)]
        if dtype.kind == "f":
            ways += [plain.astype(np.float16), torch.ones(shape), np.full(shape, 1, np.int64)]
        thing = ways[int(rng.integers(len(ways)))]
        return f"sound {type(thing).__name__}", lambda: thing, False

    return [wrong_shape, wrong_lists, wrong_dtype, words, recursive, failing, tensor, masked, not_finite, beyond, sound]


def _value(malformed: Sequence[Callable[[], Any]], sound: Sequence[Callable[[], Any]]) -> list[Choose]:
    def bad(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        make = malformed[int(rng.integers(len(malformed)))]
        return "value", make, True

    def good(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        return "sound value", sound[int(rng.integers(len(sound)))], False

    def failing(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        error = ERRORS[int(rng.integers(len(ERRORS)))]()
        return f"raises {type(error).__name__}", lambda: Failing(error), True

    return [bad, bad, failing, good]


_NO_VALUES: list[Callable[[], Any]] = [
    lambda: None, lambda: "1", lambda: "no", lambda: "", lambda: b"1", list, lambda: [1.0], dict, object,
    lambda: 1j, lambda: np.complex64(1), lambda: np.ones(2), lambda: np.zeros(0), lambda: np.ones((1, 2)),
    lambda: np.array("1"), lambda: np.str_("1"), lambda: np.array(None), lambda: np.datetime64("2020-01-01"),
    lambda: np.ma.masked, lambda: np.ma.masked_all(1), lambda: np.timedelta64(1), lambda: np.timedelta64(1, "s"),
    lambda: torch.ones(1, requires_grad=True), lambda: torch.ones(2), lambda: 10**400, lambda: -(10**400),
    lambda: float("nan"), lambda: np.float32("nan"), lambda: float("inf"), lambda: decimal.Decimal("nan"),
    lambda: np.array(float("-inf")), lambda: torch.tensor(float("nan")), lambda: iter([1.0]), lambda: type,
]  # fmt: skip
REWARDS = _value(
    [*_NO_VALUES, lambda: 1e39, lambda: np.float64(-1e300), lambda: np.float64(1e39), lambda: 2**140],
    [lambda: 0.5, lambda: np.float32(0.5), lambda: np.float16(0.5), lambda: np.array(0.5), lambda: np.array([0.5]),
     lambda: torch.tensor(0.5), lambda: fractions.Fraction(1, 2), lambda: decimal.Decimal("0.5")],
)  # fmt: skip
FLAGS = _value(
    [*_NO_VALUES, lambda: 2, lambda: -1, lambda: 0.5, lambda: np.array(7), lambda: np.int64(-1), lambda: (False,)],
    [lambda: True, lambda: np.True_, lambda: 1, lambda: np.int64(1), lambda: 1.0, lambda: np.array(True),
     lambda: np.array([True]), lambda: torch.tensor(True)],
)  # fmt: skip


def _whole(*returns: Any) -> list[Choose]:
    def bad(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        thing = returns[int(rng.integers(len(returns)))]
        return f"{type(thing).__name__}", lambda: thing() if callable(thing) else thing, True

    def raising(rng: np.random.Generator) -> tuple[str, Callable[[], Any], bool]:
        error = ERRORS[int(rng.integers(len(ERRORS)))]
        return f"raises {type(error()).__name__}", _raising(error), True

    return [bad, raising]


STEPS = _whole(
    None, 1, "abcde", "abcd", b"abcde", (), (1,), [None] * 5, [None] * 4, [None] * 6, itertools.count, dict,
    {1: 2, 3: 4, 5: 6, 7: 8, 9: 10}, np.zeros(4), np.zeros((5, 3)), object(), lambda: iter([]), ..., Endless,
)  # fmt: skip
RESETS = _whole(
    None, 1, "ab", "a", (), (None,), [None] * 2, [None] * 3, itertools.count, {}, {1: 2, 3: 4}, np.zeros(7), object(),
    np.zeros((2, 7, 7)), ...,
)  # fmt: skip


def odd_return(rng: np.random.Generator, space: str) -> Odd:
    """One odd thing, somewhere."""
    families = {
        "obs": _observation(SPACES[space]), "reward": REWARDS, "terminated": FLAGS, "truncated": FLAGS, "step": STEPS,
        "reset": RESETS,
    }  # fmt: skip
    place = str(rng.choice(list(families), p=[0.5, 0.15, 0.1, 0.1, 0.1, 0.05]))
    name, make, is_malformed = families[place][int(rng.integers(len(families[place])))](rng)
    return Odd(place, name, make, is_malformed)


def odd_case(number: int) -> tuple[str, Odd, int]:
    """Seeded by its number: the space, the odd thing, and the call in which it comes."""
    rng = np.random.default_rng(number)
    space = str(rng.choice(list(SPACES)))
    odd, at = odd_return(rng, space), int(rng.choice([0, 1, 3, 4, 5]))
    if odd.place not in ("obs", "reset"):
        at = max(1, at if at != 5 else 6)  # call 5 is the reset after the end of call 4
    if odd.place == "reset":
        at = 0 if at in (0, 1) else 5
    if at == 4 and odd.name in ("not finite", "too large a float"):
        at = 3  # call 4 is a termination: the numbers in its observation are never read
    return space, odd, at


def odd_envs(space: str, odd: Odd, at: int, env_indices: range, position: int) -> SerialEnvs:
    """Sound environments, but for the one at that position."""
    makers = iter([lambda b=b: Oddity(space, odd if b == position else None, at) for b in range(len(env_indices))])
    return SerialEnvs(lambda: next(makers)(), env_indices, seed_of)


# ------------------------------------------------------------------------------------------------------- shared buffers


class Sharing(gym.ObservationWrapper[Any, Any, Any]):
    """Hands out observations, or rewards and flags, in memory that other instances write to as well."""

    def __init__(self, env: ChainEnv, way: str, common: dict[str, Any]) -> None:
        super().__init__(env)
        self._way, self._common = way, common

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self._way not in NUMBER_WAYS:
            return obs, reward, terminated, truncated, info
        shape = NUMBER_WAYS[self._way]
        numbers: list[Any] = self._common.setdefault("numbers", [np.zeros(shape, kind) for kind in (float, bool, bool)])
        for array, value in zip(numbers, (reward, terminated, truncated), strict=True):
            array[...] = value
        return obs, numbers[0], numbers[1], numbers[2], info

    def observation(self, observation: Any) -> Any:
        if self._way in NUMBER_WAYS:
            return observation
        memory = self._common.setdefault("memory", np.zeros((4, 6), np.float32))
        match self._way:
            case "one array":
                shared = self._common.setdefault("array", np.zeros(3, np.float32))
                shared[:] = observation
                return shared
            case "views of one array":
                memory[0, :3] = observation
                return memory[0, :3]
            case "views that overlap":
                turn = self._common["turn"] = self._common.get("turn", 0) + 1
                memory[1, turn % 3 : turn % 3 + 3] = observation
                return memory[1, turn % 3 : turn % 3 + 3]
            case "every other entry":
                memory[2, ::2] = observation
                return memory[2, ::2]
            case "a tensor":
                tensor = self._common.setdefault("tensor", torch.zeros(3))
                tensor[:] = torch.from_numpy(observation)
                return tensor
            case "a tensor's array":
                tensor = self._common.setdefault("tensor", torch.zeros(3))
                tensor[:] = torch.from_numpy(observation)
                return tensor.numpy()
            case "a list":
                shared = self._common.setdefault("list", [0.0, 0.0, 0.0])
                shared[:] = observation.tolist()
                return shared
            case "float64":
                shared = self._common.setdefault("double", np.zeros(3, np.float64))
                shared[:] = observation
                return shared
            case "everybody's last":
                for other in self._common.setdefault("given", []):
                    other[:] = -99.0  # whatever was given to anybody is spoilt
                fresh = np.array(observation)
                self._common["given"].append(fresh)
                return fresh
        raise AssertionError(self._way)


NUMBER_WAYS: dict[str, tuple[int, ...]] = {"rewards and flags": (), "rewards and flags of one entry": (1,)}
SHARED_WAYS = (
    *NUMBER_WAYS,
    "one array", "views of one array", "views that overlap", "every other entry", "a tensor", "a tensor's array",
    "a list", "float64", "everybody's last",
)  # fmt: skip


def sharing_makers(way: str, env_indices: range, script: Script) -> list[Callable[[], gym.Env[Any, Any]]]:
    """Environments of a script that share their memory."""
    common: dict[str, Any] = {}
    return [lambda env=env: Sharing(ChainEnv(env, script), way, common) for env in env_indices]  # type: ignore[misc]
