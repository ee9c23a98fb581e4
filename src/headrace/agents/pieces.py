"""The text of each token: what a row of ids says, piece by piece.

ids ──> one piece per token; joined they are the text. A token that ends in the middle of a character has none yet: the
one that completes the character has all of it.

A tokenizer may say a token otherwise at the beginning of a text than inside of it. So every token is decoded together
with the one before it: the cost grows with the number of tokens, not with its square.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.agents.codec import Codec

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 4  # bytes of a character, so tokens that it can be spread over


def pieces(codec: Codec, ids: Sequence[int]) -> list[str]:
    """One text per token."""
    texts: list[str] = []
    before, done, shown = 0, 0, ""
    for count in range(1, len(ids) + 1):
        whole = codec.decode(ids[before:count])
        if whole.endswith(_UNFINISHED) and count < len(ids) and count - done < _LONGEST:
            texts.append("")
            continue
        texts.append(whole[len(shown) :])
        before, done = done, count
        shown = codec.decode(ids[before:done])
    return texts
