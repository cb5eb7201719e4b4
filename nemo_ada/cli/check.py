"""The command `nemo-ada check`. Exit codes: 0 no finding, 3 warnings only, 2 errors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from nemo_ada.errors import UserError
from nemo_ada.lab.plan.command import check_walltime
from nemo_ada.lab.plan.job_slots import parse_time
from nemo_ada.lab.plan.sbatch import check_job
from nemo_ada.rules.check.cluster import check_cluster
from nemo_ada.rules.check.command import examine, write_report
from nemo_ada.rules.facts.cards import KEY as CARD
from nemo_ada.rules.finding import choose_exit_code
from nemo_ada.run.job_control import EXIT_USER_ERROR
from nemo_ada.run.redaction import hide


def check(
    config: Annotated[Path, typer.Argument(help="a YAML in configs/")],
    overrides: Annotated[list[str] | None, typer.Argument(help="overlays of configs/methods and key=value")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print findings as JSON")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="on a GPU node: number of GPUs, FP8 and apex as well")] = False,
    verifier: Annotated[bool, typer.Option(help="start math-verify for its self-test")] = True,
    time: Annotated[str | None, typer.Option(help="length of a job slot: is there time for a step?")] = None,
    nodes: Annotated[str, typer.Option(help="nodes of the job: does the config ask for as many?")] = "",
    card: Annotated[
        str | None, typer.Option(help="GPUs to judge for, such as A100-80GB (default: the config's)")
    ] = None,
    site: Annotated[
        bool, typer.Option("--site", help="on a login node: ask SLURM which of its settings break a run of slots")
    ] = False,
    gpus_per_node: Annotated[str, typer.Option(help="GPUs per node of the job, such as 8 or h100:8")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="also print what is right and what was skipped")] = False,
) -> None:
    """Find what is wrong with a configuration before a job starts; each failure says what would work.

    Exit code: 0 no warning and no error, 3 warnings only, 2 errors, 1 the check itself crashed.
    Without --gpu and --card, GPUs are those of the config's key `card`, else H100-80GB.
    NEMO_RL_HOME, RUN_ROOT and CONTAINER are taken from the environment, else from slurm/site.env.
    """
    words = [*(overrides or []), *([] if card is None else [f"{CARD}={card}"])]
    findings = examine(config, words, on_gpu=gpu, verifier=verifier)
    if time is not None and choose_exit_code(findings) != EXIT_USER_ERROR:
        findings.extend(check_walltime(config, words, time))
    with suppress(UserError, OSError):  # a configuration that cannot be read has a finding already
        findings.extend(check_job(config, words, nodes=nodes, gpus=gpus_per_node))
    if site:
        findings.extend(check_cluster(None if time is None else parse_time(time)))
    typer.echo(hide(write_report(findings, as_json=as_json, verbose=verbose)))  # a finding may quote a key of the user
    raise typer.Exit(choose_exit_code(findings))
