"""Models that answer: a scripted engine in this process, and a server with the completions interface."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from nemo_ada.data import providers
from nemo_ada.data.providers import EngineProvider, Limits, MeasuredResponse, Request, ServerProvider
from nemo_ada.embedded.engine import vllm_engine
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.tasks.prompting import ModelTokenizer

LIMITS = Limits(8, 6, temperature=0.5, top_p=0.9, max_num_seqs=8)


class Tokenizer(ModelTokenizer):
    """Ids are shown as numbers; 9 ends a response."""

    eos_id = 9

    def decode(self, ids):
        return " ".join(map(str, ids))


class ScriptedEngine:
    """Repeats the prompt; responses to prompts of one token are cut off at their limit, the others end with 9."""

    def __init__(self, config):
        self.config, self.asked, self.in_flight = config, {}, 0

    def add(self, number, prompt, sampling):
        self.asked[number] = (list(prompt), sampling)
        self.in_flight += 1

    def step(self):
        done = []
        for number, (prompt, _) in reversed(self.asked.items()):
            ids = np.array(prompt if len(prompt) == 1 else [*prompt, 9])
            reason = "length" if len(prompt) == 1 else "stop"
            payload = vllm_engine.Payload(ids, np.zeros(len(ids), np.float32), reason)
            done.append(vllm_engine.Finished(number, len(ids), payload))
        self.in_flight = 0
        return done


@pytest.fixture
def engine(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10}')
    monkeypatch.setattr(vllm_engine, "Engine", ScriptedEngine)
    return EngineProvider(tmp_path, Tokenizer(tmp_path), LIMITS)


def test_each_response_of_the_engine_is_drawn_with_its_own_seed_and_the_sampling_options(engine):
    engine.respond([Request([1], 11), Request([1] * 8, 22)])
    asked = [sampling for _, sampling in engine._engine.asked.values()]
    assert [sampling.seed for sampling in asked] == [11, 22]
    assert [sampling.max_new_tokens for sampling in asked] == [6, 2], "the positions end before the limit"
    assert {(s.temperature, s.top_p, s.stop_tokens) for s in asked} == {(0.5, 0.9, (9,))}
    assert engine._engine.config.max_model_len == 10 and engine._engine.config.max_num_seqs == 8


def test_only_the_stop_token_is_not_text_so_a_cut_off_response_keeps_its_last_token(engine):
    cut, ended = engine.respond([Request([7], 1), Request([7, 8], 2)])
    assert cut == MeasuredResponse("7", 1, False)
    assert ended == MeasuredResponse("7 8", 3, True)


def test_without_vllm_the_message_names_the_server(engine, monkeypatch):
    def missing(_config):
        raise ModuleNotFoundError("No module named 'vllm'")

    monkeypatch.setattr(vllm_engine, "Engine", missing)
    with pytest.raises(UserError, match=r"No module named 'vllm'.*`vllm serve .*--server http://HOST:8000"):
        engine.respond([Request([1], 1)])


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
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    yield ServerProvider(url, tmp_path, LIMITS)
    server.shutdown()
    thread.join()
    server.server_close()


def test_responses_come_in_the_order_of_the_requests(provider):
    found = provider.respond([Request([n, n], seed=n) for n in range(1, 30)])
    assert found == [MeasuredResponse(f"{n} {n}", 4, True) for n in range(1, 30)]
    assert {(asked["prompt"][0], asked["seed"]) for asked in Handler.seen} == {(n, n) for n in range(1, 30)}
    options = {"model": "served-model", "temperature": 0.5, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.0}
    assert all(options.items() <= asked.items() for asked in Handler.seen)


def test_a_response_ends_where_the_models_positions_end(provider):
    short, long = provider.respond([Request([1], 1), Request([1] * 8, 2)])
    assert short.finished and not long.finished
    assert sorted(asked["max_tokens"] for asked in Handler.seen) == [2, 6]


def test_a_refused_request_is_named(provider):
    with pytest.raises(InvariantError, match=r"answered 400.*a bad prompt"):
        provider.respond([Request([0], 1)])


def test_a_server_that_is_not_there_says_how_to_start_it(tmp_path, monkeypatch):
    monkeypatch.setattr(providers, "PAUSE_SECONDS", 0.0)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10}')
    with pytest.raises(UserError, match="vllm serve MODEL"):
        ServerProvider("http://127.0.0.1:9", tmp_path, LIMITS).respond([Request([1], 1)])
    with pytest.raises(UserError, match=r"leaves no room for a response: .* has 10 positions"):
        ServerProvider("http://127.0.0.1:9", tmp_path, Limits(10, 6))
