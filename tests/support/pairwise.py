"""Matrices of tests: all cells in `make test-full`, in `make test` a subset that still shows every pair of values.

axes {name: values} --matrix--> pytest params; cells outside the covering subset carry the mark `full`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Cell = dict[str, Any]


def matrix(axes: Mapping[str, Sequence[Any]], allowed: Callable[[Cell], bool] = lambda cell: True) -> list[Any]:
    """Every allowed cell as a pytest parameter, in a fixed order."""
    cells = all_cells(axes, allowed)
    chosen = covering(cells)
    return [
        pytest.param(cell, id="-".join(map(str, cell.values())), marks=() if cell in chosen else pytest.mark.full)
        for cell in cells
    ]


def all_cells(axes: Mapping[str, Sequence[Any]], allowed: Callable[[Cell], bool]) -> list[Cell]:
    """The product of the axes, less what makes no sense."""
    return [cell for values in product(*axes.values()) if allowed(cell := dict(zip(axes, values, strict=True)))]


def covering(cells: Sequence[Cell]) -> list[Cell]:
    """A small subset in which every pair of values that occurs in some cell occurs; greedy and repeatable."""
    missing = set().union(*(pairs(cell) for cell in cells))
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(pairs(cell) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


def pairs(cell: Cell) -> set[Any]:
    """Every two entries of a cell."""
    return set(combinations(cell.items(), 2)) if len(cell) > 1 else {tuple(cell.items())}
