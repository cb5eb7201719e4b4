"""The command `nemo-ada simulate`. It helps to choose exit rule, wave size and cap before spending GPU hours.

With `--pass-rate` it prints the exact cost of one prompt, under a preset or the rule of --exit. With `--objective` it
prints what presets teach. Otherwise it simulates whole steps over a distribution of pass rates, for presets side by
side or for that rule. An option without effect is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from nemo_ada.cli.limits import check_limits
from nemo_ada.config.ada import AdaSettings, EstimationSampling
from nemo_ada.config.presets import ada_settings, presets
from nemo_ada.core.learning.factor import SHOWN_P
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.plan import MAX_RESPONSES
from nemo_ada.errors import UserError
from nemo_ada.lab.simulate import exact
from nemo_ada.lab.simulate import objective as teaching
from nemo_ada.lab.simulate import steps as simulation
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.variants import OWN_RULE, preset_variant

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
"""Bounds of options. Outside them the simulation has no answer or takes hours."""
TABLE_WIDTH = 200  # columns of the table when the output is not a terminal

RULE = ("--k-pos", "--k-neg", "--wave", "--cap", "--scheduler")
TAUGHT = ("--objective", "--preset", "--group", "--json")
EXACT = ("--pass-rate", "--exit", "--k-pos", "--k-neg", "--wave", "--cap", "--preset", "--group", "--json")
DEFAULT_RULE = "ada_seq_balance"  # the preset of exact costs


def simulate(
    context: typer.Context,
    pass_rate: Annotated[float | None, typer.Option(help="exact cost of one prompt with this pass rate")] = None,
    objective: Annotated[
        bool, typer.Option("--objective", help="what presets teach: a prompt's weight in the mean update, by pass rate")
    ] = False,
    exit_kind: Annotated[
        str | None, typer.Option("--exit", help="rule to simulate: positive, balanced or fixed (at n responses)")
    ] = None,
    k_pos: Annotated[int | None, typer.Option(help="with --exit: correct responses that a prompt needs")] = None,
    k_neg: Annotated[int | None, typer.Option(help="with --exit: incorrect responses that a prompt needs")] = None,
    wave: Annotated[
        str | None, typer.Option(help="with --exit: wave size, or a plan such as 8,4,4 (default 8; fixed: n)")
    ] = None,
    cap: Annotated[
        int | None, typer.Option(help="with --exit: N_max, responses per prompt (default 32; fixed: n)")
    ] = None,
    scheduler: Annotated[
        Literal["continuous", "rounds"] | None, typer.Option(help="with --exit: rounds is the authors' barrier")
    ] = None,
    group: Annotated[int, typer.Option(help="n, rows per prompt")] = 4,
    preset: Annotated[list[str] | None, typer.Option(help="presets to compare (default: all)")] = None,
    beta: Annotated[str, typer.Option(help="draw pass rates from Beta(a,b)")] = "0.6,1.5",
    pass_rates: Annotated[Path | None, typer.Option(help="file with one measured pass rate per line")] = None,
    prompts: Annotated[int, typer.Option(help="prompts per step")] = 64,
    median_tokens: Annotated[float, typer.Option(help="median response length, in tokens")] = 20.0,
    sigma: Annotated[float, typer.Option(help="standard deviation of log lengths (0.9: heavy tail)")] = 0.9,
    wrong_factor: Annotated[float, typer.Option(help="wrong responses are this much longer")] = 1.3,
    max_new_tokens: Annotated[int, typer.Option(help="tokens of the longest response")] = 400,
    max_samples: Annotated[int | None, typer.Option(help="budget: responses per step")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="budget: tokens per step; the first one reserves the model's mean length")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="budget: engine steps of a step's sampling phase")] = None,
    slots: Annotated[int | None, typer.Option(help="responses that decode at once (engine's max_num_seqs)")] = None,
    seed_count: Annotated[int, typer.Option("--seeds", help="simulated trainings")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Estimate responses, tokens, engine steps and zero-signal share of sampling settings."""
    check_limits(context, LIMITS)
    _check_effect(context)
    if objective:
        _print_taught(preset, group, as_json)
        return
    own = None if exit_kind is None else _own_settings(exit_kind, k_pos, k_neg, wave, cap, scheduler)
    if pass_rate is not None:
        _print_exact(own, preset, group, pass_rate, as_json)
        return
    rates = simulation.BetaRates(*_pair(beta)) if pass_rates is None else simulation.MeasuredRates.read(pass_rates)
    lengths = LengthModel(median_tokens, sigma, wrong_factor, max_new_tokens)
    setting = simulation.Setting(rates, prompts, lengths, seed_count, slots=slots)
    variants = _variants(own, preset, group, setting, Budget(max_samples, max_tokens, max_steps))
    _print(simulation.compare(variants, setting), as_json)


def _variants(
    own: AdaSettings | None, names: Sequence[str] | None, group: int, setting: simulation.Setting, caps: Budget
) -> list[simulation.Variant]:
    """Return the variants to compare. Presets that do not fit the group size are named on stderr.

    Args:
        own: the rule of --exit.
        names: the presets. Without `own` and names, all presets are compared.
        group: the group size n.
        setting: what is simulated.
        caps: the budget.
    """
    if own is not None:
        return [preset_variant(OWN_RULE, own, group, setting.lengths, caps)]
    if names:
        return [preset_variant(name, ada_settings({"preset": name}), group, setting.lengths, caps) for name in names]
    variants = []
    for name in presets():
        try:
            variants.append(preset_variant(name, ada_settings({"preset": name}), group, setting.lengths, caps))
        except UserError as unfit:
            typer.echo(f"left out: {name}: {unfit}", err=True)
    return variants


def _print_taught(names: Sequence[str] | None, group: int, as_json: bool) -> None:
    rows = []
    for name in names or presets():
        ada = ada_settings({"preset": name})
        try:
            rows.append(teaching.taught(name, ada, 1 if name == "ada_single" else group))
        except UserError as unfit:
            if names:
                raise
            typer.echo(f"left out: {name}: {unfit}", err=True)
    if as_json:
        typer.echo(json.dumps({"pass_rates": SHOWN_P.tolist(), "presets": [asdict(row) for row in rows]}))
    else:
        _console().print(teaching.render(rows))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)


def _print(rows: Sequence[simulation.SimulatedVariant], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_without_nan(asdict(row)) for row in rows]))
    else:
        _console().print(simulation.render_table(rows))


def _without_nan(value: Any) -> Any:
    """Replace NaN by null, because JSON does not have NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _check_effect(context: typer.Context) -> None:
    sources = {option.opts[0]: context.get_parameter_source(str(option.name)) for option in context.command.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if "--exit" in given and "--preset" in given:
        raise UserError("--exit gives a rule of your own and --preset names one that exists; give one of the two")
    alone = [option for option in given if option in RULE]
    if alone and "--exit" not in given:
        raise UserError(
            f"{', '.join(alone)} works only with --exit; add --exit positive, balanced or fixed, or leave it out"
        )
    useless = [option for option in given if option not in TAUGHT]
    if "--objective" in given and useless:
        raise UserError(f"{', '.join(useless)} has no effect with --objective; leave one of them out")
    without = [option for option in given if option not in EXACT]
    if "--pass-rate" in given and without:
        raise UserError(
            f"{', '.join(without)} has no effect with --pass-rate, the exact cost of one prompt; leave one of them out"
        )


def _own_settings(
    kind: str,
    k_pos: int | None,
    k_neg: int | None,
    wave: str | None,
    cap: int | None,
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
    # The baseline does not change what is drawn, and groups of 1 are allowed with this baseline only.
    return ada_settings({"sampling": sampling, "advantage": {"baseline": "shrunk"}})


def _print_exact(
    own: AdaSettings | None, names: Sequence[str] | None, group: int, pass_rate: float, as_json: bool
) -> None:
    if names and len(names) > 1:
        raise UserError(f"--pass-rate takes one preset, not {len(names)}")
    settings = own or ada_settings({"preset": names[0] if names else DEFAULT_RULE})
    if not 0.0 <= pass_rate <= 1.0:
        raise UserError(f"--pass-rate={pass_rate} must lie between 0 and 1")
    plan = settings.plan(group, 1)
    if isinstance(settings.sampling, EstimationSampling):
        raise UserError(
            f"what {settings.preset} draws for one prompt depends on the others of its step; leave out --pass-rate to "
            f"simulate whole steps"
        )
    summary = exact.summary(plan.stop_rule, pass_rate)
    grpo = 1.0 if group < 1 else pass_rate**group + (1.0 - pass_rate) ** group
    values = asdict(summary) | {"pass_rate": pass_rate, "p_zero_signal_grpo": grpo}
    if as_json:
        typer.echo(json.dumps(values))
        return
    for name, value in values.items():
        if name != "size_distribution":
            typer.echo(f"{name:20} {value:.4f}")


def _pair(text: str) -> tuple[float, float]:
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--beta={text}: give two numbers separated by a comma, such as 0.6,1.5") from None
    if not (1e-3 <= a <= 1e6 and 1e-3 <= b <= 1e6):
        raise UserError(f"--beta={text[:80]}: both numbers must be positive, between 0.001 and 1000000")
    return a, b
