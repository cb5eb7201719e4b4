"""`nemo-ada check --site`: SLURM itself says what will not work for a run of slots, and slurm/site.env gets it."""

from __future__ import annotations

import os
import re
import resource
import shutil
from getpass import getuser
from pathlib import Path

from nemo_ada.rules.facts.site import find_site_file, read_site_setting
from nemo_ada.rules.finding import Findings, error, ok, skipped, warning
from nemo_ada.run.files import create_file, text_of
from nemo_ada.run.start import SubprocessError, make_environment, run

ANSWER_SECONDS = 10.0
PREEMPT_SECONDS = 25  # slurm/lib.sh
SETTLED = ("SBATCH_EXPORT", "SLURM_TIME_FORMAT", "SLURM_CONF")  # slurm/ has an answer, or they name the cluster
LEAST_SHM_GIB = 16
FEW_SLOTS = 20
THREADS_PER_CORE = 200  # that vLLM, Ray and the learners start at the most
LAST_WORKER_PORT = 11000  # slurm/node.sh
OUTSIDE = ("SBATCH_", "SQUEUE_", "SLURM_")


HEADER = """# Written by `nemo-ada check --site` from what SLURM said. slurm/site.env.example has all settings.
"""
Wanted = dict[str, str]
"""Settings of site.env that would mend a finding."""


def check_cluster(seconds: float | None = None) -> Findings:
    """What SLURM's configuration, the partition and this shell do to a run, which is an array of slots.

    Settings that mend a finding are written to site.env, where there is none yet.

    Args:
        seconds: the length of a job slot; None where nobody has asked for one.
    """
    wanted: Wanted = {}
    yield from _check_slurm(seconds, wanted)
    if not wanted:
        return
    path, lines = find_site_file(), "".join(f"{name}={value}\n" for name, value in wanted.items())
    try:
        with create_file(path) as file:
            file.write(HEADER + lines)
    except FileExistsError:
        yield warning("slurm/site.env", f"{path} is yours and stays as it is; add {' '.join(lines.split())}")
    except OSError as problem:
        yield warning("slurm/site.env", f"{path} cannot be written ({problem}); it needs {' '.join(lines.split())}")
    else:
        yield ok("slurm/site.env", f"{path} is written, with {' '.join(lines.split())}")


def _check_slurm(seconds: float | None, wanted: Wanted) -> Findings:
    if shutil.which("scontrol") is None:
        yield skipped("SLURM", "there is no scontrol on this machine: ask on the login node")
        return
    facts = _ask_scontrol("config")
    if not facts:
        yield error("SLURM", "scontrol show config gives no answer; mend SLURM_CONF or ask your site")
        return
    yield from _check_limits(facts)
    yield from _check_cache()
    if "SLURM_JOB_ID" in os.environ:
        yield from _check_node()
    wait = _parse_number(facts.get("KillWait"))
    promised = _parse_number(read_site_setting("PREEMPT_SECONDS")) or PREEMPT_SECONDS
    yield from _check_partition(seconds, wait, promised, wanted)
    if "gpu" not in facts.get("GresTypes", "") and read_site_setting("GPUS_IN_SLURM") != "0":
        wanted["GPUS_IN_SLURM"] = "0"
        yield error("GPUS_IN_SLURM", "SLURM knows no GPUs here (GresTypes), so --gpus-per-node is refused; "
                    "GPUS_IN_SLURM=0 in site.env leaves it out")  # fmt: skip
    yield from _check_runtime()
    named = [name for name in sorted(os.environ) if name.startswith(OUTSIDE) and name not in SETTLED]
    if named and "SLURM_JOB_ID" not in os.environ:
        yield warning(
            "environment", f"this shell sets {', '.join(named)}, which shape the jobs; unset what is not meant"
        )


def _check_partition(seconds: float | None, wait: int, promised: int, wanted: Wanted) -> Findings:
    name = os.environ.get("SBATCH_PARTITION") or read_site_setting("SBATCH_PARTITION")
    facts = _ask_scontrol("partition", *([name] if name else []))
    if not facts:
        yield error("SBATCH_PARTITION", f"SLURM has no partition {name or 'here'}; `sinfo -s` lists those that work")
        return
    limit = _parse_seconds(facts.get("MaxTime", ""))
    if seconds is not None and limit is not None and seconds > limit:
        yield error("--time", f"{seconds:.0f} s are more than MaxTime={facts['MaxTime']} of partition "
                    f"{facts.get('PartitionName')}; ask for less, and the run goes on in the next slot")  # fmt: skip
    grace = _parse_number(facts.get("GraceTime"))
    if facts.get("PreemptMode", "OFF") != "OFF" and promised > wait + grace:
        wanted["PREEMPT_SECONDS"] = str(max(1, wait + grace - 5))
        yield warning("PREEMPT_SECONDS", f"{promised} s to save are promised, SLURM kills {wait + grace} s after TERM "
                      f"(KillWait + GraceTime); set PREEMPT_SECONDS={wanted['PREEMPT_SECONDS']}")  # fmt: skip
    yield ok("SBATCH_PARTITION", f"{facts.get('PartitionName')}: MaxTime={facts.get('MaxTime')}, "
             f"PreemptMode={facts.get('PreemptMode')}, GraceTime={grace}, KillWait={wait}")  # fmt: skip


def _check_limits(facts: dict[str, str]) -> Findings:
    """How many slots a run may have in the queue, and whether the account's limits hold as the site means them."""
    most = facts.get("MaxArraySize", "")
    if most.isdigit() and int(most) < FEW_SLOTS:
        yield warning("MaxArraySize", f"{most}: an array has {max(0, int(most) - 1)} slots at most, so a run takes "
                      "several submissions; each goes on from the last save")  # fmt: skip
    if "slurmdbd" not in facts.get("AccountingStorageType", ""):
        return
    enforced = facts.get("AccountingStorageEnforce", "")
    if "limits" in enforced and "safe" not in enforced:
        yield warning("AccountingStorageEnforce", f"{enforced}: without `safe` SLURM kills a job that meets GrpTRESMins"
                      " in its middle; with it such a job does not begin")  # fmt: skip
    if "gpu" in facts.get("GresTypes", "") and "gres/gpu" not in facts.get("AccountingStorageTRES", ""):
        yield warning("AccountingStorageTRES", "without gres/gpu SLURM counts no GPU hours, and no limit on them holds")
    own = _read_answer("sacctmgr", "-nP", "show", "assoc", f"user={getuser()}", "format=maxsubmitjobs,qos").splitlines()
    names = {name for line in own for name in line.partition("|")[2].split(",") if name}
    rows = [
        _read_answer("sacctmgr", "-nP", "show", "qos", name, "format=maxsubmitjobsperuser").strip() for name in names
    ]
    limits = [int(cell) for line in (*own, *rows) if (cell := line.partition("|")[0]).isdigit()]
    if limits and min(limits) < FEW_SLOTS:
        yield warning("MaxSubmitJobs", f"a user may have {min(limits)} jobs submitted, and each slot of a run is one; "
                      "a submission asks for fewer then, and a new one goes on when they are used up")  # fmt: skip


def _check_cache() -> Findings:
    """Whether the next user of a shared HF_HOME can add to what this one downloads."""
    cache = Path(read_site_setting("HF_HOME") or os.devnull)
    closed = [path for path in (cache, cache / "hub") if path.is_dir() and not os.access(path, os.W_OK)]
    if closed:
        yield error("HF_HOME", f"you cannot write to {closed[0]}; its owner opens it to the group: chmod -R g+rwX "
                    f"{cache}, chmod g+s for its folders, and CACHE_UMASK=002 (slurm/prepare.sh)")  # fmt: skip
    elif cache.is_dir() and cache.stat().st_mode & 0o2020 == 0o020:
        yield warning("HF_HOME", f"a group may write to {cache}, but what you download would not be the group's: "
                      f"chmod g+s {cache}, and fill it by slurm/prepare.sh (CACHE_UMASK=002)")  # fmt: skip


def _check_node() -> Findings:
    """What NCCL and Ray meet on this node. Ask on one, by `srun nemo-ada check CONFIG --site`."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if Path("/sys/class/infiniband").is_dir() and limit != resource.RLIM_INFINITY:
        yield warning("memlock", f"{limit >> 10} KiB may be locked, and NCCL wants no limit on InfiniBand; jobs take "
                      "the node's own limit (--propagate=NONE): raise it there")  # fmt: skip
    most, cores = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.cpu_count() or 1
    if resource.RLIM_INFINITY != most < THREADS_PER_CORE * cores:
        yield warning("ulimit -u", f"{most} processes and threads are allowed, and {cores} cores start up to "
                      f"{THREADS_PER_CORE * cores}: raise it on the node")  # fmt: skip
    yield from _check_enroot()
    free = shutil.disk_usage("/dev/shm").free >> 30
    if free < LEAST_SHM_GIB:
        yield warning("/dev/shm", f"{free} GiB are free, and Ray's objects want {LEAST_SHM_GIB}: raise its size")
    first = _parse_number(text_of(Path("/proc/sys/net/ipv4/ip_local_port_range"), 100))
    last = max(LAST_WORKER_PORT, _parse_number(read_site_setting("RAY_PORT") or "9900") + 69)
    if first <= last:
        yield warning("RAY_PORT", f"the kernel gives out ports from {first} on, Ray's go to {last}, so one may be "
                      "taken; raise net.ipv4.ip_local_port_range or lower RAY_PORT")  # fmt: skip


def _check_enroot() -> Findings:
    """Whether enroot can use its folders on this node. Where they are in /tmp, another user may have made them."""
    if shutil.which("enroot") is None:
        return
    own = {name: value for name, value in os.environ.items() if name.startswith("ENROOT_")}
    try:  # it makes its folders, whatever it is asked
        done = run(
            ["enroot", "list"], env=make_environment(**own), capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except (OSError, SubprocessError) as problem:
        yield warning("enroot", f"it gives no answer on this node: {problem}")
        return
    if done.returncode:
        yield error("enroot", f"no container starts for you on this node: {' '.join(done.stderr.split())}; in "
                    "the site's enroot.conf name folders that each user can make (/tmp/enroot-$(id -u))")  # fmt: skip


def _check_runtime() -> Findings:
    image = read_site_setting("CONTAINER")
    kind = read_site_setting("RUNTIME") or ("pyxis" if image else "none")
    there = [tool for tool in ("apptainer", "enroot", "podman") if shutil.which(tool)]
    if kind == "pyxis" and "container-image" not in _read_answer("srun", "--help"):
        yield error("RUNTIME", f"this SLURM has no pyxis (--container-image); here are: {', '.join(there) or 'none'}; "
                    "RUNTIME=apptainer with a .sif, or CONTAINER= on bare nodes")  # fmt: skip
    elif kind == "apptainer" and shutil.which(read_site_setting("APPTAINER") or "apptainer") is None:
        yield warning("RUNTIME", "there is no apptainer on this machine; the nodes need it (APPTAINER names its path)")
    else:
        yield ok("RUNTIME", kind)


def _ask_scontrol(*words: str) -> dict[str, str]:
    """The `Name=value` pairs of `scontrol show WORDS`; of several partitions those of the default one."""
    text = _read_answer("scontrol", "show", *words)
    blocks = text.split("\n\n") if words[0] == "partition" else [text]
    chosen = next((block for block in blocks if "Default=YES" in block), blocks[0])
    return {name: value.strip() for name, value in re.findall(r"(\w+) *= *(.*?)(?=\s+\w+=|$)", chosen, re.M)}


def _read_answer(*command: str) -> str:
    """What a command prints; empty where it fails."""
    try:
        done = run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, SubprocessError):
        return ""
    return done.stdout + done.stderr


def _parse_number(text: str | None) -> int:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else 0


def _parse_seconds(text: str) -> int | None:
    """SLURM's D-HH:MM:SS in seconds; None for UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
