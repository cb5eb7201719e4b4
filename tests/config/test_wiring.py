"""Every setting of `reinforce_ada:` reaches the core: what each preset is there, and each field by itself.

The core's own tests build plans and row settings by hand, so a field that the configuration lost on the way would
change what is trained, and none of them would fail.
"""

from functools import reduce
from importlib.resources import files

import pytest

from nemo_ada.config.presets import load_presets, parse_ada_settings, write_table
from nemo_ada.core.learning.objectives import Linear, Log, Power
from nemo_ada.core.learning.settings import AdvantageSettings, RowSettings
from nemo_ada.core.prompts.allocation import Allocation, PowerRule
from nemo_ada.core.prompts.estimators import EmaBeta, ValueRegressor
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.exits import BalancedExit, FixedExit, PositiveExit, SpreadExit
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan

LONGEST, SEED, FEATURES = 17, 5, 3
BALANCED = StopRule(BalancedExit(2, 2), (8,), 32)
LEAN = StopRule(BalancedExit(1, 1), (4,), 8)
ONCE = StopRule(FixedExit(1), (32,), 32)
HYBRID = {"keep_all": True, "exponent": 0.5, "advantage": AdvantageSettings(objective=Log(), max_weight=8.0)}
SHARED_OUT = Allocation(PowerRule(), 4, 32, 1e-3)
PRESETS = {
    # group, exit with waves and cap, what else the plan has, what else the rows have, allocation, estimator
    "grpo": (4, StopRule(FixedExit(4), (4,), 4), {}, {}, None, None),
    "nemo_rl_grpo": (
        4,
        StopRule(FixedExit(4), (4,), 4),
        {},
        {"advantage": AdvantageSettings(normalize="std", baseline="leave_one_out")},
        None,
        None,
    ),
    "ada_seq_positive": (4, StopRule(PositiveExit(1), (8,), 32), {}, {}, None, None),
    "ada_seq_balance": (4, BALANCED, {}, {}, None, None),
    "ada_seq_lean": (4, LEAN, {}, {}, None, None),
    "ada_seq_log": (
        4,
        BALANCED,
        {},
        {"advantage": AdvantageSettings("objective", Log())},
        None,
        None,
    ),
    "ada_single": (
        1,
        StopRule(FixedExit(1), (1,), 1),
        {},
        {"advantage": AdvantageSettings(baseline="shrunk")},
        None,
        ValueRegressor,
    ),
    "ada_est_ema": (8, ONCE, {}, HYBRID, SHARED_OUT, EmaBeta),
    "ada_est_value": (8, ONCE, {}, HYBRID, SHARED_OUT, ValueRegressor),
}


def sampler(section, group=4):
    settings = parse_ada_settings(section)
    return settings.sampler(group, LONGEST, run_seed=SEED, features=FEATURES)


def test_no_preset_is_forgotten_here():
    assert set(PRESETS) == set(load_presets())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_what_it_says(name):
    group, stop, plan, rows, allocation, estimator = PRESETS[name]
    made = sampler({"preset": name}, group)
    assert made.plan == SamplingPlan(StopRule(stop.exit, stop.wave_sizes, stop.cap), group, LONGEST, **plan)
    assert made.rows == RowSettings(group, stop, **rows)
    assert made.allocation == allocation
    assert type(made.estimator) is (estimator or type(None))
    assert made.run_seed == SEED


LARGE = {
    # what a preset is in groups of n = 16 and 32: exit, first wave and cap; the paper's v3 gives 16, 16, 128 for n = 16
    "ada_seq_positive": (lambda n: PositiveExit(n), lambda n: n, lambda n: 8 * n),
    "ada_seq_balance": (lambda n: BalancedExit(n // 2, n // 2), lambda n: n, lambda n: 8 * n),
    "ada_seq_log": (lambda n: BalancedExit(n // 2, n // 2), lambda n: n, lambda n: 8 * n),
    "ada_seq_lean": (lambda n: BalancedExit(1, 1), lambda n: n, lambda n: 2 * n),
    "ada_est_ema": (lambda n: FixedExit(1), lambda n: 4 * n, lambda n: 4 * n),
    "ada_est_value": (lambda n: FixedExit(1), lambda n: 4 * n, lambda n: 4 * n),
}


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("name", sorted(LARGE))
def test_in_large_groups_a_preset_keeps_its_meaning(name, group):
    made = sampler({"preset": name}, group)
    rule, wave, cap = (rule(group) for rule in LARGE[name])
    assert (made.plan.stop.exit, made.plan.stop.wave_sizes, made.plan.stop.cap) == (rule, (wave,), cap)
    assert made.allocation is None or (made.allocation.low, made.allocation.high) == (group // 2, 4 * group)


@pytest.mark.parametrize("name", ["ada_seq_positive", "ada_seq_balance", "ada_seq_log"])
def test_up_to_groups_of_8_a_preset_has_the_published_numbers(name):
    four, eight = (sampler({"preset": name}, group).plan for group in (4, 8))
    assert four.stop.cap == eight.stop.cap == 32
    assert four.stop.wave_sizes == eight.stop.wave_sizes == (8,)


@pytest.mark.parametrize("group", [4, 5, 8, 16, 64, 512])
def test_the_lean_preset_goes_with_every_group(group):
    plan = sampler({"preset": "ada_seq_lean"}, group).plan
    assert (plan.stop.wave_sizes, plan.stop.cap) == ((group,), 2 * group)


def test_an_own_number_takes_the_place_of_one_that_follows_n():
    own = {"preset": "ada_seq_balance", "sampling": {"max_responses": 48}}
    assert sampler(own, 32).plan.stop.cap == 48
    own = {"preset": "ada_seq_balance", "sampling": {"max_responses": {"times": 3}}}
    assert [sampler(own, n).plan.stop.cap for n in (8, 32)] == [32, 96]


LINEAR = {"weighting": "objective", "objective": {"kind": "linear"}, "max_weight": 100.0}


def reached(made, path):
    return reduce(lambda found, name: getattr(found, name, None), path.split("."), made)


BALANCE = {"preset": "ada_seq_balance"}
GRPO = {"preset": "grpo"}
EST = {"preset": "ada_est_ema"}
SHRUNK = {"preset": "grpo", "advantage": {"baseline": "shrunk"}}


@pytest.mark.parametrize(
    ("section", "path", "value"),
    [
        ({"sampling": {"exit": {"kind": "balanced", "k_pos": 1, "k_neg": 3}}}, "plan.stop.exit", BalancedExit(1, 3)),
        ({"sampling": {"exit": {"kind": "positive", "k_pos": 2}}}, "plan.stop.exit", PositiveExit(2)),
        ({"sampling": {"exit": {"kind": "spread", "difference": 0.25}}}, "plan.stop.exit", SpreadExit(0.25)),
        ({"sampling": {"wave_size": [8, 4, 4]}}, "plan.stop.wave_sizes", (8, 4, 4)),
        ({"sampling": {"wave_size": [8, 4, 4]}}, "rows.stop.wave_sizes", (8, 4, 4)),
        ({"sampling": {"max_responses": 20}}, "plan.stop.cap", 20),
        ({"sampling": {"max_responses": 20}}, "rows.stop.cap", 20),
        ({"sampling": {"scheduler": "rounds"}}, "plan.scheduler", "rounds"),
        ({"advantage": {"weighting": "objective"}}, "rows.advantage.weighting", "objective"),
        ({"advantage": {"objective": {"kind": "log"}}}, "rows.advantage.objective", Log()),
        ({"advantage": {"objective": {"kind": "power", "a": 0.25}}}, "rows.advantage.objective", Power(a=0.25)),
        (
            {"preset": "ada_seq_log", "advantage": {"objective": {"kind": "linear"}}},
            "rows.advantage.objective",
            Linear(),
        ),
        ({"advantage": {"normalize": "std"}}, "rows.advantage.normalize", "std"),
        (GRPO | {"advantage": {"baseline": "shrunk"}}, "rows.shrunk_baseline", True),
        (GRPO | {"advantage": {"baseline": "shrunk"}}, "estimator.decay", 0.9),
        (GRPO | {"advantage": {"normalize": "std"}}, "rows.advantage.normalize", "std"),
        ({"advantage": {"min_pass_rate": 0.2}}, "rows.advantage.min_pass_rate", 0.2),
        ({"advantage": {"max_weight": 3.0}}, "rows.advantage.max_weight", 3.0),
        ({"budget": {"max_samples": 900}}, "plan.budget", Budget(max_samples=900)),
        ({"budget": {"max_tokens": 900}}, "plan.budget", Budget(max_tokens=900)),
        ({"budget": {"max_seconds": 9.0}}, "plan.budget", Budget(max_seconds=9.0)),
        ({"budget": {"max_seconds": 9.0, "seconds_quantile": 0.9}}, "plan.budget.seconds_quantile", 0.9),
        ({"budget": {"token_reservation": "worst_case"}}, "plan.budget.token_reservation", "worst_case"),
        ({"budget": {"expected_tokens": 7}}, "plan.budget.expected_tokens", 7),
        ({"positive_threshold": 0.2}, "plan.positive_threshold", 0.2),
        ({"max_failed_share": 0.5}, "plan.max_failed_share", 0.5),
        (EST | {"sampling": {"min_responses": 2}}, "allocation.low", 2),
        (EST | {"sampling": {"max_responses": 16}}, "allocation.high", 16),
        (EST | {"sampling": {"max_responses": 16}}, "plan.stop.cap", 16),
        (EST | {"sampling": {"epsilon": 0.1}}, "allocation.epsilon", 0.1),
        (EST | {"sampling": {"allocation": {"kind": "power", "exponent": 1.0}}}, "allocation.rule.exponent", 1.0),
        (EST | {"sampling": {"allocation": {"kind": "power", "exponent": 1.0}}}, "rows.exponent", 1.0),
        (EST | {"advantage": LINEAR}, "rows.exponent", None),
        (EST | {"estimator": {"decay": 0.3}}, "estimator.decay", 0.3),
        (
            SHRUNK | {"estimator": {"kind": "ema", "adaptive_prior": True, "per_prompt": False}},
            "estimator.per_prompt",
            False,
        ),
    ],
    ids=str,
)
def test_a_field_arrives(section, path, value):
    group = 8 if section.get("preset", "").startswith("ada_est") else 4
    preset = {"preset": (BALANCE | section)["preset"]}
    assert reached(sampler(BALANCE | section, group), path) == value
    assert reached(sampler(preset, group), path) != value, "so it comes from the field"


@pytest.mark.parametrize(
    ("estimator", "counts"),
    [({"prior_positive": 3.0, "prior_negative": 5.0}, (3.0, 5.0)), ({"prior_positive": 3.0}, (3.0, 1.0))],
)
def test_the_prior_arrives(estimator, counts):
    made = sampler({"preset": "ada_est_ema", "estimator": {"kind": "ema", **estimator}}, 8)
    assert made.estimator is not None
    assert tuple(part.tolist() for part in made.estimator.predict_beta(["new"])) == ([counts[0]], [counts[1]])


def test_the_head_of_the_presets_has_the_table_of_their_settings():
    text = files("nemo_ada.config").joinpath("presets.yaml").read_text(encoding="utf-8")
    assert write_table() in text, "run python -m nemo_ada.config.presets"
