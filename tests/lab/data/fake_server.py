"""A server with OpenAI's completions interface for the tests, and the folder of the model that it serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nemo_ada.tasks.tokenizer import CharTokenizer

Answer = tuple[int, Any]


def model_folder(folder: Path, positions: int = 64) -> Path:
    """A model's folder without weights: a tokenizer with one token per character, and its positions."""
    folder.mkdir(parents=True)
    CharTokenizer().write_hf(folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    return folder


def completion(text: str | None, tokens: int = 4, reason: str = "stop") -> Answer:
    """What the server says to one request."""
    choice = {"text": text, "finish_reason": reason}
    return 200, {"choices": [choice], "usage": {"completion_tokens": tokens}}


def prompt_text(asked: dict[str, Any]) -> str:
    """The prompt of a request, as text."""
    return CharTokenizer().decode(asked["prompt"])


class FakeServer:
    """answer: (asked) -> (status, content). asked, headers: of every request so far. models: what it says it serves."""

    def __init__(self, url: str, answer: Callable[[dict[str, Any]], Answer], models: list[dict[str, Any]]) -> None:
        self.url, self.answer, self.models = url, answer, models
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Message] = []


@contextmanager
def serving(folder: Path, answer: Callable[[dict[str, Any]], Answer]) -> Iterator[FakeServer]:
    """Serve the model of `folder` until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(200, {"data": fake.models})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.headers.append(self.headers)
            fake.asked.append(asked)
            self.send(*fake.answer(asked))

        def send(self, code: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            self.send_header("Retry-After-Ms", "1")  # of a status that may pass; the client waits seconds otherwise
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    models = [{"id": str(folder), "root": str(folder), "max_model_len": 64}]
    fake = FakeServer(f"http://127.0.0.1:{server.server_port}/v1", answer, models)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
