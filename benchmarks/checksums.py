"""What checksums and recorded episodes cost: training with both, with checksums alone, and with neither, in turns.

    CartPole-v1     64 environments, 32 steps, inline, plain MLP (closed form): the fastest path, so the largest share
    images          8 environments, 16 steps, 84x84x4 uint8 from a cheap environment, CnnPolicy, one epoch

Three runs of one seed in one process make the same updates, slice after slice, in every order; so a slice of one is
compared with the same work of the others beside it. The ratio is the median over the slices, by the CPU time of this
process (one thread), since what other programs take is not our cost. The share of time that is spent in the checksum
itself, and in writing, is measured apart, with a clock around them.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import harness
import numpy as np

import headrace as hr
from headrace.episodes import journal
from headrace.run_config import SessionConfig
from headrace.session_files import SessionFiles

GOAL = 0.98
KINDS = ("neither", "checksums", "checksums and recording")
_extend = journal.extend


class Pictures(gym.Env[Any, Any]):
    """An 84x84x4 image that scrolls: a step costs next to nothing."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._picture = self.np_random.integers(0, 256, (84, 84, 4), np.uint8)
        self._steps = 0
        return self._picture, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._picture = np.roll(self._picture, int(action) + 1, 0)
        self._steps += 1
        return self._picture, float(self._picture[0, 0, 0]) / 255, False, self._steps >= 100, {}


TASKS: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "CartPole-v1": (
        "CartPole-v1",
        "MlpPolicy",
        {"n_envs": 64, "n_steps": 32, "batch_size": 512, "n_epochs": 4, "learning_rate": 1e-3},
        2,
    ),
    "images 84x84x4": (Pictures, "CnnPolicy", {"n_envs": 8, "n_steps": 16, "batch_size": 64, "n_epochs": 1}, 1),
}


class Contender:
    """A run that makes its updates in slices, with some of what is measured switched off."""

    def __init__(self, task: str, kind: str, folder: Path, stack: ExitStack) -> None:
        env, policy, options, self._updates = TASKS[task]
        self._is_summing = kind != "neither"
        self._model = stack.enter_context(hr.PPO(policy, env, seed=1, topology="inline", **options))
        self._reader = self._model.parts.reader
        kept = SessionConfig(keep_episodes_mb=256 if kind == "checksums and recording" else 0)
        folder.mkdir()
        self._files = SessionFiles(folder, kept, 1, False, 1)
        self._reader.is_recording = self._files.is_recording
        stack.enter_context(self._files.open(0, 0))
        self.spent_s = {"checksum": 0.0, "recording": 0.0}

    def slice(self, clock: bool = False) -> float:
        """Some updates; returns steps/s."""
        journal.extend = (self._timed if clock else _extend) if self._is_summing else _no_sum
        steps, start = self._model.run.steps, time.process_time()
        for _ in range(self._updates):
            update = self._model.run.update(10**9)
            began = time.process_time()
            self._files.write_lists(update)
            self.spent_s["recording"] += time.process_time() - began
        seconds = time.process_time() - start
        journal.extend = _extend
        return (self._model.run.steps - steps) / seconds

    def _timed(self, *arguments: Any) -> Any:
        began = time.process_time()
        got = _extend(*arguments)
        self.spent_s["checksum"] += time.process_time() - began
        return got


def _no_sum(checksum: Any, env_start: int, slab: Any) -> Any:
    return np.zeros(slab.reward.shape, np.uint64)


def measured(task: str, slices: int, progress: Callable[[str], object]) -> tuple[list[harness.Claim], dict[str, Any]]:
    """The claims of one task."""
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = {kind: Contender(task, kind, folder / str(i), stack) for i, kind in enumerate(KINDS)}
        for contender in contenders.values():
            contender.slice()  # warm
        orders = itertools.cycle(itertools.permutations(KINDS))
        for number, order in zip(range(slices), orders, strict=False):
            for kind in order:
                speeds[kind].append(contenders[kind].slice())
            if number % max(1, slices // 4) == 0:
                progress(f"{task}: slice {number + 1} of {slices}")
        clocked = contenders["checksums and recording"]
        bare = contenders["checksums"].spent_s["recording"] / (slices + 1)  # episodes.jsonl, which is not ours here
        clocked.spent_s, start = {"checksum": 0.0, "recording": 0.0}, time.process_time()
        for _ in range(max(1, slices // 4)):
            clocked.slice(clock=True)
        total, count = time.process_time() - start, max(1, slices // 4)
    summing = clocked.spent_s["checksum"] / total
    recording = max(0.0, clocked.spent_s["recording"] - bare * count) / total
    base, claims = speeds["neither"], []
    for kind in KINDS[1:]:
        ratio = median(one / other for one, other in zip(speeds[kind], base, strict=True))
        name = f"{task}, {kind}"
        claims.append(
            harness.Claim(name, median(speeds[kind]), "steps/s", median(base), ratio, f">= {GOAL}x", ratio >= GOAL)
        )
    for name, share in (("the checksum's share of the time", summing), ("writing the journal", recording)):
        limit = 1 - GOAL
        claims.append(
            harness.Claim(f"{task}, {name}", 100 * share, "%", None, None, f"< {100 * limit:.0f} %", share < limit)
        )
    return claims, {"slices": slices, "steps_per_s": speeds}


def main() -> None:
    arguments = harness.arguments(__doc__)
    many = {"CartPole-v1": 300, "images 84x84x4": 24}
    slices = (
        dict.fromkeys(many, 2) if arguments.smoke else {k: v // 4 for k, v in many.items()} if arguments.quick else many
    )
    claims: list[harness.Claim] = []
    every: dict[str, Any] = {}
    for task, count in slices.items():
        found, every[task] = measured(task, count, print)
        claims += found
    if arguments.smoke:
        claims = [harness.Claim(one.name, one.value, one.unit, None, None, "-", None) for one in claims]
    harness.report(claims, arguments.json, {}, every)


if __name__ == "__main__":
    main()
