"""The objective compiler: a setting that declares an objective follows it, for every exit, wave plan and cap.

The factor of a setting is computed here once more, in exact fractions where it is cheap: every sequence of labels is
played through the session, the selection and the advantages of training, and what the rows do to the policy is summed.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from nemo_ada.config.conflicts import find_conflicts
from nemo_ada.config.presets import load_presets, parse_ada_settings
from nemo_ada.core.learning.factor import (
    LARGEST_DEVIATION,
    RANGE,
    compute_contrasts,
    compute_factors,
    measure_declared_deviation,
    measure_deviation,
)
from nemo_ada.core.learning.objectives import Linear, Log, PassAtK, Power
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.errors import InvariantError
from tests.core.scripted import Script, ScriptedSource

INSIDE = np.linspace(*RANGE, 19)
LONGEST = 40
ADAPTIVE = ("ada_seq_positive", "ada_seq_balance", "ada_seq_lean", "ada_seq_log", "grpo")


def moved(sampler, group, labels):
    """What the rows of one pool do to the policy: the sums of the advantages of its correct and its incorrect rows."""
    script = Script.of("".join("+" if label else "-" for label in labels))
    sampled = sampler.run_step(0, ["a"], ScriptedSource(script, np.random.default_rng(0)))
    rows, result = sampled.rows, sampled.result
    live = rows.weight_R > 0
    correct = result.positive_N[rows.pool_R[live]]
    advantage = rows.advantage_R[live] / group
    return result.size_P[0], advantage[correct].sum(), -advantage[~correct].sum()


def played(section, group, cap, rate_P):
    """F of each pass rate, from every sequence of `cap` labels. A pool that has ended stays the same."""
    sampler = parse_ada_settings(section).sampler(group, LONGEST, run_seed=1)
    total_P = np.zeros(len(rate_P))
    seen: dict[tuple[int, ...], tuple[float, float]] = {}
    for labels in product((0, 1), repeat=cap):
        if any(labels[:size] in seen for size in range(1, cap + 1)):
            continue
        size, pull, push = moved(sampler, group, labels)
        seen[labels[:size]] = pull, push
    for labels, (pull, push) in seen.items():
        pos, neg = sum(labels), len(labels) - sum(labels)
        total_P += rate_P**pos * (1 - rate_P) ** neg * (pull / rate_P + push / (1 - rate_P))
    return total_P


@pytest.mark.parametrize("objective", [{"kind": "linear"}, {"kind": "power", "a": 0.9}], ids=str)
@pytest.mark.parametrize(
    "sampling",
    [
        {"exit": {"kind": "balanced"}, "wave_size": 4, "max_responses": 8},
        {"exit": {"kind": "balanced", "k_pos": 1, "k_neg": 1}, "wave_size": [5, 3], "max_responses": 8},
        {"exit": {"kind": "positive", "k_pos": 2}, "wave_size": 4, "max_responses": 9},
        {"exit": {"kind": "fixed", "n": 7}, "wave_size": 7, "max_responses": 7},
    ],
    ids=str,
)
def test_the_factor_is_that_of_every_sequence_of_labels_played_through_training(sampling, objective):
    cap, rate_P = sampling["max_responses"], np.array([0.05, 0.3, 0.5, 0.95])
    others = {"baseline": "leave_one_out"}
    for advantage in ({"weighting": "objective"}, {}, {"normalize": "std"}, others, {**others, "normalize": "std"}):
        section = {"sampling": {"kind": "sequential", **sampling}, "advantage": {**advantage, "objective": objective}}
        ada = parse_ada_settings(section)
        if find_conflicts(ada, 4, rows=True):
            continue
        settings = ada.sampler(4, LONGEST, run_seed=1).rows
        np.testing.assert_allclose(played(section, 4, cap, rate_P), compute_factors(settings, rate_P), rtol=1e-5)


def test_every_preset_that_declares_an_objective_follows_it():
    declared = 0
    for name in load_presets():
        ada = parse_ada_settings({"preset": name})
        if ada.advantage.weighting == "objective":
            for group in (2, 4, 8, 16, 64):
                settings = ada.sampler(group, LONGEST, run_seed=1, features=2).rows
                factor_P = compute_factors(settings, INSIDE)
                assert measure_deviation(factor_P, ada.advantage.objective.weight(INSIDE)) < 0.5 * LARGEST_DEVIATION
                declared += 1
    assert declared


def random_settings(seed):
    """A setting of random exit, waves, cap, group and objective."""
    choose = np.random.default_rng(seed)
    group = int(choose.choice([2, 4, 8, 16]))
    kind = str(choose.choice(["positive", "balanced", "fixed"]))
    wave = int(choose.integers(group, 2 * group + 1))
    cap = int(wave * choose.integers(1, 9))
    rule = {"kind": kind}
    if kind != "fixed":
        rule["k_pos"] = int(choose.integers(1, max(cap // 3, 2)))
    if kind == "balanced":
        rule["k_neg"] = int(choose.integers(1, max(cap // 3, 2)))
    objective = [{"kind": "linear"}, {"kind": "log"}, {"kind": "power", "a": float(choose.uniform(0.2, 0.9))}]
    return group, {
        "sampling": {"kind": "sequential", "exit": rule, "max_responses": cap, "wave_size": wave},
        "advantage": {"weighting": "objective", "objective": objective[int(choose.integers(3))]},
    }


def test_what_is_accepted_follows_its_objective_and_what_is_refused_would_not():
    accepted = refused = 0
    for seed in range(150):
        group, section = random_settings(seed)
        ada = parse_ada_settings(section)
        missed = any("is missed by" in text for text in find_conflicts(ada, group, rows=True))
        stop = ada.sampling.stop(group)
        factor_P = compute_factors(RowSettings(group, stop, ada.advantage), INSIDE)
        assert (
            measure_deviation(factor_P, ada.advantage.objective.weight(INSIDE)) > 1.01 * LARGEST_DEVIATION
        ) <= missed
        accepted, refused = accepted + (not missed), refused + missed
    assert accepted > 60 and refused > 5


def test_a_fixed_pool_needs_no_correction_for_the_linear_objective():
    for n in (2, 3, 8, 32):
        settings = RowSettings(n, StopRule(FixedExit(n), (n,), n), AdvantageSettings("objective"))
        np.testing.assert_allclose(compute_factors(settings, INSIDE), 1.0, rtol=1e-12)


@pytest.mark.parametrize("objective", [Linear(), Log(), Power(a=0.5)], ids=str)
@pytest.mark.parametrize("rule", [StopRule(BalancedExit(2, 2), (8,), 32), StopRule(PositiveExit(1), (8,), 32)], ids=str)
def test_every_group_with_both_labels_teaches_and_no_other(rule, objective):
    contrast_NK = compute_contrasts(rule, objective)
    total_NK, pos_NK = np.indices(contrast_NK.shape)
    mixed_NK = (pos_NK > 0) & (pos_NK < total_NK)
    assert (contrast_NK[mixed_NK] > 0).all() and not contrast_NK[~mixed_NK].any()


@pytest.mark.parametrize(
    ("rule", "k"),
    [
        (StopRule(FixedExit(8), (8,), 8), 7),
        (StopRule(BalancedExit(2, 2), (8,), 32), 4),
        (StopRule(PositiveExit(1), (8, 4), 32), 3),
    ],
    ids=str,
)
def test_pass_at_k_is_exact_whatever_ends_the_pool(rule, k):
    settings = RowSettings(4, rule, AdvantageSettings("objective", PassAtK(k=k)))
    np.testing.assert_allclose(compute_factors(settings, INSIDE), k * (1 - INSIDE) ** (k - 1), rtol=1e-12)
    if rule == StopRule(FixedExit(8), (8,), 8):  # k K (N-K)_k / (N)_(k+1)
        falling = [math.perm(8 - correct, k) / math.perm(8, k + 1) * k * correct for correct in range(9)]
        np.testing.assert_allclose(compute_contrasts(rule, PassAtK(k=k))[8], falling, rtol=1e-12)
    assert measure_declared_deviation(settings) < 1e-12
    slope = (PassAtK(k=k).value(INSIDE + 1e-6) - PassAtK(k=k).value(INSIDE - 1e-6)) / 2e-6
    np.testing.assert_allclose(PassAtK(k=k).weight(INSIDE), slope, atol=1e-7)
    fewer = RowSettings(4, StopRule(FixedExit(4), (4,), 4), AdvantageSettings("objective", PassAtK(k=4)))
    assert measure_declared_deviation(fewer) > LARGEST_DEVIATION, "four responses cannot tell the chance of one in four"


def test_too_few_responses_for_an_objective_are_a_large_deviation():
    def of(cap, objective):
        stop = StopRule(FixedExit(cap), (cap,), cap)
        return measure_declared_deviation(RowSettings(cap, stop, AdvantageSettings("objective", objective)))

    assert of(4, Log()) > 0.8 and of(8, Log()) > LARGEST_DEVIATION > of(16, Log())
    assert of(4, Linear()) < 1e-9


def test_a_shrunk_baseline_follows_the_linear_objective_and_est_is_simulated():
    shrunk = RowSettings(1, StopRule(FixedExit(1), (1,), 1), AdvantageSettings(baseline="shrunk"))
    np.testing.assert_array_equal(compute_factors(shrunk, INSIDE), 1.0)
    with pytest.raises(InvariantError, match="simulate"):
        compute_factors(RowSettings(8, StopRule(FixedExit(1), (32,), 32), keep_all=True), INSIDE)


def test_a_factor_that_is_not_positive_misses_every_objective():
    assert measure_deviation(np.array([1.0, -0.1]), np.ones(2)) == float("inf")
    alone = RowSettings(1, StopRule(FixedExit(1), (1,), 1), AdvantageSettings("objective"))
    assert measure_declared_deviation(alone) == float("inf")
