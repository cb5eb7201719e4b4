"""Models that answer: a scripted engine in this process, and a server with the completions interface."""

from __future__ import annotations

import sys
from functools import partial
from threading import Event

import pytest

from nemo_ada.cpu.engine import vllm_engine
from nemo_ada.errors import UserError
from nemo_ada.lab.data import providers
from nemo_ada.lab.data.providers import (
    Access,
    EngineProvider,
    Limits,
    MeasuredResponse,
    Request,
    ServerProvider,
    open_provider,
)
from nemo_ada.tasks.prompting import ModelTokenizer
from tests.cpu.scripted_engine import ScriptedEngine
from tests.lab.data.fake_server import completion, serving
from tests.patience import PATIENCE

LIMITS = Limits(8, 6, temperature=0.5, top_p=0.9, max_num_seqs=8)


def respond(provider, requests):
    """The responses in the order of the requests."""
    found = dict(pair for ended in provider.respond(enumerate(requests)) for pair in ended)
    return [found[number] for number in range(len(requests))]


class Tokenizer(ModelTokenizer):
    """Ids are shown as numbers; 9 ends a response."""

    stop_ids = (9, 5)

    def decode(self, ids):
        return " ".join(map(str, ids))


def repeat(prompt):
    """Repeats the prompt. Responses to prompts of one token are cut off at their limit, the others end with 9."""
    return (prompt, "length") if len(prompt) == 1 else ([*prompt, 9], "stop")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10}')
    monkeypatch.setattr(vllm_engine, "Engine", partial(ScriptedEngine, repeat))
    return EngineProvider(tmp_path, Tokenizer(tmp_path), LIMITS)


def test_each_response_of_the_engine_is_drawn_with_its_own_seed_and_the_sampling_options(engine, monkeypatch):
    engines = []
    monkeypatch.setattr(
        vllm_engine, "Engine", lambda config: engines.append(ScriptedEngine(repeat, config)) or engines[0]
    )
    respond(engine, [Request([1], 11, 6), Request([1] * 8, 22, 6), Request([1], 33, 2)])
    samplings = engines[0].samplings
    assert [sampling.seed for sampling in samplings] == [11, 22, 33]
    assert [sampling.max_new_tokens for sampling in samplings] == [6, 2, 2], "the positions end before the limit"
    assert {(s.temperature, s.top_p, s.stop_tokens) for s in samplings} == {(0.5, 0.9, (9, 5))}
    assert engines[0].config.max_model_len == 10 and engines[0].config.max_num_seqs == 8


def test_only_the_stop_token_is_not_text_so_a_cut_off_response_keeps_its_last_token(engine):
    cut, ended = respond(engine, [Request([7], 1, 6), Request([7, 8], 2, 6)])
    assert cut == MeasuredResponse("7", 1, False)
    assert ended == MeasuredResponse("7 8", 3, True)


def test_without_vllm_the_message_names_the_server(engine, monkeypatch):
    def missing(_config):
        raise ModuleNotFoundError("No module named 'vllm'")

    monkeypatch.setattr(vllm_engine, "Engine", missing)
    with pytest.raises(UserError, match=r"No module named 'vllm'.*`vllm serve .*--server http://HOST:8000"):
        respond(engine, [Request([1], 1, 6)])


def echo(asked):
    """Repeats the prompt's ids as text; refuses prompts that begin with 0."""
    if asked["prompt"][0] == 0:
        return 400, {"error": "a bad prompt"}
    cut = asked["max_tokens"] < 4
    text = " ".join(map(str, asked["prompt"]))
    return completion(text, min(4, asked["max_tokens"]), "length" if cut else "stop")


@pytest.fixture
def server(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10}')
    with serving(tmp_path, echo) as fake:
        yield fake


@pytest.fixture
def provider(server, tmp_path):
    return ServerProvider(Access(server.url), tmp_path, LIMITS)


def test_responses_come_with_the_number_of_their_request(provider, server):
    found = respond(provider, [Request([n, n], n, 6) for n in range(1, 30)])
    assert found == [MeasuredResponse(f"{n} {n}", 4, True) for n in range(1, 30)]
    assert {(asked["prompt"][0], asked["seed"]) for asked in server.asked} == {(n, n) for n in range(1, 30)}
    options = {
        "model": server.models[0]["id"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "repetition_penalty": 1.0,
    }
    assert all(options.items() <= asked.items() for asked in server.asked)


def test_a_response_ends_at_its_own_limit_and_where_the_models_positions_end(provider, server):
    short, long, own = respond(provider, [Request([1], 1, 6), Request([1] * 8, 2, 6), Request([1], 3, 3)])
    assert short.finished and not long.finished and not own.finished
    assert sorted(asked["max_tokens"] for asked in server.asked) == [2, 3, 6]


def test_a_refused_request_is_named(provider):
    with pytest.raises(UserError, match=r"gave no answer \(Error code: 400.*a bad prompt"):
        respond(provider, [Request([0], 1, 6)])


def test_a_server_that_is_not_there_says_how_to_start_it(tmp_path, monkeypatch):
    monkeypatch.setattr(providers, "FIRST_RETRIES", 1)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 10}')
    with pytest.raises(UserError, match="start it with `vllm serve"):
        respond(ServerProvider(Access("http://127.0.0.1:9"), tmp_path, LIMITS), [Request([1], 1, 6)])
    with pytest.raises(UserError, match=r"leaves no room for a response: .* has 10 positions"):
        ServerProvider(Access("http://127.0.0.1:9"), tmp_path, Limits(10, 6))


def first(answers):
    """These answers first, then the usual ones."""
    rest = iter(answers)
    return lambda asked: next(rest, None) or echo(asked)


@pytest.mark.parametrize("nothing", [(503, {}), (429, {}), (500, {})])
def test_what_is_no_answer_is_asked_for_again(provider, server, nothing):
    server.answer = first([nothing, nothing])
    assert respond(provider, [Request([5, 5], 7, 6)]) == [MeasuredResponse("5 5", 4, True)]
    assert [asked["seed"] for asked in server.asked] == [7, 7, 7]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((503, {"error": "busy"}), r"gave no answer \(Error code: 503.*busy.*vllm serve"),
        (completion("1", 1, "abort"), "no answer of OpenAI's completions .a response with finish_reason 'abort'"),
        (completion(None), "no answer of OpenAI's completions"),
        ((200, {"choices": []}), "no answer of OpenAI's completions"),
        ((200, ["hello"]), "no answer of OpenAI's completions"),
    ],
)
def test_what_stays_no_answer_is_one_sentence(provider, server, answer, message):
    server.answer = lambda _asked: answer
    with pytest.raises(UserError, match=message):
        respond(provider, [Request([5, 5], 7, 6)])
    assert len(server.asked) == (8 if answer[0] == 503 else 1)


def test_a_server_with_another_model_is_refused(provider, server):
    server.models = [server.models[0] | {"id": "other", "root": "/models/other"}]
    with pytest.raises(UserError, match=r"serves 'other' \(root '/models/other'\), not .*--served-model ID"):
        respond(provider, [Request([5, 5], 7, 6)])
    assert server.asked == []


def test_the_model_of_the_folder_is_found_among_those_that_are_served(server, tmp_path):
    other = {"id": "other", "root": "/x/other", "max_model_len": 99}
    adapter = {"id": "adapter", "root": str(tmp_path), "parent": "other"}
    elsewhere = {"id": "math", "root": f"/on/another/host/{tmp_path.name}/", "max_model_len": 10}
    server.models = [other, adapter, elsewhere]
    respond(ServerProvider(Access(server.url), tmp_path, LIMITS), [Request([1], 1, 6)])
    respond(ServerProvider(Access(server.url, "other"), tmp_path, LIMITS), [Request([1], 1, 6)])
    assert [asked["model"] for asked in server.asked] == ["math", "other"]


def test_an_api_key_comes_from_the_environment_and_goes_into_the_header_only(server, tmp_path, monkeypatch):
    access = Access(server.url, api_key_env="MY_KEY")
    with pytest.raises(UserError, match="--api-key-env=MY_KEY: this environment variable holds no key"):
        ServerProvider(access, tmp_path, LIMITS)
    monkeypatch.setenv("MY_KEY", "sk-123")
    respond(ServerProvider(access, tmp_path, LIMITS), [Request([1], 1, 6)])
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer sk-123"]
    assert "sk-123" not in repr(access) + str(server.asked)
    with pytest.raises(UserError, match="need --server URL"):
        open_provider(Access(api_key_env="MY_KEY"), tmp_path, Tokenizer(tmp_path), LIMITS)


def test_an_account_at_openai_is_not_shown_to_another_server(server, tmp_path, monkeypatch):
    account = {f"OPENAI_{name}": f"secret {name}" for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID")}
    for name, value in account.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    respond(ServerProvider(Access(server.url), tmp_path, LIMITS), [Request([1], 1, 6)])
    assert len(server.headers) == 1 and "secret" not in str(server.headers[0])


def test_a_wrong_key_is_in_no_message_and_in_no_log(server, tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("MY_KEY", "sk-123")
    server.answer = lambda _asked: (401, {"error": {"message": "Incorrect API key provided: sk-123"}})
    with pytest.raises(UserError, match=r"answered 401; .*--api-key-env NAME") as refused:
        respond(ServerProvider(Access(server.url, api_key_env="MY_KEY"), tmp_path, LIMITS), [Request([1], 1, 6)])
    assert "sk-123" not in str(refused.value) + caplog.text and len(server.asked) == 1


def test_an_error_does_not_wait_for_the_other_answers(provider, server):
    late, began = Event(), Event()

    def answer(asked):
        first = asked["prompt"][0]
        if first == 1:  # it never comes
            began.set()
            assert late.wait(PATIENCE)
        assert first != 2 or began.wait(PATIENCE)
        return echo(asked) if first != 2 else (400, {})

    server.answer = answer
    with pytest.raises(UserError, match="400"):
        respond(provider, [Request([n, n], n, 6) for n in (3, 1, 2)])
    assert not late.is_set()
    late.set()


def test_without_the_package_the_message_names_it(provider, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserError, match=r"--server needs the package openai .*pip install openai"):
        respond(provider, [Request([1], 1, 6)])
