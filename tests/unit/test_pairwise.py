"""The matrices' covering subsets cover: every pair of values that some cell has is in a cell that `make test` runs."""

from __future__ import annotations

from support.pairwise import all_cells, covering, matrix, pairs

AXES = {"a": [1, 2, 3, 4], "b": "wxyz", "c": [True, False], "d": [None, "some"]}


def is_allowed(cell: dict[str, object]) -> bool:
    return not (cell["a"] == 1 and cell["b"] == "w")


def test_every_pair_is_covered_by_few_cells() -> None:
    cells = all_cells(AXES, is_allowed)
    chosen = covering(cells)
    assert len(cells) == 4 * (4 * 4 - 1)
    assert len(chosen) <= 24
    assert set().union(*map(pairs, chosen)) == set().union(*map(pairs, cells))
    assert all(is_allowed(cell) for cell in chosen)


def test_the_rest_is_marked_full() -> None:
    cells = all_cells(AXES, is_allowed)
    params = matrix(AXES, is_allowed)
    assert [param.values[0] for param in params] == cells
    unmarked = [param.values[0] for param in params if not param.marks]
    assert sorted(map(str, unmarked)) == sorted(map(str, covering(cells)))
    assert all(mark.name == "full" for param in params for mark in param.marks)


def test_one_axis_needs_all_its_values() -> None:
    assert len(covering(all_cells({"a": [1, 2, 3]}, lambda cell: True))) == 3
