"""Countdown: reach a number with given ones, each used exactly once, by + - * / and brackets.

The target is the value of a random expression over the numbers, so there always is an answer. What the player says is
read as arithmetic and nothing else: no names, no calls, exact fractions.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from headrace.agents.environments.text_env import Step
from headrace.errors import UsageError
from headrace.keywords import in_words

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SIGNS = {"+": ast.Add, "-": ast.Sub, "*": ast.Mult}
_LONGEST = 200  # characters of an answer that is looked at


@in_words()
class Countdown:
    """One answer: 1 for the target with every number used once, `partial` for sound arithmetic with these numbers."""

    actions = None

    def __init__(self, count: int = 3, largest: int = 20, partial: float = 0.1) -> None:
        if not 2 <= count <= 8:
            raise UsageError(f"count: expected 2 to 8 numbers, got {count}")
        if largest < 2:
            raise UsageError(f"largest: expected at least 2, got {largest}")
        self._count, self._largest, self._partial = count, largest, partial
        self._numbers: list[int] = []
        self._target = 0
        self.instructions = (
            "Write an expression that gives the target. Use every number exactly once, with + - * / and brackets."
        )

    def reset(self, seed: int) -> str:
        """Numbers, and a target that they can give."""
        rng = np.random.default_rng(seed)
        self._numbers = [int(one) for one in rng.integers(1, self._largest + 1, self._count)]
        value = Fraction(self._numbers[0])
        for number in self._numbers[1:]:
            sign = str(rng.choice(list(_SIGNS)))
            value = _OPERATORS[_SIGNS[sign]](value, Fraction(number))
        self._target = int(value)
        order = rng.permutation(self._count)
        return f"Numbers: {' '.join(str(self._numbers[at]) for at in order)}\nTarget: {self._target}"

    def step(self, action: str) -> Step:
        """The answer."""
        try:
            value, used = evaluate(action)
        except ValueError as error:
            return Step(f"Not an expression: {error}", 0.0, True, {"success": 0.0, "action_is_effective": 0.0})
        if used != Counter(self._numbers):
            return Step("Every number has to be used exactly once.", 0.0, True, {"success": 0.0})
        is_right = value == self._target
        verdict = f"{value} is {'' if is_right else 'not '}the target."
        return Step(verdict, 1.0 if is_right else self._partial, True, {"success": float(is_right)})

    def close(self) -> None:
        """Nothing to let go of."""


def evaluate(text: str) -> tuple[Fraction, Counter[int]]:
    """The value of an expression, and the numbers in it; ValueError says what is wrong."""
    if len(text) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("it can't be read") from error
    used: Counter[int] = Counter()
    return _value(tree.body, used), used


def _value(node: ast.expr, used: Counter[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used[node.value] += 1
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, used), _value(node.right, used)
        if isinstance(node.op, ast.Div) and right == 0:
            raise ValueError("division by zero")
        return _OPERATORS[type(node.op)](left, right)
    raise ValueError("only whole numbers, + - * / and brackets")
