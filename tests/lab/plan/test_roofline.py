"""The roofline: physics of each phase, and the constants and errors that its page reports."""

import math
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import fit_forecast
import numpy as np
import pytest

from nemo_ada.lab.plan.forecast import SamplingTimeModel
from nemo_ada.lab.plan.roofline import (
    DENSE,
    EXPERTS,
    FAR,
    FP8_SPEED,
    H200_STEP,
    MEAN,
    NEAR,
    PROMPT_TOKENS,
    RANGE,
    Roofline,
    Spread,
)
from nemo_ada.lab.plan.sampling import SimulatedSteps
from nemo_ada.rules.facts.cards import H100
from recipes import EXPERTS as EXPERTS_CONFIG
from recipes import FP8_ROLLOUT, FP8_TRAINING, read

ROOT = Path(__file__).parents[3]
LEARNER = "policy.megatron_cfg"


def roofline(changes=None):
    return Roofline.of(*read(changes or {}))


def test_an_update_is_six_flops_per_parameter_and_token_and_eight_with_recomputation():
    plain = roofline({f"{LEARNER}.activation_checkpointing": False})
    shape, tokens = plain.shape, 2048 * (PROMPT_TOKENS + 800)
    attention = 12 * shape.layers * shape.query_width * (PROMPT_TOKENS + 800) / 2
    flops = tokens * (6 * shape.parameters + attention)
    assert plain.update_seconds(2048, 800) == pytest.approx(flops / (8 * H100.flops * DENSE.mfu))
    assert roofline().update_seconds(2048, 800) == pytest.approx(4 / 3 * plain.update_seconds(2048, 800))
    assert plain.update_seconds(1024, 800) == pytest.approx(plain.update_seconds(2048, 800) / 2)


def test_log_probabilities_cost_a_pass_each_and_none_where_they_are_not_needed():
    one = roofline().logprob_seconds(2048, 800)
    keys = {"grpo.skip_reference_policy_logprobs_calculation": False, "loss_fn.force_on_policy_ratio": True}
    reference = dict(list(keys.items())[:1])
    assert roofline(reference).logprob_seconds(2048, 800) == pytest.approx(2 * one)
    assert roofline({"loss_fn.force_on_policy_ratio": True}).logprob_seconds(2048, 800) == 0.0


def test_a_pipeline_waits_and_more_micro_batches_wait_less():
    stages = {f"{LEARNER}.pipeline_model_parallel_size": 2, f"{LEARNER}.tensor_model_parallel_size": 2}
    few = {**stages, "policy.sequence_packing.train_mb_tokens": 24576}
    flat = {f"{LEARNER}.tensor_model_parallel_size": 4}
    assert (
        roofline(flat).update_seconds(2048, 800)
        < roofline(stages).update_seconds(2048, 800)
        < roofline(few).update_seconds(2048, 800)
    )


def test_an_engine_step_reads_the_weights_once_and_each_response_its_cache():
    one, two = roofline(), roofline({"policy.generation.vllm_cfg.tensor_parallel_size": 2})
    overhead = one.efficiencies.layer_step * one.shape.layers
    assert one.clock(800)[0] - overhead == pytest.approx(2 * (two.clock(800)[0] - overhead), rel=0.01)
    assert one.clock(1600)[1] > one.clock(800)[1], "a longer context is read and attended to"
    eight, four = roofline({"cluster.num_nodes": 2}), roofline()
    assert eight.clock(800)[1] == pytest.approx(four.clock(800)[1] / 2), "twice the engines share the responses"


def test_fp8_shortens_what_it_computes():
    assert roofline(FP8_TRAINING).update_seconds(2048, 800) == pytest.approx(
        FP8_SPEED * roofline().update_seconds(2048, 800), rel=0.05
    )
    assert roofline(FP8_ROLLOUT).clock(800)[0] < roofline().clock(800)[0]


def test_a_mixture_computes_with_its_active_parameters_and_reads_them_all():
    mixture = roofline(EXPERTS_CONFIG)
    assert mixture.efficiencies == EXPERTS
    assert mixture.shape.active_parameters / 1e9 == pytest.approx(3.35, abs=0.1)
    alone = replace(mixture.shape, experts=8)  # all eight active
    assert replace(mixture, shape=alone).update_seconds(2048, 800) == pytest.approx(
        mixture.update_seconds(2048, 800), rel=0.05
    )
    assert replace(mixture, shape=alone).refit < 0.2 * mixture.refit


def test_the_driver_bounds_a_phase_of_many_responses_on_many_engines():
    pace = SamplingTimeModel(0.001, 0.0, np.ones(1), per_response=0.01)
    work = SimulatedSteps(np.array([1000.0]), np.zeros(1), np.array([10_000.0]), np.zeros(1), 0.0, 0.0, 0.0)
    assert pace.seconds(work).tolist() == [100.0]
    assert replace(pace, per_response=0.0).seconds(work).tolist() == [1.0]


@pytest.fixture(scope="module")
def judged():
    return fit_forecast.judge(fit_forecast.read_points())


@pytest.mark.long
def test_the_constants_and_the_range_are_what_the_published_points_give(judged):
    theta, points = judged
    for constants, experts in ((DENSE, False), (EXPERTS, True)):
        fitted = fit_forecast.efficiencies_of(theta, experts)
        for name in ("mfu", "layer_step", "refit", "rest"):
            assert getattr(constants, name) == pytest.approx(getattr(fitted, name), rel=0.01)
    assert fit_forecast.error_range(points) == pytest.approx(RANGE, abs=0.01)
    page = (ROOT / "recipes/results/forecast.md").read_text()
    for point in points:
        assert point.row in page


@pytest.fixture(scope="module")
def measured_steps():
    return fit_forecast.gpu_steps()


def test_the_cost_of_a_step_is_fitted_to_the_steps_that_ran_on_the_gpu(measured_steps):
    for constants, fitted in zip((H200_STEP, NEAR, FAR), fit_forecast.step_cost(measured_steps), strict=True):
        for name in constants.__dataclass_fields__:
            assert getattr(constants, name) == pytest.approx(getattr(fitted, name), rel=0.01), name


def seconds_of(step):
    """By the model, with the refit that this step happened to have: a refit says nothing about a method."""
    return H200_STEP.seconds(1, step.drawn, step.trained, Spread(refit=step.refit / H200_STEP.refit))


def test_the_model_of_a_step_has_the_ratios_that_were_measured(measured_steps):
    """Against GRPO's steps of the same limit."""
    found = {}
    for limit, group in groupby(measured_steps, key=lambda step: step.limit):
        base, own = [], []
        for step in group:
            (base if step.run == "grpo" else own).append(step)
        for step in own:
            measured = step.seconds / np.mean([other.seconds for other in base])
            found.setdefault(step.run, []).append((limit, measured))
            assert seconds_of(step) / np.mean([seconds_of(other) for other in base]) == pytest.approx(measured, rel=0.1)
    rounded = {run: sorted({round(ratio, 2) for _, ratio in pairs}) for run, pairs in found.items()}
    assert rounded["balance"] == [1.73, 1.79] and rounded["lean"] == [0.96, 1.03] and rounded["single"] == [0.87, 0.89]


def test_near_and_far_hold_the_mean_ratio_of_a_preset_with_more_responses(measured_steps):
    balance = next(step for step in measured_steps if (step.run, step.limit) == ("balance", "1024"))
    grpo = next(step for step in measured_steps if (step.run, step.limit) == ("grpo", "1024"))
    near, mean, far = (
        H200_STEP.seconds(1, balance.drawn, balance.trained, spread)
        / H200_STEP.seconds(1, grpo.drawn, grpo.trained, spread)
        for spread in (NEAR, MEAN, FAR)
    )
    assert near < balance.seconds / grpo.seconds < far
    assert near < mean < far < 1.3 * near


def test_left_out_points_are_within_a_factor_of_two_and_a_quarter_in_the_median(judged):
    errors = [abs(math.log(point.left_out / point.point.facts["seconds"])) for point in judged[1]]
    assert math.exp(max(errors)) <= 2.0
    assert math.exp(np.median(errors)) <= 1.25


def test_held_out_points_of_nemo_rl_lie_inside_the_range():
    held = [point for point in fit_forecast.read_points() if point.held_out and point.facts["source"] != "paper"]
    assert len(held) >= 4
    for point in held:
        forecast = sum(point.phases(Roofline.of(point.config, point.shape).efficiencies).values())
        assert RANGE[0] < point.facts["seconds"] / forecast < RANGE[1], point.facts["name"]
