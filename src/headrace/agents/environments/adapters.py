"""Environments that users have, as text environments.

    RagenStyle     reset(seed) -> text, step(action) -> text, reward, done, info
    GymnasiumText  any Gymnasium environment: drawn by its ansi renderer or a function; its actions by name, or written
                   in a declared form
    TrlStyle       TRL's environment_factory: public methods are tools; an action is a call: guess(word="apple")

`adapted` finds out which it is. What an environment returns goes on as it is: `checked_step` reads or refuses it.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from headrace.agents.environments.text_env import UNREADABLE, Step, TextEnv, TextForm, plain
from headrace.errors import UsageError
from headrace.keywords import in_words

_TASK = "Do the task that is described below."
_JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}


@in_words()
def adapted(factory: Callable[..., Any], **options: Any) -> TextEnv:
    """An instance of whatever the factory makes, as a text environment."""
    extras = {
        name: options.pop(name) for name in ("view", "action_names", "action_form", "instructions") if name in options
    }
    if not callable(factory):
        raise UsageError(f"adapted: expected a class or a function that makes environments, got {factory!r}")
    env = factory(**options)
    if all(hasattr(env, name) for name in ("instructions", "actions", "reset", "step", "close")):
        own: TextEnv = env
        return own
    if hasattr(env, "action_space") and hasattr(env, "observation_space"):
        return GymnasiumText(env, **extras)
    if hasattr(env, "reset") and hasattr(env, "step"):
        return RagenStyle(env, **extras)
    if hasattr(env, "reset") and _tools(env):
        return TrlStyle(env, **extras)
    raise UsageError(
        f"{getattr(factory, '__name__', factory)}: expected a text environment (reset and step), a Gymnasium "
        f"environment or one of TRL's (reset and public methods), got {type(env).__name__}"
    )


class RagenStyle:
    """reset(seed) and step(action) -> observation, reward, done, info."""

    def __init__(self, env: Any, instructions: str = "", action_names: Sequence[str] | None = None) -> None:
        self._env = env
        self.instructions = instructions or str(getattr(env, "env_instruction", "") or _TASK)
        lookup = getattr(env, "ACTION_LOOKUP", None)
        listed = action_names or (list(lookup.values()) if isinstance(lookup, Mapping) else None)
        self.actions = tuple(str(one) for one in listed) if listed else None
        self._as_sent = {str(name): key for key, name in lookup.items()} if isinstance(lookup, Mapping) else {}

    def reset(self, seed: int) -> str:
        """With the seed, by name or position."""
        returned = _seeded(self._env.reset, seed)
        shown = returned[0] if isinstance(returned, tuple) and returned else returned
        if not isinstance(shown, str) and hasattr(self._env, "render"):
            shown = self._env.render()
        return cast(str, shown)

    def step(self, action: str) -> Step:
        """Its four values."""
        returned = self._env.step(self._as_sent.get(action, action))
        if not isinstance(returned, tuple) or len(returned) not in (4, 5):
            raise TypeError(f"step returned {returned!r}, expected observation, reward, done, info")
        observation, reward, *ends, facts = returned
        return Step(observation, plain(reward), max(_flag(end) for end in ends), _numbers(facts))

    def close(self) -> None:
        """If it can."""
        getattr(self._env, "close", lambda: None)()


class GymnasiumText:
    """A Gymnasium environment in words. Discrete actions have names, others a declared form: JSON, or one's own."""

    def __init__(
        self,
        env: Any,
        view: Callable[[Any, Any], str] | None = None,
        action_names: Sequence[str] | None = None,
        instructions: str = "",
        action_form: TextForm | str | None = None,
    ) -> None:
        self._env, space = env, env.action_space
        self._view = view or (_rendered if env.render_mode == "ansi" else _printed)
        self.action_form = _form(action_form, space)
        self.instructions = instructions or _TASK
        self.actions: tuple[str, ...] | None = None
        if self.action_form is not None:
            if action_names is not None:
                raise UsageError("action_names and action_form: expected one of them, got both")
            self.instructions += f"\nAn action is {self.action_form.description}."
            return
        count = getattr(space, "n", None)
        if count is None or space.shape != ():  # MultiBinary has a number too
            raise UsageError(
                f"action_space: expected discrete actions, or a declared form (action_form='json', or a TextForm), "
                f"got {space}"
            )
        if action_names is not None and len(action_names) != int(count):
            raise UsageError(f"action_names: expected {int(count)} names, got {list(action_names)}")
        self.actions = tuple(action_names or (str(one) for one in range(int(count))))
        self._first = int(getattr(space, "start", 0))

    def reset(self, seed: int) -> str:
        """Seeded."""
        observation, _ = self._env.reset(seed=seed)
        return self._view(self._env, observation)

    def step(self, action: str) -> Step:
        """By the action's name, or what its text says."""
        if self.actions is not None:
            chosen: Any = self._first + self.actions.index(action)
        else:
            assert self.action_form is not None
            try:
                chosen = self.action_form.read(action)
            except UNREADABLE as error:
                return Step(f"{action!r} is no action: {error}", 0.0, False, {"action_is_effective": 0.0})
        observation, reward, terminated, truncated, facts = self._env.step(chosen)
        reward, has_ended = plain(reward), _flag(terminated)
        has_won = has_ended and isinstance(reward, (int, float)) and reward > 0
        return Step(
            self._view(self._env, observation), reward, has_ended or _flag(truncated),
            {"success": float(has_won)} | _numbers(facts),
        )  # fmt: skip

    def close(self) -> None:
        """Gymnasium's."""
        self._env.close()


def _form(declared: TextForm | str | None, space: Any) -> TextForm | None:
    if declared is None or isinstance(declared, TextForm):
        return declared
    if declared != "json":
        raise UsageError(f"action_form: expected json or a TextForm, got {declared!r}")
    from headrace.agents.environments.text_forms import json_form  # workers without such actions need no gymnasium

    return json_form(space)


class TrlStyle:
    """TRL's environments: public methods are tools. Its reward is what get_reward(), or `reward`, gained."""

    actions = None

    def __init__(self, env: Any, instructions: str = "") -> None:
        self._env = env
        self._tools = _tools(env)
        described = "\n".join(
            f"- {name}{inspect.signature(tool)}: {_first_line(tool)}" for name, tool in self._tools.items()
        )
        self.instructions = f"{instructions or _TASK}\nAn action is a call of one of:\n{described}"
        self.tools = [_schema(name, tool) for name, tool in self._tools.items()]
        self._score = 0.0

    def reset(self, seed: int) -> str:
        """With the seed, if it takes one."""
        returned = _seeded(self._env.reset, seed)
        self._score = self._scored()
        return "Begin." if returned is None else cast(str, returned)

    def step(self, action: str) -> Step:
        """One call of a tool."""
        try:
            name, arguments, options = parsed_call(action)
            tool = self._tools[name]
        except (ValueError, KeyError) as error:
            problem = f"{action!r} is no call of {', '.join(self._tools)}: {error}"
            return Step(problem, 0.0, False, {"action_is_effective": 0.0})
        try:
            result = plain(tool(*arguments, **options))
        except (TypeError, ValueError) as error:  # the player reads what a tool refuses, as TRL does
            result = f"{type(error).__name__}: {error}"
        score, before = self._scored(), self._score
        self._score = score
        is_done = _flag(getattr(self._env, "done", False))
        result = str(result) if isinstance(result, (bool, int, float)) else result  # as TRL shows numbers
        facts = {"success": float(score > 0), "action_is_effective": 1.0}
        return Step(result, score - before, is_done, facts)

    def close(self) -> None:
        """If it can."""
        getattr(self._env, "close", lambda: None)()

    def _scored(self) -> float:
        read = getattr(self._env, "get_reward", None)
        score = plain(read() if callable(read) else getattr(self._env, "reward", None))
        if score is None and not callable(read):
            return 0.0
        if not isinstance(score, (bool, int, float)):
            raise TypeError(f"its reward is {score!r}, expected a number")
        return float(score)


def parsed_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """name(arguments) with literals, or {"name": ..., "arguments": {...}}; ValueError says what is wrong."""
    text = text.strip()
    if text.startswith("{"):
        try:
            returned = json.loads(text)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if (
            not isinstance(returned, dict)
            or not isinstance(returned.get("arguments", {}), dict)
            or "name" not in returned
        ):
            raise ValueError('expected {"name": ..., "arguments": {...}}')
        return str(returned["name"]), [], {str(name): value for name, value in returned.get("arguments", {}).items()}
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("expected name(arguments)")
        options = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
        return call.func.id, [ast.literal_eval(one) for one in call.args], options
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:  # TypeError: a list as a key
        raise ValueError("it can't be read") from error


def _tools(env: Any) -> dict[str, Callable[..., Any]]:
    members = inspect.getmembers(type(env), predicate=inspect.isfunction)
    kept = ("reset", "get_reward", "close")
    return {name: getattr(env, name) for name, _ in members if not name.startswith("_") and name not in kept}


def _schema(name: str, tool: Callable[..., Any]) -> dict[str, Any]:
    """A method as a tool in OpenAI's shape: types from its annotations, the first line of what it says of itself."""
    properties, required = dict[str, Any](), list[str]()
    for one in inspect.signature(tool).parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        annotation = getattr(one.annotation, "__name__", str(one.annotation)).partition("[")[0]
        properties[one.name] = {"type": _JSON_TYPES[annotation]} if annotation in _JSON_TYPES else {}
        if one.default is one.empty:
            required.append(one.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": _first_line(tool), "parameters": parameters},
    }


def _seeded(reset: Callable[..., Any], seed: int) -> Any:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        return reset(seed=seed)
    if any(one.name == "seed" or one.kind is one.VAR_KEYWORD for one in parameters):
        return reset(seed=seed)
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return reset(seed) if positional else reset()


def _numbers(facts: object) -> dict[str, float]:
    """Those of an info that are numbers or flags, numpy's among them."""
    if not isinstance(facts, Mapping):
        return {}
    known = {str(name): plain(value) for name, value in facts.items()}
    return {name: float(value) for name, value in known.items() if isinstance(value, (bool, int, float))}


def _flag(value: Any) -> bool:
    """True, False, 0 or 1, numpy's too; what else has a truth value (a text, a list) is no flag."""
    value = plain(value)
    if not isinstance(value, (bool, int, float)) or value not in (0, 1):
        raise TypeError(f"a flag is {value!r}, expected True or False")
    return bool(value)


def _rendered(env: Any, observation: object) -> str:
    return cast(str, env.render())


def _printed(env: Any, observation: object) -> str:
    return str(observation)


def _first_line(tool: Callable[..., Any]) -> str:
    return (inspect.getdoc(tool) or "").partition("\n")[0]
