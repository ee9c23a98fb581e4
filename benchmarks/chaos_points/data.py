"""Points 8, 9 and 13: numbers that are none, returns that fit no space, clocks that jump."""

import logging
import signal
import time
from contextlib import contextmanager
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import torch

import headrace as hr
from chaos_points.kit import Scale, Shown, all_of, none_of, say
from headrace.errors import HeadraceError, NumericsError
from headrace.learning import assembly as batches
from headrace.learning import ppo
from support.bit_envs import LongWalk
from support.chains import seed_of
from support.faulty_envs import Faulty
from support.odd_returns import odd_case, odd_envs
from support.slabs import act_by_noise, noise_actor, slab_for
from support.spotty_envs import Spotty
from support.topology_runs import processes

OPTIONS: dict[str, Any] = {"n_envs": 4, "n_steps": 16, "batch_size": 32}


def not_finite(scale: Scale) -> Shown:
    """Point 8."""
    faults = ("nan_obs", "inf_obs", "nan_reward")[: 1 if scale.name == "smoke" else None]
    named = finite = 0
    for fault in faults:
        with hr.PPO(
            "MlpPolicy", Faulty, env_kwargs={"fault": fault}, seed=Faulty.SEED, **OPTIONS, **processes(2)
        ) as model:
            try:
                model.learn(640)
            except NumericsError as error:
                named += str(error).startswith(Faulty.PLACE)
            finite += is_finite(model)
    untouched = 0
    poisons = ("reward", "log_prob")
    for poison in poisons:
        with hr.PPO("MlpPolicy", "CartPole-v1", seed=1, **OPTIONS, topology="inline") as model:
            model.learn(128)
            before = model.run.hashes()["weights_sha256"]
            with poisoned(poison), np.errstate(all="ignore"):
                try:
                    model.learn(128)
                except NumericsError:
                    untouched += model.run.hashes()["weights_sha256"] == before
            finite += is_finite(model)
    balanced = 0
    logging.getLogger("headrace").setLevel(logging.ERROR)
    try:
        for policy in ("drop", "clamp"):
            with hr.PPO("MlpPolicy", Spotty, seed=5, nan_policy=policy, **OPTIONS, topology="inline") as model:
                model.learn(2000)
                ledger = model.run.totals().ledger
                lost = sum(ledger["discarded"].values())
                balanced += ledger["produced"] == ledger["consumed"] + ledger["rejected"] + lost
                finite += is_finite(model)
    finally:
        logging.getLogger("headrace").setLevel(logging.NOTSET)
    whole = len(faults) + len(poisons) + 2
    return Shown(
        "8",
        "NaN and infinity",
        f"In an observation or reward of a worker's environment ({', '.join(faults)}); in the "
        "log-probabilities and, by "
        "infinite rewards, in the gradient of an update; and 2,000 steps of environments that are often not "
        "finite with "
        f"nan_policy=drop and clamp.",
        [
            all_of("named at the first bad step: environment, episode, seed, step", named, len(faults), "faults"),
            all_of("updates refused with the parameters as they were", untouched, len(poisons), "updates"),
            all_of("ledgers that balance with drop and clamp", balanced, 2, "runs"),
            all_of("runs whose parameters stay finite", finite, whole, "runs"),
        ],
    )


def is_finite(model: Any) -> bool:
    return all(bool(torch.isfinite(one).all()) for one in model.parts.weights.module.parameters())


@contextmanager
def poisoned(field: str) -> Any:
    """Batches in which a field is not finite by the time they are learnt from."""

    def complete(batch: Any, policy_of: Any, device: Any) -> None:
        batches.complete(batch, policy_of, device)
        getattr(batch, field)[...] = np.inf if field == "reward" else np.nan

    with mock.patch.object(ppo, "complete", complete):
        yield


# -------------------------------------------------------------------------------------------------------------- returns

ENVS, BAD, ODD = range(4, 7), 1, 1_000


class _InterruptedError(BaseException):
    """What a signal handler raises, as a session's does: whatever else is raised is the environment's own."""


def odd_returns(scale: Scale) -> Shown:
    """Point 9, and the fuzz of returns."""
    cases = max(20, round(ODD * scale.share))
    raw = wrong = located = refused = 0

    def handle(*_: Any) -> None:
        raise _InterruptedError

    before = signal.signal(signal.SIGINT, handle)
    slowest = 0.0
    try:
        with np.errstate(all="ignore"):
            for case in range(cases):
                space, odd, at = odd_case(case)
                envs = odd_envs(space, odd, at, ENVS, BAD)
                error, begun = None, time.monotonic()
                try:
                    noise_actor(envs, ENVS).fill(slab_for(envs, 8), act_by_noise(0))
                except BaseException as raised:
                    error = raised
                slowest = max(slowest, time.monotonic() - begun)
                raw += error is not None and not isinstance(error, HeadraceError)
                wrong += odd.is_malformed != (error is not None)
                refused += error is not None
                index = ENVS[BAD]
                places = [f"env {index}, episode {index}:{n}, seed {seed_of(index, n)}, step " for n in (0, 1)]
                located += error is not None and str(error).startswith(tuple(places))
    finally:
        signal.signal(signal.SIGINT, before)
    say(f"{cases} odd returns: {refused} refused, slowest {slowest:.2f} s")
    return Shown(
        "9",
        "Malformed returns of an environment",
        f"{cases:,} seeded odd returns in 8 kinds of spaces: wrong shapes, dtypes, ranges, types, "
        "ragged and failing "
        f"arrays, infinite iterators, exceptions; in observations, rewards, flags, whole tuples; some of them sound.",
        [
            none_of("raw exceptions", raw, cases, "cases"),
            none_of("malformed and taken, or sound and refused", wrong, cases, "cases"),
            all_of("refusals that name environment, episode, seed and step", located, refused, "refusals"),
        ],
    )


# --------------------------------------------------------------------------------------------------------------- clocks


class JumpyClock(gym.Wrapper):
    """The wall clock of its process jumps an hour forth and back, whoever asks."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        jump_clock()


def jump_clock() -> None:
    if getattr(time.time, "jumps", False):
        return
    real, rng = time.time, np.random.default_rng(3)

    def jumping() -> float:
        return real() + float(rng.integers(-3600, 3600))

    jumping.jumps = True  # type: ignore[attr-defined]
    time.time, time.time_ns = jumping, lambda: int(jumping() * 1e9)  # type: ignore[assignment]


def clock_jumps(scale: Scale) -> Shown:
    """Point 13."""
    options: dict[str, Any] = {**OPTIONS, "seed": 1, **processes(2, hang_floor_s=1.0, hang_ceiling_s=5.0)}
    hashes, restarts = [], 0
    real = time.time, time.time_ns
    try:
        for wrappers in ((), (JumpyClock,)):
            with hr.PPO("MlpPolicy", LongWalk, wrappers=wrappers, **options) as model:
                model.learn(40 * 64)
                assert model.result is not None
                hashes.append(model.result.weights_sha256)
                restarts += model.result.restarts
    finally:
        time.time, time.time_ns = real  # type: ignore[assignment]
    return Shown(
        "13",
        "Clocks that jump",
        "2 workers; the wall clock of the learner and of every worker jumps by up to an hour, forth or back, "
        "at every look, "
        "beside limits of 1 to 5 s for hung workers.",
        [
            all_of("the calm run's weights", int(hashes[0] == hashes[1]), 1, "runs"),
            none_of("workers taken for hung", restarts, 1, "runs"),
        ],
    )
