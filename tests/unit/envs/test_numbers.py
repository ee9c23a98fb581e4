"""What is a number, and which whole numbers a space takes: by their values, whatever their dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.envs.returns import LeafReader, number
from headrace.envs.vector_env import EnvFailure
from headrace.memory.spaces import Box

IMAGE = LeafReader("obs", Box((3,), "uint8", (0,), (255,)))


@pytest.mark.parametrize(
    "value", [np.ma.masked, np.ma.masked_all(1), np.timedelta64(1), np.timedelta64(1, "s")], ids=repr
)
def test_no_number(value: Any) -> None:
    assert number(value) is None


@pytest.mark.parametrize("value", [1.0, np.ma.array(1.0), np.array([1]), np.True_], ids=repr)
def test_a_number(value: Any) -> None:
    assert number(value) == 1.0


@pytest.mark.parametrize("obs", [[1, 2, 255], np.array([1, 2, 255]), np.array([1, 2, 255], np.uint64)], ids=repr)
def test_whole_numbers_that_fit(obs: Any) -> None:
    assert IMAGE.read(0, obs).tolist() == [1, 2, 255]
    assert IMAGE.read(0, obs).dtype == np.uint8


@pytest.mark.parametrize("obs", [[1, 2, 256], np.array([-1, 2, 3]), np.array([1, 2, 2**63], np.uint64)], ids=repr)
def test_whole_numbers_that_do_not_fit(obs: Any) -> None:
    with pytest.raises(EnvFailure, match="does not fit its dtype: expected uint8"):
        IMAGE.read(0, obs)
