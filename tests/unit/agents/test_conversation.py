"""Token space, append only: sampled ids stay as they were sampled, and a template that rewrites forks a row."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agents.codec import CHATML, ByteCodec, Codec, TokenizerCodec
from headrace.agents.engines.protocol import Completion
from headrace.agents.engines.tiny import tiny_codec
from headrace.agents.episode import Conversation

TEXT = ["Say one or two. number 17 <think>abc</think><answer>one || two</answer> Reward: 1"] * 4
DROPS_THOUGHTS = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
TRIMS = CHATML.replace("message['content']", "message['content'].strip()")


@pytest.fixture(scope="module")
def bpe() -> TokenizerCodec:
    return tiny_codec(TEXT, 300)


def said(codec: Codec, ids: list[int], version: int = 3) -> Completion:
    text = codec.decode(ids[:-1] if ids[-1] == codec.eos_id else ids)
    return Completion(ids, [-0.5] * len(ids), [version] * len(ids), text)


def grown(codec: Codec, answers: list[list[int]]) -> Conversation:
    conversation = Conversation(codec)
    for at, ids in enumerate(answers):
        conversation.ask(f"question {at}")
        conversation.answer(said(codec, ids))
    conversation.ask("the end")
    return conversation


@settings(max_examples=60, deadline=None)
@given(
    answers=st.lists(
        st.tuples(st.lists(st.integers(2, 290), min_size=1, max_size=12), st.booleans()), min_size=1, max_size=4
    )
)
def test_sampled_ids_stay_and_everything_else_is_the_templates(
    bpe: TokenizerCodec, answers: list[tuple[list[int], bool]]
) -> None:
    """Whatever was sampled, also half characters: the row is prompts and answers side by side, and nothing moves."""
    eos = bpe.eos_id
    sampled = [[one for one in ids if one != eos] + ([eos] if has_ended else []) for ids, has_ended in answers]
    sampled = [ids or [5] for ids in sampled]
    conversation = grown(bpe, sampled)
    (row,) = conversation.rows
    kept = row.ids[row.loss_mask == 1].tolist()
    assert kept == [one for ids in sampled for one in ids]
    assert set(row.versions[row.loss_mask == 1].tolist()) == {3}
    assert set(row.versions[row.loss_mask == 0].tolist()) == {-1}
    assert (row.log_probs[row.loss_mask == 0] == 0).all()
    rendered = bpe.render(conversation.messages, is_asking=True)
    read_again = bpe.decode(row.ids.tolist())
    if "\N{REPLACEMENT CHARACTER}" not in rendered:
        assert read_again == rendered, "the same text as the template's, once"


def test_encoding_the_text_again_would_have_changed_ids(bpe: TokenizerCodec) -> None:
    """Random ids are hardly ever what the tokenizer would choose: such records would not be what was sampled."""
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(50):
        ids = rng.integers(2, bpe.vocabulary, 12).tolist()
        (row,) = grown(bpe, [ids]).rows
        assert row.ids[row.loss_mask == 1].tolist() == ids
        changed += bpe.encode(bpe.decode(ids)) != ids
    assert changed >= 45


@pytest.mark.parametrize("template", [DROPS_THOUGHTS, TRIMS], ids=["drops thoughts", "trims blanks"])
def test_a_template_that_rewrites_forks_a_row(bpe: TokenizerCodec, template: str) -> None:
    codec = TokenizerCodec(bpe.tokenizer_json, template=template)
    ids = [*codec.encode(" <think>abc</think><answer>one</answer> "), codec.eos_id]
    conversation = grown(codec, [ids, ids])
    rows = conversation.rows
    assert len(rows) == 3
    for row in rows[:2]:
        assert row.ids[row.loss_mask == 1].tolist() == ids, "what was sampled is kept where it was sampled"
    assert not rows[2].loss_mask.any()
    assert codec.decode(rows[2].ids.tolist()) == codec.render(conversation.messages, is_asking=True)


def test_a_template_that_appends_keeps_one_row(bpe: TokenizerCodec) -> None:
    ids = [*bpe.encode("<think>abc</think><answer>one</answer>"), bpe.eos_id]
    assert len(grown(bpe, [ids] * 3).rows) == 1


def test_an_answer_cut_short_is_closed_by_the_template(bpe: TokenizerCodec) -> None:
    cut = bpe.encode("<answer>one")
    (row,) = grown(bpe, [cut]).rows
    after = row.ids[np.flatnonzero(row.loss_mask)[-1] + 1 :].tolist()
    assert after[0] == bpe.eos_id
    (whole,) = grown(bpe, [[*cut, bpe.eos_id]]).rows
    assert row.ids.tolist() == whole.ids.tolist()
    assert row.loss_mask.sum() + 1 == whole.loss_mask.sum()


def test_text_only_has_no_tokens() -> None:
    conversation = Conversation(ByteCodec(), is_text_only=True)
    assert conversation.ask("hello") == []
    conversation.answer(Completion((), (), (), "good day"))
    assert conversation.rows == ()
    assert [one["content"] for one in conversation.messages] == ["hello", "good day"]


@pytest.mark.parametrize("text", ["", "plain", "ä€😀", "<|im_start|>user\nx<|im_end|>\n", "\x00\x7f"])
def test_bytes_come_back(text: str) -> None:
    codec = ByteCodec()
    assert codec.decode(codec.encode(text)) == text
    assert all(0 <= one < codec.vocabulary for one in codec.encode(text))


def test_a_tokenizer_travels(bpe: TokenizerCodec) -> None:
    bpe.encode("build it first")
    again: Any = pickle.loads(pickle.dumps(bpe))
    assert again.encode("number 17") == bpe.encode("number 17")
    assert again.eos_id == bpe.eos_id
    assert len(pickle.dumps(bpe)) < 2 * len(bpe.tokenizer_json)


def blank_first(rstrip: bool) -> TokenizerCodec:
    """A tokenizer in the manner of Llama's and Phi's: words begin with a blank, the first of a text too."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    alphabet = [*map(chr, range(33, 127)), "▁", "\n"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(one, rstrip=rstrip) for one in ("<|im_start|>", "<|im_end|>")])
    return TokenizerCodec(tokenizer.to_str())


@pytest.mark.parametrize("template", ["after a stop", "plain words after a stop"])
@pytest.mark.parametrize("rstrip", [False, True], ids=["", "blanks after special tokens are taken"])
def test_what_follows_an_answer_is_encoded_as_it_stands_in_the_text(template: str, rstrip: bool) -> None:
    """Not as the beginning of a text of its own, which such tokenizers put a blank before."""
    words = (
        CHATML
        if template == "after a stop"
        else CHATML.replace("<|im_start|>", "").replace("<|im_end|>\\n", "<|im_end|>")
    )
    codec = replace(blank_first(rstrip), template=words)
    conversation = Conversation(codec)
    for turn in range(3):
        ids = conversation.ask(f"number {turn}")
        full = codec.render(conversation.messages, True)
        assert ids == codec.encode(full), turn
        sampled = codec.encode(f"{full}<answer>one</answer><|im_end|>")[len(ids) :]
        conversation.answer(said(codec, sampled))
    assert len(conversation.rows) == 1
