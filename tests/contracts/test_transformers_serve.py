"""A real peer that gives text only: `transformers serve` on loopback with a tiny model built here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.agents.codec import TokenizerCodec
from headrace.agents.engines.openai import OpenAIEngine, Server
from headrace.agents.engines.tiny import tiny_codec, tiny_model
from headrace.agents.episode import Rules
from support.agent_envs import Counting, spec

TEXTS = ["<|im_start|>user\nSay one or two. number 17<|im_end|>\n<|im_start|>assistant\n<answer>one</answer>"] * 4


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, TokenizerCodec]]:
    """The base URL, the model's name, and its codec."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("served") / "tiny"
    codec = tiny_codec(TEXTS, 300)
    tiny_model(codec.vocabulary, 1).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=codec._tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=codec.template
    ).save_pretrained(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder.parent / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "transformers", "serve", "--host", "127.0.0.1", "--port", str(port)],
            stdout=out, stderr=out, env=os.environ | {"HF_HUB_OFFLINE": "1"}, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while True:
            if process.poll() is not None:
                tail = log.read_text()[-600:]
                if "pip install" in tail or "extra" in tail:
                    pytest.skip(f"transformers serve can't run here: {tail.splitlines()[-1]}")
                pytest.fail(f"transformers serve ended: {tail}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                break
            except urllib.error.HTTPError as error:
                error.close()
                break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()[-600:]
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1", str(folder), codec
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_it_is_found_out_to_be_text_only_and_its_episodes_say_so(served: tuple[str, str, TokenizerCodec]) -> None:
    url, model, codec = served
    engine = OpenAIEngine(codec, Server((url,), model=model, request_s=60))
    try:
        assert engine.is_text_only
        rules = Rules(max_turn=2, max_tokens=12, enable_think=False)
        with hr.AgentRollouts([spec(Counting)], engine, 1, "threading", group_size=2, rules=rules) as rollouts:
            groups = rollouts.run(2)
    finally:
        engine.close()
    for group in groups:
        assert group.status == "completed", group.failures
        for episode in group.episodes:
            assert not episode.is_trainable
            assert len(episode.turns) == 2
            assert isinstance(episode.turns[0].answer, str)
