"""`nemo-ada simulate`: choose exit, wave and cap before spending a GPU hour.

With `--pass-rate` the exact cost of one prompt under a preset or the rule given by --exit; otherwise a Monte-Carlo of
whole steps over a distribution of pass rates, for presets side by side or for that rule. An option that would have no
effect is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console

from nemo_ada.config.ada import MAX_RESPONSES, AdaSettings, EstimationSampling
from nemo_ada.config.presets import ada_settings, presets
from nemo_ada.core import seeds
from nemo_ada.core.prompts.allocation import allocate
from nemo_ada.core.sampling.budget import Caps
from nemo_ada.core.sampling.paths import StopRule
from nemo_ada.core.sampling.plan import SamplingPlan
from nemo_ada.errors import UserError
from nemo_ada.simulate import exact
from nemo_ada.simulate import steps as simulation
from nemo_ada.simulate.engine import LengthModel

LIMITS: dict[str, tuple[float, float]] = {
    "prompts": (1, 100_000),
    "group": (1, MAX_RESPONSES),
    "seeds": (1, 10_000),
    "median-tokens": (0.1, 1e7),
    "sigma": (0, 10),
    "wrong-factor": (1e-3, 1e3),
    "max-new-tokens": (1, 10_000_000),
    "max-samples": (1, 2**53),
    "max-tokens": (1, 2**53),
    "max-steps": (1, 2**53),
    "slots": (1, 10_000_000),
}
"""What an option may be; outside, the model has no answer or takes hours for it."""
TABLE_WIDTH = 160  # where the output is no terminal


Allocate = Callable[[np.ndarray], np.ndarray]
RULE = ("--k-pos", "--k-neg", "--wave", "--cap", "--window", "--max-window", "--scheduler")
EXACT = ("--pass-rate", "--exit", "--k-pos", "--k-neg", "--wave", "--cap", "--window", "--preset", "--group", "--json")
DEFAULT_RULE = "ada_seq_balance"  # of exact costs


def simulate(
    context: typer.Context,
    pass_rate: Annotated[float | None, typer.Option(help="exact cost of one prompt with this pass rate")] = None,
    exit_kind: Annotated[
        str | None, typer.Option("--exit", help="a rule of your own: positive, balanced or fixed (at n responses)")
    ] = None,
    k_pos: Annotated[int | None, typer.Option(help="of --exit: correct responses wanted")] = None,
    k_neg: Annotated[int | None, typer.Option(help="of --exit: incorrect responses wanted")] = None,
    wave: Annotated[
        str | None, typer.Option(help="of --exit: wave size, or a plan such as 8,4,4 (default 8; fixed: n)")
    ] = None,
    cap: Annotated[
        int | None, typer.Option(help="of --exit: N_max, responses per prompt (default 32; fixed: n)")
    ] = None,
    window: Annotated[int | None, typer.Option(help="of --exit: issue_order stopping with this window")] = None,
    max_window: Annotated[
        int | None, typer.Option(help="of --exit: the window follows the shortfall up to this")
    ] = None,
    scheduler: Annotated[
        Literal["continuous", "rounds"] | None, typer.Option(help="of --exit: rounds is the authors' barrier")
    ] = None,
    group: Annotated[int, typer.Option(help="n, rows kept per prompt")] = 4,
    preset: Annotated[list[str] | None, typer.Option(help="presets to compare (default: all)")] = None,
    beta: Annotated[str, typer.Option(help="pass rates from Beta(a,b)")] = "0.6,1.5",
    pass_rates: Annotated[Path | None, typer.Option(help="file with one measured pass rate per line")] = None,
    prompts: Annotated[int, typer.Option(help="prompts per step")] = 64,
    median_tokens: Annotated[float, typer.Option(help="median response length")] = 20.0,
    sigma: Annotated[float, typer.Option(help="spread of log lengths (0.9: heavy tail)")] = 0.9,
    wrong_factor: Annotated[float, typer.Option(help="wrong responses are this much longer")] = 1.3,
    max_new_tokens: Annotated[int, typer.Option(help="longest response")] = 400,
    max_samples: Annotated[int | None, typer.Option(help="budget: responses per step")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="budget: tokens per step; the first one reserves the model's mean length")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="budget: engine steps of a step's sampling phase")] = None,
    policy: Annotated[
        Literal["uniform", "greedy"], typer.Option(help="who is served when the budget is short")
    ] = "uniform",
    slots: Annotated[int | None, typer.Option(help="responses that decode at once (engine's max_num_seqs)")] = None,
    seed_count: Annotated[int, typer.Option("--seeds", help="simulated trainings")] = 10,
    plot: Annotated[Path | None, typer.Option(help="write a figure here")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Expected responses, tokens, engine steps and zero-signal share of sampling settings."""
    _check_limits(
        {
            "prompts": prompts, "group": group, "seeds": seed_count, "median-tokens": median_tokens, "sigma": sigma,
            "wrong-factor": wrong_factor, "max-new-tokens": max_new_tokens, "max-samples": max_samples,
            "max-tokens": max_tokens, "max-steps": max_steps, "slots": slots,
        }
    )  # fmt: skip
    given = _given(context)
    _check_effect(given)
    own = None
    if exit_kind is not None:
        own = _own_settings(exit_kind, k_pos, k_neg, wave, cap, window, max_window, scheduler)
    if pass_rate is not None:
        names = preset or [DEFAULT_RULE]
        if len(names) > 1:
            raise UserError(f"--pass-rate takes one preset, not {len(names)}")
        _print_exact(own or ada_settings({"preset": names[0]}), group, pass_rate, as_json)
        return
    caps = Caps(max_samples, max_tokens, max_steps)
    rates = simulation.BetaRates(*_pair(beta)) if pass_rates is None else simulation.MeasuredRates.read(pass_rates)
    setting = simulation.Setting(
        rates=rates,
        prompts=prompts,
        lengths=LengthModel(median_tokens, sigma, wrong_factor, max_new_tokens),
        seeds=seed_count,
        slots=slots,
    )

    def variant(name: str, settings: AdaSettings) -> simulation.Variant:
        plan, allocate = _plan(settings, group, max_new_tokens)
        known = "" if allocate is None else ", pass rates known"
        plan = replace(plan, caps=caps, policy=policy, expected_tokens=setting.lengths.mean_tokens)
        return simulation.Variant(f"{name} (n={plan.group_size}{known})", plan, allocate)

    if own is not None:
        variants = [variant("--exit", own)]
    elif preset:
        variants = [variant(name, ada_settings({"preset": name})) for name in preset]
    else:
        variants = []
        for name in presets():
            try:
                variants.append(variant(name, ada_settings({"preset": name})))
            except UserError as unfit:
                typer.echo(f"left out: {name}: {unfit}", err=True)
    rows = simulation.simulate(variants, setting)
    if plot is not None:
        simulation.plot(rows, plot)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
    else:
        console = Console()
        wide = console if console.is_terminal else Console(width=TABLE_WIDTH)
        wide.print(simulation.render_table(rows))


def _given(context: typer.Context) -> list[str]:
    """The options on the command line, by their names there."""
    sources = {option.opts[0]: context.get_parameter_source(str(option.name)) for option in context.command.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _check_effect(given: Sequence[str]) -> None:
    if "--exit" in given and "--preset" in given:
        raise UserError("--exit gives a rule of your own and --preset names one that exists; give one of the two")
    alone = [option for option in given if option in RULE]
    if alone and "--exit" not in given:
        raise UserError(
            f"{', '.join(alone)} belongs to a rule of your own; add --exit positive, balanced or fixed, or leave it out"
        )
    without = [option for option in given if option not in EXACT]
    if "--pass-rate" in given and without:
        raise UserError(
            f"{', '.join(without)} has no effect with --pass-rate, the exact cost of one prompt; leave one of them out"
        )


def _check_limits(given: Mapping[str, float | None]) -> None:
    for name, value in given.items():
        low, high = LIMITS[name]
        if value is not None and not low <= value <= high:
            raise UserError(f"--{name}={str(value)[:40]} must lie between {low:g} and {high:g}")


def _own_settings(
    kind: str,
    k_pos: int | None,
    k_neg: int | None,
    wave: str | None,
    cap: int | None,
    window: int | None,
    max_window: int | None,
    scheduler: str | None,
) -> AdaSettings:
    wanted = {"k_pos": k_pos, "k_neg": k_neg}
    useless = {"positive": ["k_neg"], "fixed": ["k_pos", "k_neg"]}.get(kind, [])
    for name in useless:
        if wanted[name] is not None:
            raise UserError(f"--{name.replace('_', '-')} has no effect with --exit {kind}; leave it out")
    rule = {"kind": kind} | {name: value for name, value in wanted.items() if value is not None}
    try:
        sizes = None if wave is None else [int(size) for size in wave.split(",")]
    except ValueError:
        raise UserError(f"--wave={wave}: give a size, or sizes separated by commas such as 8,4,4") from None
    if kind != "fixed":
        sizes, cap = sizes or [8], cap if cap is not None else 32
    sampling: dict[str, Any] = {"kind": "sequential", "exit": rule, "wave_size": sizes, "max_responses": cap}
    if scheduler is not None:
        sampling["scheduler"] = scheduler
    if window is not None:
        sampling["stopping"] = {"kind": "issue_order", "window": window, "max_window": max_window}
    elif max_window is not None:
        raise UserError("--max-window widens --window; add --window, or leave it out")
    return ada_settings({"sampling": sampling})


def _print_exact(settings: AdaSettings, group: int, pass_rate: float, as_json: bool) -> None:
    if not 0.0 <= pass_rate <= 1.0:
        raise UserError(f"--pass-rate={pass_rate} must lie between 0 and 1")
    plan = settings.plan(group, 1)
    if isinstance(settings.sampling, EstimationSampling) or plan.idle:
        raise UserError(
            f"what {settings.preset} draws for one prompt depends on the others of its step; leave out --pass-rate to "
            f"simulate whole steps"
        )
    waves = plan.wave_sizes if plan.window is None else (1,)
    found = exact.summary(StopRule(plan.exit, waves, plan.max_responses), pass_rate)
    grpo = 1.0 if group < 1 else pass_rate**group + (1.0 - pass_rate) ** group
    values = asdict(found) | {"pass_rate": pass_rate, "p_zero_signal_grpo": grpo}
    if as_json:
        typer.echo(json.dumps(values))
        return
    for name, value in values.items():
        if name != "size_distribution":
            typer.echo(f"{name:20} {value:.4f}")


def _plan(settings: AdaSettings, group: int, max_new_tokens: int) -> tuple[SamplingPlan, Allocate | None]:
    sampling = settings.sampling
    if not isinstance(sampling, EstimationSampling):
        return settings.plan(group, max_new_tokens), None
    size = max(group, 2 * sampling.min_responses)
    return settings.plan(size, max_new_tokens), _allocation(sampling, size)


def _allocation(sampling: EstimationSampling, size: int) -> Allocate:
    share = sampling.allocation.share()

    def shared(rate_P: np.ndarray) -> np.ndarray:
        tie_P = seeds.uniform(0, 0, np.arange(len(rate_P)), 0, stream=seeds.Stream.ALLOCATION)
        weight_P = share.weight(np.minimum(rate_P + sampling.epsilon, 1.0))
        return allocate(weight_P, size * len(rate_P), sampling.min_responses, sampling.max_responses, tie_P)

    return shared


def _pair(text: str) -> tuple[float, float]:
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--beta={text}: give two numbers separated by a comma, such as 0.6,1.5") from None
    if not (1e-3 <= a <= 1e6 and 1e-3 <= b <= 1e6):
        raise UserError(f"--beta={text[:80]}: both numbers must be positive, between 0.001 and 1000000")
    return a, b
