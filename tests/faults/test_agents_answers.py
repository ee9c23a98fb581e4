"""Answers that must never be trained on: servers that leave out, invent or mix up what belongs to a token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import headrace as hr
from headrace.agents.codec import ByteCodec
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.exports.verl import samples
from headrace.agents.limits import Limits
from headrace.agents.records import EpisodeError, fingerprint
from support.agent_envs import Counting, spec
from support.answering_server import Alter, answering, as_it_is

CODEC = ByteCodec()
PROMPT = CODEC.encode("Actions: one, two\n<think>||")
STOP = CODEC.eos_id


def client(url: str, **options: Any) -> OpenAIEngine:
    said = {"pause_s": 0.001, "attempts": 1, "is_text_only": False, **options}
    return OpenAIEngine(CODEC, Server((url,), **said))


ALTER: list[Alter] = [as_it_is]


@pytest.fixture(scope="module")
def engine() -> Iterator[OpenAIEngine]:
    """Of a server that does what the last in ALTER says."""
    with answering(lambda *about: ALTER[-1](*about)) as (url, _):
        one = client(url)
        yield one
        one.close()


def ask(engine: OpenAIEngine, alter: Alter) -> Completion | EpisodeError:
    ALTER[:] = [alter]
    (answer,) = engine.generate([Request(1, 0, 0, PROMPT, 60, 1)])
    return answer


def choice(change: Callable[[dict[str, Any]], Any]) -> Alter:
    def alter(path: str, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        change(body["choices"][0])
        return body

    return alter


def log_probs(change: Callable[[list[Any]], Any]) -> Alter:
    def put(one: dict[str, Any]) -> None:
        one["logprobs"]["token_logprobs"] = change(one["logprobs"]["token_logprobs"])

    return choice(put)


def test_an_answer_as_it_should_be(engine: OpenAIEngine) -> None:
    answer = ask(engine, as_it_is)
    assert isinstance(answer, Completion)
    assert answer.ids[-1] == STOP
    assert all(one < 0 for one in answer.log_probs)
    assert ask(engine, log_probs(lambda all_: [5e-7, *all_[1:]])).log_probs[0] == 0.0, "a rounding error"  # type: ignore[union-attr]


BAD: dict[str, tuple[Alter, str]] = {
    "null": (log_probs(lambda all_: [all_[0], None, *all_[2:]]), "log-probability of token 1 is null"),
    "the first is null": (log_probs(lambda all_: [None, *all_[1:]]), "log-probability of token 0 is null"),
    "all null": (log_probs(lambda all_: [None] * len(all_)), "log-probability of token 0 is null"),
    "no list": (log_probs(lambda all_: None), "without log-probabilities"),
    "no section": (choice(lambda one: one.update(logprobs=None)), "without log-probabilities"),
    "left out": (choice(lambda one: one.pop("logprobs")), "without log-probabilities"),
    "one too few": (log_probs(lambda all_: all_[:-1]), "expected one each"),
    "one too many": (log_probs(lambda all_: [*all_, -1.0]), "expected one each"),
    "none": (log_probs(lambda all_: []), "with 0 log-probabilities"),
    "NaN": (log_probs(lambda all_: [math.nan, *all_[1:]]), "token 0 is nan"),
    "minus infinity": (log_probs(lambda all_: [-math.inf, *all_[1:]]), "token 0 is -inf"),
    "stands for minus infinity": (log_probs(lambda all_: [-9999.0, *all_[1:]]), "token 0 is -9999.0"),
    "positive": (log_probs(lambda all_: [0.25, *all_[1:]]), "token 0 is 0.25"),
    "text": (log_probs(lambda all_: ["-1.0", *all_[1:]]), "token 0 is '-1.0'"),
    "a flag": (log_probs(lambda all_: [False, *all_[1:]]), "token 0 is False"),
    "ids left out": (choice(lambda one: one.pop("token_ids")), "without token ids"),
    "ids no numbers": (choice(lambda one: one["token_ids"].__setitem__(0, "a")), "expected whole numbers"),
    "ids no whole numbers": (choice(lambda one: one["token_ids"].__setitem__(0, 64.5)), "expected whole numbers"),
    "id too high": (choice(lambda one: one["token_ids"].__setitem__(0, 258)), "token id 258; expected 0 to 257"),
    "id below 0": (choice(lambda one: one["token_ids"].__setitem__(0, -1)), "token id -1; expected 0 to 257"),
    "id of 63 bits": (choice(lambda one: one["token_ids"].__setitem__(0, 2**62)), "expected 0 to 257"),
    "another prompt": (choice(lambda one: one["prompt_token_ids"].pop(0)), "an answer to another prompt"),
    "broken off": (choice(lambda one: one.update(finish_reason="abort")), "broken off: finish_reason 'abort'"),
    "no choice": (lambda path, asked, body: {"choices": []}, "expected choices"),
    "choices no list": (lambda path, asked, body: {"choices": 3}, "expected choices"),
    "version": (lambda path, asked, body: body | {"weights_version": "new"}, "weights_version is 'new'"),
    "version of 100 digits": (lambda path, asked, body: body | {"weights_version": 10**100}, "versions of"),
    "no float": (log_probs(lambda all_: [-(10**400), *all_[1:]]), "log-probability of token 0 is -1000"),
    "a number of 5,000 digits": (lambda path, asked, body: b'{"choices": 1' + b"0" * 5000 + b"}", "can't be read"),
    "nested": (lambda path, asked, body: b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "more than 64 deep"),
    "a key twice": (lambda path, asked, body: b'{"choices": [], "choices": [1]}', "can't be read"),
    "no text": (lambda path, asked, body: b'{"choices": "\xff\xfe"}', "can't be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_not_be_trained_on_is_a_typed_failure(name: str, engine: OpenAIEngine) -> None:
    alter, problem = BAD[name]
    answer = ask(engine, alter)
    assert isinstance(answer, EpisodeError), "it would have been trained on"
    assert answer.boundary == "engine"
    assert problem in answer.message


@pytest.mark.parametrize("tokens", [-5, 10**30, "many", True, 1.5, None])
def test_tokens_that_nobody_can_have_used_are_not_paid_for(tokens: Any, engine: OpenAIEngine) -> None:
    before = engine.statistics()
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens}
    ask(engine, lambda path, asked, body: body | {"usage": usage})
    used = engine.statistics().since(before)
    assert (used.prompt_tokens, used.answer_tokens) == (len(PROMPT), 0)


def test_an_answer_without_end_is_broken_off() -> None:
    def alter(path: str, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        return body | {"padding": "a" * 3000}

    with answering(alter) as (url, _), mock.patch("headrace.agents.engines.answers.MAX_ANSWER_BYTES", 2000):
        engine = client(url)
        try:
            answer = ask(engine, as_it_is)
        finally:
            engine.close()
    assert isinstance(answer, EpisodeError)
    assert "an answer of more than 2,000 bytes" in answer.message


def test_too_many_tokens_are_refused(engine: OpenAIEngine) -> None:
    def longer(one: dict[str, Any]) -> None:
        one["token_ids"] = [97] * 61
        one["logprobs"]["token_logprobs"] = [-1.0] * 61

    answer = ask(engine, choice(longer))
    assert isinstance(answer, EpisodeError)
    assert "expected 1 to max_tokens = 60" in answer.message


def test_what_comes_after_a_stop_id_is_no_part_of_the_answer(engine: OpenAIEngine) -> None:
    """A server that does not stop there: the tokens up to the stop id are what one that does would have sampled."""

    def goes_on(one: dict[str, Any]) -> None:
        one["token_ids"] = [*one["token_ids"], 97, 98]
        one["logprobs"]["token_logprobs"] += [-1.0, -1.0]

    assert ask(engine, choice(goes_on)) == ask(engine, as_it_is)


def test_nulls_are_found_out_at_the_start_and_marked_as_text_only() -> None:
    """A server without log-probabilities: episodes are there, and none of them can be trained on."""
    with answering(_null_in_completions) as (url, _):
        engine = client(url, is_text_only=None)
        try:
            assert engine.is_text_only
            with hr.AgentRollouts([spec(Counting)], engine, 1, "threading", group_size=2) as rollouts:
                groups = rollouts.run(2)
        finally:
            engine.close()
    assert [group.status for group in groups] == ["completed"] * 2
    assert not any(one.is_trainable for group in groups for one in group.episodes)
    assert samples(groups) == []


def test_a_server_that_forgets_some_spoils_nothing() -> None:
    """Every fourth answer has a null: it is asked again, and the records are those of a calm server."""
    count = iter(range(10**6))

    def forgetful(path: str, asked: dict[str, Any], body: dict[str, Any]) -> Any:
        return BAD["null"][0](path, asked, body) if next(count) % 4 == 0 else body

    def rolled(alter: Alter, attempts: int) -> Any:
        with answering(alter) as (url, _):
            engine = client(url, attempts=attempts)
            try:
                with hr.AgentRollouts([spec(Counting)], engine, 1, "threading", group_size=2) as rollouts:
                    return rollouts.run(3)
            finally:
                engine.close()

    assert fingerprint(rolled(forgetful, 4)) == fingerprint(rolled(as_it_is, 1))


def test_a_server_that_forgets_all_fails_its_groups() -> None:
    with answering(_null_in_completions) as (url, _):
        engine = client(url)
        try:
            limits = Limits(attempts=1)
            with hr.AgentRollouts([spec(Counting)], engine, 1, "threading", group_size=2, limits=limits) as rollouts:
                (group,) = rollouts.run(1)
        finally:
            engine.close()
    assert group.status == "failed"
    assert {one.boundary for one in group.failures} == {"engine"}
    assert samples([group]) == []


def _null_in_completions(path: str, asked: dict[str, Any], body: dict[str, Any]) -> Any:
    return body if path.endswith("/chat/completions") else BAD["all null"][0](path, asked, body)


@pytest.mark.parametrize(("named", "version"), [("7", 7), ("default", 0), (None, 0), ("9" * 5000, 0)])
def test_the_version_is_read_where_sglang_writes_it(named: Any, version: int) -> None:
    """Beside the choices, as the name that was given with the weights."""
    with answering(lambda path, asked, body: body | {"metadata": {"weight_version": named}}) as (url, _):
        engine = client(url)
        try:
            (answer,) = engine.generate([Request(1, 0, 0, PROMPT, 60, 1)])
        finally:
            engine.close()
    assert isinstance(answer, Completion)
    assert set(answer.versions) == {version}
