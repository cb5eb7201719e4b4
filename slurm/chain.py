#!/usr/bin/env python3
"""The decisions of a chain of jobs. lib.sh calls them; it starts, watches and ends processes itself.

Usage: chain.py checked CODE | record | may-continue | verdict | leave-out | options

This file runs on the login node and on the batch host, outside the container. So it uses the standard library only,
and nothing newer than Python 3.6. Settings come from environment variables. What a decision prints is for the log;
`verdict` and `options` print their result.

Files in RUN_DIR:
    attempts.tsv   one line per attempt: chain, job, start time, last saved step at its start
    left_out.tsv   one line per unhealthy node: chain, job, node, cause
    pace.json      saved_step: the last step that was saved
    status.json    state: how the run ended
"""

import json
import os
import re
import sys
from pathlib import Path

EXIT_NO = 1  # the chain ends
EXIT_REFUSED = 2  # nothing is submitted
WARNINGS_ONLY = 3  # exit code of `nemo-ada check`: nemo_ada/rules/finding.py
COLUMNS = 4  # of both tables
STATES = ("done", "stopped", "failed")


def setting(name: str) -> str:
    """The value of an environment variable; empty where it is not set."""
    return os.environ.get(name, "")


def run_dir() -> Path:
    """The folder of the run."""
    return Path(os.environ["RUN_DIR"])


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
    return [line for line in lines if len(line) == COLUMNS]


def of_chain(name: str) -> "list[list[str]]":
    """The lines of this chain in a .tsv file."""
    return [line for line in table(name) if line[0] == setting("CHAIN")]


def add(name: str, *values: object) -> None:
    """Append one line to a .tsv file in RUN_DIR."""
    words = [re.sub(r"\s+", " ", str(value)).strip() for value in values]
    with (run_dir() / name).open("a") as file:
        file.write("\t".join(words) + "\n")


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


def best_step() -> int:
    """The furthest step that this run ever saved. A step that was made and not saved has to be made again."""
    saved = whole(read_json(run_dir() / "pace.json").get("saved_step", 0))
    return max([saved, *(whole(line[3]) for line in table("attempts.tsv"))])


def checked(code: str) -> int:
    """Whether a submission may follow the exit code of `nemo-ada check`. A crash of the check is never a pass."""
    if whole(code) in (0, WARNINGS_ONLY):
        return 0
    if whole(code) == EXIT_REFUSED:
        print("nothing was submitted: mend what is said above")
    else:
        print(f"nothing was submitted: nemo-ada check itself failed with exit code {code}, see above")
    return EXIT_REFUSED


def record() -> int:
    """Write down this attempt in attempts.tsv, and print its number in the chain."""
    add("attempts.tsv", setting("CHAIN"), setting("SLURM_JOB_ID"), setting("STARTED"), best_step())
    print(len(of_chain("attempts.tsv")))
    return 0


def may_continue() -> int:
    """Whether the chain may have another attempt: not more than MAX_ATTEMPTS, and not after two without a new save."""
    attempts = of_chain("attempts.tsv")
    best = best_step()
    if len(attempts) >= whole(setting("MAX_ATTEMPTS")):
        print(f"stopping: {len(attempts)} attempts are the maximum (MAX_ATTEMPTS); sbatch again to start a new chain")
        return EXIT_NO
    if len(attempts) >= 2 and best <= whole(attempts[-2][3]):
        print(
            f"stopping: the last two attempts saved no new step beyond {best}; their logs are in {run_dir()}/attempts/"
        )
        return EXIT_NO
    return 0


def bad_nodes() -> "dict[str, str]":
    """The nodes of this attempt that failed their health check, each with the cause that it gave."""
    return {
        path.name[len("bad-") :]: path.read_text(errors="replace").strip()
        for path in sorted(attempt_dir().glob("bad-*"))
        if ".tmp." not in path.name
    }


def of_this_attempt(path: Path) -> bool:
    """Whether a file was written by this attempt. The file server's clock decides."""
    try:
        return path.stat().st_mtime_ns >= (attempt_dir() / "canary").stat().st_mtime_ns
    except OSError:
        return False


def verdict() -> int:
    """Print how the attempt ended: done, stopped, failed, interrupted or unhealthy."""
    print(_verdict())
    return 0


def _verdict() -> str:
    if bad_nodes():
        return "unhealthy"
    status = run_dir() / "status.json"
    state = str(read_json(status).get("state", "")) if of_this_attempt(status) else ""
    try:
        code = (attempt_dir() / "driver.exit").read_text().strip()
    except OSError:
        code = ""
    if state in STATES:
        return state
    if code == "75":
        return "stopped"
    if state == "running" and code == "1":  # Ray ends a driver that lost its head node with 1, from outside Python
        return "interrupted"
    if code in ("0", "1", "2"):  # the driver ended by itself and left no state
        return "failed"
    return "failed" if (attempt_dir() / "refused").exists() else "interrupted"


def leave_out() -> int:
    """Write down the unhealthy nodes, so that the next job leaves them out. Exit code 1: no next job would help."""
    found = bad_nodes()
    for node, cause in found.items():
        print(f"node {node} is unhealthy: {cause}")
    _forget_attempt()
    again = sorted(set(found) & {line[2] for line in of_chain("left_out.tsv")})
    for node, cause in found.items():
        add("left_out.tsv", setting("CHAIN"), setting("SLURM_JOB_ID"), node, cause)
    causes = {line[2]: _kind(line[3]) for line in of_chain("left_out.tsv")}
    nodes = setting("NODE_NAMES").split()
    if again:
        print(f"stopping: SLURM gave this job {', '.join(again)}, which --exclude had left out; ask your site why")
        return EXIT_NO
    if len(nodes) > 1 and set(nodes) <= set(found) and len({_kind(cause) for cause in found.values()}) == 1:
        print("stopping: every node of the job gives the same cause, so the config or the site is wrong, not a node")
        return EXIT_NO
    if len(causes) > whole(setting("MAX_LEFT_OUT")):
        same = "All gave the same cause: look at the config and the site. " if len(set(causes.values())) == 1 else ""
        print(
            f"stopping: {len(causes)} nodes were unhealthy ({', '.join(sorted(causes))}), MAX_LEFT_OUT is "
            f"{setting('MAX_LEFT_OUT')}. {same}Submit again to start a new chain"
        )
        return EXIT_NO
    if setting("REQUEUE") == "none":
        print(f"REQUEUE=none: submit {setting('SCRIPT')} again with --exclude={','.join(sorted(causes))}")
        return EXIT_NO
    return 0


def _forget_attempt() -> None:
    """Take this attempt out of attempts.tsv: it made no step, and must not end the chain."""
    path, job = run_dir() / "attempts.tsv", setting("SLURM_JOB_ID")
    lines = table("attempts.tsv")
    if lines and lines[-1][:2] == [setting("CHAIN"), job]:
        scratch = path.with_name(f"{path.name}.tmp.{os.getpid()}")
        scratch.write_text("".join("\t".join(line) + "\n" for line in lines[:-1]))
        scratch.replace(path)


def _kind(cause: str) -> str:
    """A cause without its numbers: nodes that lack different amounts of memory have the same cause."""
    return re.sub(r"[\d.]+", "#", cause)


def options() -> int:
    """Print sbatch's options for the next job, one per line.

    They are those of this job as squeue shows them, then those of the first submission, then --exclude: sbatch takes
    the last one of a kind, and a bad node must stay left out.

    Variables:
        JOB_FIELDS: limit|account|partition|qos|reservation|exclude|constraint, from squeue.
        NEMO_ADA_OPTIONS: options of the first submission, one per line.
        NODE_NAMES: the nodes of this job.
    """
    # A constraint may hold a |, so it is the last field.
    fields = (setting("JOB_FIELDS").split("|", 6) + [""] * 7)[:7]
    limit, account, partition, qos, reservation, excluded, constraint = fields
    given = [word for word in setting("NEMO_ADA_OPTIONS").splitlines() if word]
    kept = {
        "time": limit,
        "job-name": setting("SLURM_JOB_NAME"),
        "account": account,
        "partition": partition,
        "qos": qos,
        "reservation": reservation,
        "constraint": constraint,
        "mem": setting("SLURM_MEM_PER_NODE"),
        "mem-per-cpu": setting("SLURM_MEM_PER_CPU"),
        "mem-per-gpu": setting("SLURM_MEM_PER_GPU"),
    }
    print(f"--dependency=afterany:{setting('SLURM_JOB_ID')}")
    print(f"--nodes={len(setting('NODE_NAMES').split())}")
    for name, value in kept.items():
        if not _absent(value):
            print(f"--{name}={value}")
    others = [word for word in given if _excluded(word) is None]
    for word in others:
        print(word)
    lists = [excluded, *(_excluded(word) for word in given), *(line[2] for line in of_chain("left_out.tsv"))]
    names = [part for text in lists if text and not _absent(text) for part in split_hosts(text)]
    if names:
        print(f"--exclude={','.join(dict.fromkeys(names))}")
    return 0


def _absent(value: str) -> bool:
    return value.strip() in ("", "(null)", "N/A")


def _excluded(word: str) -> "str | None":
    """The list of hosts of an --exclude option; None for another option."""
    found = re.match(r"(?:--exclude=|-x)(.*)", word)
    return found[1] if found else None


def split_hosts(text: str) -> "list[str]":
    """ "n1,n[2-3,5]" as ["n1", "n[2-3,5]"]: commas in brackets do not separate."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


DECISIONS = {
    "checked": checked,
    "record": record,
    "may-continue": may_continue,
    "verdict": verdict,
    "leave-out": leave_out,
    "options": options,
}


def main(words: "list[str]") -> int:
    """Run one decision; its exit code."""
    if not words or words[0] not in DECISIONS:
        print(__doc__, file=sys.stderr)
        return 64
    return int(DECISIONS[words[0]](*words[1:]))  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
