"""The command `nemo-ada simulate`. It helps to choose exit rule, wave size and cap before spending GPU hours.

With `--pass-rate` it prints the exact cost of one prompt under a preset. With `--objective` it prints what presets
teach. Otherwise it simulates whole steps over a distribution of pass rates, for presets side by side. Settings of
`reinforce_ada`, written as in a YAML, change the presets. An option without effect is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from yaml import YAMLError

from nemo_ada.cli.options import Fields, with_options
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
from nemo_ada.lab.simulate.variants import preset_variant

MOST = 2**53  # of a cap
TABLE_WIDTH = 200  # columns of the table when the output is not a terminal

TAUGHT = ("--objective", "--preset", "--group", "--json", "--max-samples", "--prompts")
EXACT = ("--pass-rate", "--preset", "--group", "--json")
DEFAULT_RULE = "ada_seq_balance"  # the preset of exact costs, and of settings without a preset


@with_options
def simulate(
    context: typer.Context,
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="settings of reinforce_ada over the presets: sampling.exit.k_pos=2 sampling.wave_size=[8]"),
    ] = None,
    pass_rate: Annotated[float | None, typer.Option(help="exact cost of one prompt with this pass rate")] = None,
    objective: Annotated[
        bool, typer.Option("--objective", help="what presets teach: a prompt's weight in the mean update, by pass rate")
    ] = False,
    group: Annotated[int, typer.Option(min=1, max=MAX_RESPONSES, help="n, rows per prompt")] = 4,
    preset: Annotated[list[str] | None, typer.Option(help="presets to compare (default: all)")] = None,
    beta: Annotated[str, typer.Option(help="draw pass rates from Beta(a,b)")] = "0.6,1.5",
    pass_rates: Annotated[Path | None, typer.Option(help="file with one measured pass rate per line")] = None,
    prompts: Annotated[int, typer.Option(min=1, max=100_000, help="prompts per step")] = 64,
    lengths: Annotated[
        LengthModel, Fields("sigma", "wrong_factor", "max_new_tokens", median_tokens="median")
    ] = LengthModel(),
    max_samples: Annotated[int | None, typer.Option(min=1, max=MOST, help="budget: responses per step")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="budget: tokens per step; the first one reserves the model's mean length"),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="budget: engine steps of a step's sampling phase")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="responses that decode at once (engine's max_num_seqs)")
    ] = None,
    seed_count: Annotated[int, typer.Option("--seeds", min=1, max=10_000, help="simulated trainings")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Estimate responses, tokens, engine steps and zero-signal share of sampling settings."""
    _check_effect(context)
    names = preset or ([DEFAULT_RULE] if settings or pass_rate is not None else None)
    if objective:
        _print_taught(names, settings or [], group, None if max_samples is None else max_samples / prompts, as_json)
        return
    if pass_rate is not None:
        _print_exact(names or [], settings or [], group, pass_rate, as_json)
        return
    rates = simulation.BetaRates(*_pair(beta)) if pass_rates is None else simulation.MeasuredRates.read(pass_rates)
    setting = simulation.Setting(rates, prompts, lengths, seed_count, slots=slots)
    variants = _variants(names, settings or [], group, setting, Budget(max_samples, max_tokens, max_steps))
    _print(simulation.compare(variants, setting), as_json)


def _ada(name: str, words: Sequence[str]) -> AdaSettings:
    """Return a preset with the user's settings over it."""
    try:
        own = OmegaConf.to_container(OmegaConf.from_dotlist(list(words)))
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as problem:
        why = str(problem).splitlines()[0][:100]
        raise UserError(
            f"{' '.join(words)[:100]}: write key=value, such as sampling.max_responses=16 ({why})"
        ) from None
    return ada_settings({"preset": name, **cast(dict[str, Any], own)})


def _variants(
    names: Sequence[str] | None, words: Sequence[str], group: int, setting: simulation.Setting, caps: Budget
) -> list[simulation.Variant]:
    """Return the variants to compare. Presets that do not fit the group size are named on stderr.

    Args:
        names: the presets. Without any, all are compared.
        words: the user's settings.
        group: the group size n.
        setting: what is simulated.
        caps: the budget.
    """
    variants = []
    for name in names or presets():
        try:
            variants.append(preset_variant(name, _ada(name, words), group, setting.lengths, caps))
        except UserError as unfit:
            if names:
                raise
            typer.echo(f"left out: {name}: {unfit}", err=True)
    return variants


def _print_taught(
    names: Sequence[str] | None, words: Sequence[str], group: int, per_prompt: float | None, as_json: bool
) -> None:
    rows = []
    for name in names or presets():
        ada = _ada(name, words)
        try:
            rows.append(teaching.taught(name, ada, 1 if name == "ada_single" else group, per_prompt))
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
    given = [
        name for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE" and name.startswith("-")
    ]  # fmt: skip
    useless = [option for option in given if option not in TAUGHT]
    if "--prompts" in given and "--max-samples" not in given:
        useless.append("--prompts")
    if "--objective" in given and useless:
        raise UserError(f"{', '.join(useless)} has no effect with --objective; leave one of them out")
    without = [option for option in given if option not in EXACT]
    if "--pass-rate" in given and without:
        raise UserError(
            f"{', '.join(without)} has no effect with --pass-rate, the exact cost of one prompt; leave one of them out"
        )


def _print_exact(names: Sequence[str], words: Sequence[str], group: int, pass_rate: float, as_json: bool) -> None:
    if len(names) > 1:
        raise UserError(f"--pass-rate takes one preset, not {len(names)}")
    settings = _ada(names[0], words)
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
