"""Space descriptors: through JSON and back without loss, and bounds as arrays."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from headrace.errors import SchemaError
from headrace.memory import spaces as the_spaces
from headrace.memory.in_hand import as_rows
from headrace.memory.spaces import (
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    bounds,
    choice_range,
    decode,
    encode,
    leaves_of,
    shape_of,
    size_of,
    split,
)
from support.generators import boxes, quick, shapes, spaces, thorough


@thorough
@given(spaces)
def test_a_space_survives_json(space: Space) -> None:
    assert decode(json.loads(json.dumps(encode(space), allow_nan=False))) == space


def test_infinite_bounds_survive_strict_json() -> None:
    space = Box((2,), "float32", (-math.inf, 0.1), (math.inf,))
    text = json.dumps(encode(space), allow_nan=False)
    assert decode(json.loads(text)) == space


@pytest.mark.parametrize("data", [{"kind": "Graph"}, {}])
def test_an_unknown_kind_is_refused_by_name(data: dict[str, str]) -> None:
    with pytest.raises(SchemaError, match=repr(data.get("kind"))):
        decode(data)


@thorough
@given(boxes())
def test_bounds_have_the_shape_and_dtype_of_the_box(space: Box) -> None:
    for array, given_bound in zip(bounds(space), (space.low, space.high), strict=True):
        assert array.shape == space.shape
        assert array.dtype == np.dtype(space.dtype)
        wanted = [given_bound[0]] * size_of(space) if len(given_bound) == 1 else list(given_bound)
        assert array.reshape(-1).tolist() == np.asarray(wanted, space.dtype).tolist()


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32"])
def test_the_limits_of_an_integer_dtype_are_its_bounds(dtype: str) -> None:
    limits = np.iinfo(dtype)
    low, high = bounds(Box((2,), dtype, (float(limits.min),), (float(limits.max),)))
    assert low.tolist() == [limits.min] * 2
    assert high.tolist() == [limits.max] * 2


@quick
@given(shapes)
def test_a_choice_is_a_scalar_and_bits_are_an_array(shape: tuple[int, ...]) -> None:
    assert shape_of(Discrete(3)) == ()
    assert size_of(Discrete(3)) == 1
    assert shape_of(MultiBinary(shape)) == shape
    assert size_of(MultiBinary(shape)) == math.prod(shape)


def test_no_other_file_knows_the_name_of_the_one_leaf() -> None:
    """A branch for observations of one array would need it; several arrays are more names, not more branches."""
    home = Path(the_spaces.__file__)
    names = {"obs", "last_obs"}
    found = {
        path.name
        for path in home.parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert found == {home.name}


@quick
@given(spaces)
def test_an_observation_has_the_leaves_of_its_space(space: Space) -> None:
    least = 0 if isinstance(space, Box) else choice_range(space)[0]
    one = np.full(shape_of(space), least, space.dtype)
    assert split(space, one).keys() == leaves_of(space).keys()
    for given_obs, was_one in ((one, True), (np.stack([one, one, one]), False)):
        rows, is_one = as_rows(space, given_obs)
        assert is_one is was_one
        assert {name: (leaf.shape, str(leaf.dtype)) for name, leaf in rows.items()} == {
            name: ((1 if was_one else 3, *shape_of(leaf)), leaf.dtype) for name, leaf in leaves_of(space).items()
        }


@pytest.mark.parametrize(
    ("space", "wrong", "said"),
    [
        (
            Box((2,), "float32", (0.0,), (1.0,)),
            np.zeros(3),
            r"expected observations of shape \(2,\) or \[n, ...\]",
        ),
        (Box((2,), "float32", (0.0,), (1.0,)), np.zeros((2, 2, 2)), r"got \(2, 2, 2\)"),
        (Discrete(3), 1.5, "expected dtype int64, got float64"),
        (MultiBinary((2,)), {"obs": 1}, r"expected observations of shape \(2,\)"),
        (Discrete(16), 99, "expected observation from 0 to 15, got 99"),
        (Discrete(3, -1), [1, -2], "expected observation from -1 to 1, got -2"),
        (MultiDiscrete((2, 3), (2,), (1, 0)), [[1, 0], [2, 3]], "expected observation from 0 to 2, got 3"),
        (MultiBinary((2,)), [1, 9], "expected observation from 0 to 1, got 9"),
    ],
)
def test_rows_that_do_not_fit_are_refused(space: Space, wrong: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        as_rows(space, wrong)
