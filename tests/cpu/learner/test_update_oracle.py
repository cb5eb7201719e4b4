"""A step's update is the published one: `train_on` and the learner against plain PyTorch (oracle.py), to 1e-5.

The engine draws the rows and their log-probabilities, at a temperature that is not 1. Several mini-batches and moved
log-probabilities bring ratios far from 1, so that every branch of the clip is taken. Adam's epsilon of 1 makes an
update nearly proportional to the gradient: weights that agree mean gradients that agree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nemo_ada.cpu.learner.update import make_mini_batches
from tests.cpu.learner.oracle import Published, Row, update
from tests.lazy import Lazy

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from nemo_ada.cpu.rollout import StepData

ray, embedded, training = Lazy("ray"), Lazy("nemo_ada.cpu.stack"), Lazy("nemo_ada.cpu.trainer")

STEP, SEED = 2, 3
ORDER_STREAM = 7  # with the run's seed and the step: the order of prompts in the updates of a step
GRPO = "reinforce_ada={{preset: grpo, advantage: {{denominator: {}}}}}"
ALL_ROWS, LIVE_ROWS = GRPO.format("all_rows"), GRPO.format("live_rows")
DUAL, ENTROPY = "loss_fn.ratio_clip_c=1.5", "loss_fn.entropy_coefficient=0.02"
TP2, PP2 = (f"policy.megatron_cfg.{kind}_model_parallel_size=2" for kind in ("tensor", "pipeline"))
HALVES = "policy.train_global_batch_size=16"
COSINE = "logger.gradient_cosine=true"
SETTINGS = [
    f"grpo.seed={SEED}",
    "policy.megatron_cfg.optimizer.lr=0.5",
    "policy.megatron_cfg.optimizer.adam_eps=1.0",
    "policy.megatron_cfg.scheduler.lr_warmup_iters=0",
    "policy.train_micro_batch_size=5",
    "policy.max_grad_norm=0.3",
    "policy.generation.temperature=1.3",
]


@pytest.fixture(scope="module")
def drawn(start) -> StepData:
    """Rows of eight prompts as the engine drew them, one of them made a placeholder row."""
    data: StepData = start(*SETTINGS, name="oracle").stack.call("sample", 1, list(range(8)), 0)
    assert 0 < (data.advantage_R == 0).sum() < len(data.advantage_R)
    weight_R = data.weight_R.copy()
    weight_R[np.flatnonzero(data.advantage_R)[0]] = 0
    return replace(data, weight_R=weight_R)


def moved(data: StepData) -> StepData:
    """The same rows under an older policy: ratios from about 0.2 to 5, the same for every test."""
    noise_RT = np.random.default_rng(0).normal(scale=0.6, size=data.old_logprob_RT.shape)
    return replace(data, old_logprob_RT=(data.old_logprob_RT + noise_RT).astype(np.float32))


def minibatches(data: StepData, size: int) -> list[list[Row]]:
    """Whole prompts in the documented order, `size` rows at a time."""
    rows: dict[int, list[Row]] = {}
    for r, prompt in enumerate(data.prompt_R.tolist()):
        start, end = data.prompt_length_R[r], data.length_R[r]
        row = Row(
            data.tokens_RT[r, :start].tolist(),
            data.tokens_RT[r, start:end].tolist(),
            data.old_logprob_RT[r, start:end].tolist(),
            float(data.advantage_R[r]) if data.weight_R[r] else None,
        )
        rows.setdefault(prompt, []).append(row)
    order = np.random.default_rng([SEED, STEP, ORDER_STREAM]).permutation(sorted(rows))
    ordered = [row for prompt in order for row in rows[prompt]]
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


@pytest.mark.parametrize(
    "overrides",
    [
        [ALL_ROWS],
        [LIVE_ROWS, DUAL, HALVES],
        [ALL_ROWS, DUAL, HALVES, COSINE],
        [ALL_ROWS, DUAL, HALVES, ENTROPY],
        [ALL_ROWS, DUAL, HALVES, TP2],
        [LIVE_ROWS, HALVES, ENTROPY, TP2],
        [ALL_ROWS, DUAL, HALVES, ENTROPY, PP2],
    ],
    ids=["all_rows", "live_rows-dual-halves", "cosine", "dual-halves-entropy", "tp2", "tp2-entropy", "pp2"],
)
def test_an_update_equals_the_published_loss_in_plain_pytorch(make, stack, task, drawn, overrides):
    config = make("oracle-config", *SETTINGS, *overrides)
    folder = Lazy("nemo_ada.cpu.base").choose_base_folder(config, task)
    data = drawn if "dual" not in str(overrides) and len(overrides) == 1 else moved(drawn)
    learner = stack.learner(embedded.make_learner_config(config, training.check_run(config, task)), folder)
    metrics = training.train_on(learner, data, config, STEP)
    weights = {name: tensor.numpy() for name, tensor in ray.get(learner.weights()).items()}

    expected = update(
        folder,
        minibatches(data, config.policy.train_global_batch_size or len(data.length_R)),
        Published(
            low=config.loss_fn.ratio_clip_min,
            high=config.loss_fn.ratio_clip_max,
            dual=config.loss_fn.ratio_clip_c,
            entropy=config.loss_fn.entropy_coefficient,
            all_rows=config.reinforce_ada.advantage.denominator == "all_rows",
            lr=config.policy.megatron_cfg.optimizer.lr,
            eps=config.policy.megatron_cfg.optimizer.adam_eps,
            max_norm=config.policy.max_grad_norm,
        ),
    )
    assert metrics["updates"] == len(expected.losses)
    assert metrics["loss"] == pytest.approx(np.mean(expected.losses), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(np.mean(expected.norms), abs=1e-5)
    assert weights.keys() == expected.weights.keys()
    for name, wanted in expected.weights.items():
        np.testing.assert_allclose(weights[name], wanted, atol=1e-5, err_msg=name)


def test_no_prompt_has_rows_in_both_halves_of_an_update(make, drawn):
    config = make("halves-config", *SETTINGS, ALL_ROWS, HALVES, COSINE)
    batches = list(make_mini_batches(drawn, config, STEP))
    compared = [batch for batch in batches if batch.first_half_R is not None]
    assert compared
    for batch in batches:
        prompts = [tuple(row[:end]) for row, end in zip(batch.tokens_RT.tolist(), batch.prompt_length_R, strict=True)]
        if batch.first_half_R is None:
            assert len(set(prompts)) < 2
            continue
        first = {prompt for prompt, half in zip(prompts, batch.first_half_R, strict=True) if half}
        second = {prompt for prompt, half in zip(prompts, batch.first_half_R, strict=True) if not half}
        assert first and second and not first & second
    plain = make("no-halves-config", *SETTINGS, ALL_ROWS, HALVES)
    assert all(batch.first_half_R is None for batch in make_mini_batches(drawn, plain, STEP))


def test_the_halves_of_an_update_are_not_sorted_by_the_worth_of_the_prompts(make, drawn):
    """A sampler may sort the prompts of a step by their worth."""
    config = make("worth-config", *SETTINGS, ALL_ROWS, COSINE)
    place: dict[tuple[int, ...], int] = {}
    for row, end in zip(drawn.tokens_RT.tolist(), drawn.prompt_length_R, strict=True):
        place.setdefault(tuple(row[:end]), len(place))
    sorted_by_worth = []
    for step in range(1, 9):
        for batch in make_mini_batches(drawn, config, step):
            halves: tuple[list[int], list[int]] = ([], [])
            for row, end, first in zip(
                batch.tokens_RT.tolist(), batch.prompt_length_R, batch.first_half_R, strict=True
            ):
                halves[bool(first)].append(place[tuple(row[:end])])
            sorted_by_worth.append(max(halves[True]) < min(halves[False]))
    assert len(sorted_by_worth) == 8 and not all(sorted_by_worth)
