"""The planner: what it promises of step times, caps and slots.

1. From the first 10 steps of a run, the median of the rest is predicted within 10 % and its p95 lies under the worst
   case. The run is a simulated one (engine, session and sampler are the real ones) with a pace and noise that the
   planner does not know.
2. The steady cap: heavy-tailed lengths give p95/p50 over 1.5 without and at most 1.15 with it.
3. No simulated step passes the bound of its plan.
4. Slots, time formats, warnings.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from nemo_ada.cli.plan import plan as plan_command
from nemo_ada.config.presets import load_presets, parse_ada_settings
from nemo_ada.core.prompts.allocation import PowerRule
from nemo_ada.errors import UserError
from nemo_ada.lab.plan import command, sampling
from nemo_ada.lab.plan.caps import STEADY, find_steady_cap, suggest_caps
from nemo_ada.lab.plan.command import PlanOptions, check_walltime
from nemo_ada.lab.plan.forecast import Forecast, SamplingTimeModel, Time
from nemo_ada.lab.plan.history import History
from nemo_ada.lab.plan.job_slots import parse_time, plan_slots
from nemo_ada.lab.plan.planned_run import PlannedRun, Schedule
from nemo_ada.lab.plan.render import _describe_steady, render
from nemo_ada.lab.plan.roofline import LEVERS
from nemo_ada.lab.plan.sampling import (
    SimulatedRun,
    SimulatedSteps,
    bound_work,
    cap_seconds,
    draw_batches,
    make_variant,
    simulate_steps,
)
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.steps import BetaRates, Setting, Variant
from recipes import changed

ROOT = Path(__file__).parents[3]
JSONL = ROOT / "configs/cpu/jsonl.yaml"
LENGTHS = LengthModel(9.0, 0.3, 1.0, 16)
CONFIG = [f"task.path={ROOT / 'recipes/data/chain_sum.jsonl'}", "policy.generation.max_new_tokens=16"]


def make_plan(path, overrides, **options):
    return command.make_plan(path, overrides, PlanOptions(**options))


def write_run(folder, steps=40, seed=3):
    """A run directory with metrics of simulated steps: 3 ms per engine step, 20 us per token, 8 % noise."""
    plan = parse_ada_settings({"preset": "ada_seq_balance"}).plan(4, 16)
    work = simulate_steps(
        Variant("", plan),
        Setting(BetaRates(0.5, 1.0), 64, LENGTHS, warm_up=sampling.WARM_UP, steps=steps, slots=256),
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    noise = rng.lognormal(0.0, 0.08, (3, steps))
    seconds = (0.003 * work.engine_steps_S + 2e-5 * work.tokens_S) * noise[0]
    folder.mkdir(parents=True, exist_ok=True)
    rates = BetaRates(0.5, 1.0).draw(4000, seed)
    zero = float(np.mean(rates**4 + (1 - rates) ** 4))
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(steps):
            record = {
                "step": i + 1, "time/sampling": seconds[i], "time/update": 0.3 * noise[1][i],
                "time/refit": 0.02 * noise[2][i], "time/step": seconds[i] + 0.3 * noise[1][i] + 0.02 * noise[2][i],
                "engine_steps": work.engine_steps_S[i],
                "ada/tokens_drawn": work.tokens_S[i],
                "ada/samples_drawn": work.responses_S[i], "ada/live_rows": 180.0,
                "ada/pass_rate": float(rates.mean()), "ada/zero_signal_groups_if_grpo": zero,
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")
    (folder / "evaluations.jsonl").write_text(json.dumps({"step": 0, "time/evaluation": 2.0}) + "\n")


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """A run of 40 steps."""
    folder = tmp_path_factory.mktemp("past") / "run"
    write_run(folder)
    (folder / "config.yaml").write_text("{reinforce_ada: {preset: ada_seq_balance}, grpo: {seed: 0}}")
    return folder


def planned(run, *overrides, steps=10):
    cache = f"base.cache_dir={run.parent}"
    return make_plan(JSONL, [*CONFIG, cache, *overrides], time="01:00:00", run=run, run_steps=10, steps=steps)


@pytest.mark.long
def test_ten_steps_predict_the_rest_of_a_run(past):
    history = History.read(past)
    rest = (history.sampling_S + history.update_S + history.refit_S)[10:]
    made = planned(past, steps=24)
    step = made.forecast.step
    assert step.p50 == pytest.approx(np.median(rest), rel=0.10)
    assert np.quantile(rest, 0.95) < step.worst
    assert step.p50 < step.p95 < step.worst
    assert made.forecast.low == made.forecast.high == step.p50, "a measured step is no range"


def test_p95_of_a_step_is_its_95th_percentile(past):
    history = History.read(past)
    long = replace(history, sampling_S=np.linspace(1.0, 2.0, 60), update_S=np.zeros(60), refit_S=np.zeros(60),
                   engine_steps_S=np.full(60, 10.0), tokens_S=np.full(60, 1000.0))  # fmt: skip
    flat = SimulatedSteps(np.full(9, 10.0), np.full(9, 1000.0), np.full(9, 99.0), np.ones(9), 0.0, 0.0, 0.0)
    pace = SamplingTimeModel.fit(long).calibrate(long, flat)
    from nemo_ada.lab.plan.forecast import StepWork, forecast_from_history

    work = StepWork(flat, 20, 2000, 200, 16, rows=180)
    made = forecast_from_history(long, pace, work, save=Time(0, 0, 0, ""), carried=None)
    assert made.step.p95 == pytest.approx(np.quantile(long.sampling_S, 0.95), rel=0.01)
    assert made.step.p50 == pytest.approx(1.5, rel=0.02)


def test_another_plan_is_carried_over_by_simulation_beside_the_presets_that_can_fill_its_groups(past):
    eight = planned(past, "grpo.num_generations_per_prompt=8", "reinforce_ada.preset=grpo")
    true = 512 * 9.4  # tokens of GRPO's step: 64 prompts x 8 responses
    assert eight.forecast.sampling.p50 == pytest.approx(0.003 * 16 + 2e-5 * true, rel=0.3)
    assert "carried" in eight.forecast.step.origin
    signal = {cost.name: 1.0 - cost.zero_signal for cost in eight.costs if cost.zero_signal is not None}
    named = {cost.name.removesuffix(" n=1") for cost in eight.costs} | {name for name, _ in eight.left_out}
    assert named == {"this plan", *load_presets()}, "every preset is compared, or left out with its reason"
    update = float(np.median(History.read(past, steps=10).update_S))
    carried = update * signal["this plan"] / signal["ada_seq_balance"]  # rows with an advantage cost time
    assert eight.forecast.phases["update"].p50 == pytest.approx(carried, rel=0.02)


def test_warm_up_steps_are_simulated_but_not_counted():
    """The latency model learns in them; a cap on seconds does not hold there."""
    plan = parse_ada_settings({"preset": "grpo"}).plan(4, 400)

    class Steps:
        """Hard to count: the rate tells the step."""

        def draw(self, prompts, seed):
            return np.full(prompts, 1.0 if seed < sampling.WARM_UP else 0.0)

    setting = Setting(Steps(), 8, LengthModel(50.0, 0.2, 4.0, 400), warm_up=sampling.WARM_UP, steps=5)
    work = simulate_steps(Variant("", plan), setting)
    assert len(work.engine_steps_S) == 5
    assert work.zero_signal == 1.0
    assert work.tokens_S.min() > 4 * 50 * 8 * 2, "only steps of wrong answers, which are four times as long"


@pytest.mark.parametrize("preset", ["grpo", "ada_seq_balance", "ada_seq_lean"])
@pytest.mark.parametrize("slots", [None, 48])
def test_no_step_passes_the_bound(preset, slots):
    plan = parse_ada_settings({"preset": preset}).plan(4, 400)
    setting = Setting(BetaRates(0.5, 2.0), 32, warm_up=sampling.WARM_UP, steps=4, slots=slots)
    work = simulate_steps(Variant("", plan), setting)
    steps, tokens = bound_work(plan, 32, slots, 400)
    assert work.engine_steps_S.max() <= steps
    assert work.tokens_S.max() <= tokens


def test_measured_lengths_are_drawn_as_they_were():
    lengths = LengthModel(measured=tuple(range(1, 101)))
    normal_N = np.random.default_rng(0).standard_normal(5_000)
    drawn = lengths.tokens(normal_N > 9, normal_N)
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx([10, 50, 90], abs=3)


def test_the_fitted_pass_rates_have_the_runs_mean_and_zero_signal_share(past):
    history = History.read(past)
    rates = np.random.default_rng(0).beta(*history.beta(4), 40_000)
    assert rates.mean() == pytest.approx(history.pass_rate, abs=0.01)
    assert (rates**4 + (1 - rates) ** 4).mean() == pytest.approx(history.zero_signal, abs=0.01)


FORECAST = Forecast(
    {"sampling": Time(60.0, 80.0, 400.0, "x"), "training": Time(20.0, 22.0, 30.0, "x")},
    Time(80.0, 102.0, 430.0, "x"), Time(100.0, 120.0, 150.0, "x"), Time(30.0, 40.0, 60.0, "x"), 80.0, 80.0,
)  # fmt: skip


def four_hours(**changes):
    schedule = Schedule(changes.get("steps", 400), changes.get("val_period", 50), 0, 50, 0.0)
    return plan_slots(FORECAST, schedule, seconds=changes.get("seconds", 14_400), cold_start=1800, gpus=8)


def test_slots_count_start_saves_validations_and_the_lead():
    slots = four_hours()
    assert slots.lead == 330  # p95 step + p95 validation + worst save + margin, up to half a minute
    assert slots.steps == int((14_400 - 1800 - 330) / (80 + 30 / 50 + 100 / 50))
    assert slots.count == 3
    assert slots.step_seconds == 14_400 - 1800 - 150 - 60 - 30
    assert slots.guaranteed == int(slots.step_seconds / (430 + 60 / 50 + 150 / 50))
    saves = slots.steps // 50 + 1  # the last one at the slot's end
    assert slots.save_share == pytest.approx(saves * 30 / 14_400)
    assert slots.useful == pytest.approx(400 * 80 / (slots.gpu_hours * 3600 / 8))
    short = four_hours(steps=10)
    used = 1800 + 10 * (80 + 30 / 50 + 100 / 50) + 30
    assert short.useful == pytest.approx(10 * 80 / used) and short.save_share == pytest.approx(30 / used)
    assert four_hours(val_period=0).lead == 210, "nothing is validated between the steps"
    assert not four_hours(seconds=2000).fits


@pytest.mark.parametrize("steps", [147, 148, 296, 297])
def test_the_last_slot_ends_after_the_steps_that_are_left(steps):
    slots = four_hours(steps=steps)
    assert slots.steps == 148
    left = steps - (slots.count - 1) * 148
    assert 0 < left <= 148
    last = 1800 + left * (80 + 30 / 50 + 100 / 50) + 30
    assert slots.gpu_hours == pytest.approx(8 * ((slots.count - 1) * 14_400 + last) / 3600)


def test_suggested_caps_make_the_worst_step_fit_or_say_that_none_can():
    def caps(available):
        figures = {"samples_p95": 9000, "tokens_p95": 1e6, "first_wave": 4096, "drain": 20.0}
        return suggest_caps(FORECAST, **figures, available=available)

    wide = caps(1e6)
    assert wide.max_seconds == 80.0
    assert wide.worst_step == 130.0
    tight = caps(115.0)
    assert tight.max_seconds is not None
    assert tight.worst_step <= 115.0
    assert caps(40.0).max_seconds is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("04:30:09", 16_209), ("2-01:30:09", 178_209), ("90", 5400), ("30:09", 1809), ("1-06", 108_000)],
)
def test_slurms_times_are_understood(text, seconds):
    assert parse_time(text) == seconds


def test_every_figure_says_where_it_comes_from(past):
    made = planned(past, steps=2)
    text = render(made, as_json=False)
    for line in text.splitlines():
        if line.startswith(("sampling", "update", "refit", "step ", "save ")):
            assert line.rstrip().endswith(("measured here", "assumed")), line
    assert json.loads(render(made, as_json=True))["slots"]["steps"] == made.slots.steps
    on_gpus = replace(made, slots=replace(made.slots, gpu_hours=100.0))
    assert "100 GPU hours, 250 at 2.5 per GPU hour" in render(on_gpus, as_json=False, price=2.5)
    middle = made.forecast.step.p50
    guessed = replace(on_gpus, forecast=replace(made.forecast, low=0.8 * middle, high=1.5 * middle))
    assert "80 to 150 GPU hours, 200 to 375 at 2.5 per GPU hour" in render(guessed, as_json=False, price=2.5)


def test_the_estimation_variant_is_simulated_with_its_own_allocation():
    estimated = make_variant(parse_ada_settings({"preset": "ada_est_ema"}), 8, 400)
    assert estimated.allocation is not None
    lengths = LengthModel(60.0, 0.7, 2.0, 400)
    own, uniform = (
        simulate_steps(
            replace(estimated, allocation=replace(estimated.allocation, rule=rule)),
            Setting(BetaRates(0.6, 1.5), 64, lengths, warm_up=sampling.WARM_UP, steps=8),
        )
        for rule in (estimated.allocation.rule, PowerRule(exponent=0.0))
    )  # fmt: skip
    assert own.responses_S.tolist() == uniform.responses_S.tolist() == [512.0] * 8
    assert own.tokens_S.mean() > 1.02 * uniform.tokens_S.mean(), (
        "hard prompts get more responses, wrong ones are longer"
    )


def test_the_even_cap_is_the_widest_that_flattens_the_tail():
    def cap_of(preset):
        asked, lengths = (
            make_variant(parse_ada_settings({"preset": preset}), 4, 2048),
            LengthModel(200.0, 1.2, 1.3, 2048),
        )
        setting = Setting(BetaRates(8.0, 8.0), 32, lengths, warm_up=sampling.WARM_UP, steps=20)
        return find_steady_cap(lambda cap: simulate_steps(cap_seconds(asked, cap), setting))

    positive, grpo = cap_of("ada_seq_positive"), cap_of("grpo")
    assert positive.uncapped > 1.5
    assert positive.max_seconds is not None
    assert positive.capped <= STEADY
    assert 0.0 < positive.cut < 0.5
    assert grpo.max_seconds is None
    assert grpo.uncapped <= STEADY


def taking(*seconds):
    zeros = np.zeros(len(seconds))
    return SimulatedSteps(zeros, zeros, zeros, np.array(seconds), 0.0, 0.0, 0.25)


def test_where_no_cap_makes_phases_even_the_evenest_is_named():
    free = taking(*[10.0] * 6, 14.0, 16.0, 18.0, 20.0)
    narrow = {12.0: taking(*[10.0] * 7, 13.0, 13.0, 13.0), 9.0: taking(*[10.0] * 9, 12.5), 6.0: taking(*[9.0] * 9, 12)}
    evenest = find_steady_cap(lambda cap: free if cap is None else narrow.get(cap, free))
    assert evenest.max_seconds == 9.0 and evenest.uncapped > STEADY and evenest.cut == 0.25
    assert evenest.capped == pytest.approx(np.quantile([10.0] * 9 + [12.5], 0.95) / 10)
    assert _describe_steady(evenest).endswith("25% of the prompts another response")
    useless = find_steady_cap(lambda cap: free)
    assert useless.max_seconds is None and useless.capped == useless.uncapped


def test_a_phase_of_milliseconds_gets_no_cap_of_nothing():
    tried = []

    def under(cap):
        tried.append(cap)
        return taking(*[0.002] * 6, 0.004, 0.006, 0.008, 0.01)

    assert find_steady_cap(under).max_seconds is None and 0.0 not in tried


def config(folder, changes=None, **reinforce_ada):
    """A 7B config as a file of its own, with dotted keys changed."""
    section = {"preset": "ada_seq_balance"} | reinforce_ada
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(changed({"grpo.max_num_steps": 400, "reinforce_ada": section} | (changes or {}))))
    return path


def seven(folder, changes=None, preset="ada_seq_balance", budget=None, **options):
    path = config(folder, changes, preset=preset, budget=budget or {})
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(sampling, "MAX_PROMPTS", 16)  # seconds; the differences below are larger than its noise
        return make_plan(path, [], **({"time": "04:00:00", "steps": 3} | options))


def test_a_cap_on_seconds_is_simulated_without_a_run_too(tmp_path):
    free = seven(tmp_path, steps=8)
    cap = round(0.6 * free.forecast.sampling.p50)
    tight = seven(tmp_path, budget={"max_seconds": cap}, steps=8)
    assert tight.forecast.sampling.p50 < 0.9 * free.forecast.sampling.p50
    assert tight.forecast.sampling.worst < 0.7 * free.forecast.sampling.worst
    assert tight.costs[0].responses < 0.9 * free.costs[0].responses
    assert tight.slots.steps > free.slots.steps


def test_a_cap_on_samples_holds_for_the_whole_step_though_fewer_prompts_are_simulated(tmp_path):
    tight = seven(tmp_path, budget={"max_samples": 5120}, steps=2)
    assert 4096 <= tight.costs[0].responses <= 5120


def test_one_config_gives_a_preset_the_same_time_as_another_config_of_the_model(tmp_path):
    presets = ("ada_seq_balance", "ada_seq_lean")
    plans = [{cost.name: cost.step for cost in seven(tmp_path, preset=preset).costs} for preset in presets]
    for preset, own in zip(presets, plans, strict=True):
        assert own["this plan"] == pytest.approx(own[preset], rel=0.02)


def test_asynchronous_training_takes_the_longer_of_sampling_and_learner(past, tmp_path):
    resources = {"gpus_per_node": 4, "num_nodes": None}
    apart = {"grpo.async_grpo": {"enabled": True, "max_trajectory_age_steps": 1},
             "policy.generation.colocated": {"enabled": False, "resources": resources}}  # fmt: skip
    for preset, slower in (("ada_seq_balance", "sampling"), ("grpo", "learner")):
        made = seven(tmp_path, apart, preset)
        phases = {name: time.p50 for name, time in made.forecast.phases.items()}
        sampling, refit = phases.pop("sampling"), phases.pop("refit")
        learner = sum(phases.values())
        assert (sampling > learner) == (slower == "sampling")
        assert made.forecast.step.p50 == pytest.approx(max(sampling, learner) + refit, rel=0.02)
        assert made.costs[0].step == pytest.approx(made.forecast.step.p50, rel=0.02)
        assert made.caps is None and made.steady is None
    with pytest.raises(UserError, match="--run"):
        make_plan(config(tmp_path, apart), [], time="04:00:00", run=past)


@pytest.mark.long
def test_a_group_that_no_preset_fills_is_planned(tmp_path):
    changes = {"grpo.num_generations_per_prompt": 64, "policy.train_global_batch_size": 2048}
    made = seven(tmp_path, changes, "grpo")
    assert made.caps is None and "max_seconds=" not in render(made, as_json=False), "nothing is drawn after first waves"


def test_dynamic_sampling_draws_until_enough_groups_have_signal(tmp_path):
    plain = seven(tmp_path, preset="grpo")
    keys = {"grpo.use_dynamic_sampling": True, "grpo.batch_multiplier": 2, "grpo.dynamic_sampling_max_gen_batches": 10}
    once = seven(tmp_path, keys, "grpo")
    assert once.costs[0].responses == 2 * plain.costs[0].responses
    assert once.forecast.step.p50 > plain.forecast.step.p50
    assert once.costs[0].zero_signal == 0 and once.caps is None
    twice = seven(tmp_path, keys | {"grpo.batch_multiplier": 1}, "grpo")
    assert twice.costs[0].responses == 2 * plain.costs[0].responses
    hopeless = tmp_path / "rates"
    hopeless.write_text("0.001\n")
    never = seven(tmp_path, keys, "grpo", pass_rates=hopeless)
    assert any("NeMo-RL ends the run there" in warning for warning in never.warnings)


def test_batches_of_dynamic_sampling_are_those_that_fill_the_step(tmp_path):
    batch = taking(*[1.0] * 200)
    assert draw_batches(batch, 512, 512, 11).seconds_S.tolist() == [1.0] * 200, "all groups have signal"
    half = draw_batches(replace(batch, zero_signal=0.45), 512, 512, 11)
    assert half.seconds_S.tolist() == [2.0] * 200 and half.unfilled == 0.0
    bounded = draw_batches(replace(batch, zero_signal=1.0), 512, 512, 3)
    assert bounded.seconds_S.tolist() == [3.0] * 200 and bounded.unfilled == 1.0
    run = PlannedRun.read(config(tmp_path, {"grpo.use_dynamic_sampling": True, "grpo.batch_multiplier": 2}), [])
    rollout = run.rollout
    plan = run.ada.plan(rollout.group, rollout.longest)
    bound = bound_work(plan, 2 * rollout.prompts_per_step, run.max_concurrent, rollout.longest)
    assert SimulatedRun(run, BetaRates(1, 1), LENGTHS, 1).worst(plan) == tuple(11 * work for work in bound)


def test_lengths_say_their_rule(tmp_path):
    assert "median 0.3 x max_new_tokens (2048) = 614 tokens" in seven(tmp_path).lengths
    assert "median 200 tokens (--median-tokens)" in seven(tmp_path, median_tokens=200.0).lengths


def test_warnings_name_a_slot_without_a_save_and_dear_saves(tmp_path):
    many = {"grpo.max_num_steps": 40_000}
    warnings = " ".join(seven(tmp_path, {"checkpointing.save_period": 150, **many}).warnings)
    assert "checkpointing.save_period=150 is above the" in warnings
    assert seven(tmp_path, {"checkpointing.save_period": 20, **many}).warnings == ()
    dear = seven(tmp_path, {"checkpointing.save_period": 2, **many})
    assert dear.slots.save_share > 0.05 and "saves take" in dear.warnings[0]


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ([], {"time": "0"}, "--time=0: a job slot lasts"),
        ([], {"time": "00:00:00"}, "--time=00:00:00: a job slot lasts"),
        ([], {"time": "soon"}, "04:00:00"),
        ([], {"run_steps": 10}, "--run-steps=10 needs --run"),
        ([], {"median_tokens": 0.0}, "--median-tokens=0 must lie between 1 and max_new_tokens=2048"),
        ([], {"median_tokens": 4000.0}, "--median-tokens=4000 must lie between 1 and max_new_tokens=2048"),
        ([], {"median_tokens": float("nan")}, "--median-tokens=nan must lie between 1 and max_new_tokens=2048"),
        (["++policy.generation.temperature=-1"], {}, r"policy\.generation\.temperature="),
        (["++reinforce_ada.budget.max_samples=10"], {}, "max_samples=10 .*: 512 prompts x 8 responses = 4096"),
    ],
)
def test_options_and_values_that_cannot_be_are_refused(overrides, options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        make_plan(config(tmp_path), overrides, **({"time": "04:00:00", "steps": 1} | options))


def test_nemo_rls_own_grpo_needs_no_section_and_its_learner_computes_every_row(tmp_path):
    with_section = seven(tmp_path, preset="nemo_rl_grpo").forecast.phases
    path = config(tmp_path, {"grpo.use_dynamic_sampling": False})
    whole = yaml.safe_load(path.read_text())
    del whole["reinforce_ada"]
    path.write_text(yaml.safe_dump(whole))
    stock = make_plan(path, [], time="04:00:00", steps=3).forecast.phases
    assert stock["update"].p50 > 1.1 * with_section["update"].p50
    assert stock["sampling"].p50 == pytest.approx(with_section["sampling"].p50, rel=0.1)
    path.write_text(yaml.safe_dump(whole | {"grpo": whole["grpo"] | {"use_dynamic_sampling": True}}))
    with pytest.raises(UserError, match="without dynamic sampling only"):
        make_plan(path, [], time="04:00:00", steps=3)


def test_a_plan_without_a_long_enough_run_or_with_two_sources_of_lengths_is_refused(past, tmp_path):
    write_run(tmp_path, steps=2)
    with pytest.raises(UserError, match="at least 3 are needed"):
        History.read(tmp_path)
    own = [*CONFIG, f"base.cache_dir={tmp_path}"]
    with pytest.raises(UserError, match="--run RUN"):
        make_plan(JSONL, own, time="01:00:00", steps=1)
    with pytest.raises(UserError, match="lengths of its own"):
        make_plan(JSONL, own, time="1:00:00", run=past, median_tokens=9.0)
    write_run(tmp_path)
    (tmp_path / "config.yaml").write_text("{reinforce_ada: {preset: grpo}, grpo: {num_generations_per_prompt: 0}}")
    with pytest.raises(UserError, match=r"grpo\.num_generations_per_prompt=0 is no number"):
        make_plan(JSONL, own, time="1:00:00", run=tmp_path)


BASES = sorted(
    path for path in (ROOT / "configs").glob("*/ada-*.yaml") if path.stem.startswith(f"ada-{path.parent.name}")
)


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
@pytest.mark.parametrize("path", BASES, ids=lambda path: path.stem)
def test_every_model_is_planned_with_a_range(path):
    made = make_plan(path, [], time="04:00:00", steps=1)
    assert 0 < made.forecast.low < made.forecast.step.p50 < made.forecast.high
    assert {"this plan", "grpo"} <= {cost.name for cost in made.costs}


def test_a_slot_without_time_for_a_step_is_an_error_of_check(tmp_path):
    path = config(tmp_path)
    levels = [[found.level for found in check_walltime(path, [], time)] for time in ("00:20:00", "04:00:00")]
    assert levels == [["error"], ["ok"]]


def test_a_job_that_spends_its_time_on_starts_is_warned_of_with_a_length_that_does_not(tmp_path):
    """An hour holds a start of half an hour. A short run that fits into one job has no second start."""
    path = config(tmp_path)
    (found,) = check_walltime(path, ["grpo.max_num_steps=100"], "01:00:00")
    assert found.level == "warning" and re.search(r"take (\d+)% of its time", found.message)
    longer = re.search(r"--time=(\S+) spends (\d+)% on steps", found.message.split("in all; ")[1])
    assert int(longer[2]) >= 70
    assert [one.level for one in check_walltime(path, [], longer[1])] == ["ok"]
    assert [one.level for one in check_walltime(path, ["grpo.max_num_steps=5"], "01:00:00")] == ["ok"]


def test_a_slot_in_which_no_step_fits_is_an_error_that_says_how_long_one_must_be(tmp_path):
    with pytest.raises(UserError, match=r"--time=01:00: no step fits into a slot of 00:01:00 .* ask for 00:\d\d:00"):
        plan_command(config(tmp_path), ["grpo.max_num_steps=100"], time="01:00")


def test_each_lever_makes_grpo_s_step_shorter_and_the_last_row_has_them_all(tmp_path):
    """A step of 2,048 responses in one engine, which vLLM's 512 graphs do not cover. The last row is NeMo-RL's GRPO."""
    many = ["grpo.num_prompts_per_step=512", "grpo.num_generations_per_prompt=4", "cluster.gpus_per_node=2"]
    small = config(tmp_path, {"policy.model_name": "Qwen/Qwen2.5-Math-1.5B"})
    costs = make_plan(small, many, time="04:00:00", steps=4).costs
    rows = {cost.name: cost for cost in costs}
    as_it_is, few, graphs, pinned = (rows[name] for name in ("GRPO, NeMo-RL as it is", *(f"+ {one}" for one in LEVERS)))
    assert as_it_is.sampling > few.sampling > 1.3 * graphs.sampling
    assert graphs.sampling == pinned.sampling and graphs.step > pinned.step + 1.0
    assert {cost.responses for cost in (as_it_is, few, graphs, pinned)} == {2048}


def test_rows_without_advantage_cost_the_update_almost_nothing(tmp_path):
    """Only where nothing else of the loss has a gradient for them. A row of single stream always has an advantage."""
    path = config(tmp_path)
    made = make_plan(path, ["reinforce_ada.preset=grpo"], time="04:00:00", steps=4)
    cost = {one.name: one for one in made.costs}
    update = {name: one.step - one.sampling for name, one in cost.items()}
    assert cost["grpo"].zero_signal > 0.2 and cost["ada_single n=1"].zero_signal is None
    assert update["grpo"] < update["ada_seq_balance"] < update["ada_single n=1"]
    low, high = cost["ada_seq_balance"].over_grpo
    assert cost["grpo"].over_grpo == (1.0, 1.0) and 1.0 < low < high
    assert low < cost["ada_seq_balance"].step / cost["grpo"].step < high
    whole = make_plan(path, ["reinforce_ada.preset=grpo", "loss_fn.reference_policy_kl_penalty=0.01"], time="04:00:00",
                      steps=4)  # fmt: skip
    assert whole.forecast.phases["update"].p50 > 1.1 * made.forecast.phases["update"].p50


@pytest.mark.long
def test_the_cap_for_a_wanted_step_keeps_the_worst_step_within_it(tmp_path):
    path = config(tmp_path)
    free = make_plan(path, [], time="04:00:00", steps=8)
    wanted = 0.8 * free.forecast.step.worst
    cap = make_plan(path, [], time="04:00:00", steps=8, step_seconds=wanted).step_cap
    with_cap = make_plan(path, [f"reinforce_ada.budget.max_seconds={cap.max_seconds}"], time="04:00:00", steps=8)
    assert cap.max_seconds + cap.others + cap.drain == pytest.approx(wanted, abs=1.0)
    assert with_cap.forecast.step.worst <= wanted + 1.0 < free.forecast.step.worst
    none = make_plan(path, [], time="04:00:00", steps=8, step_seconds=1.0)
    assert none.step_cap.max_seconds is None and "no cap does it" in render(none, as_json=False)
    with pytest.raises(UserError, match="overlap"):
        make_plan(path, ["grpo.async_grpo.enabled=true"], time="04:00:00", steps=1, step_seconds=240)
    with pytest.raises(UserError, match="several batches"):
        make_plan(path, ["grpo.use_dynamic_sampling=true"], time="04:00:00", steps=1, step_seconds=240)


def test_what_no_published_point_covers_is_said_beside_the_range(tmp_path):
    path = config(tmp_path)
    covered = make_plan(path, [], time="04:00:00", steps=1).forecast
    ahead = make_plan(path, ["grpo.async_grpo.enabled=true"], time="04:00:00", steps=1).forecast
    fp8 = make_plan(path, ["policy.generation.vllm_cfg.precision=fp8"], time="04:00:00", steps=1)
    assert (covered.uncovered, ahead.uncovered, fp8.forecast.uncovered) == ((), ("asynchronous training",), ("FP8",))
    assert ahead.low / ahead.step.p50 < covered.low / covered.step.p50, "the range holds what was seen"
    assert "covers FP8" in render(fp8, as_json=False)
