"""Native tool calls: how models write them, what becomes of them, and that nothing moves in token space."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.agents.chat_template import CHATML_TOOLS
from headrace.agents.codec import ByteCodec, TokenizerCodec
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.protocol import Completion
from headrace.agents.engines.scripted import scripted
from headrace.agents.environments.adapters import TrlStyle
from headrace.agents.environments.text_env import Step, Task, TextForm
from headrace.agents.episode import Conversation, Play
from headrace.agents.exports.parquet import read_parquet, write_parquet
from headrace.agents.exports.verl import ragen_batch, samples
from headrace.agents.plan import Rules, Ticket
from headrace.agents.records import EpisodeError, decode, encode, fingerprint
from headrace.agents.tool_calls import Said, toolbox_of
from support.agent_envs import Counting, spec
from support.answering_server import answering
from support.chat_templates import TEMPLATES, model_folder

RULES = Rules(answers="hermes", max_tokens=200, max_context=20_000, format_penalty=-0.25)
ONE_OR_TWO = Task("Say one or two.", ("one", "two"))


def said(text: str, answers: str = "hermes", task: Task = ONE_OR_TWO, is_open: bool = False) -> Said:
    return toolbox_of(task, answers).read(Completion((), (), (), text), is_open, 1)


def hermes(*actions: str) -> str:
    calls = [{"name": "act", "arguments": {"action": action}} for action in actions]
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ("hermes", hermes("one", "two")),
        ("hermes", f"<think>\nwell <tool_call>no call\n</think>\n\nLet me see.\n{hermes('one', 'two')}\n"),
        ("mistral", '[TOOL_CALLS] [{"name": "act", "arguments": {"action": "one"}}, '
                    '{"name": "act", "arguments": "{\\"action\\": \\"two\\"}"}]'),
    ],
)  # fmt: skip
def test_calls_become_actions(answers: str, text: str) -> None:
    one = said(text, answers)
    assert not one.complaint
    assert [call.action for call in one.calls] == ["one", "two"]
    assert [call.id for call in one.calls] == ["call00100", "call00101"], "nine letters and digits, as Mistral wants"


def test_reasoning_content_and_calls_are_told_apart() -> None:
    one = said(f"<think>hm</think>Yes. {hermes('one')}")
    assert (one.reasoning, one.content) == ("hm", "Yes. ")
    assert said(f"hm</think>{hermes('one')}", is_open=True).reasoning == "hm", "the prompt has begun the thought"
    llama = said('{"name": "act", "parameters": {"action": "two"}}', "llama")
    assert [call.action for call in llama.calls] == ["two"]
    message, other = one.messages()
    assert message["tool_calls"][0]["function"] == {"name": "act", "arguments": {"action": "one"}}
    assert (message["content"], other["content"]) == ("Yes. ", "Yes.")


def test_tools_of_an_environment() -> None:
    class Shop:
        def reset(self) -> None: ...

        def buy(self, item: str, count: int = 1, price: float | None = None) -> str:
            """Buy something.

            More about it.
            """
            return item

    (tool,) = TrlStyle(Shop()).tools
    assert tool["function"]["name"] == "buy"
    assert tool["function"]["description"] == "Buy something."
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"item": {"type": "string"}, "count": {"type": "integer"}, "price": {}},
        "required": ["item"],
    }
    box = toolbox_of(Task(tools=[tool]), "hermes")
    call = '<tool_call>{"name": "buy", "arguments": {"item": "ä", "count": 2}}</tool_call>'
    (one,) = box.read(Completion((), (), (), call), False, 0).calls
    assert one.action == '{"name": "buy", "arguments": {"item": "ä", "count": 2}}'
    with pytest.raises(EpisodeError, match="env: its tools are"):
        toolbox_of(Task(tools={"buy": print}), "hermes")


def test_an_action_in_a_form_is_an_argument() -> None:
    form = TextForm("JSON", lambda text: json.loads(text)[1], "[0, 1]", {"type": "array", "items": {"type": "number"}})
    call = '<tool_call>{"name": "act", "arguments": {"action": [0.5, 2]}}</tool_call>'
    assert [one.action for one in said(call, task=Task(form=form)).calls] == ["[0.5, 2]"]


# ------------------------------------------------------------------------------------------------ token space


def player(prompt: str, rng: np.random.Generator) -> str:
    """Thinks, calls once or twice, and is wrong now and then."""
    draw = rng.random()
    if draw < 0.15:
        return "I would rather not."
    if draw < 0.25:
        return '<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call>'
    thought = "<think>hm</think>" if rng.random() < 0.5 else ""
    return thought + hermes(*(str(rng.choice(["one", "two"])) for _ in range(int(rng.integers(1, 3)))))


@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_rollouts_of_tool_calls(backend: str, tmp_path: Path) -> None:
    """One row an episode: what was sampled stays, results are appended; the same on every way to play."""
    engines = [scripted(player), scripted(player)]
    try:
        groups = []
        for engine, way in zip(engines, ("sequential", backend), strict=True):
            with hr.AgentRollouts([spec(Counting)], engine, 1, way, group_size=3, rules=RULES) as rollouts:
                groups.append(rollouts.run(3))
    finally:
        for engine in engines:
            engine.close()
    assert fingerprint(groups[0]) == fingerprint(groups[1])
    codec = ByteCodec()
    turns = [turn for group in groups[1] for one in group.episodes for turn in one.turns]
    assert {turn.is_valid for turn in turns} == {True, False}
    assert {turn.reward for turn in turns if not turn.is_valid} == {-0.25}
    for group in groups[1]:
        for episode in group.episodes:
            (row,) = episode.rows
            text = codec.decode(row.ids.tolist())
            asked = episode.messages[:-1]
            tools = toolbox_of(Task("", Counting.actions), "hermes").schemas
            assert text.startswith(codec.render(asked, True, tools)), "append only, and what the template writes"
            for turn in episode.turns:
                sampled = row.ids[turn.start : turn.stop].tolist()
                assert codec.decode(sampled[:-1]) == turn.answer
                assert sampled[-1] == codec.eos_id
            for one in episode.messages:
                assert one["role"] in ("user", "assistant", "tool")
    assert len(samples(groups[1])) == 9
    again = read_parquet(write_parquet(groups[1], tmp_path / "a.parquet"))
    assert fingerprint(again) == fingerprint([decode(encode(group)) for group in groups[1]]) == fingerprint(groups[1])
    assert again[0].episodes[0].messages == groups[1][0].episodes[0].messages
    assert ragen_batch(groups[1], 0)["left_out"] == 0


def play(codec: Any, task: Task = ONE_OR_TWO, **rules: Any) -> Play:
    given = Rules(**{"answers": "hermes", "max_context": 100_000, **rules})
    box = toolbox_of(task, given.answers)
    return Play(Ticket(0, "tag", 0, 1), 0, given, codec, lambda turn: turn, "Task.", task.actions, tools=box)


def answer(codec: Any, text: str, stop: str = "") -> Completion:
    ids = [*codec.encode(text), *(codec.encode(stop) if stop else [codec.eos_id])]
    return Completion(ids, [-1.0] * len(ids), [0] * len(ids), text)


def test_every_call_has_its_result_also_those_that_are_too_many() -> None:
    codec = ByteCodec()
    one = play(codec, max_actions_per_turn=2)
    request = one.begin("a room")
    assert request is not None
    assert "Answer with a tool call." in codec.decode(request.ids)
    assert '"enum": ["one", "two"]' in codec.decode(request.ids)
    assert one.answered(answer(codec, hermes("one", "two", "one"))) == ("one", "two")
    request = one.stepped([Step("b", 1.0, False), Step("c", 0.5, False)])
    assert request is not None
    told = codec.decode(request.ids).rpartition("</tool_call>")[2]
    assert told.count("<|im_start|>tool\n") == 3
    assert "Reward: 1\n\nb" in told
    assert "Reward: 0.5\n\nc" in told
    assert "This call was not carried out.\n\nTurn 2 of 5" in told
    ids = [message.get("tool_call_id") for message in one._conversation.messages]
    assert ids[2:] == ["call00000", "call00001", "call00002"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TokenizerCodec]:
    return lambda name: TokenizerCodec.from_folder(model_folder(TEMPLATES[name], tmp_path_factory.mktemp("model")))


def test_reasoning_is_kept_out_where_the_template_says_so(folders: Callable[[str], TokenizerCodec]) -> None:
    """Within a chain of calls thoughts stay, one row; the next question drops them: a new row from what is left."""
    codec = folders("strips reasoning")
    box = toolbox_of(ONE_OR_TWO, "hermes")
    conversation = Conversation(TokenizerCodec(**{**codec.__getstate__(), "template": "{{ tools }}" + codec.template}))
    conversation.tools = box.schemas
    text = f"<think>secret</think>{hermes('one')}"
    conversation.ask("Say one or two.")
    for _ in range(2):
        one = box.read(answer(codec, text), False, 0)
        conversation.answer(answer(codec, text), one.messages())
        conversation.tell(one.results(["fine"], "go on"))
    assert len(conversation.rows) == 1, "thoughts of the running chain stay"
    one = box.read(answer(codec, text), False, 0)
    conversation.answer(answer(codec, text), one.messages())
    ids = conversation.ask("And now?")
    rows = conversation.rows
    assert len(rows) == 2
    assert "secret" not in codec.decode(ids)
    sampled = answer(codec, text).ids
    kept = rows[0].ids[rows[0].loss_mask == 1].tolist()
    assert kept == [*sampled, *sampled, *sampled], "what was sampled stays where it was sampled"
    assert not rows[1].loss_mask.any()


def test_several_stop_ids(folders: Callable[[str], TokenizerCodec]) -> None:
    """An answer ended by another token than the template writes: kept as sampled, and a row is forked."""
    codec = folders("bos")
    assert len(codec.stop_ids) == 2
    for stop, rows in (("<|eot|>", 1), ("<|eom|>", 2)):
        conversation = Conversation(codec)
        conversation.ask("one?")
        conversation.answer(answer(codec, "two", stop))
        ids = conversation.ask("and?")
        assert len(conversation.rows) == rows
        assert ids == codec.encode(codec.render(conversation.messages, True))
        (first, *_) = conversation.rows
        assert first.ids[first.loss_mask == 1].tolist() == [*codec.encode("two"), *codec.encode(stop)]


def test_blanks_of_the_template_do_not_fork(folders: Callable[[str], TokenizerCodec]) -> None:
    """The template writes a line break of its own before a call: the content is taken without it."""
    codec = folders("calls tools")
    one = play(codec)
    one.begin("a room")
    one.answered(answer(codec, f"Let me see.\n{hermes('one')}"))
    one.stepped([Step("b", 1.0, False)])
    one.answered(answer(codec, f"  So.   {hermes('one')}"))
    one.stepped([Step("b", 1.0, False)])
    assert len(one.record().rows) == 2, "the first fits, the second does not"


def test_a_prompt_that_opens_the_thought(folders: Callable[[str], TokenizerCodec]) -> None:
    codec = folders("opens thoughts")
    one = Play(Ticket(0, "tag", 0, 1), 0, Rules(), codec, lambda turn: 0, "Task.", ("Up",))
    one.begin("a room")
    assert one.answered(answer(codec, "hm</think><answer>Up</answer>")) == ("Up",)


def test_a_template_without_tools_is_named() -> None:
    one = play(TokenizerCodec(_tokenizer()))
    with pytest.raises(EpisodeError, match="parse: the chat template failed: ValueError: it has no place for tools"):
        one.begin("a room")
    assert play(TokenizerCodec(_tokenizer(), template=CHATML_TOOLS)).begin("a room") is not None


def _tokenizer() -> str:
    from headrace.agents.engines.tiny import tiny_codec

    return tiny_codec(["a b"], 300).tokenizer_json


def test_the_model_in_process_stops_at_every_stop_id() -> None:
    from headrace.agents.engines.in_process import in_process
    from headrace.agents.engines.protocol import Request
    from headrace.agents.engines.tiny import tiny_codec, tiny_model

    codec = tiny_codec(["one two three"] * 3, 300)
    more = TokenizerCodec(codec.tokenizer_json, more_stop_ids=tuple(range(40, 140)))
    with closing(in_process(tiny_model(codec.vocabulary, 3), more, slots=4, max_context=128)) as engine:
        answers = engine.generate([Request(0, at, 0, codec.encode("one two"), 40, at) for at in range(8)])
    ends = set[int]()
    for one in answers:
        assert isinstance(one, Completion)
        assert not more.stop_ids & set(one.ids[:-1]), "nothing after a stop id"
        if one.finish == "stop":
            assert one.ids[-1] in more.stop_ids
            assert one.text == codec.decode(one.ids[:-1])
            ends.add(one.ids[-1])
    assert len(ends) > 1


# ------------------------------------------------------------------------------------------- servers that read calls


def test_a_server_that_reads_calls_itself() -> None:
    """Text only: tools go to the server in OpenAI's shape, its calls come back, results go out again."""

    def alter(path: str, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        call = {"id": f"call_{len(asked['messages'])}", "type": "function",
                "function": {"name": "act", "arguments": '{"action": "two"}'}}  # fmt: skip
        message = {"role": "assistant", "content": None, "reasoning_content": "secret", "tool_calls": [call]}
        return {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}

    with answering(alter) as (url, seen):
        engine = OpenAIEngine(ByteCodec(), Server((url,), is_text_only=True))
        try:
            with hr.AgentRollouts([spec(Counting)], engine, 1, "threading", group_size=1, rules=RULES) as rollouts:
                (group,) = rollouts.run(1)
        finally:
            engine.close()
    (episode,) = group.episodes
    assert (episode.status, episode.is_trainable, episode.reward) == ("completed", False, 4.0)
    assert seen[0]["tools"][0]["function"]["parameters"]["properties"]["action"]["enum"] == ["one", "two"]
    last = seen[-1]["messages"]
    assert [one["role"] for one in last] == ["user", *["assistant", "tool"] * 3]
    assert last[1]["tool_calls"][0]["function"]["arguments"] == '{"action": "two"}', "a string, as OpenAI has it"
    assert last[2]["tool_call_id"] == last[1]["tool_calls"][0]["id"] == "call_1"
    assert "secret" not in json.dumps(last), "reasoning is kept out of later prompts"
    assert episode.messages[1]["reasoning_content"] == "secret", "and in the record"


def test_a_server_that_takes_reasoning_out() -> None:
    """Answers in tags whose thought comes apart from the text are whole answers."""

    def alter(path: str, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        message = {"role": "assistant", "content": "<answer>two</answer>", "reasoning_content": "hm"}
        return {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}

    with answering(alter) as (url, seen):
        engine = OpenAIEngine(ByteCodec(), Server((url,), is_text_only=True))
        try:
            with hr.AgentRollouts([spec(Counting)], engine, 1, "threading", group_size=1) as rollouts:
                (group,) = rollouts.run(1)
        finally:
            engine.close()
    assert group.episodes[0].metrics["answer_is_valid"] == 1.0
    assert "hm" not in [one["content"] for one in seen[-1]["messages"]]


def test_more_stop_ids_are_asked_for(folders: Callable[[str], TokenizerCodec]) -> None:
    codec = folders("bos")
    with answering(codec=codec) as (url, seen):
        engine = OpenAIEngine(codec, Server((url,)))
        try:
            assert not engine.is_text_only
        finally:
            engine.close()
    assert seen[0]["stop_token_ids"] == sorted(codec.stop_ids)


def test_a_trl_environment_is_played_by_tool_calls() -> None:
    engine = scripted(lambda prompt, rng: '<tool_call>{"name": "guess", "arguments": {"digit": 3}}</tool_call>')
    try:
        with hr.AgentRollouts({"Digits": Digits}, engine, 1, "threading", group_size=1, rules=RULES) as rollouts:
            (group,) = rollouts.run(1)
    finally:
        engine.close()
    (episode,) = group.episodes
    assert (episode.status, episode.reward) == ("completed", 1.0)
    assert episode.turns[0].actions == ('{"name": "guess", "arguments": {"digit": 3}}',)


class Digits:
    """TRL's interface."""

    def __init__(self) -> None:
        self.done, self.reward = False, 0.0

    def reset(self) -> str:
        return "Guess."

    def guess(self, digit: int) -> str:
        """Guess a digit."""
        self.done, self.reward = True, float(digit == 3)
        return "right" if digit == 3 else "wrong"
