"""The schema: where every field lies, its fingerprint, and what two sides that disagree are told."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.memory.schema import ALIGNMENT, Field, Schema, explain_difference, rollout_schema
from headrace.memory.spaces import Space
from support.generators import spaces, thorough
from support.slabs import CHOICE, VECTOR, small_schema

FIELD_NAMES = [field.name for field in small_schema().fields]


def other_field(field: Field, attribute: str) -> Field:
    """The field with one attribute changed to another legal value."""
    changed = {
        "name": field.name + "_",
        "axes": "T" if field.axes != "T" else "B",
        "shape": (*field.shape, 2),
        "dtype": "float64" if field.dtype != "float64" else "float32",
    }
    return replace(field, **{attribute: changed[attribute]})


def with_field(schema: Schema, changed: Field, index: int) -> Schema:
    return replace(schema, fields=(*schema.fields[:index], changed, *schema.fields[index + 1 :]))


@thorough
@given(spaces, spaces, st.integers(1, 7), st.integers(1, 7))
def test_fields_are_aligned_and_disjoint(observation: Space, action: Space, n_steps: int, n_envs: int) -> None:
    schema = rollout_schema(observation, action, n_steps, n_envs)
    end_of_last = 0
    for field in schema.fields:
        start = schema.offsets[field.name]
        assert start % ALIGNMENT == 0, field.name
        assert start >= end_of_last, f"{field.name} overlaps the field before it"
        end_of_last = start + np.empty(schema.full_shape(field), field.dtype).nbytes
    assert schema.size_bytes >= end_of_last
    assert schema.size_bytes % ALIGNMENT == 0


def test_axes_come_before_a_fields_own_shape() -> None:
    schema = small_schema(n_steps=5, n_envs=3)
    by_name = {field.name: schema.full_shape(field) for field in schema.fields}
    assert by_name["obs"] == (5, 3, 3)
    assert by_name["reward"] == (5, 3)
    assert by_name["version"] == (5,)
    assert by_name["last_obs"] == (3, 3)
    assert by_name["final_obs"] == (15, 3), "every row may end in a truncation"


def test_equal_schemas_have_one_fingerprint() -> None:
    assert small_schema().fingerprint == small_schema().fingerprint
    assert explain_difference(small_schema(), small_schema()) is None
    assert 0 <= small_schema().fingerprint < 2**63, "it must fit an int64 header word"


@pytest.mark.parametrize("attribute", [f.name for f in fields(Field)])
def test_any_change_of_any_field_changes_the_fingerprint_and_is_named(attribute: str) -> None:
    ours = small_schema()
    for index, name in enumerate(FIELD_NAMES):
        changed = other_field(ours.fields[index], attribute)
        theirs = with_field(ours, changed, index)
        assert theirs.fingerprint != ours.fingerprint, name
        said = explain_difference(ours, theirs)
        assert said is not None, name
        assert f"'{name}'" in said
        if attribute != "name":
            assert str(getattr(changed, attribute)) in said


@pytest.mark.parametrize("name", ["n_steps", "n_envs"])
def test_other_sizes_change_the_fingerprint_and_are_named(name: str) -> None:
    ours = small_schema()
    theirs = replace(ours, **{name: 9})
    assert theirs.fingerprint != ours.fingerprint
    assert explain_difference(ours, theirs) == f"{name}: expected {getattr(ours, name)}, got 9"


def test_a_missing_an_additional_and_a_moved_field_are_named() -> None:
    ours = small_schema()
    shorter = replace(ours, fields=ours.fields[:-1])
    moved = replace(ours, fields=(*ours.fields[1:], ours.fields[0]))
    assert "'last_value'" in str(explain_difference(ours, shorter))
    assert "got none" in str(explain_difference(ours, shorter))
    assert "expected none" in str(explain_difference(shorter, ours))
    assert "order" in str(explain_difference(ours, moved))
    assert len({ours.fingerprint, shorter.fingerprint, moved.fingerprint}) == 3


def test_another_space_is_told_in_terms_of_its_field() -> None:
    ours = rollout_schema(VECTOR, CHOICE, 4, 2)
    theirs = rollout_schema(replace(VECTOR, dtype="uint8"), CHOICE, 4, 2)
    said = str(explain_difference(ours, theirs))
    assert "'obs'" in said
    assert "float32" in said
    assert "uint8" in said
