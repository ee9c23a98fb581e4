"""Options as users type them: CleanRL's names beside SB3's, and defaults from a file.

argv --translate--> SB3's names      FILE (.toml, or a run's config.json) --with_file--> option defaults
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import shutil
import sys
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from headrace.api.other_names import flag_hint
from headrace.checkpoints.proof import CONFIGURATION, doubt_about
from headrace.cli.help_text import help_text
from headrace.errors import UsageError
from headrace.files import parse_json, read_named, require_bounded
from headrace.plain_text import shortened

CLEANRL_NAMES = {
    "num-envs": "n-envs",
    "num-steps": "n-steps",
    "update-epochs": "n-epochs",
    "minibatch-size": "batch-size",
    "clip-coef": "clip-range",
    "norm-adv": "normalize-advantage",
    "track": "wandb",
    "wandb-project-name": "wandb-project",
    "env-id": "env",
    "lr": "learning-rate",  # this and the next two are RL Baselines3 Zoo's and others'
    "algo": "algorithm",
    "n-timesteps": "total-timesteps",
}

# A file may not agree with itself, nor send a run's numbers to others.
_TYPED_ONLY = (
    "trust", "resume", "config", "preset", "wandb", "wandb_project", "wandb_entity", "wandb_name", "wandb_mode",
)  # fmt: skip

OF_ENV = {"env-kwargs": "env", "wrappers": "env", "action-repeat": "env"}
"""Options that say more about --env, of commands that take the run's own environment without it."""

Options = TypeVar("Options")

_NUMBERS = ConstructorRegistry()  # so that what is no number is refused in the words of our other errors


@_NUMBERS.primitive_rule
def _number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    is_optional = info.type in (int | None, float | None)
    kind = next(one for one in typing.get_args(info.type) if one is not type(None)) if is_optional else info.type
    if kind not in (int, float):
        return None

    def read(words: list[str]) -> Any:
        if is_optional and words == ["None"]:
            return None
        try:
            if kind is int and "e" in words[0].lower() and float(words[0]).is_integer():  # 1e6
                return int(float(words[0]))
            return kind(words[0])
        except (ValueError, OverflowError):
            raise ValueError(f"expected {'a whole number' if kind is int else 'a number'}, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar={int: "N", float: "X"}[kind],
        instance_from_str=read,
        is_instance=lambda value: (
            (value is None and is_optional) or type(value) is kind or (kind is float and type(value) is int)
        ),
        str_from_instance=lambda value: [str(value)],
    )


@_NUMBERS.primitive_rule
def _layers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Sizes of layers, as in 64 64; nothing for a linear policy, None for the usual ones."""
    if info.type != tuple[int, ...] | None:
        return None

    def read(words: list[str]) -> tuple[int, ...] | None:
        if words == ["None"]:
            return None
        if not all(word.isascii() and word.isdigit() for word in words):
            raise ValueError(f"expected whole numbers, as in 64 64, got {' '.join(words)!r}")
        return tuple(map(int, words))

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="N ...",
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda value: ["None"] if value is None else [str(size) for size in value],
    )


def parse(kind: type[Options], argv: list[str], command: str, default: Options | None = None) -> Options:
    """The options of a command, from its command line; --help prints them and ends the command."""
    if {"-h", "--help"} & set(argv):
        print(help_text(kind, command, default, shutil.get_terminal_size().columns), end="")
        raise SystemExit(0)
    _refuse_other_names(kind, argv)
    given: dict[str, Any] = {} if default is None else {"default": default}
    options: Options = tyro.cli(kind, args=argv, prog=f"headrace {command}", registry=_NUMBERS, **given)
    typed = {one[2:].partition("=")[0].replace("-", "_") for one in argv if one.startswith("--")}
    require_switch("wandb", typed, getattr(options, "wandb", True))
    return options


def _refuse_other_names(kind: Any, argv: list[str]) -> None:
    """Options of other programs that have another form here: tyro would only say that it does not know them."""
    known = {name.replace("_", "-") for name in _names(kind)}
    for argument in argv:
        flag = argument[2:].partition("=")[0] if argument.startswith("--") else ""
        hint = flag_hint(flag.removeprefix("no-"))
        if hint is not None and flag.removeprefix("no-") not in known:
            hint = f"leave it out ({hint})" if flag.startswith("no-") else hint
            raise UsageError(f"unknown option --{flag}: {hint}")


def _names(kind: Any) -> typing.Iterator[str]:
    for name, one in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(one):
            yield from _names(one)
        else:
            yield name


def translate(argv: list[str]) -> list[str]:
    """Underscores to dashes in option names, CleanRL's names to ours."""
    translated = []
    for argument in argv:
        if not argument.startswith("--"):
            translated.append(argument)
            continue
        name, equals, value = argument[2:].partition("=")
        name = name.replace("_", "-")
        negated = name.startswith("no-")
        bare = name.removeprefix("no-")
        if bare == "cuda" and not equals:
            translated.append(f"--device={'cpu' if negated else 'cuda'}")
            continue
        if bare == "env-id":  # ours is positional
            translated.extend([value] if equals else [])
            continue
        bare = CLEANRL_NAMES.get(bare, bare)
        translated.append(f"--{'no-' if negated else ''}{bare}{equals}{value}")
    return translated


def value_of(name: str, argv: list[str]) -> str | None:
    """What an option was given as, before anything is parsed; if more than once, the last one counts."""
    for position, argument in reversed(list(enumerate(argv))):
        if argument == name and position + 1 < len(argv):
            return argv[position + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None


def require_switch(switch: str, names: set[str], is_on: bool) -> None:
    """Refuse options named after a switch without it, as --tune-seconds without --tune: they would have no effect."""
    for name in sorted(names):
        if name.startswith(f"{switch}_") and not is_on:
            raise UsageError(f"--{name.replace('_', '-')}: expected --{switch} as well")


def require_with(argv: list[str], needs: typing.Mapping[str, str]) -> None:
    """Refuse options that would have no effect without another one: {option: the other}, as they are typed."""
    typed = {one[2:].partition("=")[0] for one in translate(argv) if one.startswith("--")}
    for name, other in needs.items():
        if name in typed and other not in typed:
            raise UsageError(f"--{name}: expected --{other} as well")


def env_kwargs(text: str) -> dict[str, Any]:
    """--env-kwargs as a dictionary."""
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--env-kwargs: expected JSON such as '{{\"max_episode_steps\": 100}}', got {text!r}: {error}"
        ) from error
    if not isinstance(kwargs, dict):
        raise UsageError(f"--env-kwargs: expected a JSON object, got {text!r}")
    return kwargs


def with_file(options: Options, path: Path) -> Options:
    """The options with the values of a file; unknown keys are refused with a suggestion, wrong types by name."""
    data, _ = read_config(path)
    for key, value in flat(data).items():
        name = CLEANRL_NAMES.get(key.replace("_", "-"), key).replace("-", "_")
        if name in _TYPED_ONLY:
            raise UsageError(f"--config {path}: {key} is for the command line only; give it there")
        options = with_option(options, name, value, f"--config {path}")
    return options


def read_config(path: Path) -> tuple[dict[str, Any], str]:
    """What a --config file says, and why it is not proved that this user's run wrote it; empty if it is."""
    try:
        raw = read_named(path)
        data = parse_json(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
        require_bounded(data)
    except OSError as error:
        raise UsageError(f"--config {path}: can't be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config {path}: expected TOML (or JSON in a .json file): {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"--config {path}: expected keys and values, got {type(data).__name__}")
    proof = data.pop("proof", None)
    doubt = "" if proof is None else doubt_about(CONFIGURATION, data, proof)
    return data, doubt if proof is not None else "a file's words are not yours until you say so"


def flat(data: dict[str, Any]) -> dict[str, Any]:
    """A run's config.json is nested by room; keys are unique across rooms."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if key == "env" and isinstance(value, dict) and "kwargs" in value:
            found |= {"env": value.get("env"), "env_kwargs": json.dumps(value["kwargs"])}
            found |= {"wrappers": value.get("wrappers", []), "action_repeat": value.get("action_repeat", 1)}
        elif isinstance(value, dict) and key == "algorithm":
            found |= flat(value | {"algorithm": value.get("name", "ppo")})
            found.pop("name", None)
        elif isinstance(value, dict) and key in ("policy", "topology", "session"):
            found |= flat(value)
        elif isinstance(value, dict) and key == "env_kwargs":
            found[key] = json.dumps(value)
        else:
            found[key] = value
    return found


def with_option(options: Options, key: str, value: Any, where: str) -> Options:
    """The options with another value of one of them, in whichever part of them it is; `where` is who says so."""
    assert dataclasses.is_dataclass(options)
    assert not isinstance(options, type)
    fields = typing.get_type_hints(type(options))
    parts = {name: kind for name, kind in fields.items() if dataclasses.is_dataclass(kind)}
    if key in fields and key not in parts:
        return dataclasses.replace(options, **{key: _converted(value, fields[key], f"{where}: {key}")})
    for name, kind in parts.items():
        if key in typing.get_type_hints(kind):
            return dataclasses.replace(options, **{name: with_option(getattr(options, name), key, value, where)})
    known = [name for kind in (type(options), *parts.values()) for name in typing.get_type_hints(kind)]
    close = difflib.get_close_matches(key, [name for name in known if name not in parts], n=1)
    hint = f"did you mean {close[0]}?" if close else "see headrace train --help"
    raise UsageError(f"{where}: unknown key {key!r}: {hint}")


def _converted(value: Any, kind: Any, where: str) -> Any:
    """A file's value as the option's type, as a command line would have it."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    for one in kinds:
        if typing.get_origin(one) is typing.Literal and value in typing.get_args(one):
            return value
        if typing.get_origin(one) is tuple and isinstance(value, list):
            return tuple(_converted(entry, typing.get_args(one)[0], where) for entry in value)
        if one is Path and isinstance(value, str):
            return Path(value)
        if one is float and type(value) is int and abs(value) <= sys.float_info.max:
            return float(value)
        if isinstance(one, type) and type(value) is one:
            return value
    if isinstance(value, dict) and "callable" in value:
        raise UsageError(f"{where}: was a function ({value['callable']}), which a file can't hold")
    raise UsageError(f"{where}: expected {' or '.join(map(_named, kinds))}, got {shortened(repr(value), 200)}")


def _named(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return f"a list of {_named(typing.get_args(kind)[0])}"
    return "nothing" if kind is type(None) else str(kind.__name__)
