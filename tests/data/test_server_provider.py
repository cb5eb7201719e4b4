"""A server with the completions interface: what is sent, what is read, and what happens when it is not there."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nemo_ada.data import providers
from nemo_ada.data.providers import Limits, MeasuredResponse, Request, ServerProvider
from nemo_ada.errors import InvariantError, UserError


class Handler(BaseHTTPRequestHandler):
    """Repeats the prompt's ids as text; refuses prompts that begin with 0."""

    seen: list[dict] = []  # noqa: RUF012 (shared by the requests of one test)

    def do_GET(self):
        self.answer(200, {"data": [{"id": "served-model"}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(asked)
        if asked["prompt"][0] == 0:
            self.answer(400, {"error": "a bad prompt"})
            return
        cut = asked["max_tokens"] < 4
        choice = {"text": " ".join(map(str, asked["prompt"])), "finish_reason": "length" if cut else "stop"}
        self.answer(200, {"choices": [choice], "usage": {"completion_tokens": min(4, asked["max_tokens"])}})

    def answer(self, code, content):
        data = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def provider(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10}')
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.seen.clear()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    yield ServerProvider(url, tmp_path, Limits(8, 6, temperature=0.5, max_num_seqs=8))
    server.shutdown()
    thread.join()
    server.server_close()


def test_responses_come_in_the_order_of_the_requests(provider):
    found = provider.respond([Request([n, n], seed=n) for n in range(1, 30)])
    assert found == [MeasuredResponse(f"{n} {n}", 4, True) for n in range(1, 30)]
    assert {(asked["prompt"][0], asked["seed"]) for asked in Handler.seen} == {(n, n) for n in range(1, 30)}
    assert all(asked["model"] == "served-model" and asked["temperature"] == 0.5 for asked in Handler.seen)
    assert all(asked["top_k"] == -1 and asked["repetition_penalty"] == 1.0 for asked in Handler.seen)


def test_a_response_ends_where_the_models_positions_end(provider):
    short, long = provider.respond([Request([1], 1), Request([1] * 8, 2)])
    assert short.finished and not long.finished
    assert sorted(asked["max_tokens"] for asked in Handler.seen) == [2, 6]


def test_a_refused_request_is_named(provider):
    with pytest.raises(InvariantError, match=r"answered 400.*a bad prompt"):
        provider.respond([Request([0], 1)])


def test_a_server_that_is_not_there_says_how_to_start_it(tmp_path, monkeypatch):
    monkeypatch.setattr(providers, "PAUSE_SECONDS", 0.0)
    (tmp_path / "config.json").write_text("{}")
    provider = ServerProvider("http://127.0.0.1:9", tmp_path, Limits(8, 6))
    with pytest.raises(UserError, match="vllm serve MODEL"):
        provider.respond([Request([1], 1)])


def test_a_prompt_limit_without_room_for_a_response_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 8}')
    with pytest.raises(UserError, match=r"leaves no room for a response: .* has 8 positions"):
        ServerProvider("http://127.0.0.1:9", tmp_path, Limits(8, 6))
