"""The planner: what it promises of step times, caps, slots and presets.

1. From the first 10 steps of a run, the median of the rest is predicted within 10 % and its p95 lies under the worst
   case. The run is a simulated one (engine, session and sampler are the real ones) with a pace and noise that the
   planner does not know; a run of the embedded back end is judged the same way where PLAN_RUN names its folder.
2. Caps: heavy-tailed lengths give p95/p50 over 1.5 without and at most 1.15 with a cap, first waves never cut.
3. No simulated step passes the bound of its plan.
4. Slots, time formats, published figures, advice.
5. Published figures belong to their setting: another one is extrapolated from it, and recipes of one model agree.
6. What will not work as its user may expect is said.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from nemo_ada.cli.plan import plan as plan_command
from nemo_ada.cluster.shapes import TABLE
from nemo_ada.config.presets import ada_settings
from nemo_ada.core.sampling.budget import Caps
from nemo_ada.errors import UserError
from nemo_ada.planning import phase
from nemo_ada.planning.calibration import Calibration
from nemo_ada.planning.caps import EVEN, even_cap, suggest_caps
from nemo_ada.planning.command import make_plan
from nemo_ada.planning.facts import read
from nemo_ada.planning.forecast import Forecast, Time
from nemo_ada.planning.history import History
from nemo_ada.planning.model import capped, variant
from nemo_ada.planning.presets import Cost, advise
from nemo_ada.planning.published import grpo_step
from nemo_ada.planning.render import render
from nemo_ada.planning.slots import parse_time, plan_slots
from nemo_ada.report.run import Run
from nemo_ada.report.timing import step_time
from nemo_ada.simulate.engine import LengthModel
from nemo_ada.simulate.steps import BetaRates

sys.path.insert(0, str(Path(__file__).parents[1] / "check"))
from recipes import changed

ROOT = Path(__file__).parents[2]
JSONL = ROOT / "configs/cpu/jsonl.yaml"
LENGTHS = LengthModel(9.0, 0.3, 1.0, 16)
CONFIG = [f"task.path={ROOT / 'recipes/data/chain_sum.jsonl'}", "policy.generation.max_new_tokens=16"]


def write_run(folder: Path, steps: int = 60, seed: int = 3) -> None:
    """A run directory with metrics of simulated steps: 3 ms per engine step, 20 us per token, 8 % noise."""
    plan = ada_settings({"preset": "ada_seq_balance"}).plan(4, 16)
    found = phase.simulate(plan, BetaRates(0.5, 1.0), LENGTHS, prompts=64, steps=steps, slots=256, seed=seed)
    rng = np.random.default_rng(seed)
    noise = rng.lognormal(0.0, 0.08, (3, steps))
    sampling = (0.003 * found.engine_steps_S + 2e-5 * found.tokens_S) * noise[0]
    folder.mkdir(parents=True, exist_ok=True)
    rates = BetaRates(0.5, 1.0).draw(4000, seed)
    zero = float(np.mean(rates**4 + (1 - rates) ** 4))
    with (folder / "metrics.jsonl").open("w") as file:
        for i in range(steps):
            record = {
                "step": i + 1, "time/sampling": sampling[i], "time/update": 0.3 * noise[1][i],
                "time/refit": 0.02 * noise[2][i], "time/step": sampling[i] + 0.3 * noise[1][i] + 0.02 * noise[2][i],
                "engine_steps": found.engine_steps_S[i],
                "ada/tokens_drawn": found.tokens_S[i],
                "ada/samples_drawn": found.responses_S[i], "ada/live_rows": 180.0,
                "ada/pass_rate": float(rates.mean()), "ada/zero_signal_groups_if_grpo": zero,
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")
    (folder / "evaluations.jsonl").write_text(json.dumps({"step": 0, "time/evaluation": 2.0}) + "\n")


def planned(folder: Path, cache: Path, *overrides: str, steps: int = 10):  # type: ignore[no-untyped-def]
    return make_plan(
        JSONL, [*CONFIG, f"base.cache_dir={cache}", *overrides], time="01:00:00", run=folder, run_steps=steps
    )  # fmt: skip


def test_ten_steps_predict_the_rest_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    rest = History.read(tmp_path / "run").step_S[10:]
    step = planned(tmp_path / "run", tmp_path).forecast.step
    assert step.p50 == pytest.approx(np.median(rest), rel=0.10)
    assert np.quantile(rest, 0.95) < step.worst
    assert step.p50 < step.p95 < step.worst
    assert step.p95 == pytest.approx(np.quantile(rest, 0.95), rel=0.15)


def test_another_plan_is_carried_over_by_simulation(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("reinforce_ada: {preset: ada_seq_balance}\n")
    balance = planned(tmp_path / "run", tmp_path)
    grpo = planned(tmp_path / "run", tmp_path, "reinforce_ada.preset=grpo")
    true = 256 * 9.4  # tokens of GRPO's step: 64 prompts x 4 responses
    assert grpo.forecast.phases["sampling"].p50 == pytest.approx(0.003 * 16 + 2e-5 * true, rel=0.3)
    assert grpo.forecast.step.p50 < balance.forecast.step.p50
    assert "carried" in grpo.forecast.step.source


@pytest.mark.skipif("PLAN_RUN" not in os.environ, reason="PLAN_RUN (folder of an embedded run) is not set")
def test_ten_steps_predict_the_rest_of_a_recorded_run() -> None:
    folder = Path(os.environ["PLAN_RUN"])
    rest = History.read(folder).step_S[10:]
    config = folder / "config.yaml"
    step = make_plan(config, ["base.cache_dir=.cache/base"], time="01:00:00", run=folder, run_steps=10).forecast.step
    assert step.p50 == pytest.approx(np.median(rest), rel=0.10)
    assert np.quantile(rest, 0.95) < step.worst


def test_presets_that_cannot_fill_a_group_are_left_out_of_the_advice(tmp_path: Path) -> None:
    write_run(tmp_path)
    eight = planned(tmp_path, tmp_path, "grpo.num_generations_per_prompt=8", "reinforce_ada.preset=grpo")
    found = {cost["name"] for cost in json.loads(render(eight, as_json=True))["costs"]}
    assert "ada_seq_balance" in found
    assert "ada_seq_lean" not in found


@pytest.mark.parametrize("beta", [(8.0, 8.0), (3.0, 1.0)])
def test_a_cap_on_seconds_flattens_heavy_tails(beta: tuple[float, float]) -> None:
    lengths = LengthModel(200.0, 1.2, 1.3, 2048)
    plan = ada_settings({"preset": "ada_seq_positive"}).plan(4, 2048)

    def ratio(caps: Caps) -> float:
        found = phase.simulate(replace(plan, caps=caps), BetaRates(*beta), lengths, prompts=64, steps=40)
        assert found.responses_S.min() >= 64 * 8, "first waves are never cut"
        return float(np.quantile(found.engine_steps_S, 0.95) / np.quantile(found.engine_steps_S, 0.5))

    assert ratio(Caps()) > 1.5
    assert ratio(Caps(max_seconds=0.7 * 2048)) <= 1.15


@pytest.mark.parametrize("preset", ["grpo", "ada_seq_balance", "ada_seq_lean", "ada_seq_idle"])
@pytest.mark.parametrize("slots", [None, 48])
def test_no_step_passes_the_bound(preset: str, slots: int | None) -> None:
    plan = ada_settings({"preset": preset}).plan(4, 400)
    found = phase.simulate(plan, BetaRates(0.5, 2.0), LengthModel(), prompts=32, steps=8, slots=slots)
    steps, tokens = phase.worst_work(plan, 32, slots, 400)
    assert found.engine_steps_S.max() <= steps
    assert found.tokens_S.max() <= tokens


def test_measured_lengths_are_drawn_as_they_were() -> None:
    lengths = phase.MeasuredLengths(lengths=tuple(range(1, 101)))
    normal_N = np.random.default_rng(0).standard_normal(20_000)
    drawn = lengths.tokens(normal_N > 9, normal_N)
    assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx([10, 50, 90], abs=2)


def test_the_fitted_pass_rates_have_the_runs_mean_and_zero_signal_share(tmp_path: Path) -> None:
    write_run(tmp_path, steps=12)
    history = History.read(tmp_path)
    rates = np.random.default_rng(0).beta(*history.beta(4), 40_000)
    assert rates.mean() == pytest.approx(history.pass_rate, abs=0.01)
    assert (rates**4 + (1 - rates) ** 4).mean() == pytest.approx(history.zero_signal, abs=0.01)


def test_too_short_a_run_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, steps=2)
    with pytest.raises(UserError, match="at least 3 are needed"):
        History.read(tmp_path)


def test_the_embedded_back_end_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give --run"):
        make_plan(JSONL, [*CONFIG, f"base.cache_dir={tmp_path}"], time="01:00:00")


FORECAST = Forecast(
    {"sampling": Time(60.0, 80.0, 400.0, "x"), "training": Time(20.0, 22.0, 30.0, "x")},
    Time(80.0, 102.0, 430.0, "x"), Time(100.0, 120.0, 150.0, "x"), Time(30.0, 40.0, 60.0, "x"),
)  # fmt: skip


def test_slots_count_start_saves_validations_and_the_lead() -> None:
    slots = plan_slots(
        FORECAST, seconds=14_400, cold_start=1800, steps=400, val_period=50, save_period=50, gpus=8
    )  # fmt: skip
    assert slots.lead == 330  # p95 step + p95 validation + worst save + margin, up to half a minute
    assert slots.steps == int((14_400 - 1800 - 330) / (80 + 30 / 50 + 100 / 50))
    assert slots.slots == 3
    assert slots.kept == 14_400 - 1800 - 150 - 60 - 30
    assert slots.guaranteed == int(slots.kept / (430 + 60 / 50 + 150 / 50))
    assert slots.gpu_hours < 3 * 4 * 8
    never = plan_slots(FORECAST, seconds=14_400, cold_start=1800, steps=400, val_period=0, save_period=50, gpus=8)
    assert never.lead == 210, "nothing is validated between the steps"
    short = plan_slots(FORECAST, seconds=2000, cold_start=1800, steps=400, val_period=50, save_period=50, gpus=8)
    assert not short.fits


def test_suggested_caps_make_the_worst_step_fit_or_say_that_none_can() -> None:
    def caps(available: float, drain: float = 20.0):  # type: ignore[no-untyped-def]
        return suggest_caps(
            FORECAST, samples_p95=9000, tokens_p95=1e6, first_wave=4096, drain=drain, available=available
        )  # fmt: skip

    wide = caps(1e6)
    assert wide.max_seconds == 80.0
    assert wide.worst_step == 130.0
    tight = caps(115.0)
    assert tight.max_seconds is not None
    assert tight.worst_step <= 115.0
    assert caps(40.0).max_seconds is None


@pytest.mark.parametrize(
    ("text", "hours"), [("04:00:00", 4), ("2-00:00:00", 48), ("90", 1.5), ("30:00", 0.5), ("1-06", 30)]
)  # fmt: skip
def test_slurms_times_are_understood(text: str, hours: float) -> None:
    assert parse_time(text) == hours * 3600


def test_another_time_is_refused_with_an_example() -> None:
    with pytest.raises(UserError, match="04:00:00"):
        parse_time("soon")


def test_published_figures_are_used_as_they_are_and_scaled_otherwise() -> None:
    seven = TABLE["Qwen/Qwen2.5-Math-7B"]
    step = grpo_step("Qwen/Qwen2.5-Math-7B", seven, 512, 8)
    assert (step.seconds, step.update, step.said) == (236.0, 85.0, "published")
    assert step.update_said.startswith("published (the authors' verl run")
    wider = grpo_step("Qwen/Qwen2.5-Math-7B", seven, 512, 32)
    assert wider.seconds == pytest.approx(59.0)
    assert wider.said == "scaled from Qwen/Qwen2.5-Math-7B's published 236 s by GPUs"
    eight = grpo_step("x/y-8B", TABLE["meta-llama/Llama-3.1-8B-Instruct"], 512, 8)
    assert 236 < eight.seconds < 270
    assert eight.update_said.startswith("scaled from Qwen/Qwen2.5-Math-7B's published 85 s by active parameters (")


@pytest.mark.parametrize(
    ("model", "gpus", "prompts"), [("Qwen/Qwen3-30B-A3B", 32, 512), ("Qwen/Qwen3-235B-A22B", 128, 128)]
)
def test_an_update_that_nobody_published_is_called_assumed(model: str, gpus: int, prompts: int) -> None:
    step = grpo_step(model, TABLE[model], prompts, gpus)
    assert step.said == "published"
    assert step.update_said.startswith("assumed")
    assert step.update == pytest.approx(step.seconds * 85 / 236)


def cost(name: str, responses: float, step: float, zero: float = 0.3, utilisation: float = 0.8) -> Cost:
    return Cost(name, responses, step - 20, step, zero, utilisation)


def test_advice_follows_cost_and_difficulty() -> None:
    free = [cost("grpo", 256, 100), cost("ada_seq_balance", 1200, 105)]
    assert advise(free, 0.2, 0.01, 0.1).best == "ada_seq_balance"
    paid = [cost("grpo", 256, 100), cost("ada_seq_idle", 300, 100), cost("ada_seq_balance", 1200, 470)]
    dear = advise([*paid, cost("ada_seq_lean", 400, 130)], 0.2, 0.3, 0.1)
    assert dear.best == "ada_seq_lean"
    assert advise(paid, 0.2, 0.3, 0.1).best == "grpo"  # groups of 8: the lean preset's waves of 4 do not fill them
    assert dear.gain < 0
    tail = [
        cost("grpo", 256, 100, 0.5, 0.2), cost("ada_seq_idle", 400, 100, 0.35, 0.4), cost("ada_seq_balance", 1200, 470)
    ]  # fmt: skip
    assert advise(tail, 0.2, 0.3, 0.1).best == "ada_seq_idle"
    assert advise(free, 0.05, 0.01, 0.1).difficulty == "very hard"


def test_every_figure_says_where_it_comes_from(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=12)
    made = planned(tmp_path / "run", tmp_path)
    text = render(made, as_json=False)
    for line in text.splitlines():
        if line.startswith(("sampling", "update", "refit", "step ", "save")):
            assert line.rstrip().endswith(("measured here", "assumed")), line
    assert json.loads(render(made, as_json=True))["slots"]["steps"] == made.slots.steps


def recipe(folder: Path, changes: dict[str, object] | None = None, **reinforce_ada: object) -> Path:
    """A published 7B recipe as a file of its own, with dotted keys changed."""
    section = {"preset": "ada_seq_balance"} | reinforce_ada
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(changed({"grpo.max_num_steps": 400, "reinforce_ada": section} | (changes or {}))))
    return path


def test_a_cap_on_seconds_is_simulated_without_a_run_too(tmp_path: Path) -> None:
    free = make_plan(recipe(tmp_path), [], time="04:00:00", steps=8)
    sampling = free.forecast.sampling
    cap = round(0.6 * (sampling.p50 - free.forecast.fixed))
    tight = make_plan(recipe(tmp_path, budget={"max_seconds": cap}), [], time="04:00:00", steps=8)
    assert tight.forecast.sampling.p50 < 0.9 * sampling.p50
    assert tight.forecast.sampling.worst < 0.7 * sampling.worst
    assert tight.costs[0].responses < 0.9 * free.costs[0].responses
    assert f"max_seconds={cap}" in tight.forecast.sampling.source
    assert tight.slots.steps > free.slots.steps


def test_a_cap_on_samples_holds_for_the_whole_step_though_fewer_prompts_are_simulated(tmp_path: Path) -> None:
    tight = make_plan(recipe(tmp_path, budget={"max_samples": 5120}), [], time="04:00:00", steps=4)
    assert 4096 <= tight.costs[0].responses <= 5120


def test_each_published_figure_names_its_source(tmp_path: Path) -> None:
    made = json.loads(render(make_plan(recipe(tmp_path), [], time="04:00:00", steps=4), as_json=True))
    phases = made["forecast"]["phases"]
    assert phases["sampling, rest"]["source"].startswith("published: 375 s less the update (the authors' verl run")
    assert phases["update"]["source"].startswith("published (the authors' verl run")
    assert phases["update"]["source"].endswith("; p95 and worst assumed: x1.1, x1.3")
    assert made["forecast"]["evaluation"]["source"].startswith("assumed")
    assert made["slots"]["source"] == "assumed"
    assert {cost["source"] for cost in made["costs"]} == {"simulated"}
    assert (made["caps"]["source"], made["even"]["source"]) == ("simulated", "simulated")


def test_the_estimation_variant_is_simulated_with_its_own_allocation() -> None:
    estimated = variant(ada_settings({"preset": "ada_est_ema"}), 8, 400)
    assert estimated.allocate is not None
    rates = np.array([0.05, 0.2, 0.8, 0.95])
    shares = estimated.allocate(rates)
    assert shares.sum() == 32
    assert (np.diff(shares) <= 0).all()
    assert shares[0] > 2 * shares[-1]
    assert estimated == variant(ada_settings({"preset": "ada_est_ema"}), 8, 400)
    lengths = LengthModel(60.0, 0.7, 2.0, 400)
    own, uniform = (
        phase.simulate(estimated.plan, BetaRates(0.6, 1.5), lengths, prompts=64, steps=8, allocate=allocate)
        for allocate in (estimated.allocate, lambda rate_P: np.full(len(rate_P), 8))
    )
    assert own.responses_S.tolist() == uniform.responses_S.tolist() == [512.0] * 8
    assert own.tokens_S.mean() > 1.02 * uniform.tokens_S.mean(), (
        "hard prompts get more responses, wrong ones are longer"
    )


def test_the_even_cap_is_the_widest_that_flattens_the_tail() -> None:
    lengths = LengthModel(200.0, 1.2, 1.3, 2048)
    asked = variant(ada_settings({"preset": "ada_seq_positive"}), 4, 2048)

    def phases(cap: float | None) -> phase.Phases:
        return phase.simulate(capped(asked, cap).plan, BetaRates(8.0, 8.0), lengths, prompts=64, steps=30)

    found = even_cap(phases)
    assert found.uncapped > 1.5
    assert found.max_seconds is not None
    assert found.capped <= EVEN
    assert 0.0 < found.cut < 0.5
    even = even_cap(lambda cap: phase.simulate(
        capped(variant(ada_settings({"preset": "grpo"}), 4, 2048), cap).plan, BetaRates(8.0, 8.0), lengths,
        prompts=64, steps=30,
    ))  # fmt: skip
    assert even.max_seconds is None
    assert even.uncapped <= EVEN


def taking(*seconds: float) -> phase.Phases:
    zeros = np.zeros(len(seconds))
    return phase.Phases(zeros, zeros, zeros, np.array(seconds), 0.0, 0.0, 0.25)


def test_where_no_cap_makes_phases_even_the_evenest_is_named() -> None:
    free = taking(*[10.0] * 6, 14.0, 16.0, 18.0, 20.0)
    narrow = {12.0: taking(*[10.0] * 7, 13.0, 13.0, 13.0), 9.0: taking(*[10.0] * 9, 12.5), 6.0: taking(*[9.0] * 9, 12)}
    found = even_cap(lambda cap: free if cap is None else narrow.get(cap, free))
    assert found.max_seconds == 9.0 and found.uncapped > EVEN and found.cut == 0.25
    assert found.capped == pytest.approx(np.quantile([10.0] * 9 + [12.5], 0.95) / 10)
    useless = even_cap(lambda cap: free)
    assert useless.max_seconds is None and useless.capped == useless.uncapped


def test_the_plan_is_kept_where_the_report_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", steps=20)
    (tmp_path / "run" / "config.yaml").write_text("{reinforce_ada: {preset: ada_seq_balance}, grpo: {seed: 0}}")

    def command(*overrides: str, write_to: Path | None = None) -> None:
        plan_command(
            JSONL, [*CONFIG, f"base.cache_dir={tmp_path}", *overrides], time="01:00:00", run=tmp_path / "run",
            run_steps=10, pass_rates=None, cold_start=None, write_to=write_to, as_json=True,
        )  # fmt: skip

    command("reinforce_ada.preset=grpo")
    assert not (tmp_path / "run" / "plan.json").exists(), "another plan's prediction is not the run's"
    capsys.readouterr()
    command("reinforce_ada.preset=ada_seq_balance")
    forecast = json.loads(capsys.readouterr().out)["forecast"]
    run = Run.read(tmp_path / "run")
    table = step_time([run]).table
    columns = [table.columns.index(name) for name in ("phase", "planned p50 s", "planned p95 s")]
    shown = {row[columns[0]]: [row[i] for i in columns[1:]] for _, row in table.rows}
    for name in ("sampling", "update", "refit", "step", "evaluation"):
        where = forecast["phases"].get(name) or forecast[name]
        assert shown[name] == [where["p50"], where["p95"]]
        assert where["p50"] > 0
    command("reinforce_ada.preset=grpo", write_to=tmp_path / "next")
    assert (tmp_path / "next" / "plan.json").is_file()


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME is not set")
def test_a_published_recipe_is_planned_from_its_published_step_time() -> None:
    made = make_plan(ROOT / "configs/qwen2.5-math-7b/ada-qwen2.5-math-7b-1n8g-tp4.yaml", [], time="04:00:00", steps=6)
    assert made.forecast.step.p50 == pytest.approx(1.59 * 236, rel=0.01)
    assert "published" in made.forecast.step.source
    assert made.slots.slots == pytest.approx(400 / made.slots.steps, abs=1)


RECIPES = sorted(path for path in (ROOT / "configs").glob("*/*-*.yaml") if path.parent.name not in ("eval", "common"))


@pytest.mark.skipif("NEMO_RL_HOME" not in os.environ, reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_planned(path: Path) -> None:
    made = make_plan(path, [], time="04:00:00", steps=1)
    assert made.forecast.step.p50 > 0
    assert {"this plan", "grpo"} <= {cost.name for cost in made.costs}
    text = render(made, as_json=False)
    assert "H100-80GB" in text and "presets_measured.md" in text
    assert ("dynamic sampling draws" in text) == path.stem.startswith("dapo")


def test_a_group_that_the_reference_cannot_fill_gets_no_gain_instead_of_a_traceback(tmp_path: Path) -> None:
    changes = {"grpo.num_generations_per_prompt": 64, "policy.train_global_batch_size": 2048}
    made = make_plan(recipe(tmp_path, changes, preset="grpo"), [], time="04:00:00", steps=2)
    assert made.advice.gain is None and made.advice.best == "grpo"
    text = render(made, as_json=False)
    assert "start from grpo: ada_seq_balance" in text
    assert made.caps is None and "max_seconds=" not in text, "nothing is drawn after first waves: it would be refused"


def seven(folder: Path, changes: dict[str, object] | None = None, preset: str = "ada_seq_balance", **options: object):  # type: ignore[no-untyped-def]
    return make_plan(recipe(folder, changes, preset=preset), [], time="04:00:00", steps=4, **options)  # type: ignore[arg-type]


def test_only_the_published_setting_gets_the_published_figure(tmp_path: Path) -> None:
    published = seven(tmp_path)
    assert published.forecast.step.p50 == pytest.approx(1.59 * 236)
    assert published.forecast.step.source.startswith("published")
    rates = tmp_path / "rates"
    rates.write_text("0.9\n0.8\n")
    others = {
        "pass rates": seven(tmp_path, pass_rates=rates),
        "lengths": seven(tmp_path, median_tokens=200.0),
        "max_new_tokens": seven(tmp_path, {"policy.generation.max_new_tokens": 1024}),
        "pass rates ": seven(tmp_path, {"data.train.data_path": "RLHFlow/reinforce_ada_hard_prompt"}),
        "FP8": seven(
            tmp_path, {"policy.generation.vllm_cfg.precision": "fp8", "policy.megatron_cfg.fp8_cfg.enabled": True}
        ),
        "prompts": seven(tmp_path, {"grpo.num_prompts_per_step": 256}),
    }
    for why, made in others.items():
        assert abs(made.forecast.step.p50 / published.forecast.step.p50 - 1.0) > 0.002, why
        source = made.forecast.step.source
        assert source.startswith("extrapolated from Qwen/Qwen2.5-Math-7B's published 236 s") and why.strip() in source
    assert others["lengths"].forecast.step.p50 < 0.7 * published.forecast.step.p50
    assert others["max_new_tokens"].forecast.step.p50 == pytest.approx(published.forecast.step.p50 / 2, rel=0.1)
    assert others["FP8"].forecast.phases["update"].p50 == pytest.approx(0.8 * 85.0)


def test_recipes_of_one_model_give_a_preset_the_same_time(tmp_path: Path) -> None:
    presets = ("ada_seq_balance", "grpo", "ada_seq_lean", "ada_seq_idle")
    plans = [{cost.name: cost.step for cost in seven(tmp_path, preset=preset).costs} for preset in presets]
    for preset, own in zip(presets, plans, strict=True):
        assert own["this plan"] == pytest.approx(own[preset])
        assert {name: own[name] for name in presets} == pytest.approx({name: plans[0][name] for name in presets})
    assert plans[0]["grpo"] == pytest.approx(236.0)
    assert plans[0]["ada_seq_positive"] == pytest.approx(1.41 * 236)


def test_the_published_estimation_variant_has_eight_rows_per_prompt(tmp_path: Path) -> None:
    changes = {"grpo.num_generations_per_prompt": 8, "policy.train_global_batch_size": 1024}
    assert seven(tmp_path, changes, "ada_est_ema").forecast.step.p50 == pytest.approx(1.62 * 236)


def test_a_published_mean_length_is_carried_to_shorter_responses(tmp_path: Path) -> None:
    thirty = {
        "policy.model_name": "Qwen/Qwen3-30B-A3B", "cluster.num_nodes": 4,
        "policy.megatron_cfg.expert_model_parallel_size": 8, "policy.generation.vllm_cfg.tensor_parallel_size": 2,
    }  # fmt: skip
    found = Calibration.of(read(recipe(tmp_path, thirty, preset="grpo"), []), 4)
    assert found.tokens == pytest.approx(3200, rel=0.03)
    made = seven(tmp_path, thirty, "grpo")
    assert made.forecast.step.p50 < 0.5 * 192


def test_dynamic_sampling_draws_until_enough_groups_have_signal(tmp_path: Path) -> None:
    plain = seven(tmp_path, preset="grpo")
    keys = {"grpo.use_dynamic_sampling": True, "grpo.batch_multiplier": 2, "grpo.dynamic_sampling_max_gen_batches": 10}
    once = seven(tmp_path, keys, "grpo")
    assert once.costs[0].responses == 2 * plain.costs[0].responses
    assert once.forecast.step.p50 > plain.forecast.step.p50
    assert once.costs[0].zero_signal == 0 and once.caps is None
    twice = seven(tmp_path, keys | {"grpo.batch_multiplier": 1}, "grpo")
    assert any("draws 2.00 batches of 512 prompts" in note for note in twice.notes)
    assert twice.forecast.sampling.p50 > once.forecast.sampling.p50
    hopeless = tmp_path / "rates"
    hopeless.write_text("0.001\n")
    never = seven(tmp_path, keys, "grpo", pass_rates=hopeless)
    assert any("NeMo-RL ends the run there" in note for note in never.notes)


def test_batches_of_dynamic_sampling_are_those_that_fill_the_step() -> None:
    batch = taking(*[1.0] * 200)
    assert phase.drawn_again(batch, 512, 512, 11).batches == 1.0, "all groups have signal"
    half = phase.drawn_again(replace(batch, zero_signal=0.45), 512, 512, 11)
    assert half.batches == 2.0 and half.unfilled == 0.0
    assert half.seconds_S.tolist() == [2.0] * 200
    bounded = phase.drawn_again(replace(batch, zero_signal=1.0), 512, 512, 3)
    assert (bounded.batches, bounded.unfilled) == (3.0, 1.0)


def test_idle_mode_without_a_tail_is_told(tmp_path: Path) -> None:
    told = "idle mode draws nothing here"
    assert any(told in note for note in seven(tmp_path, preset="ada_seq_idle").notes)
    short = seven(tmp_path, preset="ada_seq_idle", median_tokens=200.0)
    assert short.costs[0].responses > 1.2 * 2048
    assert not any(told in note for note in short.notes)
    assert not any(told in note for note in seven(tmp_path, preset="grpo").notes)


def test_lengths_say_their_rule(tmp_path: Path) -> None:
    assert "median 0.3 x max_new_tokens (2048) = 614 tokens" in seven(tmp_path).lengths
    assert "median 200 tokens (--median-tokens)" in seven(tmp_path, median_tokens=200.0).lengths
    for wrong in (0.0, 4000.0, float("nan")):
        with pytest.raises(UserError, match=r"--median-tokens=.* must lie between 1 and max_new_tokens=2048"):
            seven(tmp_path, median_tokens=wrong)
    write_run(tmp_path / "run", steps=12)
    with pytest.raises(UserError, match="lengths of its own"):
        make_plan(
            JSONL, [*CONFIG, f"base.cache_dir={tmp_path}"], time="1:00:00", run=tmp_path / "run", median_tokens=9.0
        )


def test_a_slot_without_a_save_and_a_chain_that_is_too_long_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAX_ATTEMPTS", raising=False)
    monkeypatch.setenv("NEMO_ADA_SITE", str(tmp_path / "none.env"))
    notes = " ".join(seven(tmp_path, {"checkpointing.save_period": 50, "grpo.max_num_steps": 4000}).notes)
    assert "checkpointing.save_period=50 is above the" in notes
    assert "slots are more than the 50 jobs of a chain: raise MAX_ATTEMPTS" in notes
    monkeypatch.setenv("MAX_ATTEMPTS", "500")
    quiet = " ".join(seven(tmp_path, {"checkpointing.save_period": 10, "grpo.max_num_steps": 4000}).notes)
    assert "save_period" not in quiet and "MAX_ATTEMPTS" not in quiet


def test_caps_are_checked_with_the_users_own_numbers(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    with pytest.raises(
        UserError, match=r"max_samples=10 cannot hold the first waves: 512 prompts x 8 responses = 4096"
    ):
        make_plan(path, ["++reinforce_ada.budget.max_samples=10"], time="04:00:00", steps=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "0"}, "--time=0: a job slot lasts"),
        ({"time": "00:00:00"}, "--time=00:00:00: a job slot lasts"),
        ({"cold_start": -5000.0}, "--cold-start=-5000 must be seconds"),
        ({"cold_start": float("nan")}, "--cold-start=nan must be seconds"),
        ({"cold_start": float("inf")}, "--cold-start=inf must be seconds"),
        ({"run_steps": 10}, "--run-steps=10 needs --run"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        make_plan(recipe(tmp_path), [], **({"time": "04:00:00", "steps": 1} | options))  # type: ignore[arg-type]
