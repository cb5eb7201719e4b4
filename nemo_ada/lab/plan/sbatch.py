"""What a configuration asks of SLURM: the options of `nemo-ada plan --sbatch`, and whether a job fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from nemo_ada.config.load import RUN_DIR, backend_of
from nemo_ada.config.values import Values
from nemo_ada.lab.plan.command import LONGER, PlanOptions, find_useful_slot
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.finding import Finding, error, ok

TIMES_AS_MANY, SPARE = 2, 4
"""Slots of the array: as many times what the forecast needs, and some for lost ones. A done run cancels the rest."""
MOST_SLOTS = 1000  # SLURM's MaxArraySize of 1001, where the site sets none
TIMES = ("04:00:00", *LONGER[:-1])  # two days are what `check` may advise, and nobody gets them unasked


def choose_sbatch_options(
    config: Path, overrides: Sequence[str], times: Sequence[str] = TIMES, options: PlanOptions | None = None
) -> list[str]:
    """Options of sbatch for a run with this configuration.

    Args:
        config: the YAML.
        overrides: overlays and key=value.
        times: lengths of a job slot, as SLURM writes them. The shortest that spends MIN_USEFUL of its time on steps
            (plan/command.py) is taken, or the one that spends most.
        options: what the plans are made from. Their time is not read, because all `times` are tried.

    Returns:
        One option per item. A run on the CPU gets its name and one node, because no forecast is known for it.

    Raises:
        UserError: for what cannot be planned.
    """
    loaded = load_config(config, overrides)
    name = [f"--job-name={Path(str(loaded.get(RUN_DIR, config.stem))).name}"]
    if backend_of(loaded) == "embedded":
        return [*name, "--nodes=1"]
    nodes, gpus = _read_cluster(Values(loaded))
    chosen, plan = find_useful_slot(config, overrides, times, options or PlanOptions(times[0]))
    # `lead` seconds before the end of a slot SLURM sends USR1 to the batch script, whose run then saves and stops.
    signal, slots = f"--signal=B:USR1@{plan.slots.lead}", TIMES_AS_MANY * plan.slots.count + SPARE
    job = [f"--nodes={nodes}", f"--gpus-per-node={gpus}", f"--time={chosen}", signal]
    return [*name, *job, f"--array=1-{min(slots, MOST_SLOTS)}%1"]  # one slot at a time: each resumes the one before


def check_job(config: Path, overrides: Sequence[str], *, nodes: str = "", gpus: str = "") -> Iterator[Finding]:
    """Yield whether a job has the nodes and the GPUs per node that the configuration asks for.

    Args:
        config: the YAML.
        overrides: overlays and key=value.
        nodes: value of the job's --nodes. A range, such as 2-4, and an empty text are not judged.
        gpus: value of the job's --gpus-per-node, such as 8 or h100:8. An empty text is not judged.
    """
    loaded = load_config(config, overrides)
    if backend_of(loaded) == "embedded":
        return
    wanted = dict(zip(("num_nodes", "gpus_per_node"), _read_cluster(Values(loaded)), strict=True))
    options = {"num_nodes": ("--nodes", nodes), "gpus_per_node": ("--gpus-per-node", gpus.rpartition(":")[2])}
    for key, (option, given) in options.items():
        if not given.isdecimal():
            continue
        if int(given) == wanted[key]:
            yield ok(option, f"{given}, as cluster.{key}")
        else:
            yield error(
                option,
                f"the job has {given}, cluster.{key} is {wanted[key]}: give {option}={wanted[key]}, set "
                f"cluster.{key}={given}, or submit with slurm/train.sh, which asks for what the configuration needs",
            )


def _read_cluster(values: Values) -> tuple[int, int]:
    """Nodes and GPUs per node."""
    return values.integer("cluster.num_nodes", 1), values.integer("cluster.gpus_per_node", 8)
