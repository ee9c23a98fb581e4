"""Native tool calls, in OpenAI's shape: an answer becomes calls, calls become actions, results become messages.

    environment -> toolbox_of: schemas ──> chat template, or a server that takes tools
    answer ──read──> reasoning, content, calls ──> actions; or a complaint, which costs the format penalty
    what the actions did ──results──> a tool message for every call

A model writes calls its own way: hermes (Qwen, Hermes: JSON between tags), llama (the answer is JSON), mistral (a list
after a marker). A server has read them already. Thoughts are no calls. Every call has to fit its schema before any of
them is carried out. Pure: knows no template, engine or environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.agents.chat_template import Message
from headrace.agents.engines.protocol import Completion
from headrace.agents.environments.text_env import Task
from headrace.agents.records import ENV, EpisodeError, plain_text

ACT = "act"  # the tool of an environment that names none
_MARKER = "[TOOL_CALLS]"
_KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


@dataclass(frozen=True)
class Call:
    """One call that fits its tool, and the action that it is."""

    id: str
    name: str
    arguments: dict[str, Any]
    action: str


@dataclass(frozen=True)
class Said:
    """An answer, taken apart. Without calls there is a complaint."""

    raw: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    complaint: str = ""

    def messages(self) -> tuple[Message, ...]:
        """The assistant's message, and what else it may be: templates put their own blanks round its parts."""
        if self.complaint:
            return ({"role": "assistant", "content": self.raw},)
        shaped = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in self.calls
        ]
        forms = dict.fromkeys([(self.content, self.reasoning), (self.content.strip(), self.reasoning.strip())])
        thoughts = [({"reasoning_content": reasoning} if reasoning else {}) for _, reasoning in forms]
        return tuple(
            {"role": "assistant", "content": content, **thought, "tool_calls": shaped}
            for (content, _), thought in zip(forms, thoughts, strict=True)
        )

    def results(self, texts: Sequence[str], last: str) -> list[Message]:
        """A message for every call; those beyond the texts were not carried out. `last` follows the last one."""
        told = [*texts, *["This call was not carried out."] * (len(self.calls) - len(texts))]
        told[-1] = f"{told[-1]}\n\n{last}"
        return [
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
            for call, text in zip(self.calls, told, strict=True)
        ]


def for_server(message: Message) -> Message:
    """A message as chat servers take it: arguments as JSON in a string, and no reasoning, which some refuse."""
    calls = [
        {**one, "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])}}
        for one in message.get("tool_calls", ())
    ]
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    return kept | ({"tool_calls": calls} if calls else {})


@dataclass(frozen=True)
class Toolbox:
    """The tools of one environment, and how the model writes calls."""

    schemas: tuple[dict[str, Any], ...]
    answers: str
    action_of: Callable[[str, dict[str, Any]], str]

    def read(self, completion: Completion, has_open_thought: bool, turn: int) -> Said:
        """The answer's calls, or what is wrong with it."""
        text = completion.text
        try:
            if completion.tool_calls:
                reasoning, content, raw = completion.reasoning, text, list(completion.tool_calls)
            else:
                reasoning, rest = _thought(text, completion.reasoning, has_open_thought)
                content, raw = _WRITTEN[self.answers](rest)
            if not raw:
                raise ValueError("expected a tool call")
            calls = tuple(self._call(one, f"call{turn:03d}{at:02d}") for at, one in enumerate(raw))
        except ValueError as error:
            return Said(text, complaint=str(error))
        except RecursionError:
            return Said(text, complaint="a tool call is nested too deeply")
        return Said(text, content, reasoning, calls)

    def _call(self, raw: Any, name_of_call: str) -> Call:
        if not isinstance(raw, dict):
            raise ValueError(f"a tool call is {_short(raw)}, expected an object with name and arguments")
        called = raw.get("function", raw)
        name = called.get("name") if isinstance(called, dict) else None
        tools = {one["function"]["name"]: one["function"] for one in self.schemas}
        if not isinstance(name, str) or name not in tools:
            raise ValueError(f"unknown tool {_short(name)}, expected one of {', '.join(tools)}")
        arguments = called.get("arguments", called.get("parameters", {}))
        if isinstance(arguments, str):  # OpenAI's own shape: JSON in a string
            arguments = _parsed(arguments, f"the arguments of {name}")
        schema = tools[name].get("parameters") or {"type": "object", "properties": {}}
        problem = _misfit({"type": "object", **schema}, arguments, "arguments")
        if problem:
            raise ValueError(f"{name}: {problem}")
        return Call(plain_text(str(raw.get("id") or name_of_call)), name, arguments, self.action_of(name, arguments))


def toolbox_of(task: Task, answers: str) -> Toolbox:
    """An environment's own tools, whose calls are its actions; else one tool that takes an action."""
    if task.tools is not None:
        return Toolbox(_shaped(task.tools), answers, _as_json)
    if task.form is not None:
        schema = dict(task.form.schema)
    else:
        schema = {"type": "string"} | ({"enum": list(task.actions)} if task.actions else {})
    parameters = {"type": "object", "properties": {"action": schema}, "required": ["action"]}
    function = {"name": ACT, "description": "Take an action in the environment.", "parameters": parameters}
    is_text = schema.get("type") == "string"

    def action_of(_: str, arguments: dict[str, Any]) -> str:
        action = str(arguments["action"]) if is_text else json.dumps(arguments["action"])
        complaint = task.form.complaint(action) if task.form is not None else ""
        if complaint:
            raise ValueError(complaint)
        return action

    return Toolbox(({"type": "function", "function": function},), answers, action_of)


def _as_json(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def _shaped(tools: Any) -> tuple[dict[str, Any], ...]:
    """Tools in OpenAI's shape, or EpisodeError."""
    shaped = list(tools) if isinstance(tools, Sequence) and not isinstance(tools, str) else []
    for one in shaped:
        function = one.get("function") if isinstance(one, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            shaped = []
            break
    if not shaped:
        raise EpisodeError(
            ENV,
            f'its tools are {_short(tools)}, expected a list of {{"type": "function", "function": {{"name": ..., '
            f'"description": ..., "parameters": ...}}}}',
        )
    return tuple(dict(one) for one in shaped)


def _thought(text: str, reasoning: str, is_open: bool) -> tuple[str, str]:
    """Reasoning, and the rest."""
    start = re.match(r"\s*<think>", text)
    if reasoning or not (start or is_open):
        return reasoning, text
    thought, end, rest = text[start.end() if start else 0 :].partition("</think>")
    if not end:
        raise ValueError("the reasoning does not end with </think>")
    return thought, rest


def _hermes(text: str) -> tuple[str, list[Any]]:
    content, *pieces = text.split("<tool_call>")  # no regular expression: a model may repeat the tag without end
    halves = [one.split("</tool_call>") for one in pieces]
    if "</tool_call>" in content or any(len(one) != 2 for one in halves):
        raise ValueError("a tool call begins with <tool_call> and ends with </tool_call>")
    if any(after.strip() for _, after in halves):
        raise ValueError("expected nothing between and after tool calls")
    return content, [_parsed(inside, "a tool call") for inside, _ in halves]


def _llama(text: str) -> tuple[str, list[Any]]:
    text = text.strip()
    return ("", [_parsed(text, "a tool call")]) if text.startswith("{") else (text, [])


def _mistral(text: str) -> tuple[str, list[Any]]:
    content, marker, calls = text.partition(_MARKER)
    listed = _parsed(calls, "the list of tool calls") if marker else []
    if not isinstance(listed, list):
        raise ValueError(f"expected a list of tool calls after {_MARKER}")
    return content, listed


_WRITTEN: dict[str, Callable[[str], tuple[str, list[Any]]]] = {
    "hermes": _hermes,
    "llama": _llama,
    "mistral": _mistral,
}


def _misfit(schema: Mapping[str, Any], value: Any, where: str) -> str:
    """What of a value does not fit a JSON schema: types, enums, limits, parts; empty if all does."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if kinds and not any(_is(kind, value) for kind in kinds):
        return f"{where} is {_short(value)}, expected {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {_short(value)}, expected one of {', '.join(map(str, schema['enum']))}"
    if _is("number", value) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"{where} is {_short(value)}, out of its range"
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return f"{where} is a list of {len(value)}, which is too short or too long"
        parts = [(schema.get("items") or {}, one, f"{where}[{at}]") for at, one in enumerate(value)]
    elif isinstance(value, dict):
        known = schema.get("properties") or {}
        missing = [name for name in schema.get("required") or () if name not in value]
        if missing:
            return f"{where}: {missing[0]} is missing"
        unknown = [name for name in value if name not in known]
        if unknown and (known or where == "arguments") and not schema.get("additionalProperties"):
            return f"{where}: {unknown[0]!r} is unknown, expected {', '.join(known) or 'none'}"
        parts = [(known.get(name) or {}, one, name) for name, one in value.items()]
    else:
        return ""
    return next((problem for part in parts if (problem := _misfit(*part))), "")


def _is(kind: str, value: Any) -> bool:
    if kind in ("integer", "number") and isinstance(value, bool):
        return False
    return isinstance(value, _KINDS.get(kind, object))


def _parsed(text: str, what: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{what}: {constant} is no number")

    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"{what} can't be read as JSON: {error.msg} at character {error.pos}") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}: {error.object[error.start]!r} is half a character") from error
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
