"""Text to token ids and back, and how messages become one text.

    ByteCodec       every byte is a token; needs nothing
    TokenizerCodec  a `tokenizers` file (JSON), special tokens and a chat template, as Hugging Face models carry them

A codec travels to worker processes, so it holds plain data and builds the rest where it is used.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace.agents.chat_template import CHATML, CHATML_TOOLS, Message, rendered
from headrace.agents.given import path
from headrace.errors import UsageError
from headrace.keywords import in_words

Tools = Sequence[Mapping[str, Any]]  # in OpenAI's shape

logger = logging.getLogger(__name__)

_SPECIALS = ("<|im_start|>", "<|im_end|>")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Codec(Protocol):
    """What a conversation needs to know about tokens."""

    @property
    def eos_id(self) -> int:
        """The token that ends an answer."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """All tokens that end an answer, `eos_id` among them."""

    @property
    def vocabulary(self) -> int:
        """Ids are below this."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens by their spelling, nothing added."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens included; bytes that are no text become U+FFFD."""

    def render(self, messages: Sequence[Message], is_asking: bool, tools: Tools = ()) -> str:
        """The chat template's text; `is_asking` adds the head of the answer to come."""


def describe(codec: Codec) -> dict[str, str]:
    """A codec as plain text, for files and servers; what is as usual is left out."""
    if not isinstance(codec, TokenizerCodec):
        return {"kind": "bytes"}
    more: dict[str, Any] = {"variables": codec.variables, "more_stop_ids": codec.more_stop_ids or None}
    told = {name: json.dumps(value, sort_keys=True) for name, value in more.items() if value is not None}
    told |= {"tool_template": codec.tool_template} if codec.tool_template else {}
    own = {"tokenizer_json": codec.tokenizer_json, "eos": codec.eos, "template": codec.template}
    return {"kind": "tokenizer", **own, **told}


def described(data: Mapping[str, str]) -> Codec:
    """The inverse."""
    if data.get("kind") != "tokenizer":
        return ByteCodec()
    before: dict[str, Any] | None = (
        {} if "bos_token" in data["template"] else None
    )  # of files that were written without variables
    return TokenizerCodec(
        data["tokenizer_json"],
        data["eos"],
        data["template"],
        json.loads(data["variables"]) if "variables" in data else before,
        tuple(int(one) for one in json.loads(data.get("more_stop_ids", "[]"))),
        data.get("tool_template", ""),
    )


@in_words()
@dataclass(frozen=True)
class ByteCodec:
    """Bytes 0-255, then <|im_start|> and <|im_end|>."""

    eos_id: int = 257
    vocabulary: int = 258

    @property
    def stop_ids(self) -> frozenset[int]:
        """<|im_end|>."""
        return frozenset((self.eos_id,))

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

    def render(self, messages: Sequence[Message], is_asking: bool, tools: Tools = ()) -> str:
        """ChatML, with tools where there are some."""
        if tools:
            return rendered(CHATML_TOOLS, messages, is_asking, tools)
        text = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
        return text + "<|im_start|>assistant\n" if is_asking else text


@in_words()
@dataclass(frozen=True)
class TokenizerCodec:
    """A tokenizer's JSON, the spelling of its end-of-answer token, and a Jinja chat template."""

    tokenizer_json: str
    eos: str = "<|im_end|>"
    template: str = CHATML
    variables: Mapping[str, Any] | None = field(default=None, hash=False)
    """What the template may read besides messages: bos_token and other special tokens, enable_thinking, date_string."""
    more_stop_ids: tuple[int, ...] = ()
    """Tokens that end an answer, besides `eos`."""
    tool_template: str = ""
    """The template for conversations with tools, where a model has one of its own for them."""

    def __post_init__(self) -> None:
        if self.variables is None and "bos_token" in self.template:
            raise UsageError(
                "template: it begins with bos_token, which was not given: use TokenizerCodec.from_folder, or "
                "variables={'bos_token': ...} (an empty text if the model has none)"
            )

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        tokenizer.no_truncation()  # a file may hold how its model was trained: cut and padded to one length
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def eos_id(self) -> int:
        """The id of `eos`."""
        found = self._tokenizer.token_to_id(self.eos)
        if found is None:
            raise UsageError(f"eos: expected a token of the tokenizer, got {self.eos!r}")
        return int(found)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """`eos` and the others."""
        return frozenset((self.eos_id, *self.more_stop_ids))

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

    def render(self, messages: Sequence[Message], is_asking: bool, tools: Tools = ()) -> str:
        """By the template."""
        template = self.tool_template if tools and self.tool_template else self.template
        return rendered(template, messages, is_asking, tools, {"eos_token": self.eos, **(self.variables or {})})

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str], variables: Mapping[str, Any] | None = None) -> TokenizerCodec:
        """Of a model's folder: its tokenizer, special tokens, stop ids and chat templates."""
        folder = path("folder", folder)
        try:
            data = _object(folder / "tokenizer_config.json")
            older = _object(folder / "special_tokens_map.json", is_needed=False)
            named = {name: _spelling(data.get(name) or older.get(name)) for name in _NAMED}
            templates = _templates(folder, data.get("chat_template"))
            stops = _object(folder / "generation_config.json", is_needed=False).get("eos_token_id")
            if not named["eos_token"]:
                raise KeyError("eos_token")
            if "default" not in templates:
                logger.warning(
                    "tokenizer %s: it has no chat template; ChatML is used, which its model may not know", folder
                )
            codec = cls(
                (folder / "tokenizer.json").read_text(),
                named["eos_token"],
                templates.get("default", CHATML),
                {name: text for name, text in named.items() if text} | dict(variables or {}),
                tuple(int(one) for one in (stops if isinstance(stops, list) else [stops]) if one is not None),
                templates.get("tool_use", ""),
            )
            codec._require_tokens(named, data.get("added_tokens_decoder"))
            return codec
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"tokenizer {folder}: expected a folder with tokenizer.json and tokenizer_config.json: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _require_tokens(self, named: Mapping[str, str], added: Any) -> None:
        """Special tokens that the templates write have to be tokens; else they would be spelt out, letter by letter."""
        text = self.template + self.tool_template
        special = {_spelling(one) for one in added.values()} if isinstance(added, Mapping) else set[str]()
        written = [one for one in special if one and one in text] + [one for name, one in named.items() if name in text]
        lost = sorted(one for one in written if one and self._tokenizer.token_to_id(one) is None)
        if lost:
            raise ValueError(f"tokenizer.json lacks {lost[0]!r}; save it again with transformers' save_pretrained")

    def __getstate__(self) -> dict[str, Any]:
        """Without what was built here."""
        return {name: getattr(self, name) for name in type(self).__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _object(path: Path, is_needed: bool = True) -> dict[str, Any]:
    if not is_needed and not path.exists():
        return {}
    data = json.loads(path.read_text())
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} holds {type(data).__name__}, expected names and values")
    return data


def _spelling(token: Any) -> str:
    """Of a token as tokenizer_config.json has it: a text, or a section with its content."""
    return str(token.get("content") or "") if isinstance(token, Mapping) else str(token or "")


def _templates(folder: Path, configured: Any) -> dict[str, str]:
    """By name: those of the configuration, and above them those in files of their own."""
    listed = configured if isinstance(configured, list) else []
    found = {str(one["name"]): str(one["template"]) for one in listed}
    if isinstance(configured, str):
        found["default"] = configured
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    return found | {name: path.read_text() for name, path in files.items() if path.exists()}
