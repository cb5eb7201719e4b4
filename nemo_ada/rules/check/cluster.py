"""`nemo-ada check --site`: SLURM itself says what will not work for a chain of jobs, and slurm/site.env gets it."""

from __future__ import annotations

import os
import re
import shutil

from nemo_ada.rules.facts.site import site_file, site_setting
from nemo_ada.rules.finding import Findings, error, ok, skipped, warning
from nemo_ada.run.files import new_file
from nemo_ada.run.start import SubprocessError, run

ANSWER_SECONDS = 10.0
PREEMPT_SECONDS = 25  # slurm/lib.sh
SETTLED = ("SBATCH_EXPORT", "SLURM_TIME_FORMAT", "SLURM_CONF")  # slurm/ has an answer, or they name the cluster
OUTSIDE = ("SBATCH_", "SQUEUE_", "SLURM_")


HEADER = """# Written by `nemo-ada check --site` from what SLURM said. slurm/site.env.example has all settings.
"""
Wanted = dict[str, str]
"""Settings of site.env that would mend a finding."""


def cluster(seconds: float | None = None) -> Findings:
    """What SLURM's configuration, the partition and this shell do to a chain of jobs.

    Settings that mend a finding are written to site.env, where there is none yet.

    Args:
        seconds: the length of a job slot; None where nobody has asked for one.
    """
    wanted: Wanted = {}
    yield from _examined(seconds, wanted)
    if not wanted:
        return
    path, lines = site_file(), "".join(f"{name}={value}\n" for name, value in wanted.items())
    try:
        with new_file(path) as file:
            file.write(HEADER + lines)
    except FileExistsError:
        yield warning("slurm/site.env", f"{path} is yours and stays as it is; add {' '.join(lines.split())}")
    except OSError as problem:
        yield warning("slurm/site.env", f"{path} cannot be written ({problem}); it needs {' '.join(lines.split())}")
    else:
        yield ok("slurm/site.env", f"{path} is written, with {' '.join(lines.split())}")


def _examined(seconds: float | None, wanted: Wanted) -> Findings:
    if shutil.which("scontrol") is None:
        yield skipped("SLURM", "there is no scontrol on this machine: ask on the login node")
        return
    facts = _facts("config")
    if not facts:
        yield error("SLURM", "scontrol show config gives no answer; mend SLURM_CONF or ask your site")
        return
    if facts.get("JobRequeue") == "0" and (site_setting("REQUEUE") or "requeue") == "requeue":
        wanted["REQUEUE"] = "resubmit"
        yield warning(
            "REQUEUE", "the site has JobRequeue=0, so a lost node ends a job; set REQUEUE=resubmit in site.env"
        )
    wait = _number(facts.get("KillWait"))
    promised = _number(site_setting("PREEMPT_SECONDS")) or PREEMPT_SECONDS
    yield from _partition(seconds, wait, promised, wanted)
    if "gpu" not in facts.get("GresTypes", "") and site_setting("GPUS_IN_SLURM") != "0":
        wanted["GPUS_IN_SLURM"] = "0"
        yield error("GPUS_IN_SLURM", "SLURM knows no GPUs here (GresTypes), so --gpus-per-node is refused; "
                    "GPUS_IN_SLURM=0 in site.env leaves it out")  # fmt: skip
    yield from _runtime()
    named = [name for name in sorted(os.environ) if name.startswith(OUTSIDE) and name not in SETTLED]
    if named and "SLURM_JOB_ID" not in os.environ:
        yield warning(
            "environment", f"this shell sets {', '.join(named)}, which shape the jobs; unset what is not meant"
        )


def _partition(seconds: float | None, wait: int, promised: int, wanted: Wanted) -> Findings:
    name = os.environ.get("SBATCH_PARTITION") or site_setting("SBATCH_PARTITION")
    facts = _facts("partition", *([name] if name else []))
    if not facts:
        yield error("SBATCH_PARTITION", f"SLURM has no partition {name or 'here'}; `sinfo -s` lists those that work")
        return
    limit = _seconds(facts.get("MaxTime", ""))
    if seconds is not None and limit is not None and seconds > limit:
        yield error("--time", f"{seconds:.0f} s are more than MaxTime={facts['MaxTime']} of partition "
                    f"{facts.get('PartitionName')}; ask for less, and the chain goes on in the next job")  # fmt: skip
    grace = _number(facts.get("GraceTime"))
    if facts.get("PreemptMode", "OFF") != "OFF" and promised > wait + grace:
        wanted["PREEMPT_SECONDS"] = str(max(1, wait + grace - 5))
        yield warning("PREEMPT_SECONDS", f"{promised} s to save are promised, SLURM kills {wait + grace} s after TERM "
                      f"(KillWait + GraceTime); set PREEMPT_SECONDS={wanted['PREEMPT_SECONDS']}")  # fmt: skip
    yield ok("SBATCH_PARTITION", f"{facts.get('PartitionName')}: MaxTime={facts.get('MaxTime')}, "
             f"PreemptMode={facts.get('PreemptMode')}, GraceTime={grace}, KillWait={wait}")  # fmt: skip


def _runtime() -> Findings:
    image = site_setting("CONTAINER")
    kind = site_setting("RUNTIME") or ("pyxis" if image else "none")
    there = [tool for tool in ("apptainer", "enroot", "podman") if shutil.which(tool)]
    if kind == "pyxis" and "container-image" not in _said("srun", "--help"):
        yield error("RUNTIME", f"this SLURM has no pyxis (--container-image); here are: {', '.join(there) or 'none'}; "
                    "RUNTIME=apptainer with a .sif, or CONTAINER= on bare nodes")  # fmt: skip
    elif kind == "apptainer" and shutil.which(site_setting("APPTAINER") or "apptainer") is None:
        yield warning("RUNTIME", "there is no apptainer on this machine; the nodes need it (APPTAINER names its path)")
    else:
        yield ok("RUNTIME", kind)


def _facts(*words: str) -> dict[str, str]:
    """The `Name=value` pairs of `scontrol show WORDS`; of several partitions those of the default one."""
    text = _said("scontrol", "show", *words)
    blocks = text.split("\n\n") if words[0] == "partition" else [text]
    chosen = next((block for block in blocks if "Default=YES" in block), blocks[0])
    return {name: value.strip() for name, value in re.findall(r"(\w+) *= *(.*?)(?=\s+\w+=|$)", chosen, re.M)}


def _said(*command: str) -> str:
    """What a command prints; empty where it fails."""
    try:
        done = run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, SubprocessError):
        return ""
    return done.stdout + done.stderr


def _number(text: str | None) -> int:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else 0


def _seconds(text: str) -> int | None:
    """SLURM's D-HH:MM:SS in seconds; None for UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
