"""A real GRPOTrainer, a real model, real rollouts: TRL trains on what headrace played."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.agents.engines.in_process import in_process
from headrace.agents.engines.tiny import taught, tiny_codec, tiny_model
from headrace.agents.episode import Rules
from headrace.agents.exports.trl import episode_reward, sampling_differences, trl_dataset, trl_rollout_func
from headrace.errors import UsageError
from headrace.weights.flat import tensors_sha256
from support.agent_envs import Counting, spec

RULES = Rules(max_turn=2, max_tokens=24, max_context=512, enable_think=False, max_actions_per_turn=1)
ASKED = (
    "<|im_start|>user\nSay one or two.\n\nnumber 17\n\nActions: one, two\nTurn 1 of 2, 10 actions left, at most 1 "
    "in one answer.\nAnswer as <answer>action</answer><|im_end|>\n<|im_start|>assistant\n"
)
TEXTS = [f"{ASKED}<answer>{word}</answer><|im_end|>\n" for word in ("one", "two")] * 8


@pytest.mark.filterwarnings("ignore")  # of libraries that warn about one another
def test_grpo_trains_on_our_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from transformers import PreTrainedTokenizerFast

    codec = tiny_codec(TEXTS, 300)
    model = taught(tiny_model(codec.vocabulary, 1), codec, TEXTS, 120)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=codec._tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=codec.template
    )
    engine = in_process(model, codec, slots=8, max_context=512)
    seen: list[Any] = []
    try:
        with hr.AgentRollouts([spec(Counting, steps=2)], engine, 1, "threading", group_size=4, rules=RULES) as rollouts:
            play = trl_rollout_func(rollouts)

            def watched(prompts: list[Any], trainer: Any) -> dict[str, Any]:
                told = play(prompts, trainer)
                seen.append(told)
                return told

            before = tensors_sha256(dict(model.named_parameters()))
            trainer = trl.GRPOTrainer(
                model=model,
                reward_funcs=episode_reward,
                args=trl.GRPOConfig(
                    output_dir=str(tmp_path), per_device_train_batch_size=8, num_generations=4, max_steps=3,
                    learning_rate=1e-3, report_to=[], use_cpu=True, logging_steps=1, max_completion_length=256,
                    disable_tqdm=True, save_strategy="no", bf16=False,
                ),
                train_dataset=datasets.Dataset.from_list(trl_dataset(16)),
                processing_class=tokenizer,
                rollout_func=watched,
            )  # fmt: skip
            trainer.train()
            assert tensors_sha256(dict(trainer.model.named_parameters())) != before, "it learned something"
            assert engine.version == len(seen) >= 3, "weights were published before every rollout"
    finally:
        engine.close()
    for told in seen:
        for ids, log_probs, mask in zip(told["completion_ids"], told["logprobs"], told["env_mask"], strict=True):
            assert len(ids) == len(log_probs) == len(mask)
            assert set(mask) <= {0, 1}
            assert mask[0] == 1
        assert len(told["episode_reward"]) == 8
    assert any(0 in mask for told in seen for mask in told["env_mask"]), "what the environment said is masked"
    logged = [one for one in trainer.state.log_history if "reward" in one]
    assert len(logged) == 3
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_prompts_that_do_not_fit_are_refused() -> None:
    with hr.AgentRollouts([spec(Counting)], group_size=2, backend="sequential") as rollouts:
        play = trl_rollout_func(rollouts)
        rows = [row["prompt"] for row in trl_dataset(2)]
        with pytest.raises(UsageError, match="every prompt 2 times in a row"):
            play(rows, None)
        with pytest.raises(UsageError, match="expected a prompt of trl_dataset"):
            play([[{"role": "user", "content": "hello"}]] * 2, None)


@pytest.mark.filterwarnings("ignore")
def test_the_settings_that_are_compared_are_those_of_a_real_configuration() -> None:
    """They exist in TRL under these names; its defaults differ in nothing, and one that does is named."""
    trl = pytest.importorskip("trl")

    def differences(**given: Any) -> list[str]:
        args = trl.GRPOConfig(output_dir="unused", report_to=[], use_cpu=True, bf16=False, **given)
        for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs"):
            assert hasattr(args, name), name
        with hr.AgentRollouts([spec(Counting)], backend="sequential", group_size=2) as rollouts:
            return sampling_differences(rollouts, SimpleNamespace(args=args))

    assert differences() == []
    assert ["top_k" in one for one in differences(top_k=5)] == [True]
    assert ["max_completion_length is 64" in one for one in differences(max_completion_length=64)] == [True]
