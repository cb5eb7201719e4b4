"""The command `nemo-ada data`, which makes training sets with measured difficulty from a data set or a local file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nemo_ada import by_name
from nemo_ada.cli.options import Fields, with_options
from nemo_ada.cli.progress import count_on_terminal
from nemo_ada.config.paths import resolve_folder_or_repository
from nemo_ada.errors import UserError
from nemo_ada.lab.data.contamination import Excluded
from nemo_ada.lab.data.measure import SamplingSpec
from nemo_ada.lab.data.prepare import Preparation
from nemo_ada.lab.data.prepare import prepare as run
from nemo_ada.lab.data.providers import Access, Limits, open_provider
from nemo_ada.lab.data.stages import BANDS, parse_band
from nemo_ada.lab.evaluation.benchmark import Benchmark, find_benchmarks
from nemo_ada.run.files import read_bounded
from nemo_ada.tasks.prompting import ModelTokenizer, find_differences, read_contract
from nemo_ada.verify.audit import describe_kinds

MAX_TEXT_BYTES = 1_000_000  # of a system message
PROBLEMS = Fields(
    "split", "subset", "revision", "verifier", "reward", "unfinished", "template", "suffix", "chat_template_kwargs",
    "max_prompt_tokens", "max_new_tokens", prompt_field="prompt_fields", answer_field="answer_fields",
)  # fmt: skip
"""Options that describe the problems and how they are asked and judged."""
SOURCE = Benchmark(name="source", source="", split="train", max_prompt_tokens=700)

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Training sets: clean, measure, filter, describe.")


@app.callback()
def _group() -> None:
    """Training sets: clean, measure, filter, describe."""


@app.command()
@with_options
def prepare(
    source: Annotated[
        str,
        typer.Argument(help="a .jsonl, .json or .parquet file, also with .gz, or a data set of the hub (owner/name)"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the data set; the same command continues a killed one")],
    problems: Annotated[Benchmark, PROBLEMS] = SOURCE,
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder: measure its pass rates")] = None,
    access: Annotated[Access, Fields("server", "served_model", "api_key_env")] = Access(),
    tokenizer: Annotated[str | None, typer.Option(help="folder or id of the tokenizer (default: the model's)")] = None,
    system: Annotated[Path | None, typer.Option(help="file with the system message")] = None,
    drawing: Annotated[SamplingSpec, Fields("k", "seed")] = SamplingSpec(16),
    limits: Annotated[Limits, Fields("temperature", "top_p", "max_num_seqs")] = Limits(1, 1),
    pass_rates: Annotated[Path | None, typer.Option(help="reuse the pass rates of this file")] = None,
    band: Annotated[str | None, typer.Option(help=f"{', '.join(BANDS)}, or low,high")] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="leave out problems of this benchmark (as in `eval --data`); repeatable"),
    ] = None,
) -> None:
    """Read, de-duplicate, check references, drop long prompts, measure pass rates, keep a band, write a card."""
    if access.server is not None and model is None:
        raise UserError(f"--server={access.server} needs --model, the folder of the served model, for its tokenizer")
    problems = problems.model_copy(
        update={"source": source, "system": read_text(system)} | read_reward(problems.reward)
    )
    named = model if tokenizer is None else resolve_folder_or_repository("--tokenizer", tokenizer)
    encoder = ModelTokenizer(named, problems.prompt_format()) if named else None
    provider = None
    if model is not None and encoder is not None:
        lengths = {"max_prompt_tokens": problems.max_prompt_tokens, "max_new_tokens": problems.max_new_tokens}
        provider = open_provider(access, model, encoder, replace(limits, **lengths))
        say_other_prompts(model, encoder)
    plan = Preparation(
        problems,
        encoder,
        provider,
        drawing,
        pass_rates,
        band=None if band is None else parse_band(band),
        exclude=[
            Excluded(one.name, one.open_problems("--exclude"), one.prompt_fields)
            for one in find_benchmarks(exclude or [], {})
        ],
    )
    with count_on_terminal() as watch:
        card = run(plan, out, watch)
    _show(card, out)


def _show(card: dict[str, Any], out: Path) -> None:
    """Describe which problems were kept and which were left out, and why."""
    console = Console(highlight=False)
    console.print(Text(f"{out}: {card['problems']} problems"), soft_wrap=True)
    console.print(Text(f"layout: {card['layout']}"), soft_wrap=True)
    table = Table("stage", "inputs", "kept", "left out")
    for name, count in card["stages"].items():
        why = ", ".join(f"{kind} {number}" for kind, number in count["left_out"].items())
        table.add_row(name, str(count["inputs"]), str(count["kept"]), Text(why))
    console.print(table)
    for sentence in describe_kinds(card["audit"]):
        console.print(Text(f"audit: {sentence}"), soft_wrap=True)
    console.print(Text(f"the reasons are in {out / 'rejected.jsonl'}"), soft_wrap=True)


def read_reward(name: str | None) -> dict[str, str]:
    """Return the setting of a reward of the command line, with the whole path of its code, and say which it is."""
    if name is None:
        return {}
    found = by_name.find("--reward", name)
    by_name.announce_file("--reward", name, found, "the command line")
    return {"reward": found}


def say_other_prompts(model: Path, encoder: ModelTokenizer, of: str = "") -> None:
    """Print where the prompts differ from those that the model was trained with."""
    contract = read_contract(model)
    if contract is not None and (found := find_differences(contract, encoder.make_contract())):
        typer.echo(
            f"note: {model} was trained with other prompts than {of or 'this command'} asks: {'; '.join(found)}; "
            "--template, --system, --suffix and --chat-template-kwargs ask alike",
            err=True,
        )


def read_text(path: Path | None) -> str | None:
    """Read the trimmed text of a small file. The result is None without a path."""
    if path is None:
        return None
    try:
        return read_bounded(path, MAX_TEXT_BYTES).decode("utf-8").strip()
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read: {problem}") from None
