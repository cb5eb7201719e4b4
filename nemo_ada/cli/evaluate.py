"""The commands `nemo-ada eval MODEL` and `nemo-ada eval compare A B`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from nemo_ada.cli.data import say_other_prompts, text_from
from nemo_ada.cli.main import lacking
from nemo_ada.cli.options import Fields, with_options
from nemo_ada.cli.progress import counted
from nemo_ada.errors import UserError
from nemo_ada.lab.data.providers import Access, Limits, open_provider
from nemo_ada.lab.evaluation.benchmark import Benchmark, fitting, presets, resolve, run_of
from nemo_ada.lab.evaluation.evaluate import SamplingSpec
from nemo_ada.lab.evaluation.evaluate import evaluate as run
from nemo_ada.lab.evaluation.results import Evaluation, setting_differences
from nemo_ada.lab.evaluation.results import compare as compare_evaluations
from nemo_ada.lab.evaluation.statistics import FEW
from nemo_ada.lab.report.run import names_of
from nemo_ada.run.files import json_of, write_atomically
from nemo_ada.tasks.heldout import HELDOUT
from nemo_ada.tasks.prompting import ModelTokenizer, positions

CHANGES = Fields(
    "max_new_tokens", "max_prompt_tokens", "verifier", "reward", "unfinished", "template", "suffix",
    "chat_template_kwargs", "cluster", by="group_by", of=Benchmark, unset="the benchmark's",
)  # fmt: skip
"""Options in place of a benchmark's own settings."""
LENGTHS = (1, 1)  # the benchmarks' own are not known yet


class _RunByDefault(TyperGroup):
    """A group of commands in which `eval MODEL ...` means `eval run MODEL ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__name__ != "MissingParameter":
                raise
            raise lacking(error, "eval") from None


app = typer.Typer(
    cls=_RunByDefault, add_completion=False, no_args_is_help=True, help="avg@k and pass@k of a model; compare two."
)


@app.command(name="run")
@with_options
def evaluate(
    model: Annotated[list[Path], typer.Argument(help="Hugging Face folder of the model, or of several checkpoints")],
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="preset (configs/eval), .yaml, data file, or NAME=FILE; repeatable "
            "(default: the held-out problems of the CPU run that the model is in)"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="folder of the evaluation; the same command continues a killed one (default: RUN/eval/MODEL)"
        ),
    ] = None,
    drawing: Annotated[SamplingSpec, Fields("k", "seed", "max_prompts", "chunk")] = SamplingSpec(32, 0, {}),
    limits: Annotated[Limits, Fields("temperature", "top_p", "max_num_seqs")] = Limits(*LENGTHS),
    access: Annotated[Access, Fields("server", "served_model", "api_key_env")] = Access(),
    tokenizer: Annotated[str | None, typer.Option(help="folder or id of the tokenizer (default: the model's)")] = None,
    *,
    changes: Annotated[dict[str, Any], CHANGES],
    system: Annotated[Path | None, typer.Option(help="file with the system message")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Sample k responses per problem, judge and keep them, and estimate avg@k, pass@k and maj@k.

    Several checkpoints are evaluated one after the other. Their folders are OUT/NAME.
    """
    for path in model:
        _refuse_run(path)
    run_dir = run_of(model[0], wanted=not data)
    data = data or ([str(run_dir / HELDOUT)] if run_dir else [])
    out = out or (run_dir / "eval" / (model[0].name if len(model) == 1 else "checkpoints") if run_dir else None)
    if not data or out is None:
        raise UserError(
            f"{'--out' if data else '--data'} is needed, because {model[0]} is in no CPU run's folder with {HELDOUT}, "
            f"such as in `nemo-ada eval {model[0]} --data my.jsonl --out runs/eval`; presets: {', '.join(presets())}"
        )
    benchmarks = resolve(data, {**changes, "system": text_from(system)})
    if "max_prompt_tokens" not in changes and access.server is None:
        benchmarks = fitting(benchmarks, min(filter(None, map(positions, model)), default=None))
    prompts = max(benchmark.max_prompt_tokens for benchmark in benchmarks)
    new_tokens = max(benchmark.max_new_tokens for benchmark in benchmarks)
    limits = replace(limits, max_prompt_tokens=prompts, max_new_tokens=new_tokens)
    drawing = replace(drawing, sampling={"temperature": limits.temperature, "top_p": limits.top_p})
    if len(model) > 1 and access.server is not None:
        raise UserError(f"--server={access.server} serves one model; evaluate {len(model)} checkpoints one by one")
    names = [name.replace("/", "-") for name in names_of(model)]
    contents: dict[str, dict[str, Any]] = {}
    for name, folder in zip(names, model, strict=True):
        provider = open_provider(access, folder, ModelTokenizer(tokenizer or folder), limits)
        encoder_of = partial(_encoder, tokenizer or folder)
        for benchmark in benchmarks:
            say_other_prompts(folder, encoder_of(benchmark), benchmark.name)
        place = out if len(model) == 1 else out / name
        with counted("problem") as watch:
            contents[name] = run(benchmarks, encoder_of, provider, drawing, place, watch)
        if not as_json:
            _show(contents[name], drawing.k, place)
    if as_json:
        typer.echo(json.dumps(contents if len(model) > 1 else contents[names[0]]))
    elif len(model) > 1:
        typer.echo(f"compare two with `nemo-ada eval compare {out / names[0]} {out / names[-1]}`")


def _is_comparison(path: Path) -> bool:
    """Return whether the file is a comparison. Only such a file may be replaced."""
    try:
        content = json_of(path)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("overall"), dict) and "difference" in content["overall"]


def _encoder(folder: str | Path, benchmark: Benchmark) -> ModelTokenizer:
    return ModelTokenizer(folder, benchmark.prompt_format())


def _refuse_run(path: Path) -> None:
    """Refuse the folder of a run, in which the models are further down, and a folder that is not there."""
    if (path / "config.json").is_file():
        return
    if not path.exists():
        near = sorted(one.parent for one in path.parent.glob("*/config.json"))
        raise UserError(
            f"{path} is not there" + (f"; there is {', '.join(map(str, near[-5:]))}" if near else
            "; `nemo-ada export RUN_DIR` writes the model of a run to RUN_DIR/hf/step_N")
        )  # fmt: skip
    inside = sorted([*path.glob("hf/step_*"), *path.glob("checkpoints/step_*/hf")])
    if inside:
        raise UserError(f"{path} is the folder of a run, not of a model; name its newest model, {inside[-1]}")
    if (path / "metrics.jsonl").is_file():
        raise UserError(f"{path} is the folder of a run, not of a model; `nemo-ada export {path}` writes its model")


def _show(content: Mapping[str, Any], k: int, out: Path) -> None:
    """Print all tables of one evaluation."""
    _print(_results_table(content, k, out))
    _print(_verdict_table(content))
    for table in _group_tables(content, k):
        _print(table)
    _note_few(content["benchmarks"])
    late = content["overall"].get("timed_out", 0)
    if late:
        typer.echo(
            f"note: {late} answers hit the verifier's limits of time or memory and count as wrong; see `cause` in "
            "responses.jsonl. Many of them may mean that this machine was overloaded"
        )


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="folder of an evaluation")],
    second: Annotated[Path, typer.Argument(help="folder of another one, on the same problems")],
    base: Annotated[Path | None, typer.Option(help="evaluation of a base model: buckets of difficulty")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="column of the clusters (default: what the evaluations were made with)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write the comparison here, as JSON")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Compute the paired difference (second minus first) over common problems, with interval and p-values."""
    a, b = Evaluation.read(first, cluster), Evaluation.read(second, cluster)
    rows = compare_evaluations(a, b, None if base is None else Evaluation.read(base))
    text = json.dumps(rows, indent=1)
    if out is not None:
        if out.exists() and not _is_comparison(out):
            raise UserError(f"--out={out} exists and is no comparison; choose another file")
        write_atomically(out, text + "\n")
    if as_json:
        typer.echo(text)
        return
    _print(_comparison_table(rows, first, second))
    _note_few(rows)
    for difference in setting_differences(a, b):
        typer.echo(f"note: the two were evaluated differently: {difference}")


def _results_table(content: Mapping[str, Any], k: int, out: Path) -> Table:
    passes = [name for name in content["overall"] if name.startswith(("pass@", "maj@"))]
    title = f"{content['settings']['model']['name']}: mean with 95 % interval over prompts ({out})"
    columns = ("benchmark", "prompts", f"avg@{k}", *passes, "tokens", "finished", "timed out", "unjudged", "left out")
    table = Table(*columns, title=Text(title))
    for name, row in [*content["benchmarks"].items(), ("overall, by prompts", content["overall"])]:
        table.add_row(
            Text(name),
            _prompts(row),
            _cell(row[f"avg@{k}"]),
            *(_cell(row[rung]) for rung in passes),
            f"{row['mean_tokens']:.0f}",
            f"{row['finished']:.3f}",
            str(row.get("timed_out", 0)),
            str(row["unjudged"]),
            str(row["rejected_problems"]),
        )
    return table


def _verdict_table(content: Mapping[str, Any]) -> Table:
    """Build the table of length and truncation, for right and for wrong responses."""
    table = Table("benchmark", "verdict", "responses", "tokens", "finished", title=Text("length by verdict"))
    for name, row in [*content["benchmarks"].items(), ("overall", content["overall"])]:
        for verdict, own in row.get("by_verdict", {}).items():
            shown = ("-", "-") if not own["responses"] else (f"{own['mean_tokens']:.0f}", f"{own['finished']:.3f}")
            table.add_row(Text(name), verdict, str(own["responses"]), *shown)
    return table


def _group_tables(content: Mapping[str, Any], k: int) -> Iterator[Table]:
    """Build one table per benchmark and column."""
    for name, row in content["benchmarks"].items():
        for column, groups in row.get("groups", {}).items():
            table = Table(column, "prompts", f"avg@{k}", "tokens", title=Text(f"{name} by {column}"))
            for value, own in groups.items():
                avg = _cell(own[f"avg@{k}"])
                table.add_row(Text(value[:60]), str(own["prompts"]), avg, f"{own['mean_tokens']:.0f}")
            yield table


def _cell(value: Mapping[str, float]) -> str:
    if not value["prompts"]:
        return "-"
    return f"{100 * value['mean']:.1f} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"


def _comparison_table(rows: Mapping[str, Mapping[str, Any]], first: Path, second: Path) -> Table:
    title = f"{second} minus {first}: points of avg@k over the same prompts"
    columns = ("", "prompts", "first", "second", "difference [95 %]", "p (t)", "p (flips)", "detectable")
    table = Table(*columns, title=Text(title))
    for name, row in rows.items():
        table.add_row(
            Text("overall, by prompts" if name == "overall" else name),
            _prompts(row) + (f" ({row['left_out']} left out)" if row.get("left_out") else ""),
            f"{100 * row['first']:.1f}",
            f"{100 * row['second']:.1f}",
            f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]",
            _p_value(row["p_t"]),
            _p_value(row["p_flips"]),
            f"{100 * row['detectable']:.1f}",
        )
    return table


def _p_value(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def _prompts(row: Mapping[str, Any]) -> str:
    return str(row["prompts"]) + (f" in {row['clusters']} clusters" if "clusters" in row else "")


def _note_few(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print which rows come from few problems, or few clusters."""
    counts = {name: row.get("clusters", row["prompts"]) for name, row in rows.items()}
    few = [f"{name} ({count})" for name, count in counts.items() if count < FEW]
    if few:
        what = "clusters" if any("clusters" in row for row in rows.values()) else "problems"
        typer.echo(f"note: fewer than {FEW} {what}: {', '.join(few)}; an interval of so few depends on which they are")


def _print(table: Table) -> None:
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=160, highlight=False)).print(table)
