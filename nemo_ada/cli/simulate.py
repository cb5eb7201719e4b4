"""The command `nemo-ada simulate`. It helps to choose exit rule, wave size and cap before spending GPU hours.

With `--pass-rate` it prints the exact cost of one prompt under a preset. With `--objective` it prints what presets
teach. Otherwise it simulates whole steps over a distribution of pass rates, for presets side by side. Settings of
`reinforce_ada`, written as in a YAML, change the presets. An option without effect is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table
from yaml import YAMLError

from nemo_ada.cli.options import Fields, with_options
from nemo_ada.config.ada import AdaSettings, EstimationSampling
from nemo_ada.config.presets import load_presets, parse_ada_settings
from nemo_ada.core.learning.factor import SHOWN_P
from nemo_ada.core.sampling.budget import Budget
from nemo_ada.core.sampling.plan import MAX_RESPONSES
from nemo_ada.errors import UserError
from nemo_ada.lab.simulate import exact
from nemo_ada.lab.simulate import objective as teaching
from nemo_ada.lab.simulate import steps as simulation
from nemo_ada.lab.simulate.engine import LengthModel
from nemo_ada.lab.simulate.variants import make_preset_variant

MOST = 2**53  # of a cap
Made = TypeVar("Made")
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
    words = settings or []
    names = preset or ([DEFAULT_RULE] if words or pass_rate is not None else None)
    if pass_rate is not None:
        _print_exact(names or [], words, group, pass_rate, as_json)
        return
    if objective:
        per_prompt = None if max_samples is None else max_samples / prompts

        def compute(name: str) -> teaching.Taught:
            return teaching.compute_taught(
                name, _read_ada(name, words), 1 if name == "ada_single" else group, per_prompt
            )

        lessons = _make_each(names, compute)
        _print({"pass_rates": SHOWN_P.tolist(), "presets": lessons}, teaching.render_taught(lessons), as_json)
        return
    rates = (
        simulation.BetaRates(*_parse_pair(beta)) if pass_rates is None else simulation.MeasuredRates.read(pass_rates)
    )
    setting = simulation.Setting(rates, prompts, lengths, seed_count, slots=slots)
    caps = Budget(max_samples=max_samples, max_tokens=max_tokens, max_seconds=max_steps)
    variants = _make_each(names, lambda name: make_preset_variant(name, _read_ada(name, words), group, lengths, caps))
    rows = simulation.compare_variants(variants, setting)
    _print(rows, simulation.render_table(rows), as_json)


def _read_ada(name: str, words: Sequence[str]) -> AdaSettings:
    """Return a preset with the user's settings over it."""
    try:
        own = OmegaConf.to_container(OmegaConf.from_dotlist(list(words)))
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError) as problem:
        why = str(problem).splitlines()[0][:100]
        raise UserError(
            f"{' '.join(words)[:100]}: write key=value, such as sampling.max_responses=16 ({why})"
        ) from None
    return parse_ada_settings({"preset": name, **cast(dict[str, Any], own)})


def _make_each(names: Sequence[str] | None, make: Callable[[str], Made]) -> list[Made]:
    """Return what is made of each preset. Without names, all are taken, and those that do not fit named on stderr."""
    made = []
    for name in names or load_presets():
        try:
            made.append(make(name))
        except UserError as unfit:
            if names:
                raise
            typer.echo(f"left out: {name}: {unfit}", err=True)
    return made


def _print(content: Any, table: Table, as_json: bool) -> None:
    """Print the content as JSON, which has no NaN, or the table."""
    if as_json:
        typer.echo(json.dumps(json.loads(json.dumps(content, default=asdict), parse_constant=lambda _: None)))
        return
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_WIDTH)).print(table)


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
    settings = _read_ada(names[0], words)
    if not 0.0 <= pass_rate <= 1.0:
        raise UserError(f"--pass-rate={pass_rate} must lie between 0 and 1")
    plan = settings.plan(group, 1)
    if isinstance(settings.sampling, EstimationSampling):
        raise UserError(
            f"what {settings.preset} draws for one prompt depends on the others of its step; leave out --pass-rate to "
            f"simulate whole steps"
        )
    summary = exact.summarise_rule(plan.stop, pass_rate)
    grpo = 1.0 if group < 1 else pass_rate**group + (1.0 - pass_rate) ** group
    values = asdict(summary) | {"pass_rate": pass_rate, "p_zero_signal_grpo": grpo}
    if as_json:
        typer.echo(json.dumps(values))
        return
    for name, value in values.items():
        if name != "size_distribution":
            typer.echo(f"{name:20} {value:.4f}")


def _parse_pair(text: str) -> tuple[float, float]:
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--beta={text}: give two numbers separated by a comma, such as 0.6,1.5") from None
    if not (1e-3 <= a <= 1e6 and 1e-3 <= b <= 1e6):
        raise UserError(f"--beta={text[:80]}: both numbers must be positive, between 0.001 and 1000000")
    return a, b
