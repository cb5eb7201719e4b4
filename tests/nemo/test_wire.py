"""Tensors that travel as arrays arrive with every bit, and a response of NeMo-RL's rollout is the same either way.

1. Between processes: every kind of tensor, as an argument and as a result, to a worker that lacks nemo_ada.
2. NeMo-RL's own rollout and its `VllmGeneration.generate_async` give equal responses with arrays and without.
3. The engine's process writes arrays after one call, and a second source does not ask it again.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nemo_ada.nemo.rollouts import wire

torch = pytest.importorskip("torch")
GROUP = 2


def kinds() -> dict[str, Any]:
    """Tensors of every kind that a batch may hold."""
    numbers = torch.arange(24, dtype=torch.float32).reshape(4, 6) / 7
    special = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
    found = {str(dtype): numbers.to(dtype) for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
        torch.float64, torch.bfloat16, torch.complex64,
    )}  # fmt: skip
    return found | {
        "of no dimension": torch.tensor(3), "empty": torch.zeros(0, 5), "special": special, "a row": numbers[1],
        "columns": numbers[:, 2:4], "transposed": numbers.t(), "repeated": torch.zeros(1).expand(1000),
        "with a gradient": torch.ones(2, requires_grad=True), "a parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse(), "negative": torch.complex(numbers, numbers).conj().imag,
        "on no device": torch.zeros(2, device="meta"),
    }  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether two tensors are equal to the bit, and of one kind."""
    if (one.dtype, one.shape, one.layout, one.device, one.requires_grad, type(one)) != (
        other.dtype, other.shape, other.layout, other.device, other.requires_grad, type(other)
    ):  # fmt: skip
        return False
    if one.device.type == "meta":
        return True
    one, other = (tensor.detach().to_dense().resolve_neg().contiguous() for tensor in (one, other))
    return one.numpy(force=True).tobytes() == other.numpy(force=True).tobytes() if one.dtype != torch.bfloat16 else (
        torch.equal(one, other)
    )  # fmt: skip


@pytest.fixture
def actors(harness: ModuleType) -> Any:
    """Two echoes in processes that cannot import nemo_ada. In the end this process writes tensors as pickle does."""
    import ray
    from ray.cloudpickle import CloudPickler

    class Echo:
        def __init__(self) -> None:
            sys.modules["nemo_ada"] = None  # type: ignore[assignment]

        def say(self, given: Any) -> Any:
            return {name: tensor.clone() if name == "of no dimension" else tensor for name, tensor in given.items()}

        def size(self, given: Any) -> int:
            from ray import cloudpickle

            return len(cloudpickle.dumps(given, protocol=5, buffer_callback=lambda _: False))

    echo: Any = ray.remote(Echo)
    yield [echo.remote() for _ in range(2)]
    CloudPickler.dispatch.pop(torch.Tensor, None)


@pytest.mark.nemo_rl
def test_every_kind_of_tensor_comes_back_with_its_bits(actors: Any) -> None:
    import ray

    given = kinds()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wire.send_arrays(actors)
        back = ray.get(actors[0].say.remote(given))
    assert list(back) == list(given)
    for name, tensor in given.items():
        assert same(back[name], tensor), name
    back["torch.int64"][0, 0] = 5  # memory of its own, not Ray's
    assert given["torch.int64"][0, 0] == 0
    twice = ray.get(actors[0].say.remote({"one": given["a row"], "other": given["a row"]}))
    assert twice["one"] is twice["other"]


@pytest.mark.nemo_rl
def test_the_worker_writes_arrays_after_one_call_and_is_not_asked_again(
    actors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    given = {"tokens": torch.arange(1000)}
    before = ray.get([actor.size.remote(given) for actor in actors])
    wire.send_arrays(actors)
    after = ray.get([actor.size.remote(given) for actor in actors])
    assert all(small < 600 < 8000 < large for small, large in zip(after, before, strict=True))
    monkeypatch.setattr(wire, "make_registration", lambda: pytest.fail("a worker was asked again"))
    wire.send_arrays(actors)


@pytest.mark.nemo_rl
def test_another_way_for_tensors_stays() -> None:
    from ray.cloudpickle import CloudPickler

    def theirs(tensor: Any) -> Any:
        return tensor.__reduce_ex__(5)

    CloudPickler.dispatch[torch.Tensor] = theirs
    try:
        wire.make_registration()(None)
        assert CloudPickler.dispatch[torch.Tensor] is theirs
    finally:
        CloudPickler.dispatch.pop(torch.Tensor)


@pytest.mark.nemo_rl
def test_nemo_rls_rollout_gives_the_same_responses(harness: ModuleType) -> None:
    from ray.cloudpickle import CloudPickler

    try:
        as_pickle_does = responses(arrays=False)
        assert torch.Tensor not in CloudPickler.dispatch
        as_arrays = responses(arrays=True)
        assert torch.Tensor in CloudPickler.dispatch
    finally:
        CloudPickler.dispatch.pop(torch.Tensor, None)
    assert len(as_arrays) == len(as_pickle_does) > 0
    for one, other in zip(as_arrays, as_pickle_does, strict=True):
        assert (one.reward, one.tokens, one.truncated, one.cause) == (
            other.reward, other.tokens, other.truncated, other.cause
        )  # fmt: skip
        assert len(one.message_log) == len(other.message_log) == 3
        for ours, theirs in zip(one.message_log, other.message_log, strict=True):
            assert list(ours) == list(theirs)
            for name, value in ours.items():
                assert same(value, theirs[name]) if torch.is_tensor(value) else value == theirs[name]


def responses(*, arrays: bool) -> list[Any]:
    """Responses through NeMo-RL's rollout, one after the other, from engines that answer by the prompt's tokens."""
    import ray
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.environments.interfaces import EnvironmentReturn
    from nemo_rl.experience.rollouts import run_sample_multi_turn_rollout
    from nemo_rl.models.generation.vllm.vllm_generation import VllmGeneration
    from nemo_support.tiny_model import tiny_tokenizer

    from nemo_ada.nemo.rollouts.call import Prompts, RolloutCall
    from nemo_ada.nemo.rollouts.requests import Responder

    class Engine:
        async def generate_async(self, data: Any, greedy: bool) -> Any:
            length, ids = int(data["input_lengths"][0]), data["input_ids"][0]
            generator = torch.Generator().manual_seed(int(ids.sum()))
            tokens = torch.randint(1, 9, (40,), generator=generator)
            whole = torch.cat([ids[:length], tokens])
            yield 0, BatchedDataDict({
                "output_ids": whole[None], "logprobs": torch.randn(1, len(whole), generator=generator),
                "truncated": torch.tensor([bool(ids[0] % 2)]), "generation_lengths": torch.tensor([len(tokens)]),
                "unpadded_sequence_lengths": torch.tensor([len(whole)]),
            })  # fmt: skip

    class Environment:
        def step(self, logs: list[Any], metadata: list[Any]) -> Any:
            rewards = torch.tensor([len(log[-1]["content"]) / 7 for log in logs])
            said = [{"role": "environment", "content": "1"} for _ in logs]
            return EnvironmentReturn(said, metadata, [None] * len(logs), rewards, torch.ones(len(logs)), None)

    engine, environment = (ray.remote(kind).remote() for kind in (Engine, Environment))

    def run(method_name: str, worker_idx: int, **given: Any) -> Any:
        return getattr(engine, method_name).remote(**given)

    class Generation(VllmGeneration):
        def __init__(self) -> None:
            self.cfg = {"backend": "vllm", "vllm_cfg": {"async_engine": True}}
            self.current_generate_dp_shard_idx = 0
            self.fleet_selector = self.fleet_monitor = None  # of NeMo-RL's main
            self.worker_group = SimpleNamespace(
                dp_size=1, workers=[engine] if arrays else [], run_single_worker_single_data=run,
                get_dp_leader_worker_idx=lambda shard: shard,
            )  # fmt: skip

        def __del__(self) -> None:
            """The actors end with Ray."""

    logs = [[{"role": "user", "content": "p", "token_ids": torch.tensor([place, 3, 4])}] for place in range(4)]
    rows = BatchedDataDict({
        "message_log": logs, "length": torch.full((4,), 3), "loss_multiplier": torch.ones(4), "task_name": ["t"] * 4,
        "extra_env_info": [{}] * 4, "stop_strings": [None] * 4,
    }).repeat_interleave(GROUP)  # fmt: skip
    call = RolloutCall(lambda: None, Generation(), tiny_tokenizer(), {"t": environment}, 512, 1)  # type: ignore[return-value, arg-type]
    responder = Responder(call, Prompts(rows, GROUP), run_sample_multi_turn_rollout)

    async def every() -> list[Any]:
        return [(await responder.respond(number, number % 4))[0] for number in range(8)]

    return asyncio.run(every())
