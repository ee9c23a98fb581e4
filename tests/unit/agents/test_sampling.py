"""Drawing a token: transformers' own processors say which distribution is meant, and each row is drawn by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.agents.codec import ByteCodec
from headrace.agents.engines.asking import text_asked, tokens_asked
from headrace.agents.engines.in_process import in_process
from headrace.agents.engines.openai import OpenAIEngine
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.sampling import sampled
from headrace.agents.engines.servers import Server
from headrace.agents.engines.tiny import tiny_model
from headrace.agents.serve import RunningServer

VOCABULARY = 60
WAYS = [(1.0, 1.0, 0), (0.7, 0.8, 0), (1.3, 1.0, 5), (1.0, 0.6, 20), (0.5, 0.9, 1), (1.0, 1e-9, 0), (2.0, 1.0, 10_000)]


def asked(temperature: float, top_p: float, top_k: int) -> Request:
    return Request(0, 0, 0, [1], 1, 0, temperature, top_p=top_p, top_k=top_k)


def processed(logits: Any, temperature: float, top_p: float, top_k: int) -> Any:
    """Log-probabilities behind transformers' processors, in double precision."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = TemperatureLogitsWarper(temperature)(None, torch.tensor(logits))
    if top_k > 0:
        scores = TopKLogitsWarper(min(top_k, VOCABULARY))(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    return torch.log_softmax(scores, -1).numpy()


@pytest.mark.parametrize("way", WAYS)
def test_tokens_and_log_probabilities_are_of_the_processed_distribution(way: tuple[float, float, int]) -> None:
    rng = np.random.default_rng(3)
    logits = np.repeat(rng.normal(0, 2, (1, VOCABULARY)), 4000, axis=0)
    want = processed(logits[:1].copy(), *way)[0]
    tokens, log_probs = sampled(logits, [asked(*way)] * len(logits), rng.random(len(logits)))
    np.testing.assert_allclose(log_probs, want[tokens], atol=1e-6)
    counts, expected = np.bincount(tokens, minlength=VOCABULARY), len(tokens) * np.exp(want)
    assert not counts[np.isneginf(want)].any(), "what is cut off is never drawn"
    often = expected > 5
    assert ((counts - expected)[often] ** 2 / expected[often]).sum() < 2 * often.sum() + 10


def test_a_row_is_drawn_as_if_it_were_alone() -> None:
    rng = np.random.default_rng(4)
    ways = [asked(*way) for way in WAYS] + [asked(0.0, 0.5, 3)]
    logits, uniforms = rng.normal(0, 3, (len(ways), VOCABULARY)), rng.random(len(ways))
    together = sampled(logits.copy(), ways, uniforms)
    alone = [sampled(logits[[at]], [one], uniforms[[at]]) for at, one in enumerate(ways)]
    assert together == ([token for (token,), _ in alone], [one for _, (one,) in alone])


def test_the_largest_number_draws_something_that_is_there() -> None:
    """A product that rounds up to the whole must not fall behind the last token, which may be cut off."""
    logits = np.zeros((3, VOCABULARY))
    logits[:, -1] = -2000.0
    ways = [asked(1.0, 1.0, 0), asked(1.0, 0.9, 0), asked(1.0, 1.0, VOCABULARY - 1)]
    tokens, log_probs = sampled(logits, ways, np.array([1.0, 1.0, 1.0]))
    assert max(tokens) < VOCABULARY - 1
    assert np.isfinite(log_probs).all()


def test_temperature_zero_takes_the_likeliest_of_all() -> None:
    logits = np.random.default_rng(5).normal(0, 1, (1, VOCABULARY))
    want = processed(logits.copy(), 1.0, 1.0, 0)[0]
    tokens, log_probs = sampled(logits.copy(), [asked(0.0, 0.1, 2)], np.array([0.999]))
    assert tokens == [int(logits.argmax())]
    np.testing.assert_allclose(log_probs, want[tokens], atol=1e-6)


def test_the_engine_and_a_server_draw_the_same() -> None:
    """In process, in company and through HTTP: the same ids and log-probabilities, which are those of a plain pass."""
    codec = ByteCodec(eos_id=-1)
    model = tiny_model(codec.vocabulary, 3)
    engine = in_process(model, codec, slots=8, max_context=256)
    rng = np.random.default_rng(6)
    ways = [(1.0, 0.8, 0), (0.7, 1.0, 7), (1.0, 1.0, 0), (1.2, 0.5, 40), (1.0, 1.0, -1)]
    requests = [
        Request(at, 0, 0, rng.integers(0, 256, 9 + at).tolist(), 12, at, warm, top_p=top_p, top_k=top_k)
        for at, (warm, top_p, top_k) in enumerate(ways)
    ]
    try:
        together = engine.generate(requests)
        assert [engine.generate([one])[0] for one in requests] == together
        with RunningServer(engine) as server:
            client = OpenAIEngine(server=Server((server.url,)))
            try:
                through = client.generate(requests)
            finally:
                client.close()
        for request, one, other in zip(requests, together, through, strict=True):
            assert isinstance(one, Completion)
            assert isinstance(other, Completion)
            assert (one.ids, one.log_probs) == (other.ids, other.log_probs)
            with torch.no_grad():
                whole = model(input_ids=torch.tensor([[*request.ids, *one.ids]])).logits[0, len(request.ids) - 1 : -1]
            want = processed(whole.double().numpy(), request.temperature, request.top_p, request.top_k)
            np.testing.assert_allclose(one.log_probs, want[np.arange(12), one.ids], atol=1e-4)
    finally:
        engine.close()


def test_servers_of_tokens_are_always_told_the_distribution() -> None:
    """vLLM takes what is not said from the model's generation_config.json, and SGLang knows no top_k of 0."""
    codec = ByteCodec()
    plain = tokens_asked(asked(1.0, 1.0, 0), codec)
    assert (plain["temperature"], plain["top_p"]) == (1.0, 1.0)
    assert plain["extra_body"] == {"return_token_ids": True, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    cut = tokens_asked(asked(0.5, 0.9, 20), codec)
    assert (cut["top_p"], cut["extra_body"]["top_k"]) == (0.9, 20)
    assert "extra_body" not in text_asked(asked(1.0, 0.9, -1)), "not every server of text knows top_k"
    assert text_asked(asked(1.0, 0.9, 3))["extra_body"] == {"top_k": 3}
