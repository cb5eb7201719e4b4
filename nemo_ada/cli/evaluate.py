"""The commands `nemo-ada eval MODEL` and `nemo-ada eval compare A B`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from nemo_ada import __version__
from nemo_ada.cli.data import read_text, say_other_prompts
from nemo_ada.cli.options import Fields, with_options
from nemo_ada.cli.progress import count_on_terminal
from nemo_ada.config.paths import resolve_folder_or_repository
from nemo_ada.errors import UserError
from nemo_ada.lab.data.measure import SamplingSpec
from nemo_ada.lab.data.providers import Access, Limits, open_provider
from nemo_ada.lab.evaluation.benchmark import Benchmark, find_benchmarks, find_run, list_presets
from nemo_ada.lab.evaluation.evaluate import evaluate as run
from nemo_ada.lab.evaluation.results import Evaluation, compare_evaluations, find_setting_differences
from nemo_ada.lab.evaluation.statistics import FEW
from nemo_ada.run.files import write_result
from nemo_ada.tasks.heldout import HELDOUT
from nemo_ada.tasks.prompting import ModelTokenizer, read_max_positions

CHANGES = Fields(
    "max_new_tokens", "max_prompt_tokens", "verifier", "reward", "unfinished", "template", "suffix",
    "chat_template_kwargs", by="group_by", of=Benchmark, unset="the benchmark's",
)  # fmt: skip
"""Options in place of a benchmark's own settings."""
LENGTHS = (1, 1)  # the benchmarks' own are not known yet


class _RunByDefault(TyperGroup):
    """A group of commands in which `eval MODEL ...` means `eval run MODEL ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault, add_completion=False, no_args_is_help=True, help="avg@k and pass@k of a model; compare two."
)


@app.command(name="run")
@with_options
def evaluate(
    model: Annotated[Path, typer.Argument(help="Hugging Face folder of the model")],
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
    drawing: Annotated[SamplingSpec, Fields("k", "seed", "max_prompts")] = SamplingSpec(32),
    limits: Annotated[Limits, Fields("temperature", "top_p", "max_num_seqs")] = Limits(*LENGTHS),
    access: Annotated[Access, Fields("server", "served_model", "api_key_env")] = Access(),
    tokenizer: Annotated[str | None, typer.Option(help="folder or id of the tokenizer (default: the model's)")] = None,
    *,
    changes: Annotated[dict[str, Any], CHANGES],
    system: Annotated[Path | None, typer.Option(help="file with the system message")] = None,
) -> None:
    """Sample k responses per problem, judge and keep them, and estimate avg@k, pass@k and maj@k."""
    exported = [*model.glob("hf/step_*"), *model.glob("checkpoints/step_*/hf")]
    of_step = {int(step[-1]): folder for folder in exported if (step := re.findall(r"step_(\d+)", str(folder)))}
    if of_step or (model / "metrics.jsonl").is_file():
        newest = of_step[max(of_step)] if of_step else None
        found = f"name its newest model, {newest}" if newest else f"`nemo-ada export {model}` writes its model"
        raise UserError(f"{model} is the folder of a run, not of a model; {found}")
    run_dir = find_run(model, wanted=not data)
    data = data or ([str(run_dir / HELDOUT)] if run_dir else [])
    out = out or (run_dir / "eval" / model.name if run_dir else None)
    if not data or out is None:
        raise UserError(
            f"{'--out' if data else '--data'} is needed, because {model} is in no CPU run's folder with {HELDOUT}, "
            f"such as in `nemo-ada eval {model} --data my.jsonl --out runs/eval`; presets: {', '.join(list_presets())}"
        )
    benchmarks = find_benchmarks(data, {**changes, "system": read_text(system)})
    if "max_prompt_tokens" not in changes and access.server is None and (room := read_max_positions(model)) is not None:
        half = {"max_prompt_tokens": max(room // 2, 1)}  # of a small model; the rest is for the response
        benchmarks = [one.model_copy(update=half) if one.max_prompt_tokens >= room else one for one in benchmarks]
    prompts = max(benchmark.max_prompt_tokens for benchmark in benchmarks)
    new_tokens = max(benchmark.max_new_tokens for benchmark in benchmarks)
    limits = replace(limits, max_prompt_tokens=prompts, max_new_tokens=new_tokens)
    words = model if tokenizer is None else resolve_folder_or_repository("--tokenizer", tokenizer)
    provider = open_provider(access, model, ModelTokenizer(words), limits)
    encoders = {one.name: ModelTokenizer(words, one.prompt_format()) for one in benchmarks}
    for name, encoder in encoders.items():
        say_other_prompts(model, encoder, name)
    with count_on_terminal() as watch:
        content = run(benchmarks, lambda benchmark: encoders[benchmark.name], provider, drawing, out, watch)
    _show(content, drawing.k, out)


def _show(content: Mapping[str, Any], k: int, out: Path) -> None:
    """Print all tables of one evaluation."""
    benchmarks = content["benchmarks"]
    title = f"{content['settings']['model']['name']}: mean with 95 % interval over prompts ({out})"
    _print(title, [_make_scores("benchmark", *row) for row in [*benchmarks.items(), ("overall", content["overall"])]])
    for name, summary in benchmarks.items():
        for column, groups in summary["groups"].items():
            shown = [{column: value[:60], "prompts": own["prompts"], f"avg@{k}": _format_cell(own[f"avg@{k}"])}
                     for value, own in groups.items()]  # fmt: skip
            _print(f"{name} by {column}", shown)
    _note_few(benchmarks)


def _make_scores(column: str, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    scores = {score: _format_cell(value) for score, value in row.items() if score.startswith(("avg@", "pass@", "maj@"))}
    lengths = {"tokens": f"{row['mean_tokens']:.0f}", "finished": f"{row['finished']:.3f}"}
    counts = {"timed out": row["timed_out"], "unjudged": row["unjudged"], "left out": row["rejected_problems"]}
    return {column: name, "prompts": row["prompts"], **scores, **lengths, **counts}


@app.command()
@with_options
def compare(
    first: Annotated[Path, typer.Argument(help="folder of an evaluation")],
    second: Annotated[Path, typer.Argument(help="folder of another one, on the same problems")],
    out: Annotated[Path | None, typer.Option(help="write the comparison here, as JSON")] = None,
) -> None:
    """Compute the paired difference (second minus first) over common problems, with interval and p-values."""
    a, b = Evaluation.read(first), Evaluation.read(second)
    rows = compare_evaluations(a, b)
    if out is not None:
        write_result(out, json.dumps({"made_by": f"nemo-ada {__version__}", **rows}, indent=1) + "\n", "--out")
    title = f"{second} minus {first}: points of avg@k over the same prompts"
    _print(title, [_make_difference(name, row) for name, row in rows.items()])
    _note_few(rows)
    for difference in find_setting_differences(a, b):
        typer.echo(f"note: the two were evaluated differently: {difference}")


def _make_difference(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    interval = f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
    return {
        "": name,
        "prompts": str(row["prompts"]) + (f" ({row['left_out']} left out)" if row.get("left_out") else ""),
        "first": f"{100 * row['first']:.1f}",
        "second": f"{100 * row['second']:.1f}",
        "difference [95 %]": interval,
        "p (t)": f"{row['p_t']:.4f}",
        "p (flips)": f"{row['p_flips']:.4f}",
        "detectable": f"{100 * row['detectable']:.1f}",
    }


def _format_cell(value: Mapping[str, float]) -> str:
    if not value["prompts"]:
        return "-"
    return f"{100 * value['mean']:.1f} [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"


def _note_few(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print which rows come from few problems."""
    few = [f"{name} ({row['prompts']})" for name, row in rows.items() if row["prompts"] < FEW]
    if few:
        typer.echo(
            f"note: fewer than {FEW} problems: {', '.join(few)}; an interval of so few depends on which they are"
        )


def _print(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(*rows[0], title=Text(title))
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=160, highlight=False)).print(table)
