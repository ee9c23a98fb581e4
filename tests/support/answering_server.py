"""A server on loopback in OpenAI's shape whose answers a test may alter: what reaches a client is what the test says.

POST /v1/completions, /v1/chat/completions -> scripted answer as JSON -> alter(path, asked, body) -> client
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headrace.agents.codec import ByteCodec, Codec
from headrace.agents.engines.protocol import Completion, Request
from headrace.agents.engines.scripted import Script, ScriptedModel, random_answers

Alter = Callable[[str, dict[str, Any], dict[str, Any]], Any]


def as_it_is(path: str, asked: dict[str, Any], body: dict[str, Any]) -> Any:
    return body


@contextmanager
def answering(
    alter: Alter = as_it_is, script: Script = random_answers, codec: Codec | None = None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Its address, and what it was asked."""
    codec = codec or ByteCodec()
    model, seen = ScriptedModel(script, codec=codec), list[dict[str, Any]]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"data": [{"id": "scripted", "object": "model"}]} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(asked)
            is_chat = self.path.endswith("/chat/completions")
            prompt = asked.get("prompt") or codec.encode(
                codec.render(asked["messages"], True, asked.get("tools") or ())
            )
            (said,) = model.run([Request(0, 0, 0, prompt, asked["max_tokens"], asked["seed"])])
            assert isinstance(said, Completion)
            choice: dict[str, Any] = {"index": 0, "finish_reason": said.finish}
            if is_chat:
                choice["message"] = {"role": "assistant", "content": said.text}
            else:
                choice |= {"text": said.text, "token_ids": list(said.ids), "prompt_token_ids": list(prompt)}
                choice["logprobs"] = {"token_logprobs": list(said.log_probs)}
            self._send(alter(self.path, asked, {"id": "1", "object": "text_completion", "choices": [choice]}))

        def _send(self, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
