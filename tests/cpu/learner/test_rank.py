"""The Megatron-core learner as a user gets it: real Ray actors, gloo, tensor, pipeline and data parallelism.

1. Every layout gives the single rank's log-probs, gradient norm and weights.
2. Saving and loading continues to the bit in the same layout, and within rounding in another.
3. Rows of weight zero, the number of rows and the micro-batch size do not matter.
4. A gradient that is not finite changes nothing; ranks that disagree are noticed; a rank that hangs is named.

The group is the one of conftest.py's stack, two processes that are laid out anew for each case; four are `slow`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nemo_ada.cpu.learner.batch import TokenRows, TrainBatch
from nemo_ada.cpu.learner.settings import LearnerConfig
from nemo_ada.cpu.learner.shape import PolicyShape
from nemo_ada.cpu.processes.actors import is_alive
from nemo_ada.cpu.settings import LossSettings, OptimizerSettings
from nemo_ada.errors import InvariantError, StallError, UserError
from tests.lazy import Lazy

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from nemo_ada.cpu.learner.group import LearnerGroup
    from nemo_ada.cpu.stack import Stack

ray, groups = Lazy("ray"), Lazy("nemo_ada.cpu.learner.group")

SHAPE = PolicyShape(hidden_size=64, ffn_hidden_size=96, vocab_size=40, max_position_embeddings=32, rope_theta=5000.0)
CONFIG = LearnerConfig(
    shape=SHAPE, micro_batch_size=4, optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.01), warmup_updates=2,
    loss=LossSettings(ratio_clip_c=3.0, entropy_coefficient=0.01), max_grad_norm=0.5, seed=7,
)  # fmt: skip
LAYOUTS = {"tp2": (2, 1, 1), "pp2": (1, 2, 1), "dp2": (1, 1, 2)}
ROWS, WIDTH = 13, 20


def _config(tp: int = 1, pp: int = 1, dp: int = 1, **changes: Any) -> LearnerConfig:
    return dataclasses.replace(CONFIG, tensor_parallel=tp, pipeline_parallel=pp, data_parallel=dp, **changes)


def _batch(step: int) -> TrainBatch:
    g = np.random.default_rng(step)
    prompt = g.integers(1, 6, ROWS)
    length = prompt + g.integers(0, WIDTH - 6, ROWS)
    logprob = np.log(1 / SHAPE.vocab_size) + g.normal(size=(ROWS, WIDTH)) * 0.3
    weight = np.where(np.arange(ROWS) == 4, 0.0, g.uniform(0.5, 2.0, ROWS))
    return TrainBatch(
        tokens_RT=g.integers(0, SHAPE.vocab_size, (ROWS, WIDTH)),
        length_R=length,
        prompt_length_R=prompt,
        advantage_R=g.normal(size=ROWS).astype(np.float32),
        weight_R=weight.astype(np.float32),
        old_logprob_RT=logprob.astype(np.float32),
        denominator=100.0,
    )


def _tokens(batch: TrainBatch) -> tuple[Any, Any, Any]:
    return batch.tokens_RT, batch.length_R, batch.prompt_length_R


def _weights(group: LearnerGroup) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in ray.get(group.weights()).items()}


def _difference(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    assert left.keys() == right.keys()
    return max(float(np.abs(left[name] - right[name]).max()) for name in left)


def _run(group: LearnerGroup, steps: range) -> list[dict[str, float]]:
    return [group.train(_batch(step)) for step in steps]


@pytest.fixture(scope="module")
def group(stack: Stack) -> LearnerGroup:
    return stack.learner(_config(2), None)


@pytest.fixture(scope="module")
def alone(group: LearnerGroup, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one rank does: three steps, saved after the second, then exported."""
    folder = tmp_path_factory.mktemp("alone")
    group.restart(_config())
    first = group.logprobs(*_tokens(_batch(0)))
    start = _weights(group)
    metrics = _run(group, range(2))
    group.save(folder / "state")
    metrics += _run(group, range(2, 3))
    group.export_hf(folder / "hf", {"eos_token_id": 3})
    last = group.logprobs(*_tokens(_batch(0)))
    return {
        "folder": folder, "first": first, "start": start, "metrics": metrics, "weights": _weights(group), "last": last
    }  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_learns_what_one_rank_learns(layout: str, group: LearnerGroup, alone: dict[str, Any]) -> None:
    group.restart(_config(*LAYOUTS[layout]))
    _compare(group, alone)


@pytest.mark.slow
def test_tensor_and_pipeline_parallel_together_learn_what_one_rank_learns(stack: Stack, alone: dict[str, Any]) -> None:
    with groups.LearnerGroup(_config(2, 2)) as four:
        _compare(four, alone)


def _compare(group: LearnerGroup, alone: dict[str, Any]) -> None:
    assert np.abs(group.logprobs(*_tokens(_batch(0))) - alone["first"]).max() < 1e-5
    assert _difference(_weights(group), alone["start"]) == 0
    for ours, expected in zip(_run(group, range(3)), alone["metrics"], strict=True):
        assert ours == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert _difference(_weights(group), alone["weights"]) < 1e-5
    assert _difference(alone["weights"], alone["start"]) > 1e-3


def test_ranks_that_disagree_about_the_gradient_norm_end_the_step(
    group: LearnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.restart(_config(2))
    call = group._call

    def one_rank_off(method: str, *args: Any) -> list[Any]:
        first, second = call(method, *args)
        return [first, second | {"grad_norm": np.nextafter(second["grad_norm"], 1.0)}]

    monkeypatch.setattr(group, "_call", one_rank_off)
    with pytest.raises(InvariantError, match="disagree about the gradient norm"):
        group.train(_batch(0))


def test_the_learning_rate_rises_over_the_warm_up_and_then_stays(alone: dict[str, Any]) -> None:
    assert [metrics["lr"] for metrics in alone["metrics"]] == pytest.approx([0.5e-3, 1e-3, 1e-3])


def test_a_learner_that_was_replaced_leaves_no_threads(group: LearnerGroup) -> None:
    counts = []
    for _ in range(3):
        group.restart(_config(2))
        group.train(_batch(0))
        counts.append([len(os.listdir(f"/proc/{pid}/task")) for pid in group.pids.values()])
    assert counts[2] == counts[1]


def test_exported_model_starts_another_learner(group: LearnerGroup, alone: dict[str, Any]) -> None:
    group.restart(_config(seed=99), alone["folder"] / "hf")
    assert _difference(_weights(group), alone["weights"]) == 0
    assert np.array_equal(group.logprobs(*_tokens(_batch(0))), alone["last"])


def test_loading_continues_to_the_bit(group: LearnerGroup, alone: dict[str, Any]) -> None:
    group.restart(_config(seed=99))
    _run(group, range(5, 6))
    group.load(alone["folder"] / "state")
    assert _run(group, range(2, 3)) == alone["metrics"][2:]
    assert _difference(_weights(group), alone["weights"]) == 0


def test_loading_continues_in_another_layout(group: LearnerGroup, alone: dict[str, Any], tmp_path: Path) -> None:
    group.restart(_config(1, 2, seed=99))
    group.load(alone["folder"] / "state")
    group.save(tmp_path)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / name).read_bytes() == (alone["folder"] / "state" / name).read_bytes()
    assert _run(group, range(2, 3))[0] == pytest.approx(alone["metrics"][2], rel=1e-5, abs=1e-6)
    assert _difference(_weights(group), alone["weights"]) < 1e-5


def test_micro_batches_and_placeholder_rows_do_not_change_the_update(
    group: LearnerGroup, alone: dict[str, Any]
) -> None:
    group.restart(_config(micro_batch_size=5))
    batch = _batch(0)
    junk = np.full(WIDTH, 11, np.int64)
    fields = {
        "tokens_RT": np.vstack([batch.tokens_RT, junk]),
        "length_R": np.append(batch.length_R, WIDTH),
        "prompt_length_R": np.append(batch.prompt_length_R, 1),
        "advantage_R": np.append(batch.advantage_R, np.float32(1e6)),
        "weight_R": np.append(batch.weight_R, np.float32(0)),
        "old_logprob_RT": np.vstack([batch.old_logprob_RT, np.zeros((1, WIDTH), np.float32)]),
    }
    assert group.train(TrainBatch(**fields, denominator=100.0)) == pytest.approx(
        alone["metrics"][0], rel=1e-5, abs=1e-6
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_the_halves_of_an_update_agree_or_disagree_and_leave_it_as_it_is(group: LearnerGroup, sign: int) -> None:
    once = _batch(0)
    twice = {name: np.concatenate([column, column]) for name, column in once.columns(np.arange(ROWS)).items()}
    twice["advantage_R"][ROWS:] *= sign
    measured, plain = ({}, {})
    for found, halves in ((measured, True), (plain, False)):
        group.restart(_config(halves=halves))
        first = np.arange(2 * ROWS) < ROWS
        found |= group.train(TrainBatch(**twice, denominator=100.0, first_half_R=first))
    cosine = measured.pop("gradient_cosine")
    signal, noise = measured.pop("gradient_signal"), measured.pop("gradient_noise")
    assert signal > 0 and noise < 1e-4 * signal if sign > 0 else signal < 0 < noise
    assert cosine == pytest.approx(1.0, abs=1e-4) if sign > 0 else cosine < -0.3, "the clip is not symmetric"
    assert measured == pytest.approx(plain, rel=1e-3, abs=1e-6)


def test_signal_and_noise_of_a_token_follow_from_the_norms_of_three_gradients(group: LearnerGroup) -> None:
    batch = dataclasses.replace(_batch(0), first_half_R=np.arange(ROWS) < 5)
    used_R = batch.weight_R > 0
    first_R = used_R & np.asarray(batch.first_half_R)
    tokens_R, norms, found = batch.length_R - batch.prompt_length_R, [], {}
    for row_R, halves in ((first_R, False), (used_R & ~first_R, False), (used_R, True)):
        group.restart(_config(halves=halves))
        kept = batch if halves else TrainBatch(**batch.columns(np.flatnonzero(row_R)), denominator=batch.denominator)
        found = group.train(kept)
        norms.append(found["grad_norm"] * batch.denominator)
    first, second = float(tokens_R[first_R].sum()), float(tokens_R[used_R & ~first_R].sum())
    product = (norms[2] ** 2 - norms[0] ** 2 - norms[1] ** 2) / 2
    squares = (norms[0] / first) ** 2 + (norms[1] / second) ** 2
    assert found["gradient_signal"] == pytest.approx(product / (first * second), rel=1e-3)
    noise = (squares - 2 * product / (first * second)) / (1 / first + 1 / second)
    assert found["gradient_noise"] == pytest.approx(noise, rel=1e-3)


def test_signal_and_noise_are_those_of_the_expected_gradient_and_of_one_more_token() -> None:
    """Against gradients with a known mean and variance, whose tokens are independent."""
    torch, losses = importlib.import_module("torch"), importlib.import_module("nemo_ada.cpu.learner.loss")
    mean, spread, tokens = torch.tensor([0.2, -0.1, 0.0]), torch.tensor([1.0, 2.0, 0.5]), (30, 90)
    draws = torch.Generator().manual_seed(1)
    found = []
    for _ in range(4000):
        halves = [(mean + spread * torch.randn(count, 3, generator=draws)).sum(dim=0) for count in tokens]
        found.append(losses.compare_halves(*halves, tokens))
    assert np.mean([one["gradient_signal"] for one in found]) == pytest.approx(float(mean @ mean), rel=0.1)
    assert np.mean([one["gradient_noise"] for one in found]) == pytest.approx(float(spread @ spread), rel=0.05)


def test_halves_need_one_rank() -> None:
    with pytest.raises(UserError, match="gradient_cosine"):
        _config(dp=2, halves=True)


def test_a_data_rank_without_rows_takes_part(group: LearnerGroup) -> None:
    results = []
    for dp in (1, 2):
        group.restart(_config(dp=dp))
        tokens, length, prompt = (part[:1] for part in _tokens(_batch(1)))
        features = group.features(*_tokens(_batch(1))[:2])
        supervised = group.supervised(TokenRows(tokens, length, prompt))
        results.append((supervised, group.logprobs(tokens, length, prompt), features))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    assert np.allclose(results[1][1], results[0][1], atol=1e-5)
    assert np.allclose(results[1][2], results[0][2], atol=1e-4)


def test_features_are_the_mean_of_the_normalised_states_of_a_rows_tokens(group: LearnerGroup) -> None:
    group.restart(_config())
    tokens, length, _ = _tokens(_batch(1))
    features = group.features(tokens, length)
    assert features.shape == (ROWS, SHAPE.hidden_size)
    behind = np.arange(WIDTH) >= length[:, None]
    assert np.allclose(group.features(np.where(behind, 0, tokens), length), features, atol=1e-6)
    shorter = group.features(tokens, length - 1)
    last = length[:, None] * features - (length - 1)[:, None] * shorter
    assert np.square(last).mean(1) == pytest.approx(1.0, rel=0.05)  # the norm's weight is 1 at the start


def test_a_step_without_rows_moves_nothing_at_the_start(group: LearnerGroup) -> None:
    group.restart(_config(1, 2, optimizer=OptimizerSettings(lr=1e-3)))
    start = _weights(group)
    empty = _batch(0).columns(np.zeros(0, np.int64))
    assert group.train(TrainBatch(**empty, denominator=1.0))["grad_norm"] == 0
    assert _difference(_weights(group), start) == 0


def test_supervised_steps_learn_with_tied_embeddings(group: LearnerGroup) -> None:
    results = {}
    for pp in (1, 2):
        shape = dataclasses.replace(SHAPE, tied_embeddings=True)
        group.restart(
            _config(pp=pp, shape=shape, optimizer=OptimizerSettings(lr=1e-2, weight_decay=0.01), decay_updates=8)
        )
        metrics = [group.supervised(TokenRows(*_tokens(_batch(0)))) for _ in range(8)]
        results[pp] = [m["loss"] for m in metrics]
        assert [m["lr"] for m in metrics][-1] == pytest.approx(0.0, abs=1e-12)
        assert "lm_head.weight" not in _weights(group)
    assert results[1][-1] < results[1][0] - 0.5
    assert results[2] == pytest.approx(results[1], rel=1e-4)


def test_state_of_another_model_is_refused(alone: dict[str, Any], group: LearnerGroup, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no learner state in"):
        group.load(tmp_path)
    group.restart(_config(shape=dataclasses.replace(SHAPE, num_layers=4)))
    with pytest.raises(UserError, match="num_layers 2 instead of 4"):
        group.load(alone["folder"] / "state")


def test_rows_longer_than_the_model_are_refused(group: LearnerGroup) -> None:
    with pytest.raises(InvariantError, match="max_position_embeddings=32"):
        group.logprobs(np.zeros((1, 33), np.int64), np.array([33]), np.array([1]))


def test_a_gradient_that_is_not_finite_changes_nothing(group: LearnerGroup, alone: dict[str, Any]) -> None:
    group.restart(_config(1, 2))
    with pytest.raises(InvariantError, match="gradient norm is nan at optimizer step 1"):
        group.train(dataclasses.replace(_batch(0), old_logprob_RT=np.full((ROWS, WIDTH), -np.inf, np.float32)))
    assert _difference(_weights(group), alone["start"]) == 0
    assert _run(group, range(1))[0] == pytest.approx(alone["metrics"][0], rel=1e-5, abs=1e-6)


def test_a_rank_that_hangs_is_named_and_ended(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:  # answers until it is asked to train; a process without Megatron, which takes seconds to import
        def __init__(self, rank: int) -> None:
            pass

        def prepare(self) -> int:
            return os.getpid()

        def listen(self, timeout_s: float) -> int:
            return 1

        def start(self, port: int, config: LearnerConfig, weights: str | None) -> None:
            pass

        def call(self, method: str, *args: Any) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr("nemo_ada.cpu.learner.group._Rank", Stuck)
    with groups.LearnerGroup(_config(call_timeout_s=1.0)) as hanging:
        pids = list(hanging.pids.values())
        with pytest.raises(StallError, match="train: no answer in time from rank 0"):
            hanging.train(_batch(0))
        assert not any(is_alive(pid) for pid in pids)
        with pytest.raises(InvariantError, match="shut down"):
            hanging.train(_batch(0))
