"""`headrace COMMAND --help`: the options of a command as people write them, from its dataclass.

    fields, their types and the strings below them --help_text--> usage, one entry an option, terminal's width

A default is shown if there is one to see. tyro reads the command line; what it would print has types of Python in it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tyro

_WORDS = {
    "activation": "NAME",
    "algorithm": "ppo|impala",
    "batch": "every_shard|first_come",
    "config": "FILE",
    "diff": "RUN RUN",
    "double_buffering": "auto|on|off",
    "env": "ENV",
    "env_kwargs": "JSON",
    "episode": "EPISODE",
    "inference": "auto|local|central",
    "inference_device": "cpu|cuda|cuda:N[,...]",
    "json": "FILE",
    "nan_policy": "raise|drop|clamp",
    "link": "RATE",
    "observation": "SHAPE:DTYPE",
    "out_of_bounds": "warn|refuse|ignore",
    "plot": "FILE",
    "policy": "MlpPolicy|CnnPolicy|MultiInputPolicy|auto",
    "preset": "atari",
    "publish_every": "N|SECONDS",
    "render": "FILE",
    "resume": "RUN",
    "run": "RUN",
    "run_dir": "DIR",
    "schedule": "FILE",
    "start_method": "forkserver|spawn",
    "to": "FILE",
    "transition": "BYTES",
    "topology": "auto|inline|threads|processes",
    "wandb_entity": "NAME",
    "wandb_mode": "online|offline|disabled",
    "wandb_name": "NAME",
    "wandb_project": "NAME",
    "workers": "auto|N",
    "wrappers": "WRAPPER ...",
}
_COLUMN, _NARROW = 28, 60
_GLUE = "\N{NO-BREAK SPACE}"  # while lines are broken


@dataclasses.dataclass(frozen=True)
class _Option:
    name: str
    kind: Any
    default: Any
    text: str
    is_positional: bool
    word: str | None = None  # for its value, where it is not what options of this name usually take


def help_text(kind: type, command: str, default: Any, columns: int) -> str:
    """What there is to say about a command; `default`: an instance with the defaults, if there are any."""
    width = max(_NARROW, min(columns, 120))
    own, groups = _options(kind, default)
    positional = [one for one in own if one.is_positional]
    usage = " ".join(["usage: headrace", command, *(_usage(one) for one in positional), "[options]"])
    parts = [usage, textwrap.fill(inspect.cleandoc(kind.__doc__ or ""), width)]
    parts += ["\n".join(_entry(one, width) for one in positional)] if positional else []
    rest = [one for one in own if not one.is_positional]
    parts.append(
        "\n".join(["options:", *(_entry(one, width) for one in rest), _row("-h, --help", "Show this.", width)])
    )
    for title, (about, members) in groups.items():
        lines = [f"{title} options:", textwrap.fill(about, width - 2, initial_indent="  ", subsequent_indent="  ")]
        parts.append("\n".join([*lines, *(_entry(one, width) for one in members)]))
    return "\n\n".join(parts).replace(_GLUE, " ") + "\n"


def _options(kind: type, default: Any) -> tuple[list[_Option], dict[str, tuple[str, list[_Option]]]]:
    """Those of the command itself, and those of the configurations that it holds, by name."""
    own: list[_Option] = []
    groups: dict[str, tuple[str, list[_Option]]] = {}
    hints, texts, positional = typing.get_type_hints(kind, include_extras=True), _texts(kind), tyro.conf.Positional
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        bare, marks = _without_marks(hint)
        value = getattr(default, field.name, None) if default is not None else _default_of(field)
        if dataclasses.is_dataclass(bare):
            assert isinstance(bare, type)
            about = inspect.cleandoc(bare.__doc__ or "")
            groups[field.name] = (about, _options(bare, value)[0])
            continue
        said = next((mark.help for mark in marks if getattr(mark, "help", None)), None)
        is_positional = any(mark is positional for mark in marks)
        word = next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), None)
        own.append(_Option(field.name, bare, value, str(said or texts.get(field.name, "")), is_positional, word))
    return own, groups


def _without_marks(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(hint) is typing.Annotated:
        bare, *marks = typing.get_args(hint)
        return bare, tuple(marks)
    return hint, ()


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


@cache
def _texts(kind: type) -> dict[str, str]:
    """The strings that stand below the fields of a class, and of those it is made from."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
        except (OSError, TypeError):  # object, or a class that was made at run time
            continue
        found |= dict(_below(body)) if isinstance(body, ast.ClassDef) else {}
    return found


def _below(body: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for line, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(following, ast.Expr):
            text = following.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield line.target.id, " ".join(text.value.split())


def _usage(option: _Option) -> str:
    word = _WORDS.get(option.name, option.name.upper())
    return f"[{word}]" if option.default is not None or _is_optional(option.kind) else word


def _entry(option: _Option, width: int) -> str:
    if option.is_positional:
        return _row(_WORDS.get(option.name, option.name.upper()), option.text, width)
    flag = f"--{option.name.replace('_', '-')}"
    if option.kind is bool:
        flag = f"{flag}, --no-{flag[2:]}" if option.default else flag
        return _row(flag, option.text, width)
    shown = _shown(option.default)
    return _row(
        f"{flag} {_metavar(option)}",
        f"{option.text} (default:{_GLUE}{shown.replace(' ', _GLUE)})" if shown else option.text,
        width,
    )


def _row(left: str, text: str, width: int) -> str:
    lines = textwrap.wrap(text, width - _COLUMN, break_on_hyphens=False) or [""]
    head = f"  {left}"
    if len(head) > _COLUMN - 2:
        return "\n".join([head, *(" " * _COLUMN + line for line in lines)])
    return "\n".join([head.ljust(_COLUMN) + lines[0], *(" " * _COLUMN + line for line in lines[1:])])


def _metavar(option: _Option) -> str:
    kind = option.kind
    kinds = [one for one in _kinds(kind) if one is not type(None)]
    if option.word or option.name in _WORDS:
        return option.word or _WORDS[option.name]
    if set(kinds) == {float, str}:
        return "X|lin_X"
    return "|".join(_word(one) for one in kinds)


def _word(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return f"{_word(typing.get_args(kind)[0])} ..."
    return {int: "N", float: "X", str: "TEXT", Path: "PATH"}.get(kind, "VALUE")


def _kinds(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def _is_optional(kind: Any) -> bool:
    return type(None) in _kinds(kind)


def _shown(value: Any) -> str:
    """A default as a command line would have it; empty if there is nothing to see."""
    if value is None or value in ("", "{}", ()):
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if _is_round(value) else str(value)


def _is_round(value: Any) -> bool:
    return isinstance(value, float) and value == int(value) and abs(value) < 1e6
