"""Space descriptors: through JSON and back without loss, and bounds as arrays."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given

from headrace.errors import SchemaError
from headrace.memory.spaces import Box, Discrete, MultiBinary, Space, bounds, decode, encode, shape_of, size_of
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
