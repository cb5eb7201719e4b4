"""The vLLM engine inside this process, on a random two-layer Qwen2; HuggingFace's own forward pass is the reference.

1. Greedy tokens and the log-probabilities of sampled tokens are those of the HuggingFace model.
2. A seed decides a response: not the order of arrival, the batch around it, the prefix cache or a preemption.
3. A refit switches every later response to the new weights, drops the prefix cache, and copies the tensors.
4. An abort ends one request and nothing else; nothing is ever reported for it.
5. Whatever goes wrong with one request stays with that request.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_ada.core.sampling.source import Requests
from nemo_ada.cpu.engine.source import EngineSource
from nemo_ada.cpu.engine.vllm_engine import Engine, EngineConfig, Payload, RequestRejected, Sampling
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.verify.verdict import Verdict
from tests.lazy import Lazy

pytestmark = pytest.mark.long

if importlib.util.find_spec("vllm") is None:  # not importorskip: the engine has to set its environment first
    pytest.skip("vLLM is not installed (extra: embedded)", allow_module_level=True)
torch, transformers = Lazy("torch"), Lazy("transformers")

VOCABULARY = 64
MAX_MODEL_LEN = 128


def random_model(seed: int, heads: int = 2):
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=heads,  # two of 32, the smallest size that vLLM takes on a CPU
        num_key_value_heads=1,
        max_position_embeddings=MAX_MODEL_LEN,
        tie_word_embeddings=False,
        initializer_range=0.15,
        eos_token_id=1,
    )
    return transformers.Qwen2ForCausalLM(config).float().eval()


@pytest.fixture(scope="module")
def model():
    return random_model(0)


@pytest.fixture(scope="module")
def model_dir(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def shared_engine(model_dir) -> Iterator[Engine]:
    engine = Engine(EngineConfig(model_dir, max_model_len=MAX_MODEL_LEN))
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine, model) -> Iterator[Engine]:
    yield shared_engine
    shared_engine.abort(list(shared_engine._vllm_id_by_request))
    shared_engine.refit(dict(model.state_dict()))


def prompts(count: int, length: int = 12) -> list[list[int]]:
    return np.random.default_rng(5).integers(2, VOCABULARY, size=(count, length)).tolist()


def reference_logprobs(model, prompt: list[int], tokens: list[int], temperature: float = 1.0) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def reference_greedy(model, prompt: list[int], new_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(new_tokens):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def drain(engine: Engine) -> dict[object, Payload | None]:
    finished: dict[object, Payload | None] = {}
    while engine.in_flight:
        for done in engine.step():
            assert done.request_id not in finished
            finished[done.request_id] = done.payload
    return finished


def same(left: Payload, right: Payload) -> bool:
    return left.token_ids.tolist() == right.token_ids.tolist() and left.finish_reason == right.finish_reason


def test_greedy_tokens_are_those_of_huggingface(engine, model):
    asked = prompts(4)
    answers = engine.generate(asked, 1, Sampling(16, temperature=0.0))
    for prompt, (payload,) in zip(asked, answers, strict=True):
        assert payload.token_ids.tolist() == reference_greedy(model, prompt, 16)


def test_logprobs_are_those_of_the_sampled_tokens_at_their_temperature(engine, model):
    asked = prompts(4)
    for temperature in (1.0, 0.7):
        for prompt, payloads in zip(asked, engine.generate(asked, 3, Sampling(20, temperature)), strict=True):
            for payload in payloads:
                expected = reference_logprobs(model, prompt, payload.token_ids.tolist(), temperature)
                np.testing.assert_allclose(payload.logprobs, expected, atol=1e-4)


def test_sampling_follows_the_model_distribution(engine, model):
    prompt = prompts(1)[0]
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([prompt])).logits[0, -1], -1).numpy()
    (payloads,) = engine.generate([prompt], 2000, Sampling(1))
    counts = np.bincount([int(payload.token_ids[0]) for payload in payloads], minlength=VOCABULARY)
    deviation = (counts - 2000 * expected) / np.sqrt(2000 * expected * (1 - expected) + 1e-9)
    assert np.abs(deviation).max() < 5


def test_stop_token_ends_the_response_and_belongs_to_it(engine):
    prompt = prompts(1)[0]
    free = engine.generate([prompt], 8, Sampling(30))[0]
    stop = int(free[0].token_ids[3])
    for stopped, whole in zip(engine.generate([prompt], 8, Sampling(30, stop_tokens=(stop,)))[0], free, strict=True):
        tokens = whole.token_ids.tolist()
        expected = tokens[: tokens.index(stop) + 1] if stop in tokens else tokens
        assert stopped.token_ids.tolist() == expected
        assert stopped.finish_reason == ("stop" if stop in tokens else "length")
        assert len(stopped.logprobs) == len(expected)


def test_forced_lengths_are_exact_even_past_the_stop_token(engine):
    sampling = Sampling(30, stop_tokens=(7,), seed=3)
    for length in range(1, 40):
        engine.add(length, prompts(1)[0], sampling.forced(length))
    finished = drain(engine)
    assert {request: len(payload) for request, payload in finished.items()} == {n: n for n in range(1, 40)}
    assert finished[39].token_ids[:20].tolist() == finished[20].token_ids.tolist()


def test_a_seed_decides_the_response_whatever_surrounds_it(engine, model):
    requests = [(p, i) for p in range(4) for i in range(4)]
    asked = prompts(4, length=40)

    def draw(order: list[tuple[int, int]], window: int, *, unseeded: bool = False) -> dict[object, Payload | None]:
        engine.refit(dict(model.state_dict()))
        waiting, finished = list(order), {}
        while waiting or engine.in_flight:
            while waiting and engine.in_flight < window:
                p, i = waiting.pop(0)
                if unseeded:
                    engine.add((p, i, "unseeded"), asked[p], Sampling(16))
                engine.add((p, i), asked[p], Sampling(16, seed=100 * p + i))
            finished.update((done.request_id, done.payload) for done in engine.step())
        return finished

    together = draw(requests, window=16)
    shuffled = [requests[k] for k in np.random.default_rng(1).permutation(len(requests))]
    alone, mixed = draw(list(reversed(requests)), window=1), draw(shuffled, window=8, unseeded=True)
    for other in (draw(shuffled, window=5), alone, mixed):
        assert all(same(together[request], other[request]) for request in requests)
    assert len({tuple(payload.token_ids.tolist()) for payload in together.values()}) == len(requests)


def test_seeded_prompts_that_overflow_one_step_are_not_split(engine):
    budget = engine.config.max_num_batched_tokens
    count = budget // 100 + 20
    asked = np.random.default_rng(2).integers(2, VOCABULARY, size=(count, 100)).tolist()
    first = engine.generate(asked, 1, Sampling(3), seed=4)
    assert all(same(a[0], b[0]) for a, b in zip(first, engine.generate(asked, 1, Sampling(3), seed=4), strict=True))


def test_refit_switches_to_the_new_weights_and_keeps_no_reference_to_them(engine):
    newer = random_model(1)
    prompt = prompts(1, length=70)[0]  # two full blocks in the prefix cache
    old = engine.generate([prompt], 1, Sampling(16, temperature=0.0))[0][0]
    weights = {name: tensor.clone() for name, tensor in newer.state_dict().items()}
    engine.refit(weights)
    for tensor in weights.values():
        tensor.zero_()
    new = engine.generate([prompt], 1, Sampling(16, temperature=0.0))[0][0]
    assert new.token_ids.tolist() == reference_greedy(newer, prompt, 16) != old.token_ids.tolist()
    np.testing.assert_allclose(new.logprobs, reference_logprobs(newer, prompt, new.token_ids.tolist()), atol=1e-4)


def test_refit_refuses_partial_foreign_and_misshapen_weights(engine, model):
    weights = dict(model.state_dict())
    missing = {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"}
    with pytest.raises(InvariantError, match=r"model\.norm\.weight: expected \(64,\), got None"):
        engine.refit(missing)
    with pytest.raises(InvariantError, match="extra: expected None"):
        engine.refit({**weights, "extra": torch.zeros(1)})
    with pytest.raises(InvariantError, match=r"lm_head\.weight: expected \(64, 64\), got \(1,\)"):
        engine.refit({**weights, "lm_head.weight": torch.zeros(1)})


def test_refit_and_generate_refuse_to_run_beside_other_requests(engine, model):
    engine.add("running", prompts(1)[0], Sampling(5))
    with pytest.raises(InvariantError, match="1 requests in flight"):
        engine.refit(dict(model.state_dict()))
    with pytest.raises(InvariantError, match="1 other requests in flight"):
        engine.generate(prompts(1), 1, Sampling(5))


def test_abort_ends_one_request_and_leaves_the_others_alone(engine):
    asked = prompts(6)
    expected = engine.generate(asked, 1, Sampling(20, temperature=0.0))
    before = engine.decoded_tokens
    for p, prompt in enumerate(asked):
        engine.add(p, prompt, Sampling(20, temperature=0.0))
    for _ in range(5):
        assert engine.step() == []
    assert engine.abort([1, 4, "never added"]) == {1: 5, 4: 5}
    engine.add(1, asked[2], Sampling(20, temperature=0.0))  # the same id again, another prompt
    finished = drain(engine)
    assert sorted(finished) == [0, 1, 2, 3, 5]
    assert all(same(finished[p], expected[p][0]) for p in (0, 2, 3, 5))
    assert same(finished[1], expected[2][0])
    assert engine.decoded_tokens - before == 5 * 20 + 2 * 5


def test_aborted_requests_give_their_places_to_waiting_ones(engine):
    for request in range(engine.config.max_num_seqs):
        engine.add(request, prompts(1)[0], Sampling(50))
    engine.step()
    engine.add("waiting", prompts(1)[0], Sampling(1))
    assert engine.step() == []
    engine.abort(range(engine.config.max_num_seqs))
    assert [done.request_id for done in engine.step()] == ["waiting"]


def test_a_late_output_of_an_aborted_request_is_not_reported(engine):
    engine.add("early", prompts(1)[0], Sampling(3))
    engine.add("kept", prompts(1)[0], Sampling(8))
    engine.step()
    vllm_id = engine._vllm_id_by_request.pop("early")  # what abort forgets, without telling vLLM
    del engine._request_by_vllm_id[vllm_id]
    assert list(drain(engine)) == ["kept"]


def test_requests_that_cannot_be_served_are_rejected_alone(engine):
    engine.add("good", prompts(1)[0], Sampling(4))
    with pytest.raises(RequestRejected, match=f"max_model_len={MAX_MODEL_LEN}"):
        engine.add("long", [3] * 120, Sampling(9))
    with pytest.raises(RequestRejected, match="empty"):
        engine.add("empty", [], Sampling(4))
    for strange in (VOCABULARY, -1):
        with pytest.raises(RequestRejected, match=r"vocabulary 0\.\.63"):
            engine.add("strange", [3, strange], Sampling(4))
    with pytest.raises(RequestRejected, match="temperature"):
        engine.add("cold", prompts(1)[0], Sampling(4, temperature=-1.0))
    with pytest.raises(InvariantError, match="'good' is already in flight"):
        engine.add("good", prompts(1)[0], Sampling(4))
    assert list(drain(engine)) == ["good"]


def test_a_folder_without_weights_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        Engine(EngineConfig(tmp_path, max_model_len=8))


def requests_for(rows: list[int], prompt_by_row: list[int], wave: int = 0) -> Requests:
    column = np.array(rows, dtype=np.int64)
    prompt_N = np.array(prompt_by_row, dtype=np.int64)
    return Requests(column, prompt_N, column.copy(), np.full_like(column, wave), 1000 + column)


def test_a_source_on_the_engine_pairs_every_row_with_its_own_prompt_and_payload(engine, model):
    asked = prompts(4)
    verifiers = ThreadPoolExecutor(2)

    def score(p: int, tokens: list[int], finished: bool):
        return verifiers.submit(lambda: Verdict((p + 100 * len(tokens) + finished) / 10_000))

    source = EngineSource(engine, asked, score, Sampling(12, stop_tokens=(9,)))
    rows, prompt_by_row = list(range(40)), [row % 4 for row in range(40)]
    source.submit(requests_for(rows, prompt_by_row))
    reported: dict[int, float] = {}
    while len(reported) < 40:
        outcomes = source.poll()
        assert not outcomes.failures
        for row, reward, tokens in zip(outcomes.response_id_N, outcomes.reward_N, outcomes.tokens_N, strict=True):
            payload = source.payload(row)
            assert tokens == len(payload)
            assert int(row) not in reported
            assert reward == (prompt_by_row[row] + 100 * len(payload) + payload.finished) / 10_000
            expected = reference_logprobs(model, asked[prompt_by_row[row]], payload.token_ids.tolist())
            np.testing.assert_allclose(payload.logprobs, expected, atol=1e-4)
            reported[int(row)] = reward
    verifiers.shutdown()


def test_replayed_lengths_are_kept(engine):
    source = EngineSource(
        engine,
        prompts(2),
        lambda p, t, f: Verdict(0.0),
        Sampling(50, stop_tokens=(9,)),
        lengths=lambda p, i: 1 + 3 * p + i,
    )
    source.submit(requests_for([0, 1, 2, 3], [0, 1, 0, 1]))
    tokens: dict[int, int] = {}
    while len(tokens) < 4:
        outcomes = source.poll()
        tokens |= dict(zip(outcomes.response_id_N.tolist(), outcomes.tokens_N.tolist(), strict=True))
    assert tokens == {0: 1, 1: 5, 2: 3, 3: 7}


def test_heads_that_vllm_cannot_run_are_refused_with_those_it_can(tmp_path):
    random_model(0, heads=4).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"heads of 16 do not work .* one of \[32, 64"):
        Engine(EngineConfig(tmp_path, max_model_len=MAX_MODEL_LEN))


def test_another_checkpoint_of_the_same_model_is_opened_in_place_and_any_other_is_not(engine, tmp_path):
    newer, prompt = random_model(1), prompts(1)[0]
    newer.save_pretrained(tmp_path / "newer")
    random_model(1, heads=1).save_pretrained(tmp_path / "other")
    here, llm = engine.config, engine._llm
    assert not engine.reopen(replace(here, model_dir=tmp_path / "other"))
    assert not engine.reopen(replace(here, model_dir=tmp_path / "newer", max_model_len=64))
    assert engine.config == here
    assert engine.reopen(replace(here, model_dir=tmp_path / "newer"))
    assert engine._llm is llm
    opened = engine.generate([prompt], 1, Sampling(16, temperature=0.0))[0][0]
    assert opened.token_ids.tolist() == reference_greedy(newer, prompt, 16)
    assert engine.reopen(here)


def test_preempted_responses_are_the_same_and_a_lost_engine_can_be_followed_by_another(shared_engine, monkeypatch):
    """Last in the file: it ends the shared engine, because a process holds one at a time."""
    asked = prompts(6, length=40)
    sampling = Sampling(40)
    roomy = shared_engine.generate(asked, 4, sampling)

    def crash():
        raise RuntimeError("out of memory")

    source = EngineSource(shared_engine, asked, lambda *_: Verdict(1.0), sampling)
    source.submit(requests_for([0], [0]))
    monkeypatch.setattr(shared_engine._llm, "step", crash)
    with pytest.raises(RuntimeError, match="out of memory"):
        source.poll()
    source.close()  # as a run does: an error of its own would hide the cause
    shared_engine.close()
    with pytest.raises(InvariantError, match="closed"):
        shared_engine.step()
    bytes_per_block = 2 * 2 * 32 * 1 * 32 * 4  # K and V, layers, block, KV heads, head dimension, float32
    engine = Engine(replace(shared_engine.config, kv_cache_memory_bytes=20 * bytes_per_block))
    try:
        tight = engine.generate(asked, 4, sampling)
        assert engine.steps > 2 * 40  # 20 blocks hold 6 whole responses of 3 blocks, so 24 need several turns
    finally:
        engine.close()
    for left, right in zip(roomy, tight, strict=True):
        assert all(same(a, b) for a, b in zip(left, right, strict=True))
