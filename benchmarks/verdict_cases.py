"""Runs that are built to be held up by a known cause, and the controls that show that they are.

    seed, name, attempt ──draw──> Case: a run, the causes that it is built to have, its controls

A control is the same run with one thing changed. If a cause is taken away, steps/s by the clock must rise by a stated
factor; if something is changed that is no cause, they must not. A run that fails its control is not what it claims to
be: it says nothing about the doctor, and is drawn again.

Where a case has two causes, one of them is given as a share of an update (`fitted`): the run is measured without it,
and its strength follows, so both count on a quick machine as on a slow one. Knows nothing of verdicts but their names.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
from burn import burn

from headrace.collecting.topology import TopologyConfig
from headrace.envs.seeds import Purpose
from headrace.envs.spec import EnvSpec
from headrace.learning.config import PpoConfig
from headrace.planning import verdict as causes
from headrace.policies.config import PolicyConfig
from headrace.run_config import RunConfig, SessionConfig
from headrace.telemetry import sinks

SEED = 7  # of the runs; --seed draws their causes
CLEAR, ONE_OF_TWO = 1.5, 1.3  # times faster without the cause: the only one, or one of two
NO_CAUSE = 1.15  # what is taken away was none if it brings less
COMPARABLE = 2.5  # of two causes, neither takes so many times as long as the other


class Sleepy(gym.Env):
    """A step sleeps, computes in pure Python, or sleeps long now and then.

    In the steps of some environments it sleeps `slow_s`; they are known by the seed of their first reset.
    """

    def __init__(
        self,
        sleep_s: float = 0.0,
        slow_s: float = 0.0,
        slow_seeds: tuple[int, ...] = (),
        rare_s: float = 0.0,
        rare: float = 0.0,
        turns: int = 0,
    ) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._sleep_s, self._slow_s, self._slow_seeds, self._count = sleep_s, slow_s, slow_seeds, 0
        self._rare_s, self._rare, self._turns = rare_s, rare, turns

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed in self._slow_seeds:
            self._sleep_s = self._slow_s
        self._count = 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        if self._sleep_s:
            time.sleep(self._sleep_s)
        if self._rare and self.np_random.random() < self._rare:
            time.sleep(self._rare_s)
        burn(self._turns)
        self._count += 1
        return self._obs(), 1.0, False, self._count >= 200, {}

    def _obs(self) -> np.ndarray:
        return np.full(4, self._count / 200, np.float32)


@dataclass(frozen=True)
class Control:
    """What is changed in a case (its fields), and how many times faster that must and may be."""

    what: str
    changes: Mapping[str, Any]
    least: float = 0.0
    most: float = math.inf

    def refusal(self, gain: float) -> str:
        """Why the case is not what it claims to be; empty if it is."""
        if self.least <= gain <= self.most:
            return ""
        needed = f"at least {self.least:.2f}x" if gain < self.least else f"at most {self.most:.2f}x"
        return f"{self.what}: {gain:.2f}x, expected {needed}"


@dataclass(frozen=True)
class Case:
    """A run and what holds it up."""

    expected: tuple[str, ...]
    controls: tuple[Control, ...]
    env: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)
    learning: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)
    disk_s: float = 0.0
    slow: tuple[int, ...] = ()
    fitted: tuple[str, float] | None = None
    """A strength (disk_s, sleep_s) that is to take this share of an update."""

    def configs(self) -> tuple[RunConfig, SessionConfig]:
        """As the command line would have them."""
        place = TopologyConfig(**{"n_envs": 8, "n_steps": 32, "topology": "inline", "spares": 0} | self.place)
        learning = PpoConfig(**{"batch_size": 128, "n_epochs": 1} | self.learning)
        seed_of = EnvSpec(Sleepy).seed_of(SEED, Purpose.ENV)
        env = self.env | ({"slow_seeds": tuple(seed_of(index, 0) for index in self.slow)} if self.slow else {})
        config = RunConfig(EnvSpec(Sleepy, env), SEED, PolicyConfig(**self.policy), learning, place)
        usual = {"checkpoint_every": 0, "keep_episodes_mb": 0, "check_episodes": 0}
        return config, SessionConfig(**usual | self.session)

    def changed(self, changes: Mapping[str, Any]) -> "Case":
        """With other fields; those that are dictionaries are joined."""
        joined = {
            name: {**getattr(self, name), **value} if isinstance(value, dict) else value
            for name, value in changes.items()
        }
        return replace(self, **joined)

    def in_turn(self) -> int:
        """Environment steps of an update that one thread takes one after the other."""
        workers = 1 if self.place.get("topology", "inline") == "inline" else int(self.place["workers"])
        return 8 * 32 // workers

    def with_strength(self, update_s: float, appends: float) -> "Case":
        """So strong that it takes its share, beside an update of so long; `appends` to the disk in each of them."""
        assert self.fitted is not None
        name, share = self.fitted
        wanted_s = update_s * share / (1.0 - share)
        if name == "disk_s":
            return replace(self, disk_s=wanted_s / max(1.0, appends))
        each_s = wanted_s / self.in_turn()
        return self.changed({"env": {"sleep_s": max(1e-6, each_s - oversleep_s())}})


def oversleep_s() -> float:
    """How much longer than asked for a short sleep takes here."""
    begun = time.perf_counter()
    for _ in range(200):
        time.sleep(1e-4)
    return (time.perf_counter() - begun) / 200 - 1e-4


class Disk:
    """Appends to the files of metrics take longer, and are counted."""

    def __init__(self) -> None:
        self.appends = 0

    @contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """For a while."""
        append = sinks._WholeAppends.append

        def slowly(file: Any, data: bytes) -> None:
            self.appends += 1
            if seconds:
                time.sleep(seconds)
            append(file, data)

        sinks._WholeAppends.append = slowly  # type: ignore[method-assign]
        try:
            yield
        finally:
            sinks._WholeAppends.append = append  # type: ignore[method-assign]


PROCESSES = {"topology": "processes", "workers": "2"}
THREADS = {"topology": "threads", "workers": "2"}
CENTRAL = PROCESSES | {"inference": "central", "double_buffering": "off"}
AWAKE = {"env": {"sleep_s": 0.0}}
NO_DISK = {"disk_s": 0.0}
Draw = random.Random


def without(what: str, changes: Mapping[str, Any], least: float = CLEAR) -> tuple[Control, ...]:
    return (Control(f"without {what}", changes, least),)


def _us(draw: Draw, least: float, most: float) -> float:
    return draw.uniform(least, most) * 1e-6


def _slow_env(draw: Draw) -> Case:
    return Case((causes.ENV,), without("sleep", AWAKE), {"sleep_s": _us(draw, 200, 800)})


def _slow_env_two_workers(draw: Draw) -> Case:
    return Case((causes.ENV,), without("sleep", AWAKE), {"sleep_s": _us(draw, 500, 1200)}, PROCESSES)


def _big_net(draw: Draw) -> Case:
    # The network acts, too: what shows that it is learning which takes long is less of learning alone.
    control = (Control("a quarter of the epochs", {"learning": {"n_epochs": 1}}, CLEAR),)
    return Case((causes.LEARNER,), control, policy=_big(draw), learning={"n_epochs": 4})


def _tiny_minibatches(draw: Draw) -> Case:
    control = without("tiny minibatches", {"learning": {"batch_size": 128}})
    return Case((causes.LEARNER,), control, learning=_tiny(draw, 4))


def _slow_disk(draw: Draw) -> Case:
    return Case((causes.LOGGING,), without("the delay", NO_DISK), fitted=("disk_s", draw.uniform(0.6, 0.9)))


def _hidden_disk(draw: Draw) -> Case:
    controls = (*without("sleep", AWAKE), Control("without the delay", NO_DISK, most=NO_CAUSE))
    sleep, share = {"sleep_s": _us(draw, 1000, 1500)}, draw.uniform(0.2, 0.35)
    return Case((causes.ENV,), controls, sleep, PROCESSES, fitted=("disk_s", share))


def _slow_worker(draw: Draw) -> Case:
    half = draw.choice([(0, 1, 2, 3), (4, 5, 6, 7)])
    sleep = {"sleep_s": _us(draw, 100, 200), "slow_s": _us(draw, 1500, 2500)}
    return Case((causes.IMBALANCE,), without("slow environments", {"slow": ()}), sleep, PROCESSES, slow=half)


def _lone_slow_env(draw: Draw) -> Case:
    controls, slow_s = without("the slow environment", {"slow": ()}), _us(draw, 1500, 4000)
    return Case((causes.SLOW_ENV,), controls, {"slow_s": slow_s}, slow=(draw.randrange(8),))


def _lone_slow_env_two_workers(draw: Draw) -> Case:
    controls, slow_s = without("the slow environment", {"slow": ()}), _us(draw, 3000, 6000)
    return Case((causes.SLOW_ENV,), controls, {"slow_s": slow_s}, PROCESSES, slow=(draw.randrange(8),))


def _starved(draw: Draw) -> Case:
    place = PROCESSES | {"workers": "1", "max_lag": 1}
    return Case((causes.ENV,), without("sleep", AWAKE), {"sleep_s": _us(draw, 500, 1500)}, place)


def _stragglers(draw: Draw) -> Case:
    # 64 steps of each worker in an update, of which about every fourth has a long one. The control sleeps as long in
    # all, but evenly: what is gained is what workers wait for whichever of them is late.
    rare_s, rare = draw.uniform(0.04, 0.08), draw.uniform(0.15, 0.3) / 64
    even = {"env": {"rare": 0.0, "sleep_s": max(1e-6, rare_s * rare - oversleep_s())}}
    control = (Control("as much sleep, evenly", even, CLEAR),)
    return Case((causes.STRAGGLERS,), control, {"rare_s": rare_s, "rare": rare}, THREADS | {"workers": "4"})


def _interpreter(draw: Draw) -> Case:
    control = (Control("processes instead of threads", {"place": PROCESSES}, ONE_OF_TWO),)
    return Case((causes.INTERPRETER,), control, {"turns": draw.randint(1500, 6000)}, THREADS)


def _sleeping_threads(draw: Draw) -> Case:
    apart = Control("processes instead of threads", {"place": PROCESSES}, most=NO_CAUSE)
    controls = (*without("sleep", AWAKE), apart)
    return Case((causes.ENV,), controls, {"sleep_s": _us(draw, 500, 1200)}, THREADS)


def _central_accelerator(draw: Draw) -> Case:
    controls = without("its latency", {"place": {"inference_device": "emulated:100us+5us"}})
    device = {"inference_device": f"emulated:{draw.randint(4, 8)}ms+5us"}
    return Case((causes.INFERENCE,), controls, {"sleep_s": _us(draw, 100, 150)}, CENTRAL | device)


def _local_accelerator(draw: Draw) -> Case:
    controls = without("its latency", {"place": {"inference_device": "emulated:100us+5us"}})
    device = {"inference_device": f"emulated:{draw.randint(3, 6)}ms+5us"}
    return Case((causes.INFERENCE,), controls, {}, PROCESSES | device)


def _checkpoints(draw: Draw) -> Case:
    controls = without("checkpoints", {"session": {"checkpoint_every": 0}})
    return Case((causes.CHECKPOINTS,), controls, session={"checkpoint_every": draw.choice([256, 512])})


def _evaluations(draw: Draw) -> Case:
    controls = without("evaluations", {"session": {"eval_every": 0}})
    return Case((causes.EVALUATIONS,), controls, session={"eval_every": draw.choice([256, 512])})


def _cheap_behind_server(draw: Draw) -> Case:
    inline = {"topology": "inline", "workers": "auto", "inference": "local", "double_buffering": "auto"}
    control = (Control("everything in one process", {"place": inline}, ONE_OF_TWO),)
    return Case((causes.COMMUNICATION,), control, {}, CENTRAL)


def _env_and_learner(draw: Draw, place: dict[str, Any]) -> Case:
    controls = without("sleep", AWAKE, ONE_OF_TWO)
    controls += without("tiny minibatches", {"learning": {"batch_size": 128}}, ONE_OF_TWO)
    share = draw.uniform(0.4, 0.6)
    both = (causes.ENV, causes.LEARNER)
    return Case(both, controls, {}, place, _tiny(draw, 8), fitted=("sleep_s", share))


def _disk_and_learner(draw: Draw) -> Case:
    controls = without("the delay", NO_DISK, ONE_OF_TWO)
    controls += (Control("a sixth of the epochs", {"learning": {"n_epochs": 1}}, ONE_OF_TWO),)
    share = draw.uniform(0.4, 0.6)
    both = (causes.LOGGING, causes.LEARNER)
    return Case(both, controls, policy=_big(draw), learning={"n_epochs": 6}, fitted=("disk_s", share))


def _tiny(draw: Draw, n_epochs: int) -> dict[str, int]:
    return {"batch_size": draw.choice([4, 8]), "n_epochs": n_epochs}


def _big(draw: Draw) -> dict[str, Any]:
    return {"net_arch": (draw.choice([512, 768]),) * 2}


CASES: dict[str, Callable[[Draw], Case]] = {
    "slow env": _slow_env,
    "slow env, two workers": _slow_env_two_workers,
    "big net": _big_net,
    "tiny minibatches": _tiny_minibatches,
    "slow disk": _slow_disk,
    "slow disk that is hidden behind slow workers": _hidden_disk,
    "one slow worker": _slow_worker,
    "one slow env": _lone_slow_env,
    "one slow env, two workers": _lone_slow_env_two_workers,
    "starved learner": _starved,
    "stragglers": _stragglers,
    "threads that share one interpreter": _interpreter,
    "threads that sleep": _sleeping_threads,
    "central inference, slow accelerator": _central_accelerator,
    "local inference, one accelerator": _local_accelerator,
    "frequent checkpoints": _checkpoints,
    "frequent evaluations": _evaluations,
    "cheap env behind an inference server": _cheap_behind_server,
    "slow env and tiny minibatches": lambda draw: _env_and_learner(draw, {}),
    "slow env and tiny minibatches, two workers": lambda draw: _env_and_learner(draw, PROCESSES),
    "slow disk and big net": _disk_and_learner,
}


def drawn(name: str, seed: int, attempt: int = 0) -> Case:
    """A case with the strength that this seed gives it."""
    return CASES[name](Draw(f"{seed}/{name}/{attempt}"))
