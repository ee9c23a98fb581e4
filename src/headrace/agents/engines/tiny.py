"""A tiny model of one's own: a BPE tokenizer and a Qwen2 of a quarter of a million parameters, built in seconds.

    texts -> tokenizer -> model (random) -> taught a few hundred steps to answer in the format

There is no hub to fetch a model from, and none is needed to test a rollout, to learn the interface, or to see a
learner close the loop. Everything hangs on the texts and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from headrace.agents.codec import TokenizerCodec
from headrace.agents.given import listed
from headrace.keywords import in_words
from headrace.policies.threads import torch_threads

SPECIALS = ("<|im_start|>", "<|im_end|>")


@in_words()
def tiny_codec(texts: str | Sequence[str], vocabulary: int = 512) -> TokenizerCodec:
    """A byte-level BPE tokenizer trained on some texts, with the ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(listed("texts", texts, str, "texts"), trainer)
    return TokenizerCodec(tokenizer.to_str())


@in_words()
def tiny_model(vocabulary: int, seed: int = 0, width: int = 64, layers: int = 2) -> Any:
    """A Qwen2 with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


@in_words()
def taught(
    model: Any,
    codec: TokenizerCodec,
    conversations: str | Sequence[str],
    steps: int = 300,
    seed: int = 0,
    length: int = 256,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Any:
    """The model after a few hundred steps of next-token prediction on rendered conversations; changed in place."""
    rng = np.random.default_rng(seed)
    encoded = [codec.encode(text) for text in listed("conversations", conversations, str, "rendered texts")]
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with torch_threads(1):
        for step in range(steps):
            rows = []
            for at in rng.integers(0, len(encoded), 16):
                ids = encoded[at]
                start = int(rng.integers(0, max(1, len(ids) - length)))
                rows.append((ids[start : start + length] + [-100] * length)[:length])
            labels = torch.tensor(rows)
            loss = model(input_ids=labels.clamp(min=0), labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            on_step(step, float(loss.detach()))
    return model.eval()
