"""Golden runs of LLM agents: groups played by the scripted engine and by a tiny model, as digests of their records.

    hr.AgentRollouts -> groups --records_of--> Parts: ids, loss masks, log-probabilities, versions, rewards, statuses

Times, places and messages are no part of it. Does not know where results are kept (golden_file).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from support.golden_file import Parts, array_digest, digest

SEED = 41
SHIPPED = ("Bandit", "FrozenLake", "Sokoban", "Countdown")


class Guess:
    """RAGEN's interface: guess a number, in a few tries. Every other task can't be played."""

    def __init__(self) -> None:
        self._task = self._secret = self._tries = 0

    def reset(self, seed: int | None = None) -> str:
        self._task, self._tries = (seed or 0) % 1000, 0
        self._secret = self._task % 3
        return f"Guess 0, 1 or 2. Task {self._task}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self._tries += 1
        if self._task % 2:
            raise RuntimeError("the environment is broken")
        has_won = action.strip() == str(self._secret)
        return f"try {self._tries}", 1.0 * has_won - 0.1, has_won or self._tries >= 4, {"success": has_won}


class Numbers:
    """RAGEN's interface: every answer is taken, valid or not; three turns."""

    def reset(self, seed: int | None = None) -> str:
        self._rng, self._turns = np.random.default_rng(seed), 0
        return f"Say one or two. number {self._rng.integers(100)}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self._turns += 1
        return f"number {self._rng.integers(100)}", float(len(action) % 3), self._turns >= 3, {}


def agents_scripted(folder: Path, own: Mapping[str, Any] | None = None) -> Parts:
    """Shipped environments and some of the user's own, two threads, scripted answers; a version more on the way."""
    envs = {**{tag: tag for tag in SHIPPED}, **({"Guess": Guess, "Numbers": Numbers} if own is None else own)}
    with hr.AgentRollouts(envs, n_jobs=2, backend="threading", group_size=3, seed=SEED) as rollouts:
        groups = rollouts.run(12)
        rollouts.publish(None)
        groups += rollouts.run(12)
    return records_of(groups)


def agents_model(folder: Path) -> Parts:
    """A tiny model in this process, taught a little, that samples for real; its weights change once on the way."""
    from headrace.agents.engines.in_process import in_process
    from headrace.agents.engines.tiny import taught, tiny_codec, tiny_model
    from headrace.agents.plan import Rules

    words = ("one", "two", "one || two")
    texts = ["number 17\n" * 4 + f"<|im_start|>assistant\n<answer>{word}</answer><|im_end|>\n" * 5 for word in words]
    codec = tiny_codec(texts, 300)
    first = taught(tiny_model(codec.vocabulary, 3), codec, texts, steps=60, length=96)
    second = taught(copy.deepcopy(first), codec, texts, steps=8, seed=1, length=96)
    rules = Rules(max_turn=4, max_tokens=9, max_context=512, enable_think=False, temperature=0.6)
    with (
        closing(in_process(first, codec, slots=8, max_context=512)) as engine,
        hr.AgentRollouts(
            {"Numbers": Numbers}, engine, 2, "threading", group_size=2, rules=rules, seed=SEED
        ) as rollouts,
    ):
        groups = rollouts.run(4)
        rollouts.publish(second)
        groups += rollouts.run(3)
    return records_of(groups)


def records_of(groups: Iterable[Any]) -> Parts:
    """Records without times and places."""
    groups = list(groups)
    episodes = [one for group in groups for one in group.episodes]
    rows = [row for one in episodes for row in one.rows]
    turns = [turn for one in episodes for turn in one.turns]
    statuses = [[one.status, None if one.failure is None else one.failure.boundary] for one in episodes]
    return {
        "counts": {
            "episodes": len(episodes),
            "failed": sum(one.failure is not None for one in episodes),
            "valid": sum(turn.is_valid for turn in turns),
            "tokens": int(sum(row.loss_mask.sum() for row in rows)),
        },
        "groups": digest([[group.number, group.tag, group.seed, group.status] for group in groups]),
        "statuses": digest(statuses),
        "rewards": digest([[one.reward, *(turn.reward for turn in one.turns)] for one in episodes]),
        "metrics": digest([one.metrics for one in episodes]),
        "texts": digest([[one.prompt, one.answer, one.actions, one.is_valid] for one in turns]),
        "spans": digest([[one.row, one.start, one.stop] for one in turns]),
        **{name: array_digest(getattr(row, name) for row in rows) for name in ("ids", "loss_mask", "log_probs")},
        "versions": array_digest(row.versions for row in rows),
    }
