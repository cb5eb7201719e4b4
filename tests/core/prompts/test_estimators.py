"""Estimators that live across steps: the published recursion and learning. Restoring them: sampling/test_resume.py."""

import numpy as np
import pytest

from nemo_ada.core.prompts.estimators import EmaBeta, EmaSettings, ValueRegressor, ValueSettings
from nemo_ada.errors import InvariantError, UserError
from tests.core.scripted import predicted
from tests.lazy import Lazy

stats, optimize = Lazy("scipy.stats"), Lazy("scipy.optimize")

FEATURES = 24


def ids(count):
    return [f"prompt-{i}" for i in range(count)]


def test_the_ema_follows_the_published_recursion_per_prompt_id():
    decay, a, b = 0.7, 1.0, 2.0
    estimator = EmaBeta(EmaSettings(decay=decay, prior_positive=a, prior_negative=b))
    rng, expected = np.random.default_rng(0), dict.fromkeys(ids(6), (0.0, 0.0))
    for _ in range(20):
        batch = rng.permutation(ids(6))[:4].tolist()  # another order and subset each step
        total = rng.integers(1, 9, 4)
        pos = rng.binomial(total, 0.4)
        estimator.update(batch, pos, total)
        for name, k, n in zip(batch, pos, total, strict=True):
            old_pos, old_total = expected[name]
            expected[name] = (decay * old_pos + k, decay * old_total + n)
    rates = [(pos + a) / (total + a + b) for pos, total in expected.values()]
    np.testing.assert_allclose(predicted(estimator, ids(6)), rates, rtol=1e-12)
    assert predicted(estimator, ["never seen"])[0] == pytest.approx(a / (a + b))


def test_a_prompt_that_occurs_twice_in_a_step_decays_once_and_an_undrawn_one_not_at_all():
    estimator = EmaBeta(EmaSettings(decay=0.5))
    estimator.update(["x"], np.array([2]), np.array([4]))
    estimator.update(["x", "x", "y"], np.array([1, 3, 0]), np.array([4, 4, 0]))
    a, b = estimator.predict_beta(["x", "y"])
    assert (a[0], b[0]) == (2 * 0.5 + 4 + 1, 2 * 0.5 + 4 + 1)
    assert (a[1], b[1]) == (1, 1)
    estimator.update(["x"], np.array([0]), np.array([0]))
    assert estimator.predict_beta(["x"])[0][0] == a[0]


def test_an_adaptive_prior_follows_all_prompts_and_keeps_its_weight():
    ema = EmaBeta(EmaSettings(decay=0.5, prior_positive=1.0, prior_negative=1.0, adaptive_prior=True))
    ema.update(["x", "y"], np.array([0, 2]), np.array([10, 10]))
    a_P, b_P = ema.predict_beta(["never seen"])
    assert a_P[0] + b_P[0] == pytest.approx(2.0)
    assert a_P[0] / 2.0 == pytest.approx((2 + 1) / (20 + 2))


def task(prompts, seed):
    """Features of very different scales and offsets, pass rates that depend on them."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(prompts, FEATURES))
    direction = np.random.default_rng(99).normal(size=FEATURES) / np.sqrt(FEATURES)
    scale = np.random.default_rng(98).lognormal(0, 2, FEATURES)
    return latent * scale + 5 * scale, 1 / (1 + np.exp(-(2 * latent @ direction - 1)))


def trained(steps, estimator):
    for step in range(steps):
        features, p = task(64, step)
        total = np.full(64, 8)
        pos = np.random.default_rng(1000 + step).binomial(total, p)
        estimator.update([f"{step}-{i}" for i in range(64)], pos, total, features)
    return estimator


def test_the_value_estimator_ranks_prompts_it_has_never_seen():
    features, p = task(400, seed=12345)
    fresh = ValueRegressor(FEATURES)
    assert np.ptp(predicted(fresh, ids(400), features)) == 0
    rates = predicted(trained(40, fresh), ids(400), features)
    assert stats.spearmanr(rates, p).statistic > 0.85
    assert abs(rates.mean() - p.mean()) < 0.05
    assert rates.min() > 0
    assert rates.max() < 1


@pytest.mark.parametrize(("share", "low", "high"), [(0, 1e-4, 0.01), (1, 0.99, 1 - 1e-4)])
def test_the_value_estimator_begins_at_one_half_and_is_never_quite_sure(share, low, high):
    features, _ = task(200, 0)
    estimator = ValueRegressor(FEATURES)
    np.testing.assert_array_equal(predicted(estimator, ids(200), features), 0.5)
    for _ in range(50):
        estimator.update(ids(200), np.full(200, 8 * share), np.full(200, 8), features)
    rates = predicted(estimator, ids(200), features)
    assert (rates >= low).all() and (rates <= high).all()


def test_features_are_standardised_with_mean_and_variance_of_all_that_were_drawn():
    estimator, seen = ValueRegressor(FEATURES), []
    for step, drawn in enumerate((1, 5, 40)):
        features = task(50, step)[0] + 3.0 * step
        total = np.where(np.arange(50) < drawn, 8, 0)
        estimator.update(ids(50), np.minimum(total, 2), total, features)
        seen.append(features[:drawn])
    rows, state = np.concatenate(seen), estimator.state_dict()
    assert state["seen"] == len(rows)
    np.testing.assert_allclose(state["mean_F"], rows.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(state["spread_F"], ((rows - rows.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-10)


def test_features_in_single_precision_are_computed_with_in_double():
    features = task(64, 0)[0].astype(np.float32)
    states = []
    for one in (features, features.astype(np.float64)):
        estimator = ValueRegressor(FEATURES)
        estimator.update(ids(64), np.arange(64) % 9, np.full(64, 8), one)
        states.append(estimator.state_dict())
    np.testing.assert_array_equal(states[0]["mean_F"], states[1]["mean_F"])
    np.testing.assert_array_equal(states[0]["weight_D"], states[1]["weight_D"])


def test_prompts_without_responses_teach_nothing():
    features, _ = task(4, 0)
    estimator = ValueRegressor(FEATURES)
    before = estimator.state_dict()
    estimator.update(ids(4), np.zeros(4, int), np.zeros(4, int), features)
    for name, value in estimator.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_features_are_checked():
    estimator = ValueRegressor(FEATURES)
    with pytest.raises(InvariantError, match=r"shape \(3, 23\), not \(3, 24\)"):
        predicted(estimator, ids(3), np.zeros((3, FEATURES - 1)))
    with pytest.raises(InvariantError, match=r"shape None, not \(3, 24\)"):
        predicted(estimator, ids(3))
    bad = np.zeros((3, FEATURES))
    bad[1, 4] = np.nan
    with pytest.raises(InvariantError, match="prompt-1"):
        predicted(estimator, ids(3), bad)
    with pytest.raises(UserError, match="has 24 features, this run has 7"):
        ValueRegressor(7).load_state_dict(estimator.state_dict())


def test_a_prediction_is_worth_more_responses_the_more_was_seen_and_never_more_than_its_strength():
    features, _ = task(50, 777)
    masses = [
        sum(trained(steps, ValueRegressor(FEATURES, ValueSettings(strength=6.0))).predict_beta(ids(50), features))
        for steps in (0, 2, 40)
    ]
    assert masses[0].max() < masses[1].mean() < masses[2].mean() < 6.0
    assert masses[2].min() > 3.0


def test_a_step_ends_at_the_mode_of_its_likelihood_and_of_what_came_before():
    features, p = task(64, 0)
    estimator = ValueRegressor(FEATURES, ValueSettings(strength=1e9))  # no scatter: every response counts fully
    estimator.update(ids(64), np.random.default_rng(0).binomial(2, p), np.full(64, 2), features)
    state = estimator.state_dict()
    scaled = np.clip((features - state["mean_F"]) / np.sqrt(state["spread_F"] / 64), -5, 5) / np.sqrt(FEATURES)
    inputs, pos = np.c_[scaled, np.ones(64)], np.random.default_rng(0).binomial(2, p)
    prior = np.r_[np.full(FEATURES, 1 / 10), 1 / 4]

    def loss(w):
        logit = inputs @ w
        return (2 * np.logaddexp(0, logit) - pos * logit).sum() + 0.5 * (prior * w * w).sum()

    best = optimize.minimize(loss, np.zeros(FEATURES + 1), method="BFGS", options={"gtol": 1e-8}).x
    assert loss(state["weight_D"]) - loss(best) < 0.01 * (loss(np.zeros(FEATURES + 1)) - loss(best))
    rate = 1 / (1 + np.exp(-inputs @ state["weight_D"]))
    curvature = np.diag(prior) + (inputs * (2 * rate * (1 - rate))[:, None]).T @ inputs
    np.testing.assert_allclose(state["precision_DD"], curvature)


def test_it_follows_a_policy_that_changes():
    features, p = task(64, 3)
    estimator = ValueRegressor(FEATURES, ValueSettings(decay=0.9))
    for now in [p] * 40 + [1 - p] * 40:
        estimator.update(ids(64), np.random.default_rng(5).binomial(8, now), np.full(64, 8), features)
    assert stats.spearmanr(predicted(estimator, ids(64), features), 1 - p).statistic > 0.9


def test_wide_features_are_projected_and_the_state_stays_small():
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(300, 8))
    features = latent @ rng.normal(size=(8, 500)) + 0.1 * rng.normal(size=(300, 500))
    p = 1 / (1 + np.exp(-latent @ rng.normal(size=8)))
    estimator = ValueRegressor(500)
    for step in range(30):
        estimator.update(ids(300), np.random.default_rng(step).binomial(4, p), np.full(300, 4), features)
    assert stats.spearmanr(predicted(estimator, ids(300), features), p).statistic > 0.9
    assert estimator.state_dict()["precision_DD"].shape == (65, 65)


def test_the_value_estimator_adds_what_it_remembers_of_a_prompt_and_forgets_step_by_step():
    features, _ = task(3, 0)
    with_memory, without = ValueRegressor(FEATURES, ValueSettings(memory=0.5)), ValueRegressor(FEATURES)
    for pos, total in (([2, 0, 0], [4, 4, 0]), ([0, 0, 3], [0, 0, 4]), ([1, 0, 0], [2, 0, 0])):
        for estimator in (with_memory, without):
            estimator.update(ids(3), np.array(pos), np.array(total), features)
    added = [
        ours - plain
        for ours, plain in zip(*(e.predict_beta(ids(3), features) for e in (with_memory, without)), strict=True)
    ]
    np.testing.assert_allclose(added, [[1 + 2 / 4, 0, 3 / 2], [1 + 2 / 4, 4 / 4, 1 / 2]])


def test_what_is_nearly_forgotten_leaves_the_state():
    features, _ = task(2, 0)
    estimator = ValueRegressor(FEATURES, ValueSettings(memory=0.5))
    estimator.update(ids(1), np.array([1]), np.array([4]), features[:1])
    for _ in range(7):
        estimator.update(["other"], np.array([1]), np.array([4]), features[1:])
    assert estimator.state_dict()["remembered"] == ["other"]


def test_a_running_mean_over_all_prompts_knows_no_single_one():
    own = EmaBeta(EmaSettings(decay=0.5, prior_positive=1.0, prior_negative=1.0, adaptive_prior=True, per_prompt=False))
    own.update(["easy", "hard"], np.array([4, 0]), np.array([4, 4]))
    own.update(["easy", "hard"], np.array([3, 1]), np.array([4, 4]))
    expected = (0.5 * 4 + 4 + 1) / (0.5 * 8 + 8 + 2)  # decayed counts of all prompts and the prior
    np.testing.assert_allclose(predicted(own, ["easy", "hard", "new"]), expected)
