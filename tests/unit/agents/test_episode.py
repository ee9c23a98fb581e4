"""One episode as a machine without hands: what it asks, what it does with answers, where it ends."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.agents.codec import ByteCodec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.environments.text_env import Step, Task
from headrace.agents.episode import Play, answered
from headrace.agents.plan import Rules, Ticket
from headrace.agents.records import EpisodeError, Failure
from headrace.agents.tool_calls import toolbox_of
from headrace.errors import UsageError

CODEC = ByteCodec()


def play(**rules: Any) -> Play:
    said: dict[str, Any] = {"max_context": 100_000, **rules}
    return Play(Ticket(4, "tag", 77, 2), 1, Rules(**said), CODEC, lambda turn: 100 + turn, "Task.", ("Up", "Down"))


def say(text: str) -> Completion:
    ids = [*CODEC.encode(text), CODEC.eos_id]
    return Completion(ids, [-1.0] * len(ids), [0] * len(ids), text)


def good(actions: str = "Up") -> Completion:
    return say(f"<think>x</think><answer>{actions}</answer>")


def test_the_first_question_holds_the_task_the_state_and_the_rules() -> None:
    request = play(max_turn=3, max_actions_per_traj=5).begin("a room")
    assert isinstance(request, Request)
    text = CODEC.decode(request.ids)
    for part in ("Task.", "a room", "Actions: Up, Down", "Turn 1 of 3", "5 actions left", "<think>", "||"):
        assert part in text
    assert (request.group, request.member, request.turn, request.seed) == (4, 1, 0, 100)


def test_an_episode_that_completes() -> None:
    one = play()
    one.begin("a room")
    assert one.answered(good("Up || Down"), 0.5) == ("Up", "Down")
    request = one.stepped([Step("b", 1.0, False), Step("c", 0.5, False)], 0.1)
    assert request is not None
    text = CODEC.decode(request.ids)
    assert "Reward: 1.5\n\nc" in text
    assert "Turn 2 of 5, 8 actions left" in text
    assert request.seed == 101
    one.answered(good())
    assert one.stepped([Step("d", 2.0, True, {"success": 1.0})]) is None
    record = one.record()
    assert (record.status, record.reward, record.metrics["success"]) == ("completed", 3.5, 1.0)
    assert [turn.actions for turn in record.turns] == [("Up", "Down"), ("Up",)]
    assert record.turns[0].engine_s == 0.5
    (row,) = record.rows
    for turn, said in zip(record.turns, (good("Up || Down"), good()), strict=True):
        assert row.ids[turn.start : turn.stop].tolist() == said.ids
        assert row.loss_mask[turn.start : turn.stop].all()


def test_an_invalid_answer_costs_the_penalty_and_moves_nothing() -> None:
    one = play(format_penalty=-0.25)
    one.begin("a room")
    assert one.answered(say("Up")) == ()
    request = one.stepped([])
    assert request is not None
    assert "Nothing has changed" in CODEC.decode(request.ids)
    record = one.record()
    assert (record.turns[0].reward, record.turns[0].is_valid, record.turns[0].actions) == (-0.25, False, ())


@pytest.mark.parametrize(
    ("rules", "turns"), [({"max_turn": 2}, 2), ({"max_actions_per_traj": 1}, 1), ({"max_actions_per_traj": 3}, 2)]
)
def test_limits_truncate(rules: dict[str, int], turns: int) -> None:
    one = play(**rules)
    request = one.begin("a room")
    count = 0
    while request is not None:
        actions = one.answered(good("Up || Up"))
        request = one.stepped([Step("b", 0.0, False)] * len(actions))
        count += 1
    assert count == turns
    assert one.record().status == "truncated"


def test_actions_beyond_the_episodes_limit_are_not_taken() -> None:
    one = play(max_actions_per_traj=3)
    one.begin("a")
    one.answered(good("Up || Up"))
    one.stepped([Step("b", 0.0, False)] * 2)
    assert one.answered(good("Up || Up")) == ("Up",)


def test_a_context_that_is_full_truncates() -> None:
    one = play(max_context=400, max_tokens=100)
    assert one.begin("x" * 20) is None or one.record().status == ""
    assert play(max_context=200, max_tokens=100).begin("x" * 200) is None


def test_actions_after_the_end_are_not_counted() -> None:
    one = play()
    one.begin("a")
    one.answered(good("Up || Down"))
    assert one.stepped([Step("b", 1.0, True)]) is None
    assert one.record().turns[0].actions == ("Up",)


def test_a_failure_has_no_reward_of_its_own() -> None:
    one = play()
    one.begin("a")
    one.failed(Failure("env", "broke"))
    record = one.record()
    assert (record.status, record.failure) == ("failed", Failure("env", "broke"))


def test_a_template_that_fails_is_a_parse_failure() -> None:
    class Broken(ByteCodec):
        def render(self, messages: Any, is_asking: bool) -> str:
            raise ValueError("no such role")

    one = Play(Ticket(0, "tag", 0, 1), 0, Rules(), Broken(), lambda turn: 0, "", None)
    with pytest.raises(EpisodeError, match="parse: the chat template failed: ValueError: no such role"):
        one.begin("a")


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"max_turn": 0}, "max_turn: expected at least 1"),
        ({"max_tokens": 1.5}, "max_tokens: expected a whole number"),
        ({"format_penalty": "no"}, "format_penalty: expected a number"),
        ({"action_sep": " "}, "action_sep"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p: expected a number above 0"),
        ({"top_p": 1.1}, "top_p: expected a number above 0"),
        ({"top_k": -2}, "top_k: expected at least 1, or 0 or -1"),
        ({"top_k": 2.5}, "top_k: expected a whole number"),
        ({"enable_think": 1}, "enable_think"),
    ],
)
def test_rules_are_checked(rules: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Rules(**rules)


# ---------------------------------------------------------------------------------------- answers that do not end

WRITTEN = {
    True: re.compile(r"\s*<think>.*?</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL),
    False: re.compile(r"\s*<answer>(.*?)</answer>\s*", re.DOTALL),
}
PIECES = ["<think>", "</think>", "<answer>", "</answer>", " ", "\n", "\u3000", "a", "||"]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.booleans())
@example("<think></think><answer>a</answer>b</answer> \n", True)
@settings(max_examples=300)
def test_answers_are_read_as_the_format_is_written(text: str, has_thinking: bool) -> None:
    found = WRITTEN[has_thinking].fullmatch(text)
    assert answered(text, has_thinking) == (None if found is None else found.group(1))


def test_a_model_that_repeats_tags_costs_no_time() -> None:
    """It took seconds of the event loop: a search that began again at every tag."""
    box = toolbox_of(Task(actions=("Up", "Down")), "hermes")
    started = time.process_time()
    assert answered("<think>" + "</think><answer></answer>" * 20_000 + "x", True) is None
    assert answered("<think>" + "</think><answer>" * 20_000, True) is None
    assert box.read(Completion((), (), (), "<tool_call>{" * 20_000), False, 0).complaint
    assert time.process_time() - started < 3
