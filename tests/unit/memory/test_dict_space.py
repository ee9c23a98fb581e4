"""A Dict's descriptor: from Gymnasium, through JSON and back, its leaves' names, and what is refused with its key."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.adapters.gymnasium_spaces import describe_action, describe_observation
from headrace.envs.returns import Returns
from headrace.envs.vector_env import EnvFailure
from headrace.errors import SchemaError, UsageError
from headrace.memory.in_hand import as_rows
from headrace.memory.schema import rollout_schema
from headrace.memory.spaces import (
    Box,
    Dict,
    Discrete,
    ObservationSpace,
    as_seen,
    decode_observation,
    empty_leaves,
    encode,
    leaves_of,
    split,
)
from support.dict_envs import Nested
from support.generators import spaces, thorough

NAMES = ["obs/action", "obs/arm/mode", "obs/arm/row", "obs/pair/0", "obs/pair/1", "obs/reward"]


def nested() -> ObservationSpace:
    return describe_observation(Nested().observation_space, "Nested")


def observation() -> Any:
    return Nested().reset(seed=3)[0]


@thorough
@given(st.lists(st.tuples(st.text(min_size=1), spaces), min_size=1, max_size=4))
def test_a_dict_survives_json_with_its_order(leaves: list[tuple[str, Any]]) -> None:
    space = Dict(tuple(leaves), ("mission",))
    assert decode_observation(json.loads(json.dumps(encode(space), sort_keys=True))) == space


def test_nested_names_are_joined_and_items_of_tuples_numbered() -> None:
    assert list(leaves_of(nested())) == NAMES
    assert set(split(nested(), observation())) == set(NAMES)
    assert list(as_seen(empty_leaves(nested(), 2))) == [name.removeprefix("obs/") for name in NAMES]


def test_names_of_the_schema_are_not_taken() -> None:
    """Leaves may be called action, reward or row: no field is declared twice."""
    fields = [field.name for field in rollout_schema(nested(), Discrete(2), 3, 2).fields]
    assert len(set(fields)) == len(fields)


def test_one_leaf_in_a_dict_is_seen_by_its_name() -> None:
    one = describe_observation(gym_spaces.Dict({"obs": gym_spaces.Discrete(2)}), "One")
    assert list(as_seen(empty_leaves(one, 2))) == ["obs"]
    assert isinstance(as_seen(empty_leaves(Discrete(2), 2)), np.ndarray)


def test_observations_of_several_environments_by_leaf() -> None:
    seen = [Nested().reset(seed=seed)[0] for seed in range(3)]
    found, returns = empty_leaves(nested(), 3), Returns(nested())
    for position, obs in enumerate(seen):
        returns.write(position, obs, found)
    assert list(found) == NAMES
    assert [one.tolist() for one in found["obs/arm/row"]] == [one["arm"]["row"].tolist() for one in seen]
    assert [one.tolist() for one in found["obs/pair/0"]] == [one["pair"][0].tolist() for one in seen]


def test_one_observation_or_many_as_rows() -> None:
    rows, is_one = as_rows(nested(), observation())
    assert is_one
    assert rows["obs/arm/row"].shape == (1, 3)
    many = gym_spaces.Dict({"a": gym_spaces.Discrete(3), "b": gym_spaces.Box(0, 1, (2,))})
    rows, is_one = as_rows(describe_observation(many, "it"), {"a": [0, 1, 2], "b": np.zeros((3, 2))})
    assert not is_one
    assert {name: (array.shape, str(array.dtype)) for name, array in rows.items()} == {
        "obs/a": ((3,), "int64"),
        "obs/b": ((3, 2), "float32"),
    }


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        ({"a": 3, "b": np.zeros(2)}, "expected observation/a from 0 to 2, got 3"),
        ({"a": [0, 1], "b": np.zeros(2)}, r"a batch of every array, got {'a': \(2,\), 'b': \(2,\)}"),
        ({"a": 1, "b": np.zeros(3)}, r"expected observation/b of shape \(2,\)"),
        ({"a": [0, 1], "b": np.zeros((3, 2))}, "expected as many rows of every array, got {'a': 2, 'b': 3}"),
    ],
)
def test_rows_that_do_not_fit_are_refused(obs: Any, said: str) -> None:
    two = gym_spaces.Dict({"a": gym_spaces.Discrete(3), "b": gym_spaces.Box(0, 1, (2,))})
    with pytest.raises(SchemaError, match=said):
        as_rows(describe_observation(two, "it"), obs)


def changed(change: Any) -> Any:
    obs = observation()
    change(obs)
    return obs


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        (changed(lambda obs: obs["arm"].pop("mode")), "returned an observation without 'arm/mode', expected arm/mode"),
        (changed(lambda obs: obs["arm"].update(x=1)), "returned an observation with 'arm/x'"),
        (changed(lambda obs: obs.update(arm=3)), "returned an observation with 'arm' of type int, expected a dict"),
        (changed(lambda obs: obs.update(pair=obs["pair"][:1])), "returned an observation without 'pair/1'"),
        (changed(lambda obs: obs.update(pair=(*obs["pair"], 1))), "returned an observation with 'pair/2'"),
        (changed(lambda obs: obs["arm"].update(row=np.zeros(2))), r"returned an observation/arm/row of shape \(2,\)"),
        (changed(lambda obs: obs["arm"].update(mode=1.5)), "returned an observation/arm/mode of dtype float64"),
        (np.zeros(3), "returned an observation of type ndarray, expected a dict of action, arm, pair, reward"),
    ],
)
def test_what_does_not_fit_is_named(obs: Any, said: str) -> None:
    with pytest.raises(EnvFailure, match=f"^{said}"):
        Returns(nested()).observation(0, obs)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (gym_spaces.Dict({"a/b": gym_spaces.Discrete(2)}), "texts without /, got 'a/b'"),
        (gym_spaces.Dict({"a": gym_spaces.Tuple(())}), "in observation 'a/', got an empty Tuple"),
        (gym_spaces.Dict({}), "got an empty Dict"),
        (gym_spaces.Dict({"a": gym_spaces.Dict({"t": gym_spaces.Text(3)})}), "Env: expected an array .* texts only"),
    ],
)
def test_spaces_that_are_refused(space: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        describe_observation(space, "Env")


def test_actions_are_one_array_of_at_least_one_number() -> None:
    for empty in (gym_spaces.Box(-1, 1, (0,)), gym_spaces.Box(-1, 1, (2, 0))):
        with pytest.raises(UsageError, match="Env: expected at least one number in an action, got"):
            describe_action(empty, "Env")
    with pytest.raises(UsageError, match="unsupported action space Dict"):
        describe_action(gym_spaces.Dict({"a": gym_spaces.Discrete(2)}), "Env")


def test_a_box_is_what_it_was() -> None:
    box = Box((2,), "float32", (-1.0,), (1.0,))
    assert leaves_of(box) == {"obs": box}
    assert [field.name for field in rollout_schema(box, Discrete(2), 2, 2).fields if "obs" in field.name] == [
        "obs",
        "last_obs",
        "final_obs",
    ]
