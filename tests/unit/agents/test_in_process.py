"""The in-process model: what it records is what a plain forward pass computes, also across new weights."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from headrace.agents.engines.cache import Cache
from headrace.agents.engines.in_process import InProcessEngine, in_process
from headrace.agents.engines.openai import OpenAIEngine
from headrace.agents.engines.plain_decoder import decode, plain_decoder
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.servers import Server
from headrace.agents.engines.tiny import taught, tiny_codec, tiny_model
from headrace.agents.records import EpisodeError
from headrace.agents.serve import RunningServer
from headrace.errors import HeadraceError, UsageError

TEXT = ["Say one or two. number 17 <think>abc</think><answer>one || two</answer> Reward: 1"] * 4
CODEC = tiny_codec(TEXT, 300)


@pytest.fixture
def model() -> Any:
    return tiny_model(CODEC.vocabulary, 3)


@pytest.fixture
def engine(model: Any) -> Iterator[InProcessEngine]:
    one = in_process(model, CODEC, slots=8, max_context=512)
    yield one
    one.close()


def asked(number: int, length: int = 20, max_tokens: int = 16, **options: Any) -> Request:
    rng = np.random.default_rng(number)
    ids = rng.integers(0, CODEC.vocabulary, length).tolist()
    return Request(number, 0, 0, ids, max_tokens, 1000 + number, **options)


def recomputed(model: Any, request: Request, ids: Any, temperature: float = 1.0) -> Any:
    """Log-probabilities of sampled ids by one pass over the whole text, as a learner would do it."""
    whole = torch.tensor([[*request.ids, *ids]])
    with torch.no_grad():
        logits = model(input_ids=whole).logits[0, len(request.ids) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(ids)), torch.tensor(ids)].numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_the_models(engine: InProcessEngine, model: Any, temperature: float) -> None:
    requests = [asked(number, 3 + 41 * number, temperature=temperature) for number in range(10)]
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        assert isinstance(answer, Completion)
        want = recomputed(model, request, answer.ids, temperature)
        np.testing.assert_allclose(answer.log_probs, want, atol=1e-4)
        assert set(answer.versions) == {0}


def test_other_weights_would_be_seen(engine: InProcessEngine) -> None:
    """The comparison can fail."""
    request = asked(1)
    (answer,) = engine.generate([request])
    assert isinstance(answer, Completion)
    other = recomputed(tiny_model(CODEC.vocabulary, 4), request, answer.ids)
    assert np.abs(np.array(answer.log_probs) - other).max() > 1e-2


def test_temperature_zero_takes_the_likeliest(engine: InProcessEngine, model: Any) -> None:
    request = asked(2, temperature=0.0, max_tokens=5)
    (answer,) = engine.generate([request])
    assert isinstance(answer, Completion)
    ids = list(request.ids)
    for token in answer.ids:
        with torch.no_grad():
            assert int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_sampling_follows_the_probabilities(engine: InProcessEngine, model: Any) -> None:
    """The same prompt with many seeds: frequencies of first tokens beside the softmax."""
    prompt = asked(0).ids
    requests = [Request(0, 0, 0, prompt, 1, seed) for seed in range(1500)]
    tokens = [answer.ids[0] for answer in engine.generate(requests) if isinstance(answer, Completion)]
    with torch.no_grad():
        want = torch.softmax(model(input_ids=torch.tensor([list(prompt)])).logits[0, -1], -1).numpy()
    got = np.bincount(tokens, minlength=CODEC.vocabulary) / len(tokens)
    expected = 1500 * want
    chi2 = float((((1500 * got - expected) ** 2) / np.maximum(expected, 1e-9))[expected > 3].sum())
    assert chi2 < 1.6 * max(1, int((expected > 3).sum()))


def test_published_weights_act_from_the_next_token_on(engine: InProcessEngine, model: Any) -> None:
    """An answer that is under way is interrupted and goes on; each token is its version's, by a plain pass."""
    other = tiny_model(CODEC.vocabulary, 9)
    request = asked(5, 100, max_tokens=200)
    for _ in range(5):
        future = engine.submit(request)
        time.sleep(0.05)
        before = engine.version
        assert engine.publish(other if before % 2 == 0 else model) == before + 1
        answer = future.result(60)
        versions = np.array(answer.versions)
        assert (np.diff(versions) >= 0).all()
        assert set(versions) <= {before, before + 1}
        for version in set(versions.tolist()):
            weights = model if version % 2 == 0 else other
            want = recomputed(weights, request, answer.ids)
            np.testing.assert_allclose(
                np.array(answer.log_probs)[versions == version], want[versions == version], atol=1e-4
            )
        if len(set(versions.tolist())) == 2:
            return
    pytest.fail("no answer was under way when weights changed")


def test_weights_that_do_not_fit_are_refused(engine: InProcessEngine) -> None:
    with pytest.raises(UsageError, match=r"publish: .*: expected shape \(\d+, 64\), got \(\d+, 32\)"):
        engine.publish(tiny_model(CODEC.vocabulary, 0, width=32))
    assert engine.version == 0


def test_too_long_a_prompt_fails_alone(engine: InProcessEngine) -> None:
    bad, fine = engine.generate([asked(1, 505), asked(2)])
    assert isinstance(bad, EpisodeError)
    assert "a prompt of 505 tokens and an answer of up to 16 (max_tokens), expected at most 512 together" in str(bad)
    assert isinstance(fine, Completion)


def test_too_long_a_prompt_is_no_fault_of_its_server(engine: InProcessEngine) -> None:
    """Answered as a failure of the server's it would be asked for again, and put the server out for everybody."""
    with RunningServer(engine) as server:
        client = OpenAIEngine(CODEC, Server((server.url,), is_text_only=False, attempts=4, pause_s=0.01))
        try:
            bad, fine = client.generate([asked(1, 505), asked(2)])
            assert isinstance(bad, EpisodeError)
            assert "expected at most 512 together" in str(bad)
            assert isinstance(fine, Completion)
            assert client.statistics().attempts == 2
        finally:
            client.close()


def test_more_requests_than_slots(engine: InProcessEngine) -> None:
    answers = engine.generate([asked(number) for number in range(30)])
    assert all(isinstance(answer, Completion) for answer in answers)
    assert engine.statistics().batch_mean > 4


def test_what_is_served_is_the_time_of_passes_and_of_those_in_them(engine: InProcessEngine) -> None:
    before = engine.statistics()
    engine.generate([asked(1, max_tokens=8)])
    alone = engine.statistics().since(before)
    assert alone.batch_by_time == pytest.approx(1.0), "reading is part of it"
    before = engine.statistics()
    engine.generate([asked(number, max_tokens=1) for number in range(8)])
    assert engine.statistics().since(before).batch_by_time == pytest.approx(8.0), "all are read, then all speak"


def test_a_short_context_is_enough(model: Any) -> None:
    engine = in_process(model, CODEC, slots=4, max_context=40)
    try:
        assert isinstance(engine.generate([asked(1, 30)])[0], Completion)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"slots": 2}, "slots: expected at least 4"),
        ({"max_context": 0}, "max_context: expected a whole number of at least 1, got 0"),
        ({"max_context": "512"}, "max_context: expected a whole number"),
        ({"threads": 0}, "threads: expected a whole number of at least 1, got 0"),
        ({"parked": -1}, "parked: expected"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        InProcessEngine(tiny_model(CODEC.vocabulary), CODEC, **options)


def test_teaching_lowers_the_loss(model: Any) -> None:
    losses: list[float] = []
    taught(model, CODEC, TEXT, 30, on_step=lambda step, loss: losses.append(loss))
    assert losses[-1] < losses[0] / 2


# ------------------------------------------------------------------------------------------------ reading


def turns(engine: InProcessEngine, count: int = 3) -> tuple[list[Completion], list[int]]:
    """A conversation that grows by 70 tokens a turn: its answers, and how many reading passes each turn took."""
    ids, answers, passes = list(asked(5, 130).ids), list[Completion](), list[int]()
    with mock.patch.object(engine._passes, "forward", wraps=engine._passes.forward) as forward:
        for turn in range(count):
            before = len([call for call in forward.call_args_list if call.kwargs.get("is_reading")])
            (answer,) = engine.generate([Request(5, 0, turn, list(ids), 8, 50 + turn)])
            assert isinstance(answer, Completion)
            answers.append(answer)
            ids += [*answer.ids, *asked(90 + turn, 70).ids]
            passes.append(len([call for call in forward.call_args_list if call.kwargs.get("is_reading")]) - before)
    return answers, passes


def test_what_was_read_is_not_read_again(engine: InProcessEngine, model: Any) -> None:
    """Whole chunks of 64 stay; the answers are those of an engine that remembers nothing, bit for bit."""
    answers, passes = turns(engine)
    assert passes == [3, 2, 2], "130 tokens are three chunks; then two are known, and then three"
    other = InProcessEngine(model, CODEC, slots=8, max_context=512)
    try:
        with mock.patch("headrace.agents.engines.cache.common", return_value=0):
            again, more = turns(other)
        assert more == [3, 4, 5]
        assert again == answers
    finally:
        other.close()


def test_new_weights_make_it_read_again(engine: InProcessEngine, model: Any) -> None:
    request = asked(5, 130)
    (first,) = engine.generate([request])
    engine.publish(tiny_model(CODEC.vocabulary, 8))
    (second,) = engine.generate([request])
    assert isinstance(first, Completion)
    assert isinstance(second, Completion)
    assert second.ids != first.ids
    want = recomputed(tiny_model(CODEC.vocabulary, 8), request, second.ids)
    np.testing.assert_allclose(second.log_probs, want, atol=1e-4)


def test_a_place_that_somebody_else_took_is_read_again(model: Any) -> None:
    """Four slots and nothing parked: nine conversations in turn, each answered as if it were alone."""
    engine = in_process(model, CODEC, slots=4, max_context=512)
    try:
        requests = [asked(number, 100 + number) for number in range(9)]
        alone = [engine.generate([one])[0] for one in requests]
        assert engine.generate(requests) == alone
        assert engine.generate(requests[::-1]) == alone[::-1]
    finally:
        engine.close()


def test_prompts_that_come_one_by_one_are_read_together(model: Any) -> None:
    """Eight that come while somebody speaks take as many reading passes as eight that come at once."""
    engine = in_process(model, CODEC, slots=32, max_context=512)
    try:
        engine.expect(9)
        with mock.patch.object(engine._passes, "forward", wraps=engine._passes.forward) as forward:
            speaking = engine.submit(asked(0, 10, 64))
            waiting = [engine.submit(asked(number, 120)) for number in range(1, 9)]
            for one in [speaking, *waiting]:
                one.result(30)
            reads = len([call for call in forward.call_args_list if call.kwargs.get("is_reading")])
        assert reads <= 6, "two full passes, one for whoever spoke first, and some slack for who comes when"
    finally:
        engine.close()


def test_the_cost_follows_the_length_and_the_bits_do_not_change(model: Any) -> None:
    """Two requests, a large engine: the narrowest passes that hold, short looks back, the answers of a small engine."""
    answers, looks = [], list[int]()

    for slots, max_context in ((8, 512), (32, 4096)):
        engine = in_process(model, CODEC, slots=slots, max_context=max_context)
        try:
            passes, forward_of = engine._passes, engine._passes.forward

            def seen(*args: Any, passes: Any = passes, forward_of: Any = forward_of, **options: Any) -> Any:
                looks.extend(length for _, _, length in passes._cache.layout.spans)
                return forward_of(*args, **options)

            with mock.patch.object(passes, "forward", side_effect=seen) as forward:
                answers.append(engine.generate([asked(number, 60 + 200 * number, 20) for number in range(2)]))
                widths = {len(call.args[0]) for call in forward.call_args_list if not call.kwargs.get("is_reading")}
                assert widths == {passes._widths[0]}  # which of them give the bits of a whole one, a machine decides
        finally:
            engine.close()
    assert answers[0] == answers[1]
    assert max(looks) <= 512


def test_rows_of_all_lengths_share_a_batch(model: Any) -> None:
    """Looks of one block, several blocks and parts of one: each answer as if it were alone."""
    engine = in_process(model, CODEC, slots=8, max_context=1300)
    try:
        requests = [asked(number, length, 6) for number, length in enumerate((1, 63, 64, 300, 511, 512, 700, 1290))]
        alone = [engine.generate([one])[0] for one in requests]
        assert engine.generate(requests) == alone
        for request, answer in zip(requests, alone, strict=True):
            assert isinstance(answer, Completion)
            np.testing.assert_allclose(answer.log_probs, recomputed(model, request, answer.ids), atol=1e-4)
    finally:
        engine.close()


def test_shapes_that_change_bits_are_not_used(model: Any) -> None:
    """On a machine where a narrow pass or a short look gives other bits, whole ones are used."""
    with (
        mock.patch("headrace.agents.engines.cache.is_fine", return_value=False),
        mock.patch("headrace.agents.engines.passes.torch.equal", return_value=False),
    ):
        careful = in_process(model, CODEC, slots=8, max_context=1024)
        try:
            with mock.patch.object(careful._passes, "forward", wraps=careful._passes.forward) as forward:
                got = careful.generate([asked(1, 130)])
            assert {len(call.args[0]) for call in forward.call_args_list} == {8}
        finally:
            careful.close()
    quick = in_process(model, CODEC, slots=8, max_context=1024)
    try:
        assert quick.generate([asked(1, 130)]) == got
    finally:
        quick.close()


@pytest.mark.parametrize("weights", [None, 3, {"a": 1}])
def test_what_are_no_weights(engine: InProcessEngine, weights: Any) -> None:
    with pytest.raises(UsageError, match="publish: expected a model or its state_dict"):
        engine.publish(weights)
    assert engine.version == 0


# ------------------------------------------------------------------------------------------------ models


def small(kind: str, **options: Any) -> Any:
    """A model of some family, with random weights."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=CODEC.vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, pad_token_id=None, bos_token_id=None, eos_token_id=1,
        **options,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for weights in model.parameters():  # no norm of ones, no bias of zeros
        weights.data.normal_(0, 0.3)
    return model


@pytest.mark.parametrize(
    ("kind", "options", "is_plain"),
    [
        ("Qwen2", {}, True),
        ("Llama", {"attention_bias": True, "mlp_bias": True}, True),
        ("Mistral", {"sliding_window": None}, True),
        ("Qwen3", {"head_dim": 8}, False),  # norms of queries and keys
        ("Gemma", {"head_dim": 8}, False),  # another activation, embeddings that are scaled
        ("SmolLM3", {}, False),  # a layer without rotation, which only its bits show
    ],
)
def test_a_plain_decoder_gives_the_bits_of_the_model(kind: str, options: dict[str, Any], is_plain: bool) -> None:
    model, answers = small(kind, **options), []
    requests = [asked(number, 3 + 67 * number) for number in range(5)]
    for plain in (plain_decoder, lambda model, length: None):
        with mock.patch("headrace.agents.engines.passes.plain_decoder", plain):
            engine = in_process(model, CODEC, slots=4, max_context=512)
        try:
            answers.append(engine.generate(requests))
            if plain is plain_decoder:
                assert (engine._passes._plain is not None) == is_plain
                engine.publish(small(kind, **options))
                assert engine.generate(requests) == [replace(one, versions=[1] * 16) for one in answers[0]]
        finally:
            engine.close()
    assert answers[0] == answers[1]
    for request, answer in zip(requests, answers[0], strict=True):
        np.testing.assert_allclose(answer.log_probs, recomputed(model, request, answer.ids), atol=1e-4)


def test_a_pass_is_not_interrupted_and_gives_the_bits_of_python() -> None:
    """Else environments could take the interpreter from it at each of its operations."""
    requests, answers = [asked(number, 3 + 67 * number) for number in range(5)], []
    for is_compiled in (True, False):
        script = torch.jit.script if is_compiled else mock.Mock(side_effect=RuntimeError("no such thing any more"))
        with mock.patch("torch.jit.script", script):
            engine = in_process(small("Llama", attention_bias=True), CODEC, slots=4, max_context=512)
        try:
            assert engine._passes._plain is not None
            assert (engine._passes._plain._decode is not decode) == is_compiled
            answers.append(engine.generate(requests))
        finally:
            engine.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("Mistral", {"sliding_window": 100}, "looks back 100 tokens .sliding_window., expected full attention"),
        ("Gemma2", {"head_dim": 8}, "its attention has softcap"),
    ],
)
def test_models_whose_attention_is_not_full_are_refused(kind: str, options: dict[str, Any], said: str) -> None:
    """They would play, with log-probabilities of another model."""
    with pytest.raises(UsageError, match=said):
        in_process(small(kind, **options), CODEC, slots=4, max_context=512)


def test_a_model_that_is_not_the_same_token_by_token_is_refused() -> None:
    """Its short passes have no positions: alone and in company alike, but not what the model computes."""
    model = small("Qwen2")
    kind = type(model.model.rotary_emb)
    turned = kind.forward

    def forward(self: Any, x: Any, at: Any) -> Any:
        return turned(self, x, at * (at.shape[1] > 70))

    with (
        mock.patch.object(kind, "forward", forward),
        pytest.raises(HeadraceError, match="token by token it gives other log-probabilities than in one pass"),
    ):
        in_process(model, CODEC, slots=4, max_context=512)


def test_a_model_in_half_precision_is_played_in_full(model: Any) -> None:
    """Folders are loaded in the precision that they were saved in."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    engine = in_process(half, CODEC, slots=4, max_context=512)
    try:
        request = asked(1)
        (answer,) = engine.generate([request])
        assert isinstance(answer, Completion)
        np.testing.assert_allclose(answer.log_probs, recomputed(half.float(), request, answer.ids), atol=1e-4)
    finally:
        engine.close()


def test_weights_that_are_no_numbers_leave_nothing_behind(engine: InProcessEngine, model: Any) -> None:
    """What is hidden from a token is multiplied by zero, and zero times NaN is NaN."""
    requests = [asked(number, 100) for number in range(8)]
    before = engine.generate(requests)
    broken = {name: torch.full_like(one, float("nan")) for name, one in model.state_dict().items()}
    engine.publish(broken)
    assert all(isinstance(one, EpisodeError) for one in engine.generate([asked(number, 400) for number in range(8)]))
    engine.publish(model)
    after = [one for one in engine.generate(requests) if isinstance(one, Completion)]
    assert [(one.ids, one.log_probs) for one in after] == [(one.ids, one.log_probs) for one in before]  # type: ignore[union-attr]


def test_answers_of_all_lengths_leave_in_any_order(model: Any) -> None:
    """Those who speak move together when one leaves: each answer stays what it is alone."""
    engine = in_process(model, CODEC, slots=8, max_context=700)
    try:
        requests = [asked(number, 1 + 53 * (number % 9), 1 + 7 * number % 23) for number in range(24)]
        alone = [engine.generate([one])[0] for one in requests]
        assert engine.generate(requests) == alone
        with mock.patch.object(Cache, "move", return_value=None):  # the comparison can fail
            assert engine.generate(requests) != alone
    finally:
        engine.close()
