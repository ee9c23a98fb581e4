"""Answers to actions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.episode import parse

KNOWN = ("Up", "Down")


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("<think>hm</think><answer>Up</answer>", ("Up",)),
        ("  <think>hm\nhm</think>\n<answer> up || DOWN </answer>\n", ("Up", "Down")),
        ("<think></think><answer>Up||Up||Up||Up</answer>", ("Up", "Up")),
        ("<think>a</think><answer>Up || || Down</answer>", ("Up", "Down")),
    ],
)
def test_valid(text: str, actions: tuple[str, ...]) -> None:
    answer = parse(text, True, "||", 2, KNOWN)
    assert (answer.actions, answer.is_valid) == (actions, True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Up", "expected <think>"),
        ("<answer>Up</answer>", "expected <think>"),
        ("<think>a</think><answer>Up</answer> and more", "expected <think>"),
        ("<think>a</think><answer></answer>", "no action"),
        ("<think>a</think><answer> || </answer>", "no action"),
        ("<think>a</think><answer>Left</answer>", "unknown action 'Left', expected one of Up, Down"),
        ("<think>a</think><answer>Up || Left</answer>", "unknown action 'Left'"),
        ("<think>a<answer>Up</answer>", "expected <think>"),
    ],
)
def test_invalid_moves_nothing(text: str, complaint: str) -> None:
    answer = parse(text, True, "||", 2, KNOWN)
    assert answer.actions == ()
    assert not answer.is_valid
    assert complaint in answer.complaint


def test_answer_only() -> None:
    assert parse("<answer>1 + 2</answer>", False, "||", 2).actions == ("1 + 2",)
    assert not parse("<think>a</think><answer>1</answer>", False, "||", 2).is_valid


def test_names_that_differ_in_their_letters_size_are_two_actions() -> None:
    """As NetHack's keys: y goes one step, Y as far as it can."""
    known = ("y", "Y", "Wait")
    for said, action in (("y", "y"), ("Y", "Y"), ("WAIT", "Wait")):
        assert parse(f"<answer>{said}</answer>", False, "||", 1, known).actions == (action,)


@given(st.text(), st.booleans(), st.integers(1, 3))
def test_any_text_is_an_answer_or_a_complaint(text: str, has_thinking: bool, most: int) -> None:
    answer = parse(text, has_thinking, "||", most, KNOWN)
    assert answer.is_valid == bool(answer.actions)
    assert len(answer.actions) <= most
    assert set(answer.actions) <= set(KNOWN)
