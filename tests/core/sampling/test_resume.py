"""A run that is killed and resumed after any step goes on as if nothing had happened, on a clock of engine steps.

Estimators, the latency model and every random draw are in the sampler's state or derive from (seed, step). The cap
that looks at the time (max_seconds) shows a latency model that was not restored.
"""

import copy
import json

import numpy as np
import pytest

from nemo_ada.config.presets import parse_ada_settings
from nemo_ada.core.prompts.estimators import ValueRegressor
from nemo_ada.lab.simulate.engine import DiscreteEventSource, LengthModel, Workload, draw_beta_rates

STEPS, PROMPTS, STANDBY, FEATURES = 5, 16, 4, 3
RATES = draw_beta_rates(24, 0.6, 1.5, seed=1)
FEATURES_PF = np.random.default_rng(2).standard_normal((24, FEATURES))
VARIANTS = {
    "max_seconds": {"preset": "ada_seq_balance", "budget": {"max_seconds": 300.0}},
    "tokens": {"preset": "ada_seq_balance", "budget": {"max_tokens": 9000, "expected_tokens": 40}},
    "refill": {
        "preset": "ada_seq_balance",
        "reserve_prompts": STANDBY,
    },
    "log": {"preset": "ada_seq_log"},
    "est ema": {"preset": "ada_est_ema"},
    "est value": {"preset": "ada_est_value"},
    "est value with memory": {"preset": "ada_est_value", "estimator": {"kind": "value", "memory": 0.5}},
    "one mean": {"preset": "ada_single", "estimator": {"kind": "ema", "adaptive_prior": True, "per_prompt": False}},
    "shrunk": {
        "preset": "grpo",
        "advantage": {"baseline": "shrunk"},
        "estimator": {"kind": "ema", "adaptive_prior": True},
    },
}


def started(section):
    group = 8 if "est" in section["preset"] else 4
    return parse_ada_settings(copy.deepcopy(section)).sampler(
        group, LengthModel().max_new_tokens, run_seed=7, features=FEATURES
    )


def one_step(own, section, step):
    reserve = section.get("reserve_prompts", 0)
    chosen = (np.arange(PROMPTS + reserve) + 5 * step) % len(RATES)  # most prompts come again
    features_PF = FEATURES_PF[chosen] if isinstance(own.estimator, ValueRegressor) else None
    source = DiscreteEventSource(Workload(RATES[chosen], seed=3, step=step).draw)
    sampled = own.run_step(step, [str(i) for i in chosen], source, reserve=reserve, features_PF=features_PF)
    assert sampled is not None
    return sampled.rows, sampled.sampling_metrics


def as_json(own):
    return json.dumps(own.state_dict(), default=np.ndarray.tolist)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_resumed_after_any_step_the_rest_is_the_same(name):
    section = VARIANTS[name]
    whole, states, made = started(section), [], []
    for step in range(STEPS):
        states.append(as_json(whole))
        made.append(one_step(whole, section, step))
    for resume in range(STEPS):
        own = started(section)
        own.load_state_dict(json.loads(states[resume]))
        for step in range(resume, STEPS):
            rows, stats = one_step(own, section, step)
            assert stats == made[step][1]
            np.testing.assert_array_equal(rows.response_id_R, made[step][0].response_id_R)
            np.testing.assert_array_equal(rows.advantage_R, made[step][0].advantage_R)
        assert as_json(own) == as_json(whole)
