"""Sokoban: push every box onto a target. Levels are made backwards, so each can be solved; a solver proves it.

    seed -> a room -> boxes on their targets -> pulled away at random -> the level; too easy ones are made again

`solve` finds a shortest solution by breadth-first search over (player, boxes): small rooms only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from headrace.agents.environments.text_env import Step
from headrace.errors import HeadraceError, UsageError
from headrace.keywords import in_words

Place = tuple[int, int]
MOVES: dict[str, Place] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
_SYMBOLS = "# wall, _ floor, O target, X box, V box on a target, P you, S you on a target"


@dataclass(frozen=True)
class Level:
    """Where everything is."""

    floor: frozenset[Place]
    targets: frozenset[Place]
    boxes: frozenset[Place]
    player: Place
    size: int

    @property
    def is_solved(self) -> bool:
        """Whether every target holds a box."""
        return self.boxes == self.targets

    def moved(self, action: str) -> Level:
        """The level after a move; the same one if something is in the way."""
        to = _beyond(self.player, MOVES[action])
        if to not in self.floor:
            return self
        boxes = self.boxes
        if to in boxes:
            behind = _beyond(to, MOVES[action])
            if behind not in self.floor or behind in boxes:
                return self
            boxes = boxes - {to} | {behind}
        return Level(self.floor, self.targets, boxes, to, self.size)

    def drawn(self) -> str:
        """As signs."""
        return "\n".join("".join(self._sign((y, x)) for x in range(self.size)) for y in range(self.size))

    def _sign(self, at: Place) -> str:
        if at not in self.floor:
            return "#"
        is_target = at in self.targets
        if at == self.player:
            return "S" if is_target else "P"
        if at in self.boxes:
            return "V" if is_target else "X"
        return "O" if is_target else "_"


@in_words()
class Sokoban:
    """Rewards: -0.1 a move, 1 for a box onto a target, -1 for one off it, 10 for the last one."""

    actions = tuple(MOVES)

    def __init__(self, size: int = 6, boxes: int = 1, least_moves: int = 3) -> None:
        if size < 5:
            raise UsageError(f"size: expected at least 5, got {size}")
        if not 1 <= boxes <= 3:
            raise UsageError(f"boxes: expected 1 to 3, got {boxes}")
        self._size, self._boxes, self._least = size, boxes, least_moves
        self._level: Level | None = None
        self.instructions = f"You are in a warehouse. Push every box onto a target; you can't pull. {_SYMBOLS}."

    @property
    def level(self) -> Level:
        """As it stands now."""
        assert self._level is not None, "reset first"
        return self._level

    def reset(self, seed: int) -> str:
        """A level of its own."""
        self._level = generate(seed, self._size, self._boxes, self._least)
        return self._level.drawn()

    def step(self, action: str) -> Step:
        """One move."""
        before = self.level
        after = self._level = before.moved(action)
        placed = len(after.boxes & after.targets) - len(before.boxes & before.targets)
        reward = -0.1 + placed + (10.0 if after.is_solved else 0.0)
        facts = {"success": float(after.is_solved), "action_is_effective": float(after != before)}
        return Step(after.drawn(), reward, after.is_solved, facts)

    def close(self) -> None:
        """Nothing to let go of."""


def generate(seed: int, size: int, boxes: int, least_moves: int) -> Level:
    """A level that takes at least so many moves; the seed alone decides which."""
    for attempt in range(200):
        rng = np.random.default_rng((seed, attempt))
        level = _pulled(rng, size, boxes)
        if level is None or level.boxes & level.targets:
            continue
        solution = solve(level)
        if solution is not None and len(solution) >= least_moves:
            return level
    raise HeadraceError(
        f"seed {seed}: no Sokoban level of size {size} with {boxes} boxes takes {least_moves} moves; use larger rooms "
        f"or fewer moves"
    )


def solve(level: Level, most_states: int = 200_000) -> list[str] | None:
    """A shortest solution; None if there is none among so many states."""
    came: dict[tuple[Place, frozenset[Place]], tuple[Level, str] | None] = {(level.player, level.boxes): None}
    waiting = deque([level])
    while waiting and len(came) < most_states:
        here = waiting.popleft()
        if here.is_solved:
            return _way_to(here, came)
        for action in MOVES:
            there = here.moved(action)
            if (there.player, there.boxes) not in came:
                came[there.player, there.boxes] = (here, action)
                waiting.append(there)
    return None


def _way_to(level: Level, came: dict[tuple[Place, frozenset[Place]], tuple[Level, str] | None]) -> list[str]:
    actions = []
    step = came[level.player, level.boxes]
    while step is not None:
        level, action = step
        actions.append(action)
        step = came[level.player, level.boxes]
    return actions[::-1]


def _pulled(rng: np.random.Generator, size: int, boxes: int) -> Level | None:
    """A solved room, played backwards for a while."""
    inside = [(y, x) for y in range(1, size - 1) for x in range(1, size - 1)]
    walls = {inside[at] for at in rng.permutation(len(inside))[: int(rng.integers(0, len(inside) // 4))]}
    floor = frozenset(inside) - walls
    free = sorted(floor)
    if len(free) < boxes + 2:
        return None
    order = rng.permutation(len(free))
    targets = frozenset(free[at] for at in order[:boxes])
    level = Level(floor, targets, targets, free[order[boxes]], size)
    for _ in range(12 * size):
        action = list(MOVES.values())[int(rng.integers(4))]
        back = _beyond(level.player, (-action[0], -action[1]))
        ahead = _beyond(level.player, action)
        if back not in level.floor or back in level.boxes:
            continue
        stays = level.boxes
        if ahead in stays and rng.random() < 0.8:  # pulled along
            stays = stays - {ahead} | {level.player}
        level = Level(floor, targets, stays, back, size)
    return level


def _beyond(place: Place, move: Place) -> Place:
    return place[0] + move[0], place[1] + move[1]
