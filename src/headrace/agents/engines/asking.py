"""What a server is asked: a request in the words of OpenAI's interface and of vLLM's and SGLang's additions to it.

Servers fill in what is not said, vLLM from the model's own generation_config.json (top_p, top_k, repetition_penalty).
So whatever changes the distribution is always said to servers of tokens: log-probabilities are of a known one.
"""

from __future__ import annotations

from typing import Any

from headrace.agents.codec import Codec
from headrace.agents.engines.protocol import Request


def tokens_asked(request: Request, codec: Codec) -> dict[str, Any]:
    """Of /v1/completions with token ids."""
    stops = codec.stop_ids  # servers know the model's end token, and not always the others
    return _sampling(request) | {
        "prompt": list(request.ids),
        "seed": request.seed,
        "logprobs": 1,
        "extra_body": {
            "return_token_ids": True,
            "top_k": max(request.top_k, 0) or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }
        | ({"stop_token_ids": sorted(stops)} if len(stops) > 1 else {}),
    }


def text_asked(request: Request) -> dict[str, Any]:
    """Of /v1/chat/completions. Not every server knows top_k: it is said only if it is wanted."""
    return (
        _sampling(request)
        | {"messages": list(request.messages), "seed": request.seed % 2**31}
        | ({"tools": list(request.tools)} if request.tools else {})
        | ({"extra_body": {"top_k": request.top_k}} if request.top_k > 0 else {})
    )


def _sampling(request: Request) -> dict[str, Any]:
    return {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "extra_headers": {"X-Session-ID": request.session},
    }
