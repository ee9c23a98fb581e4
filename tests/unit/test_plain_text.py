"""Text of others: of bounded length, printable, and encodable, whatever it was."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import EnvError
from headrace.plain_text import MAX_ERROR, encodable, message_of, printable, shortened

anything = st.text(st.characters(exclude_categories=()))


@given(anything)
def test_printable_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert not any(unicodedata.category(one) in ("Cc", "Cs") for one in shown if one not in "\n\t")
    assert not any(unicodedata.bidirectional(one) in ("LRE", "RLE", "LRO", "RLO", "PDF") for one in shown)
    shown.encode()
    assert printable(shown) == shown, "once is enough"
    assert "\n" not in printable(text, is_one_line=True)


@pytest.mark.parametrize("text", ["plain", "é 环境 \U0001f600 ⟦x⟧", "two\nlines\tand a tab", "C:\\new"])
def test_text_that_is_fine_stays_as_it_is(text: str) -> None:
    assert printable(text) == text
    assert encodable(text, "utf-8") == text
    assert encodable(text, None) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb", "a\\x0db"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("\u202e", "\\u202e"),
    ],
)
def test_what_is_shown_instead(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_an_encoding_that_has_not_all_characters() -> None:
    assert encodable("é 环\ud800", "ascii") == "\\xe9 \\u73af\\ud800"
    assert encodable("é 环", "latin-1") == "é \\u73af"


@given(st.text(max_size=300), st.integers(8, 200))
def test_a_shortened_text_keeps_its_head_and_tail(text: str, limit: int) -> None:
    short = shortened(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        head, left_out, tail = short.partition(f" [... {len(text) - limit:,} characters left out ...] ")
        assert left_out
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) == limit


def test_errors_of_our_own_are_cut_too() -> None:
    assert len(str(EnvError("x" * 10**6))) < MAX_ERROR + 100
    assert str(EnvError("short")) == "short"
    assert str(EnvError()) == ""


def test_an_exception_that_can_not_be_shown() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise KeyError("x")

    assert message_of(Bad()) == "(its message can't be shown: KeyError)"
    assert message_of(ValueError("plain")) == "plain"
