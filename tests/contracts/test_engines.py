"""One contract over every engine: scripted, in process, and behind HTTP, in token ids and in text only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from headrace.agents.codec import ByteCodec
from headrace.agents.engines.in_process import in_process
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.protocol import Completion, Engine, Request
from headrace.agents.engines.scripted import Latency, scripted
from headrace.agents.engines.tiny import tiny_codec, tiny_model
from headrace.agents.records import EpisodeError
from headrace.agents.serve import RunningServer
from headrace.errors import UsageError

CODEC = tiny_codec(["Say one or two. number 17 <think>abc</think><answer>one || two</answer>"] * 4, 300)
PROMPT = "Actions: one, two\nAnswer as <think>your thoughts</think><answer>action || action</answer>"


def _scripted(stack: ExitStack) -> Engine:
    return scripted(latency=Latency(0.001, 0.0, 0.002))


def _in_process(stack: ExitStack) -> Engine:
    return in_process(tiny_model(CODEC.vocabulary, 3), CODEC, slots=8, max_context=256)


def _http_scripted(stack: ExitStack) -> Engine:
    behind = scripted(latency=Latency(0.001, 0.0, 0.002))
    stack.callback(behind.close)
    server = stack.enter_context(RunningServer(behind))
    return OpenAIEngine(ByteCodec(), Server((server.url,)))


def _http_model(stack: ExitStack) -> Engine:
    behind = in_process(tiny_model(CODEC.vocabulary, 3), CODEC, slots=8, max_context=256)
    stack.callback(behind.close)
    server = stack.enter_context(RunningServer(behind))
    return OpenAIEngine(CODEC, Server((server.url,)))


def _http_text_only(stack: ExitStack) -> Engine:
    behind = scripted()
    stack.callback(behind.close)
    server = stack.enter_context(RunningServer(behind))
    return OpenAIEngine(ByteCodec(), Server((server.url,), is_text_only=True))


MAKERS: dict[str, Callable[[ExitStack], Engine]] = {
    "scripted": _scripted,
    "in process": _in_process,
    "http, scripted": _http_scripted,
    "http, model": _http_model,
    "http, text only": _http_text_only,
}


@pytest.fixture(params=MAKERS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ExitStack() as stack:
        one = MAKERS[request.param](stack)
        stack.callback(one.close)
        yield one


def asked(engine: Engine, seed: int, max_tokens: int = 40) -> Request:
    messages = [{"role": "user", "content": f"{PROMPT} {seed % 3}"}]
    ids = engine.codec.encode(engine.codec.render(messages, is_asking=True))
    return Request(seed, 0, 0, ids, max_tokens, seed, 1.0, tuple(messages))


def test_an_answer_is_a_function_of_prompt_and_seed(engine: Engine) -> None:
    requests = [asked(engine, seed) for seed in range(6)]
    one = engine.generate(requests)
    other = engine.generate(requests[::-1])[::-1]
    assert one == other
    assert [engine.submit(request).result(30) for request in requests] == one
    texts = {answer.text for answer in one if isinstance(answer, Completion)}
    assert len(texts) > 3


def test_ids_log_probabilities_and_versions_go_together(engine: Engine) -> None:
    for answer in engine.generate([asked(engine, seed) for seed in range(4)]):
        assert isinstance(answer, Completion)
        assert len(answer.ids) == len(answer.log_probs) == len(answer.versions)
        assert bool(answer.ids) != engine.is_text_only
        assert all(one <= 0 for one in answer.log_probs)
        assert "<|im_end|>" not in answer.text


def test_an_answer_is_no_longer_than_asked(engine: Engine) -> None:
    (answer,) = engine.generate([asked(engine, 1, max_tokens=3)])
    assert isinstance(answer, Completion)
    assert len(answer.ids) <= 3
    assert answer.finish in ("length", "stop")


def test_many_at_the_same_time(engine: Engine) -> None:
    requests = [asked(engine, seed) for seed in range(40)]
    want = engine.generate(requests)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda request: engine.submit(request).result(30), requests))
    assert got == want


@pytest.mark.parametrize("version", [-1, 1.5, True, 1 << 31])
def test_a_version_that_records_cant_hold_is_refused(engine: Engine, version: int) -> None:
    weights = tiny_model(CODEC.vocabulary, 4)
    with pytest.raises(UsageError, match=f"version: expected a whole number from 0 to 2147483647, got {version}"):
        engine.publish(weights, version)
    assert engine.version == 0


def test_statistics_count(engine: Engine) -> None:
    before = engine.statistics()
    engine.generate([asked(engine, seed) for seed in range(5)])
    after = engine.statistics().since(before)
    assert after.requests == 5
    assert after.batches > 0
    assert after.batch_mean >= 1
    assert (after.tokens > 0) != engine.is_text_only


def test_closed_means_closed(engine: Engine) -> None:
    engine.close()
    engine.close()
    with pytest.raises(EpisodeError, match="the engine was closed"):
        engine.submit(asked(engine, 1)).result(10)
