"""Text that somebody else wrote, made fit to be shown and kept: of bounded length, without control characters.

    an exception of an environment --message_of--> "Kind: message", cut       a text --shortened--> head [...] tail
    a text from a file, for a terminal or a log --printable--> control characters as escapes

A terminal obeys control characters: they recolour, overwrite and retitle. Lone surrogates can't be encoded at all.
Knows nothing of any room.
"""

from __future__ import annotations

import re

MAX_MESSAGE = 4_000  # of an environment
MAX_ERROR = 16_000  # of ours, which may quote it
MAX_TRACEBACK = 40_000

# C0 but tab and newline, DEL, C1, what turns the direction of writing around, and surrogates, which no encoding holds.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, is_one_line: bool = False) -> str:
    r"""The text with escapes such as \x1b in the place of control characters; of one line: newlines and tabs too."""
    shown = _UNPRINTABLE.sub(_escaped, text)
    return shown.replace("\n", "\\n").replace("\t", "\\t") if is_one_line else shown


def encodable(text: str, encoding: str | None) -> str:
    """The text with escapes in the place of what an encoding does not have; utf-8 if it is not known."""
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)


def shortened(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text, or its head and its tail with the number of characters between them."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]} [... {len(text) - limit:,} characters left out ...] {text[len(text) - tail :]}"


def message_of(error: BaseException, limit: int = MAX_MESSAGE) -> str:
    """What an exception says, cut; some can't even say it."""
    try:
        return shortened(str(error), limit)
    except Exception as second:
        return f"(its message can't be shown: {type(second).__name__})"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
