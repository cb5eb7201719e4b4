"""The command `nemo-ada rehearse`. Exit codes: 0 passed, 1 failed, 2 user error, 75 stopped by the batch script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nemo_ada.errors import UserError


def rehearse(
    config: Annotated[Path, typer.Argument(help="a cluster YAML: ours, or any GRPO YAML of NeMo-RL")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
    steps: Annotated[int, typer.Option(help="training steps of the undisturbed run")] = 3,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="on one GPU, with a model of the real shape and random weights")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="with --gpu: on the config's own GPUs, at its full size")
    ] = False,
    scale: Annotated[
        float | None, typer.Option(help="with --gpu: share of the config's prompts per step (.125)")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="with --gpu: seconds after which everything ends")] = None,
    runs: Annotated[
        str | None, typer.Option(help="with --gpu: its runs by name, such as grpo,lean,lean+KEY=VALUE,resumed")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="with --gpu: the same slices, small, on a CPU")] = False,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume", help="resume an earlier checkpoint and compare (yes; with --gpu see --runs)"
        ),
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="folder for logs, checkpoints and the report")] = None,
) -> None:
    """Run a cluster config on this machine's CPU with NeMo-RL's own workers, at a small size.

    Needs the environments of `make rehearsal-env`. The report lists what ran, what shrank and what a CPU cannot show.
    With --gpu it runs on one GPU without downloads, and measures times, memory and vLLM against the learner.
    With --full it takes all GPUs of the config at its full size. Nobody has run that on GPUs yet. On a cluster:
    LAUNCH="nemo-ada rehearse --gpu --full" slurm/train.sh --array=1 CONFIG.
    """
    from nemo_ada.config.load import backend_of
    from nemo_ada.rules.facts.config_file import load_config

    if backend_of(load_config(config, overrides or [])) == "embedded":
        raise UserError(
            f"{config} trains on a CPU already, and rehearsals are for YAMLs of NeMo-RL; run `nemo-ada train "
            f"{config} grpo.max_num_steps=5`, or rehearse configs/qwen2.5-math-1.5b.yaml"
        )
    if gpu and resume is not None:
        raise typer.BadParameter(
            "--gpu takes no --resume or --no-resume: it resumes unless --runs names what runs without `resumed`"
        )
    if gpu:
        from nemo_ada.rehearsal.gpu import GpuOptions, rehearse_on_gpu

        names = None if runs is None else runs.split(",")
        options = GpuOptions(steps, full=full, scale=scale, budget=budget, runs=names, dry_run=dry_run)
        raise typer.Exit(rehearse_on_gpu(config, overrides or [], options, keep=keep, say=typer.echo))
    if full or dry_run or any(given is not None for given in (scale, budget, runs)):
        raise typer.BadParameter(
            "--full, --scale, --budget, --runs and --dry-run belong to --gpu; add it, or leave them out"
        )
    from nemo_ada.rehearsal.command import rehearse as run

    raise typer.Exit(run(config, overrides or [], steps=steps, resume=resume is not False, keep=keep, say=typer.echo))
