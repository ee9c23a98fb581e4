"""Tokens/s of the in-process engine beside transformers' own generate(), at max_context 512 and 4,096, in one run.

model:  the tiny Qwen2 (random weights), float32, one thread; prompts of 40 tokens, answers of 160
ours    in_process(model, codec, slots=32, max_context=...): 1 request, and 32 requests at the same time
theirs  model.generate(do_sample=True, top_k=0) with the same prompts and as many new tokens; a batch of 1 and of 32

Both draw from the whole distribution. (Its default of top_k=50 would cost it more.)
They take turns; a ratio is the median of the ratios of each round. Every answer of ours carries exact log-probabilities
and is the same in any batch; generate() does neither. That the batch of 32 gives the answers of 1 is asserted.
"""

import time
from collections.abc import Callable
from statistics import median

import harness
import numpy as np
import torch

from headrace.agents.codec import ByteCodec
from headrace.agents.engines.in_process import InProcessEngine, in_process
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.tiny import tiny_model
from headrace.policies.threads import torch_threads

PROMPT, SLOTS = 40, 32


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    return [np.random.default_rng(number).integers(2, vocabulary, PROMPT).tolist() for number in range(count)]


def ours(engine: InProcessEngine, asked: list[list[int]], tokens: int) -> tuple[float, list[Completion]]:
    requests = [Request(number, 0, 0, ids, tokens, number) for number, ids in enumerate(asked)]
    engine.expect(len(requests))  # as rollouts do
    started = time.perf_counter()
    answers = [one for one in engine.generate(requests) if isinstance(one, Completion)]
    seconds = time.perf_counter() - started
    assert len(answers) == len(asked)
    return sum(len(one.ids) for one in answers) / seconds, answers


def theirs(model: torch.nn.Module, asked: list[list[int]], tokens: int) -> float:
    ids = torch.tensor(asked)
    started = time.perf_counter()
    with torch_threads(1), torch.inference_mode():
        out = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True,
            top_k=0, pad_token_id=1,
        )  # fmt: skip
    return (out.numel() - ids.numel()) / (time.perf_counter() - started)


def main() -> None:
    arguments = harness.arguments(__doc__)
    rounds, tokens = (1, 8) if arguments.smoke else (5, 160) if arguments.quick else (15, 160)
    codec = ByteCodec(eos_id=-1)  # answers as long as asked for, as generate() is told to give them
    model = tiny_model(codec.vocabulary, 3)
    claims = []
    for max_context in (512, 4096):
        engine = in_process(model, codec, slots=SLOTS, max_context=max_context)
        try:
            several = ours(engine, prompts(SLOTS, codec.vocabulary), tokens)[1]
            assert ours(engine, prompts(1, codec.vocabulary), tokens)[1] == several[:1], "company changed an answer"
            for count in (1, SLOTS):
                asked = prompts(count, codec.vocabulary)
                contenders: dict[str, Callable[[], float]] = {
                    "generate()": lambda asked=asked: theirs(model, asked, tokens),  # type: ignore[misc]
                    "ours": lambda asked=asked, engine=engine: ours(engine, asked, tokens)[0],  # type: ignore[misc]
                }
                where = f"max_context {max_context:,}, {count} at a time"
                values = harness.alternate({f"{where}: {name}": run for name, run in contenders.items()}, rounds)
                other, mine = values.values()
                ratio = median(one / another for one, another in zip(mine, other, strict=True))
                held = harness.Claim(where, median(mine), "tokens/s", median(other), ratio, ">= 1.0x", ratio >= 1.0)
                claims.append(held)
        finally:
            engine.close()
    harness.report(claims, arguments.json, {}, {})


if __name__ == "__main__":
    main()
