"""Text to token ids and back, and the chat template: what turns messages into one text.

    ByteCodec       every byte is a token; needs nothing
    TokenizerCodec  a `tokenizers` file (JSON) and a Jinja chat template, as Hugging Face models carry them

A codec travels to worker processes, so it holds plain strings and builds the rest where it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace.errors import UsageError

Message = dict[str, str]  # role and content

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SPECIALS = ("<|im_start|>", "<|im_end|>")


class Codec(Protocol):
    """What a conversation needs to know about tokens."""

    @property
    def eos_id(self) -> int:
        """The token that ends an answer."""

    @property
    def vocabulary(self) -> int:
        """Ids are below this."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens by their spelling, nothing added."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens included; bytes that are no text become U+FFFD."""

    def render(self, messages: Sequence[Message], is_asking: bool) -> str:
        """The chat template's text; `is_asking` adds the head of the answer to come."""


def describe(codec: Codec) -> dict[str, str]:
    """A codec as plain data, for files and servers."""
    if isinstance(codec, TokenizerCodec):
        return {"kind": "tokenizer", **codec.__getstate__()}
    return {"kind": "bytes"}


def described(data: Mapping[str, str]) -> Codec:
    """The inverse."""
    if data.get("kind") == "tokenizer":
        return TokenizerCodec(data["tokenizer_json"], data["eos"], data["template"])
    return ByteCodec()


@dataclass(frozen=True)
class ByteCodec:
    """Bytes 0-255, then <|im_start|> and <|im_end|>."""

    eos_id: int = 257
    vocabulary: int = 258

    def encode(self, text: str) -> list[int]:
        """Bytes, and special tokens by their spelling."""
        ids: list[int] = []
        for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
            if part in _SPECIALS:
                ids.append(256 + _SPECIALS.index(part))
            else:
                ids.extend(part.encode())
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Bytes as UTF-8."""
        array = np.asarray(ids, np.int64)
        parts, start = list[bytes](), 0
        for at in np.flatnonzero(array > 255).tolist():
            parts += [array[start:at].astype(np.uint8).tobytes(), _SPECIALS[int(array[at]) - 256].encode()]
            start = at + 1
        parts.append(array[start:].astype(np.uint8).tobytes())
        return b"".join(parts).decode(errors="replace")

    def render(self, messages: Sequence[Message], is_asking: bool) -> str:
        """ChatML."""
        text = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
        return text + "<|im_start|>assistant\n" if is_asking else text


@dataclass(frozen=True)
class TokenizerCodec:
    """A tokenizer's JSON, the spelling of its end-of-answer token, and a Jinja chat template."""

    tokenizer_json: str
    eos: str = "<|im_end|>"
    template: str = CHATML

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer_json)

    @cached_property
    def _rendering(self) -> Any:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(self.template)

    @cached_property
    def eos_id(self) -> int:
        """The id of `eos`."""
        return int(self._tokenizer.token_to_id(self.eos))

    @cached_property
    def vocabulary(self) -> int:
        """With added tokens."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Ids; nothing added before or after."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def render(self, messages: Sequence[Message], is_asking: bool) -> str:
        """By the template."""
        return str(self._rendering.render(messages=list(messages), add_generation_prompt=is_asking))

    @classmethod
    def from_folder(cls, folder: Path) -> TokenizerCodec:
        """Of a model's folder: tokenizer.json, and the chat template where it has one."""
        try:
            data = json.loads((folder / "tokenizer_config.json").read_text())
            written = folder / "chat_template.jinja"
            template = written.read_text() if written.exists() else data.get("chat_template") or CHATML
            eos = data["eos_token"]
            text = (folder / "tokenizer.json").read_text()
            return cls(text, eos if isinstance(eos, str) else eos["content"], template)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"tokenizer {folder}: expected a folder with tokenizer.json and tokenizer_config.json: "
                f"{type(error).__name__}: {error}"
            ) from error

    def __getstate__(self) -> dict[str, str]:
        """Without what was built here."""
        return {"tokenizer_json": self.tokenizer_json, "eos": self.eos, "template": self.template}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__dict__.update(state)
