"""The step's metrics against a recount from the source's own log and the raw pools, in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.core import metrics
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.sampling.schedulers import run_sampling
from nemo_ada.core.sampling.session import SamplingSession
from nemo_ada.core.sampling.source import Outcomes
from nemo_ada.core.sampling.state import StepState
from nemo_ada.core.sampling.summary import summarise
from nemo_ada.errors import InvariantError
from nemo_ada.lab.simulate.engine import DiscreteEventSource, Workload
from tests.core.scripted import Script, collect, met, pools

RATES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=7)


@given(
    RATES,
    st.sampled_from([PositiveExit(1), BalancedExit(1, 1), BalancedExit(2, 3)]),
    st.one_of(st.none(), st.integers(0, 30)),
    st.integers(0, 2),
    st.integers(0, 10**6),
)
@settings(max_examples=100)
def test_metrics_equal_a_recount(rates, rule, spare, reserve, seed):
    group = 4
    caps = Budget() if spare is None else Budget(max_samples=len(rates) * 3 + spare)
    plan = SamplingPlan(StopRule(rule, (3, 5), 14), group, 40, budget=caps, max_failed_share=1.0)
    script = Script.random(seed, [*rates, *[0.3] * reserve], failed=0.1)
    result, source = collect(plan, script, order=seed, reserve=reserve)
    stats = summarise(result, caps)

    all_pools = pools(result)
    labels = [[reward > 0.7 for _, reward, _ in pool] for pool in all_pools]
    drawn = sorted({prompt for prompt, _ in source.issued.values()})
    drawn = [p for p in drawn if p < len(rates) or labels[p]]
    waves = dict.fromkeys(drawn, 0)
    for _, requests in source.submitted:
        for prompt, wave in zip(requests.prompt_N.tolist(), requests.wave_N.tolist(), strict=True):
            if prompt in waves:
                waves[prompt] = max(waves[prompt], wave + 1)

    kept_rows = [response for pool in all_pools for response in pool]
    resolved = [p for p in drawn if met(rule, sum(labels[p]), len(labels[p]) - sum(labels[p]))]
    lost = [p for p in drawn if p not in resolved]
    k_pos, k_neg = rule.k_pos, getattr(rule, "k_neg", 0)
    failed = [row for row in source.finished if script.label(*source.issued[row]) is None]
    sizes = [len(labels[p]) for p in drawn]
    one_sided = [p for p in drawn if len(set(labels[p])) < 2]
    if_grpo = [p for p in drawn if len(set(labels[p][:group])) < 2]
    filled = [p for p in drawn if labels[p]]
    expected = {
        "samples_drawn": len(source.issued),
        "samples_in_pools": len(kept_rows),
        "samples_failed": len(failed),
        "samples_dropped": len(source.issued) - len(kept_rows) - len(failed),
        "tokens_drawn": source.tokens,
        "tokens_in_pools": sum(tokens for _, _, tokens in kept_rows),
        "waves_mean": np.mean(list(waves.values())),
        "waves_max": max(waves.values()),
        "prompts_drawn": len(drawn),
        "prompts_resolved": len(resolved),
        "prompts_unresolved": len(lost),
        "missing_positive": sum(sum(labels[p]) < k_pos for p in lost),
        "missing_negative": sum(len(labels[p]) - sum(labels[p]) < k_neg for p in lost),
        "prompts_cut": sum(bool(result.cut_P[p]) for p in lost),
        "zero_signal_groups": max(0, len(rates) - (len(drawn) - len(one_sided))) / len(rates),
        "zero_signal_groups_if_grpo": len([p for p in if_grpo if p < len(rates)]) / len(rates),
        "pool_size_mean": np.mean(sizes),
        "pool_size_p95": np.percentile(sizes, 95),
        "pool_size_max": max(sizes),
        "pool_reward": np.mean([np.mean([r for _, r, _ in all_pools[p]]) for p in filled]) if filled else 0.0,
        "response_length_pools": np.mean([tokens for _, _, tokens in kept_rows]) if kept_rows else 0.0,
        "groups_replaced": len([p for p in drawn if p >= len(rates)]),
        "sampling_seconds": source.now,
    }
    for name, value in expected.items():
        assert stats[name] == pytest.approx(value), name
    if spare is None:
        done = [p for p in drawn if met(rule, sum(labels[p][:3]), len(labels[p][:3]) - sum(labels[p][:3]))]
        given_up = [p for p in drawn if len(labels[p]) < 3]
        assert len(done) - len(given_up) <= stats["resolved_in_first_wave"] <= len(done)
    assert (spare is None) == ("budget_used_samples" not in stats)
    assert result.resolved_P.nonzero()[0].tolist() == resolved
    assert len(result.rate_F) == len(filled)
    assert stats["pass_rate"] == pytest.approx(np.mean(result.rate_F) if filled else 0.0)
    assert 0.0 <= stats["engine_utilisation"] <= 1.0
    metrics.add_prefix(stats)  # each one is in the table


def test_the_pass_rate_is_that_of_independent_responses_and_the_pools_is_not():
    plan = SamplingPlan(StopRule(BalancedExit(2, 2), (8,), 32), 4, 40)
    rates = np.full(3000, 0.1)
    source = DiscreteEventSource(Workload(rates, seed=1).draw)
    result = run_sampling(SamplingSession(StepState(plan, np.arange(3000)), run_seed=0, step=0), source)
    assert summarise(result)["pass_rate"] == pytest.approx(0.1, abs=4 * 0.3 / np.sqrt(3000 * 4))
    assert (result.pos_P / result.size_P).mean() > 0.12  # stopped because of its own successes: +32 % (section 4)


def test_engine_utilisation_is_mean_over_peak():
    session = SamplingSession(
        StepState(SamplingPlan(StopRule(FixedExit(2), (2,), 2), 2, 40), np.arange(1)), run_seed=0, step=0
    )
    session.next_requests(10.0)
    for row, now in ((0, 11.0), (1, 14.0)):  # two responses for 1 s, one for 3 s: mean 5/4 of peak 2
        session.record(Outcomes(np.array([row]), np.ones(1), np.ones(1, np.int64)), now)
    assert summarise(session.result())["engine_utilisation"] == pytest.approx(5 / 8)


def test_the_histogram_keeps_the_ends_apart_and_counts_the_nearest_eighths():
    sixteenths = metrics.count_rates(np.arange(17) / 16)
    assert sixteenths == [1, 2, 2, 2, 2, 2, 2, 3, 1]  # 1/16 and 15/16 are no ends
    assert metrics.count_rates(np.arange(9) / 8) == [1] * 9
    assert metrics.count_rates(np.array([1e-6, 1 - 1e-6, 1e-12, 1.0, 1 / 3])) == [1, 1, 0, 1, 0, 0, 0, 1, 1]
    assert metrics.count_rates(np.empty(0)) == [0] * len(metrics.RATE_BINS)


def test_the_histogram_is_of_the_first_wave_whatever_the_pools_became():
    plan = SamplingPlan(StopRule(PositiveExit(1), (8,), 32), 4, 40)
    source = DiscreteEventSource(Workload(np.full(2000, 0.1), seed=3).draw)
    result = run_sampling(SamplingSession(StepState(plan, np.arange(2000)), run_seed=0, step=0), source)
    none_of_8 = 0.9**8
    found = np.array(metrics.count_rates(result.rate_F)) / 2000
    assert found[0] == pytest.approx(none_of_8, abs=4 * np.sqrt(none_of_8 * (1 - none_of_8) / 2000))
    assert (result.pos_P == 0).mean() < none_of_8 / 3  # most of them found a correct response later


def test_a_metric_outside_its_table_cannot_be_emitted():
    assert metrics.add_prefix({"pass_rate": 1}) == {"ada/pass_rate": 1.0}
    assert metrics.add_prefix_to_lists({"pass_rate_histogram": (1, 2)}) == {"ada/pass_rate_histogram": [1, 2]}
    with pytest.raises(InvariantError, match="made_up"):
        metrics.add_prefix({"pass_rate": 0.5, "made_up": 1.0})
    with pytest.raises(InvariantError, match="pass_rate"):
        metrics.add_prefix_to_lists({"pass_rate": [1]})
    assert not set(metrics.LISTS) & set(metrics.TABLE)
