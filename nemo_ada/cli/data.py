"""The command `nemo-ada data`, which makes training sets with measured difficulty from a data set or a local file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nemo_ada.cli.options import Fields, with_options
from nemo_ada.cli.progress import counted
from nemo_ada.errors import UserError
from nemo_ada.lab.data.contamination import Excluded
from nemo_ada.lab.data.prepare import Preparation
from nemo_ada.lab.data.prepare import prepare as run
from nemo_ada.lab.data.providers import Access, Limits, open_provider
from nemo_ada.lab.data.stages import BANDS, parse_band
from nemo_ada.lab.evaluation.benchmark import Benchmark, resolve
from nemo_ada.lab.evaluation.evaluate import SamplingSpec
from nemo_ada.run.files import read_bounded
from nemo_ada.run.json_lines import records
from nemo_ada.tasks.prompting import ModelTokenizer, differences, read_contract
from nemo_ada.verify.audit import KINDS, told

MAX_TEXT_BYTES = 1_000_000  # of a system message
LONG_ANSWERS = 4  # times as long as 99 % of them
MENDABLE = ("read", "distinct", "reference", "length")  # stages whose rejected inputs an author can correct
PROBLEMS = Fields(
    "split", "subset", "revision", "verifier", "reward", "unfinished", "template", "suffix", "chat_template_kwargs",
    prompt_field="prompt_fields", answer_field="answer_fields",
)  # fmt: skip
"""Options that describe the problems and how they are asked and judged."""

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
    problems: Annotated[Benchmark, PROBLEMS] = Benchmark(name="source", source="", split="train"),
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder: measure its pass rates")] = None,
    access: Annotated[Access, Fields("server", "served_model", "api_key_env")] = Access(),
    tokenizer: Annotated[str | None, typer.Option(help="folder or id of the tokenizer (default: the model's)")] = None,
    system: Annotated[Path | None, typer.Option(help="file with the system message")] = None,
    max_prompt_tokens: Annotated[int, typer.Option(help="longer prompts are left out; 0: no limit")] = 700,
    drawing: Annotated[SamplingSpec, Fields("k", "seed", "chunk")] = SamplingSpec(16, 0, {}, chunk=32),
    limits: Annotated[Limits, Fields("max_new_tokens", "temperature", "top_p", "max_num_seqs")] = Limits(1, 4096),
    pass_rates: Annotated[Path | None, typer.Option(help="reuse the pass rates of this file")] = None,
    band: Annotated[str | None, typer.Option(help=f"{', '.join(BANDS)}, or low,high")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help=f"leave out references of this kind: {', '.join(KINDS)}; repeatable")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="leave out problems of this benchmark (as in `eval --data`); repeatable"),
    ] = None,
) -> None:
    """Read, de-duplicate, check references, drop long prompts, measure pass rates, keep a band, write a card."""
    problems = problems.model_copy(update={"source": source, "system": text_from(system)})
    prompt_format = problems.prompt_format()
    if access.server is not None and model is None:
        raise UserError(f"--server={access.server} needs --model, the folder of the served model, for its tokenizer")
    encoder = ModelTokenizer(named, prompt_format) if (named := tokenizer or model) else None
    provider = None
    if model is not None and encoder is not None:
        if not max_prompt_tokens:
            raise UserError("--max-prompt-tokens=0: set a limit, because the engine reserves room for the prompt")
        provider = open_provider(access, model, encoder, replace(limits, max_prompt_tokens=max_prompt_tokens))
        say_other_prompts(model, encoder)
    plan = Preparation(
        source=problems.opened("source"),
        judge=problems.judge(),
        prompt_fields=problems.prompt_fields,
        answer_fields=problems.answer_fields,
        prompt_format=prompt_format,
        encoder=encoder,
        max_prompt_tokens=max_prompt_tokens,
        provider=provider,
        k=drawing.k,
        seed=drawing.seed,
        max_new_tokens=limits.max_new_tokens,
        sampling={"temperature": limits.temperature, "top_p": limits.top_p},
        chunk=drawing.chunk,
        pass_rates=pass_rates,
        band=None if band is None else parse_band(band),
        drop=[_kind(kind) for kind in drop or []],
        exclude=[excluded(own) for own in resolve(exclude or [], {})],
    )
    with counted("input") as watch:
        card = run(plan, out, watch)
    _show(card, out)
    for note in _notes_for_training(card, problems.reward or problems.verifier, out):
        typer.echo(f"note: {note}")


def excluded(benchmark: Benchmark) -> Excluded:
    """Find a benchmark for the contamination check. Raises UserError if it is the source of the training set."""
    if benchmark.name == "source":
        raise UserError("--exclude: a benchmark with the name `source`; use NAME=FILE with another name")
    return Excluded(benchmark.name, benchmark.opened("--exclude"), benchmark.prompt_fields)


def _notes_for_training(card: dict[str, Any], verifier: str, out: Path) -> Iterator[str]:
    """Say what training on this set needs, and what the CPU trainer's defaults would do to it."""
    if system := card.get("system"):
        yield (
            f"{system['rows']} prompts have a system message, {system['text'][:100]!r}; the set holds the questions "
            "alone, so give it to training: policy.tokenizer.system=... on the CPU, data.default.system_prompt_file "
            "with NeMo-RL"
        )
    if verifier != "exact":
        yield (
            f"these problems were checked with {verifier}; `nemo-ada train` on the CPU judges `exact` by default, so "
            f"set task.path={out / 'dataset.jsonl'} and its task.verifier there (math, if that is what you want)"
        )
    longest = card.get("answers")
    if longest and longest["longest"] > LONG_ANSWERS * longest["p99"]:
        yield (
            f"the answer in line {longest['line']} has {longest['longest']} characters, 99 % have at most "
            f"{longest['p99']}; the CPU trainer gives every response room for the longest answer, so set "
            "task.max_new_tokens there, or correct that line"
        )


def _show(card: dict[str, Any], out: Path) -> None:
    """Describe which problems were kept and which were left out, and why."""
    console = Console(highlight=False)
    console.print(Text(f"{out}: {card['problems']} problems"), soft_wrap=True)
    console.print(Text(f"layout: {card.get('layout')}"), soft_wrap=True)
    table = Table("stage", "inputs", "kept", "left out")
    for name, count in card["stages"].items():
        why = ", ".join(f"{kind} {number}" for kind, number in count["left_out"].items())
        table.add_row(name, str(count["inputs"]), str(count["kept"]), why)
    console.print(table)
    for sentence in told(card.get("audit", {})):
        console.print(Text(f"audit: {sentence}"), soft_wrap=True)
    for line in _left_out(out / "rejected.jsonl"):
        console.print(Text("".join(char if char.isprintable() else "\ufffd" for char in line)), soft_wrap=True)


def _kind(kind: str) -> str:
    """Return a kind of references. Raises UserError with all kinds otherwise."""
    if kind not in KINDS:
        raise UserError(f"--drop={kind}: no such choice; choices: {', '.join(KINDS)}")
    return kind


def say_other_prompts(model: Path, encoder: ModelTokenizer, of: str = "") -> None:
    """Print where the prompts differ from those that the model was trained with."""
    contract = read_contract(model)
    if contract is not None and (found := differences(contract, encoder.contract())):
        typer.echo(
            f"note: {model} was trained with other prompts than {of or 'this command'} asks: {'; '.join(found)}; "
            "--template, --system, --suffix and --chat-template-kwargs ask alike",
            err=True,
        )


def text_from(path: Path | None) -> str | None:
    """Read the trimmed text of a small file. The result is None without a path."""
    if path is None:
        return None
    try:
        return read_bounded(path, MAX_TEXT_BYTES).decode("utf-8").strip()
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read: {problem}") from None


def _left_out(path: Path) -> Iterator[str]:
    """List the first rejected inputs that an author can correct, and name the file with all of them."""
    try:
        mendable = (record for _, record in records(path) if record["stage"] in MENDABLE)
        shown = [f"  line {r['line']} ({r['stage']}): {r['reason']}" for r in islice(mendable, 5)]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        raise UserError(f"{path} is damaged ({problem}); remove {path.parent} and start again") from None
    if shown:
        yield f"left out, the first {len(shown)}; all are in {path}:"
        yield from shown
