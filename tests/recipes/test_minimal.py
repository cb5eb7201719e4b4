"""recipes/minimal.py collects, keeps and weighs as nemo_ada.core does."""

import minimal
import numpy as np
import pytest
import torch

from nemo_ada.core.learning.rows import RowSettings, select, weigh
from nemo_ada.core.sampling.exits import BalancedExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.core.seeds import SeedStream, hash_bits
from tests.core.scripted import Script, collect

RATES = [0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.95, 1.0]
RUN_SEED, STEP = 5, 1


@pytest.mark.parametrize("seed", range(20))
def test_pools_and_rows_are_the_cores(seed):
    script = Script.random(seed, RATES)
    exit_rule, waves = BalancedExit(minimal.K_POS, minimal.K_NEG), (minimal.WAVE,)
    plan = SamplingPlan(StopRule(exit_rule, waves, minimal.N_MAX), minimal.N, 40)
    result = collect(plan, script)[0]
    settings = RowSettings(group=minimal.N, stop=StopRule(exit_rule, waves, minimal.N_MAX))
    selection = select(result, settings, len(RATES), run_seed=RUN_SEED, step=STEP)
    rows = weigh(result, selection, settings, prior_P=None)

    index = [0] * len(RATES)

    def draw(wave):
        labels = []
        for prompt in wave:
            labels.append(script.label(prompt, index[prompt]))
            index[prompt] += 1
        return labels

    pools = minimal.draw_pools(len(RATES), draw)
    for prompt, pool in enumerate(pools):
        assert pool == result.positive_N[result.prompt_N == prompt].tolist()
        uid = np.full(len(pool), result.uid_P[prompt])
        key = hash_bits(RUN_SEED, STEP, uid, np.arange(len(pool)), SeedStream.SELECTION)
        kept = minimal.select(pool, key)
        of_prompt = rows.prompt_R == prompt
        assert kept == result.index_N[rows.pool_R[of_prompt]].tolist()
        assert minimal.weigh(pool, kept) == pytest.approx(rows.advantage_R[of_prompt].tolist(), abs=1e-12)


def test_a_step_draws_selects_weighs_and_updates(capsys):
    assert 0.0 <= minimal.main(steps=2) <= 1.0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "prompts with signal" in lines[1]


def test_an_update_raises_the_probability_of_a_row_with_a_positive_advantage():
    torch.manual_seed(0)
    policy = minimal.Policy()
    tokens = policy.generate(torch.zeros(4, minimal.LENGTH, dtype=torch.long))
    before = policy.logprobs(tokens).sum()
    minimal.update(policy, torch.optim.SGD(policy.parameters(), 1e-3), tokens, torch.ones(4))
    assert policy.logprobs(tokens).sum() > before
