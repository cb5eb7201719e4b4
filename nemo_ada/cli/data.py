"""The command `nemo-ada data`, which makes training sets with measured difficulty from a data set or a local file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nemo_ada.cli.progress import counted
from nemo_ada.errors import UserError
from nemo_ada.lab.data.contamination import Excluded
from nemo_ada.lab.data.judging import judge_of
from nemo_ada.lab.data.prepare import Preparation
from nemo_ada.lab.data.prepare import prepare as run
from nemo_ada.lab.data.providers import Access, Limits, open_provider
from nemo_ada.lab.data.source import open_source
from nemo_ada.lab.data.stages import BANDS, parse_band
from nemo_ada.lab.evaluation.benchmark import Benchmark, resolve
from nemo_ada.run.files import read_bounded
from nemo_ada.run.json_lines import records
from nemo_ada.tasks.lines import ANSWER_FIELDS, PROMPT_FIELDS
from nemo_ada.tasks.prompting import ModelTokenizer, PromptFormat, differences, read_contract
from nemo_ada.verify.audit import KINDS, told

MAX_TEXT_BYTES = 1_000_000  # of a system message
CHOICES = {
    "verifier": ("math", "exact"),
    "unfinished": ("wrong", "judged"),
    "template": ("auto", "chat", "plain"),
    "drop": tuple(KINDS),
}
LONG_ANSWERS = 4  # times as long as 99 % of them
MENDABLE = ("read", "distinct", "reference", "length")  # stages whose rejected inputs an author can correct

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Training sets: clean, measure, filter, describe.")


@app.callback()
def _group() -> None:
    """Training sets: clean, measure, filter, describe."""


@app.command()
def prepare(
    source: Annotated[
        str,
        typer.Argument(help="a .jsonl, .json or .parquet file, also with .gz, or a data set of the hub (owner/name)"),
    ],
    out: Annotated[Path, typer.Option(help="folder of the data set; the same command continues a killed one")],
    split: Annotated[str, typer.Option(help="split of a hub data set")] = "train",
    subset: Annotated[str | None, typer.Option(help="configuration of a hub data set")] = None,
    revision: Annotated[str | None, typer.Option(help="commit of a hub data set")] = None,
    prompt_field: Annotated[list[str] | None, typer.Option(help="column of the problem")] = None,
    answer_field: Annotated[list[str] | None, typer.Option(help="column of the reference answer")] = None,
    verifier: Annotated[str, typer.Option(help="math (last box, by value) or exact (normalised text)")] = "math",
    reward: Annotated[str | None, typer.Option(help="your own package.module:function instead")] = None,
    unfinished: Annotated[str, typer.Option(help="responses cut off at the limit: wrong or judged")] = "wrong",
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder: measure its pass rates")] = None,
    server: Annotated[
        str | None, typer.Option(help="URL of `vllm serve` with that model (default: own engine, vLLM on the CPU)")
    ] = None,
    served_model: Annotated[str | None, typer.Option(help="id of the model on the server, if not its folder")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="environment variable with the server's API key")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="folder or id of the tokenizer (default: the model's)")] = None,
    template: Annotated[str, typer.Option(help="auto, chat or plain: how the model is prompted")] = "auto",
    system: Annotated[Path | None, typer.Option(help="file with the system message")] = None,
    suffix: Annotated[str, typer.Option(help="text after every problem")] = "",
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help='arguments of the chat template, as JSON: {"enable_thinking": false}')
    ] = None,
    max_prompt_tokens: Annotated[int, typer.Option(help="longer prompts are left out; 0: no limit")] = 700,
    k: Annotated[int, typer.Option("-k", "--k", help="responses per problem")] = 16,
    max_new_tokens: Annotated[int, typer.Option(help="longest response, tokens")] = 4096,
    temperature: Annotated[float, typer.Option(help="of the responses")] = 1.0,
    top_p: Annotated[float, typer.Option(help="of the responses")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the responses")] = 0,
    chunk: Annotated[int, typer.Option(help="problems between two commits of the journal")] = 32,
    max_num_seqs: Annotated[int, typer.Option(help="responses that decode at once")] = 256,
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
    at_least_one(k=k, max_new_tokens=max_new_tokens, chunk=chunk, max_num_seqs=max_num_seqs)
    arguments = json_object(chat_template_kwargs)
    prompt_format = PromptFormat(choice("template", template), text_from(system), suffix, arguments)
    if server is not None and model is None:
        raise UserError(f"--server={server} needs --model, the folder of the served model, for its tokenizer")
    encoder = ModelTokenizer(named, prompt_format) if (named := tokenizer or model) else None
    provider, access = None, Access(served_model, api_key_env)
    if model is not None and encoder is not None:
        if not max_prompt_tokens:
            raise UserError("--max-prompt-tokens=0: set a limit, because the engine reserves room for the prompt")
        limits = Limits(max_prompt_tokens, max_new_tokens, temperature, top_p, max_num_seqs)
        provider = open_provider(server, model, encoder, limits, access)
        say_other_prompts(model, encoder)
    plan = Preparation(
        source=open_source(source, split=split, subset=subset, revision=revision),
        judge=judge_of(choice("verifier", verifier), choice("unfinished", unfinished), reward),
        prompt_fields=prompt_field or PROMPT_FIELDS,
        answer_fields=answer_field or ANSWER_FIELDS,
        prompt_format=prompt_format,
        encoder=encoder,
        max_prompt_tokens=max_prompt_tokens,
        provider=provider,
        k=k,
        seed=seed,
        max_new_tokens=max_new_tokens,
        sampling={"temperature": temperature, "top_p": top_p},
        chunk=chunk,
        pass_rates=pass_rates,
        band=None if band is None else parse_band(band),
        drop=[choice("drop", kind) for kind in drop or []],
        exclude=[excluded(own) for own in resolve(exclude or [], {})],
    )
    with counted("input") as watch:
        card = run(plan, out, watch)
    _show(card, out)
    for note in _notes_for_training(card, reward or verifier, out):
        typer.echo(f"note: {note}")


def excluded(benchmark: Benchmark) -> Excluded:
    """Find a benchmark for the contamination check. Raises UserError if it is the source of the training set."""
    if benchmark.name == "source":
        raise UserError("--exclude: a benchmark with the name `source`; use NAME=FILE with another name")
    source = open_source(
        benchmark.source, split=benchmark.split, subset=benchmark.subset, revision=benchmark.revision, where="--exclude"
    )
    return Excluded(benchmark.name, source, benchmark.prompt_fields)


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


def choice(option: str, value: str) -> Any:
    """Return the value if it is one of the choices. Raises UserError with the choices otherwise."""
    if value not in CHOICES[option]:
        raise UserError(f"--{option}={value}: no such choice; choices: {', '.join(CHOICES[option])}")
    return value


def at_least_one(**numbers: int) -> None:
    """Raise UserError for an option below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"--{name.replace('_', '-')}={number} must be at least 1")


def json_object(text: str | None) -> dict[str, Any]:
    """Read the arguments of the chat template. Raises UserError where the text is no JSON object."""
    try:
        content = {} if text is None else json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UserError(f'--chat-template-kwargs={text}: use a JSON object, such as {{"enable_thinking": false}}')
    return content


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
