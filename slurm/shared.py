"""What the decisions of slots.py and submission.py share: settings, files of a run, and SLURM."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

EXIT_FAILED = 1
EXIT_REFUSED = 2  # nothing is submitted or trained
COLUMNS = 4  # that a line of a table has at least
ARRAY = 0  # column of both tables
MOST_TRIES = 8  # of a command of SLURM, with growing waits
TAIL_BYTES = 20000  # of a log, in which a cause is looked for
LEFT = re.compile(r"error: (\S+): tasks? \S+: Exited with exit code (\d+)$", re.M)  # a node ended by itself


def refuse(text: str) -> "NoReturn":
    """Say what is wrong and what would work, and end."""
    sys.stderr.write(f"error: {text}\n")
    sys.exit(EXIT_REFUSED)


def setting(name: str) -> str:
    """The value of an environment variable; empty where it is not set."""
    return os.environ.get(name, "")


def say(text: str) -> None:
    """Write one line into the log. A log that cannot be written ends nothing."""
    mark = "# " if setting("DRY_RUN") == "1" else time.strftime("[%Y-%m-%d %H:%M:%S] ")
    with contextlib.suppress(OSError):
        os.write(int(setting("LOG_TO") or 1), (mark + text + "\n").encode(errors="replace"))


def run_dir() -> Path:
    """The folder of the run."""
    return Path(os.environ["RUN_DIR"])


def another_users() -> str:
    """What is said of a run folder of another user; empty for our own. Who plants a file there decides what runs."""
    for folder in (run_dir(), run_dir() / "attempts"):
        owner = folder.stat().st_uid if folder.exists() else os.getuid()
        if owner != os.getuid() != 0:  # also where the group may write
            return f"{folder} belongs to user {owner}, who alone trains in it: put RUN_DIR=FOLDER in front"
    return ""


def attempt_dir() -> Path:
    """The folder of this attempt."""
    return Path(os.environ["ATTEMPT_DIR"])


def table(name: str) -> "list[list[str]]":
    """The whole lines of a .tsv file in RUN_DIR. A missing file has no lines, and a damaged line does not count."""
    try:
        text = (run_dir() / name).read_text(errors="replace")
    except OSError:
        return []
    lines = [line.split("\t") for line in text.splitlines()]
    return [line for line in lines if len(line) >= COLUMNS]


def of_array(name: str) -> "list[list[str]]":
    """The lines of this array in a .tsv file."""
    return [line for line in table(name) if line[ARRAY] == setting("ARRAY")]


def flat(value: object) -> str:
    """A value as one cell of a table."""
    return re.sub(r"\s+", " ", str(value)).strip()


def add(name: str, *values: object) -> None:
    """Append one line to a .tsv file in RUN_DIR. Raises OSError."""
    with (run_dir() / name).open("a") as file:
        file.write("\t".join(flat(value) for value in values) + "\n")


def replace(path: Path, text: str) -> bool:
    """Write a file that nobody reads half. A folder that cannot be written is said, and ends nothing."""
    scratch = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        scratch.write_text(text)
        scratch.replace(path)
    except OSError as problem:
        say(f"warning: {path} was not written: {problem.strerror}")
        return False
    return True


def read_json(path: Path) -> dict:
    """A JSON object. Empty where the file is missing or damaged."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def whole(text: object) -> int:
    """A whole number; 0 for anything else."""
    try:
        return int(float(str(text)))
    except (ValueError, OverflowError):
        return 0


def tail(path: Path) -> str:
    """The last TAIL_BYTES of a file; empty where there is none."""
    if not path.is_file():  # a terminal or a pipe
        return ""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


# --- what an attempt left ---------------------------------------------------------------------------------------------


def last_error(node: str) -> str:
    """The last line of a node's log that names an error; empty for none."""
    log = tail(attempt_dir() / f"node-{node}.log").splitlines()
    return ([""] + [line for line in log if re.search(r"\b(error|failed|interrupted): |Error: ", line)])[-1]


def by_itself(srun: str) -> str:
    """The part of srun's log before srun ends the nodes that are left."""
    return re.split("CANCELLED AT|Job step aborted", srun)[0]


def bad_nodes() -> "dict[str, str]":
    """The nodes of this attempt that failed their health check, each with the cause that it gave.

    A node whose step ended before node.sh had a log is one, too: its container did not start, as where a folder of
    another user is in enroot's way, or it does not see the run's folder.
    """
    found = {
        path.name[len("bad-") :]: path.read_text(errors="replace").strip()
        for path in sorted(attempt_dir().glob("bad-*"))
        if ".tmp." not in path.name
    }
    srun = by_itself(tail(attempt_dir() / "srun.log"))
    for names, _ in LEFT.findall(srun):
        said = "; ".join(flat(line) for line in srun.splitlines() if not line.startswith("srun: "))
        for node in (slurm("scontrol", "show", "hostnames", names, seconds=8) or "").split():
            if not (attempt_dir() / f"node-{node}.log").exists():
                found.setdefault(node, f"its step did not begin: {said[-400:] or 'without a word'}")
    return found


def of_this_attempt(path: Path) -> bool:
    """Whether a file was written by this attempt. The file server's clock decides."""
    try:
        return path.stat().st_mtime_ns >= (attempt_dir() / "canary").stat().st_mtime_ns
    except OSError:
        return False


# --- SLURM ------------------------------------------------------------------------------------------------------------


def slurm(*command: str, seconds: int = 0) -> "str | None":
    """What a command of SLURM prints. Any of its errors may pass, so it is tried again with growing waits.

    Args:
        command: the command.
        seconds: how long it is tried; 0 takes MOST_TRIES.

    Returns:
        None where it succeeded at no time. That is no "no".
    """
    told = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SLURM_CLUSTERS"))}
    told["SLURM_TIME_FORMAT"], wait, end = "standard", 1, time.time() + seconds
    for turn in range(1, MOST_TRIES + 1):
        try:
            done = subprocess.run(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)  # noqa: UP022
        except OSError:
            return None
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
        if turn == MOST_TRIES or (seconds and time.time() + wait > end):
            break
        time.sleep(min(wait, whole(setting("AGAIN_SECONDS") or 30)))
        wait *= 2
    say(f"SLURM did not take `{' '.join(command)}`: {flat(done.stderr.decode(errors='replace'))}")
    return None


def of_job(job: str) -> "dict[str, str]":
    """What SLURM shows of a job, by its names; empty where it gives no answer.

    A slot is asked for as ARRAY_N: the last one has the array's own number, by which SLURM shows all of them.
    """
    shown = slurm("scontrol", "show", "job", "-o", job, seconds=whole(setting("ANSWER_SECONDS") or 8)) or ""
    return {name: value.strip() for name, value in re.findall(r"(?:^| )([\w/:]+)=(.*?)(?= [\w/:]+=|$)", shown, re.M)}


def in_queue(*arrays: str) -> "list[list[str]] | None":
    """The slots of arrays that SLURM has not ended: array, number, state, each once. None: no answer."""
    asked = ",".join([*arrays, arrays[0]])  # with one id squeue fails for one that is not known any more
    said = slurm("squeue", "-h", "-r", "-j", asked, "-o", "%F|%K|%t", seconds=whole(setting("ANSWER_SECONDS") or 8))
    return None if said is None else [line.split("|") for line in said.splitlines() if line.count("|") == 2]


def moment(text: str) -> int:
    """Epoch seconds of a time of SLURM; 0 where there is none."""
    found = re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text)
    return int(time.mktime(time.strptime(found.group(), "%Y-%m-%dT%H:%M:%S"))) if found else 0


def is_array() -> bool:
    """Whether this job is a slot of an array. A job in an allocation of salloc is not."""
    return bool(setting("SLURM_ARRAY_JOB_ID")) and setting("SLURM_ARRAY_JOB_ID") == setting("ARRAY")


def put_off(seconds: int, hosts: str = "") -> None:
    """Let the slots that wait start later, and not on these hosts."""
    if not is_array():
        return
    there = in_queue(setting("ARRAY"))
    waiting = sorted({int(number) for _, number, state in there or [] if state == "PD" and number.isdigit()})
    if there is not None and not waiting:
        say("no slot waits: this was the last one, and a new submission goes on")
        return
    which = f"{setting('ARRAY')}_[{','.join(map(str, waiting))}]" if waiting else setting("ARRAY")
    changes = [f"StartTime=now+{seconds}"] if seconds else []
    facts = of_job(setting("SLOT")) if hosts else {}
    if hosts:  # the second ExcNodeList replaces the first, so it has the user's, too
        own = facts.get("ExcNodeList", "")
        named = [*([] if own in ("", "(null)") else split_hosts(own)), *split_hosts(hosts)]
        changes.append("ExcNodeList=" + ",".join(dict.fromkeys(named)))
    if facts.get("ReqNodeList", "(null)") != "(null)":  # a node that is asked for and left out would hold the run
        for number in waiting:  # scontrol takes this for one slot only
            slurm("scontrol", "update", f"JobId={setting('ARRAY')}_{number}", "ReqNodeList=", seconds=8)
    if changes and slurm("scontrol", "update", f"JobId={which}", *changes) is not None:
        later = f"; they start in {seconds} s at the earliest" if seconds else ""
        say(f"{len(waiting)} slots wait{later}" + (f", not on {hosts}" if hosts else ""))


def cancel_waiting() -> None:
    """Cancel the slots of this array that wait."""
    if is_array():
        slurm("scancel", "--state=PENDING", setting("ARRAY"))


def split_hosts(text: str) -> "list[str]":
    """ "n1,n[2-3,5]" as ["n1", "n[2-3,5]"]: commas in brackets do not separate."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


def main(decisions: "tuple[Callable[..., int], ...]", words: "list[str]") -> int:
    """Run one decision; its exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # SLURM's TERM is the batch script's; what is decided is written down
    known = {decision.__name__.replace("_", "-"): decision for decision in decisions}
    if not words or words[0] not in known:
        sys.stderr.write(f"choose one of {', '.join(known)}\n")
        return 64
    return known[words[0]](*words[1:])
