"""Malformed tool calls cost the format penalty, and the environment does not move; a server's faults are failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.agents.codec import ByteCodec
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.scripted import scripted
from headrace.agents.environments.text_env import Step, Task
from headrace.agents.limits import Limits
from headrace.agents.plan import ANSWERS, Rules
from headrace.agents.records import EpisodeError
from headrace.agents.tool_calls import toolbox_of
from headrace.errors import UsageError
from support.agent_envs import Counting, spec
from support.answering_server import Alter, answering

RULES = Rules(answers="hermes", max_tokens=400, max_context=50_000, format_penalty=-0.5, max_turn=3)
TOOL = {
    "type": "function",
    "function": {
        "name": "move",
        "parameters": {
            "type": "object",
            "properties": {
                "where": {"type": "string", "enum": ["up", "down"]},
                "count": {"type": "integer", "minimum": 1, "maximum": 9},
                "path": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
            },
            "required": ["where"],
        },
    },
}
MOVER = Task("Move.", None, None, [TOOL])


def call(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


def move(**arguments: Any) -> str:
    return call(json.dumps({"name": "move", "arguments": arguments}))


GOOD = move(where="up", count=2, path=[0.5])
MALFORMED: dict[str, tuple[str, str, str]] = {
    "no call": ("hermes", "up, please", "expected a tool call"),
    "nothing": ("hermes", "", "expected a tool call"),
    "cut short": ("hermes", GOOD[:-5], "ends with </tool_call>"),
    "no beginning": ("hermes", f"{GOOD}</tool_call>", "begins with <tool_call>"),
    "one in another": ("hermes", f"<tool_call>{GOOD}</tool_call>", "begins with <tool_call>"),
    "no JSON": ("hermes", call("move(up)"), "a tool call can't be read as JSON"),
    "two values": ("hermes", call("{} {}"), "a tool call can't be read as JSON"),
    "no object": ("hermes", call("[1]"), "expected an object with name and arguments"),
    "a number": ("hermes", call("3"), "expected an object with name and arguments"),
    "no name": ("hermes", call('{"arguments": {}}'), "unknown tool None, expected one of move"),
    "a name that is none": ("hermes", call('{"name": ["move"]}'), "unknown tool"),
    "another tool": ("hermes", call('{"name": "fly", "arguments": {}}'), "unknown tool 'fly'"),
    "arguments no object": ("hermes", call('{"name": "move", "arguments": [1]}'), "expected object"),
    "arguments null": ("hermes", call('{"name": "move", "arguments": null}'), "expected object"),
    "arguments torn": (
        "hermes",
        call('{"name": "move", "arguments": "{\\"where"}'),
        "arguments of move can't be read",
    ),
    "missing": ("hermes", move(count=1), "where is missing"),
    "unknown": ("hermes", move(where="up", speed=3), "'speed' is unknown, expected where, count, path"),
    "wrong type": ("hermes", move(where=3), "where is 3, expected string"),
    "a flag for a number": ("hermes", move(where="up", count=True), "count is True, expected integer"),
    "a fraction": ("hermes", move(where="up", count=1.5), "count is 1.5, expected integer"),
    "not listed": ("hermes", move(where="left"), "where is 'left', expected one of up, down"),
    "out of range": ("hermes", move(where="up", count=10), "out of its range"),
    "too long": ("hermes", move(where="up", path=[1, 2, 3]), "too short or too long"),
    "wrong part": ("hermes", move(where="up", path=[1, "a"]), r"path[1] is 'a', expected number"),
    "NaN": ("hermes", call('{"name": "move", "arguments": {"where": "up", "path": [NaN]}}'), "NaN is no number"),
    "half a character": ("hermes", call('{"name": "move", "arguments": {"where": "\\ud800"}}'), "is half a character"),
    "deep": ("hermes", call("[" * 200_000), "nested too deeply"),
    "deep, and readable": ("hermes", call("[" * 800 + "]" * 800), "a tool call is"),
    "deep in a part": ("hermes", move(where="up", path=json.loads("[" * 400 + "]" * 400)), ""),
    "the second": ("hermes", f"{GOOD}{move(where='left')}", "where is 'left'"),
    "words after": ("hermes", f"{GOOD} that is all", "nothing between and after tool calls"),
    "in a thought": ("hermes", f"<think>{GOOD}</think>", "expected a tool call"),
    "a thought without end": ("hermes", f"<think>{GOOD}", "does not end with </think>"),
    "llama, no JSON": ("llama", '{"name": "move"', "a tool call can't be read as JSON"),
    "llama, words": ("llama", "up", "expected a tool call"),
    "mistral, no list": ("mistral", '[TOOL_CALLS]{"name": "move"}', "expected a list of tool calls"),
    "mistral, empty": ("mistral", "[TOOL_CALLS][]", "expected a tool call"),
    "mistral, torn": ("mistral", '[TOOL_CALLS][{"name"', "the list of tool calls can't be read as JSON"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_a_complaint(name: str) -> None:
    answers, text, complaint = MALFORMED[name]
    said = toolbox_of(MOVER, answers).read(Completion((), (), (), text), False, 0)
    assert said.calls == (), "nothing may be carried out"
    assert complaint in said.complaint
    assert said.messages() == ({"role": "assistant", "content": text},), "the model sees what it wrote"


def test_a_call_that_is_well_formed() -> None:
    said = toolbox_of(MOVER, "hermes").read(Completion((), (), (), GOOD), False, 0)
    assert not said.complaint
    assert json.loads(said.calls[0].action) == {"name": "move", "arguments": {"where": "up", "count": 2, "path": [0.5]}}


PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    GOOD,
    "{",
    "}",
    "[",
    "]",
    '"',
    "move",
    "x",
]


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8), answers=st.sampled_from(ANSWERS[1:]))
def test_any_text_is_calls_or_a_complaint(pieces: list[str], answers: str) -> None:
    said = toolbox_of(MOVER, answers).read(Completion((), (), (), "".join(pieces)), False, 0)
    assert bool(said.calls) != bool(said.complaint)
    for one in said.calls:
        assert one.arguments["where"] in ("up", "down")


class Mover(Counting):
    """Counts its steps."""

    tools = (TOOL,)
    actions = None
    steps = 0

    def step(self, action: str) -> Step:
        Mover.steps += 1
        return Step("moved", 1.0, True)


def test_the_environment_does_not_move_and_the_penalty_is_due() -> None:
    """Two malformed answers, then a good one: the model is told why, and only the last moves anything."""
    answers = iter([MALFORMED["the second"][1], MALFORMED["missing"][1], GOOD])
    engine = scripted(lambda prompt, rng: next(answers))
    Mover.steps = 0
    try:
        with hr.AgentRollouts([spec(Mover)], engine, backend="sequential", group_size=1, rules=RULES) as rollouts:
            (group,) = rollouts.run(1)
    finally:
        engine.close()
    (episode,) = group.episodes
    assert Mover.steps == 1
    assert [turn.reward for turn in episode.turns] == [-0.5, -0.5, 1.0]
    assert [turn.is_valid for turn in episode.turns] == [False, False, True]
    assert (
        "Your answer was not used: move: arguments: where is missing. Nothing has changed." in episode.turns[2].prompt
    )
    assert episode.is_trainable
    assert len(episode.rows) == 1


def test_tools_that_are_none_are_the_environments_failure() -> None:
    class Odd(Counting):
        tools = 3

    engine = scripted(lambda prompt, rng: GOOD)
    limits = Limits(attempts=1)
    try:
        with hr.AgentRollouts(
            [spec(Odd)], engine, backend="sequential", group_size=1, rules=RULES, limits=limits
        ) as rollouts:
            (group,) = rollouts.run(1)
    finally:
        engine.close()
    assert group.failures[0].boundary == "env"
    assert "its tools are 3, expected a list of" in group.failures[0].message


def test_another_way_to_write_them_is_refused() -> None:
    with pytest.raises(UsageError, match="answers: expected one of tags, hermes, llama, mistral, got 'xml'"):
        Rules(answers="xml")


# ------------------------------------------------------------------------------------------- servers

ALTER: list[Alter] = []


@pytest.fixture(scope="module")
def engine() -> Iterator[OpenAIEngine]:
    with answering(lambda *about: ALTER[-1](*about)) as (url, _):
        one = OpenAIEngine(ByteCodec(), Server((url,), is_text_only=True, attempts=1))
        yield one
        one.close()


def answered(engine: OpenAIEngine, **message: Any) -> Completion | EpisodeError:
    ALTER[:] = [lambda path, asked, body: {"choices": [{"message": {"role": "assistant", **message}}]}]
    request = Request(0, 0, 0, (), 40, 0, 1.0, ({"role": "user", "content": "a"},), (TOOL,))
    (answer,) = engine.generate([request])
    return answer


def function(name: Any = "move", arguments: Any = '{"where": "up"}') -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "calls", ["move", {"a": 1}, [None], ["move"], [{}], [{"function": None}], [function(3)], [function(arguments={})],
              [function(arguments=None)]], ids=str,
)  # fmt: skip
def test_calls_that_are_not_in_openais_shape_are_the_engines_failure(calls: Any, engine: OpenAIEngine) -> None:
    answer = answered(engine, content=None, tool_calls=calls)
    assert isinstance(answer, EpisodeError)
    assert answer.boundary == "engine"
    assert "not in OpenAI's shape" in answer.message


@pytest.mark.parametrize("message", [{"content": None}, {"content": 3}, {"content": ["a"]}, {}], ids=str)
def test_answers_without_anything_are_the_engines_failure(message: dict[str, Any], engine: OpenAIEngine) -> None:
    answer = answered(engine, **message)
    assert isinstance(answer, EpisodeError)
    assert "an answer without text" in answer.message


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [("move", "{", "can't be read as JSON"), ("move", "[]", "expected object"), ("fly", "{}", "unknown tool"),
     ("move", '{"where": "\ud800"}', "is half a character")],
)  # fmt: skip
def test_what_the_model_wrote_into_a_call_costs_the_penalty(
    name: str, arguments: str, complaint: str, engine: OpenAIEngine
) -> None:
    answer = answered(engine, content=None, tool_calls=[function(name, arguments)])
    assert isinstance(answer, Completion)
    said = toolbox_of(MOVER, "hermes").read(answer, False, 0)
    assert complaint in said.complaint


def test_a_calls_id_is_text_that_can_be_stored(engine: OpenAIEngine) -> None:
    answer = answered(engine, content=None, tool_calls=[function() | {"id": "\ud800"}])
    assert isinstance(answer, Completion)
    assert toolbox_of(MOVER, "hermes").read(answer, False, 0).calls[0].id == "\\ud800"


def test_reasoning_alone_is_an_answer_without_a_call(engine: OpenAIEngine) -> None:
    answer = answered(engine, content=None, reasoning_content="hm")
    assert isinstance(answer, Completion)
    assert toolbox_of(MOVER, "hermes").read(answer, False, 0).complaint == "expected a tool call"
