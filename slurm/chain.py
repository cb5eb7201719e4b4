#!/usr/bin/env python3
"""The decisions of a chain of jobs. lib.sh calls them; it starts, watches and ends processes itself.

Usage: chain.py checked CODE | space | record | may-continue | called-off | verdict | why | leave-out | options

This file runs on the login node and on the batch host, outside the container. So it uses the standard library only,
and nothing newer than Python 3.6. Settings come from environment variables. What a decision prints is for the log;
`record`, `called-off`, `verdict`, `why` and `options` print their result.

Files in RUN_DIR:
    attempts.tsv   one line per attempt: chain, job, start time, last saved step at its start, folder in attempts/; and
                   after its end: end time, reason, what was seen. Times are epoch seconds.
    left_out.tsv   one line per unhealthy node: chain, job, node, cause
    pace.json      saved_step: the last step that was saved
    status.json    state: how the run ended
"""

import errno
import json
import os
import re
import sys
import time
from pathlib import Path

EXIT_NO = 1  # the chain ends
EXIT_REFUSED = 2  # nothing is submitted
WARNINGS_ONLY = 3  # exit code of `nemo-ada check`: nemo_ada/rules/finding.py
COLUMNS = 4  # that a line of both tables has at least
FOLDER, REASON = 4, 6  # columns of attempts.tsv
SIGNALLED = r"about to end: (\d+) s are left"  # of the text that lib.sh gives a stop file at USR1
STATES = ("done", "stopped", "failed")

# Why an attempt ended. One of these words stands in attempts.tsv.
DONE, ASKED, WALL, OWN = "done", "asked", "wall", "own failure"
PREEMPTED, NODE_LOST, CONTROLLER = "preempted", "node lost", "controller"
LOCK, NO_SPACE = "lock", "no space"
BY_SLURM = (PREEMPTED, NODE_LOST, CONTROLLER)  # such an attempt does not count
OWN_TIME = ("", WALL, OWN)  # the run had its chance: two in a row without a new save end the chain
TAIL_BYTES = 20000  # of a log, in which a cause is looked for
SAID = (  # what a log says -> why the attempt ended; the first that is found is taken
    (NO_SPACE, re.compile(r"No space left on device|Disk quota exceeded")),
    (LOCK, re.compile(r"is in use by .*two runs must not share it")),
)
CANCELLED = (("TIME LIMIT", WALL), ("NODE FAIL", NODE_LOST))  # what SLURM says behind DUE TO; else PREEMPTED
SRUN_SAID = (
    (NODE_LOST, re.compile(r"[Nn]ode failure|NODE FAILURE|io error with slurmstepd|Communication connection failure")),
    (CONTROLLER, re.compile(r"ontact slurm controller|Unable to (confirm allocation|create step)|Socket timed out")),
)


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
    return [line for line in lines if len(line) >= COLUMNS]


def of_chain(name: str) -> "list[list[str]]":
    """The lines of this chain in a .tsv file."""
    return [line for line in table(name) if line[0] == setting("CHAIN")]


def flat(value: object) -> str:
    """A value as one cell of a table."""
    return re.sub(r"\s+", " ", str(value)).strip()


def add(name: str, *values: object) -> None:
    """Append one line to a .tsv file in RUN_DIR. A full disk is said, and the chain goes on."""
    try:
        with (run_dir() / name).open("a") as file:
            file.write("\t".join(flat(value) for value in values) + "\n")
    except OSError as problem:
        sys.stderr.write(f"warning: {name} was not written: {problem}\n")


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


def space() -> int:
    """Whether RUN_DIR can be written now. Exit code 1: its disk is full or a quota is used up."""
    probe = run_dir() / "attempts" / f".space-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"x" * 65536)
        finally:
            if probe.exists():
                probe.unlink()
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            return 0  # lib.sh meets the same error and ends with it
        print(f"no space: {run_dir()} cannot be written ({problem.strerror}); make room, and the chain goes on")
        return EXIT_NO
    return 0


def record() -> int:
    """Write down this attempt in attempts.tsv, and print its number in the chain."""
    add("attempts.tsv", setting("CHAIN"), setting("SLURM_JOB_ID"), setting("STARTED"), best_step(), attempt_dir().name)
    print(len(of_chain("attempts.tsv")))
    return 0


def reason_of(line: "list[str]") -> str:
    """Why the attempt of a line of attempts.tsv ended; empty where that is not written down."""
    return line[REASON] if len(line) > REASON else ""


def close_last(folder: str, reason: str, detail: str) -> None:
    """Write down why the attempt in the last line of attempts.tsv ended, if it is that of `folder`."""
    path, lines = run_dir() / "attempts.tsv", table("attempts.tsv")
    if not lines or (lines[-1] + [folder])[FOLDER] != folder:
        return
    lines[-1] = [*lines[-1][:COLUMNS], folder, str(int(time.time())), reason, flat(detail)[:500]]
    scratch = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        scratch.write_text("".join("\t".join(line) + "\n" for line in lines))
        scratch.replace(path)
    except OSError as problem:
        sys.stderr.write(f"warning: the reason ({reason}) was not written: {problem}\n")


def close_killed() -> None:
    """Give a reason to an earlier attempt whose batch script was killed before it could write one."""
    lines = table("attempts.tsv")
    if not lines or len(lines[-1]) != FOLDER + 1 or lines[-1][FOLDER] == Path(setting("ATTEMPT_DIR")).name:
        return
    folder = lines[-1][FOLDER]
    if not (run_dir() / "attempts" / folder / "term").exists():
        close_last(folder, NODE_LOST, "the batch script was killed without a signal before")
    elif lines[-1][1] == setting("SLURM_JOB_ID"):
        close_last(folder, PREEMPTED, "SLURM sent TERM and started the job again")
    else:
        close_last(folder, ASKED, "SLURM sent TERM and did not start the job again")


def may_continue() -> int:
    """Whether the chain may have another attempt: not after MAX_ATTEMPTS, nor after two that saved nothing new.

    Attempts that SLURM ended do not count. Of those that saved nothing, only the run's own failures count, and attempts
    that had the whole time of their job.
    """
    close_killed()
    attempts = [line for line in of_chain("attempts.tsv") if reason_of(line) not in BY_SLURM]
    own = [line for line in attempts if reason_of(line) in OWN_TIME]
    best = best_step()
    if len(attempts) >= whole(setting("MAX_ATTEMPTS")):
        print(f"stopping: {len(attempts)} attempts are the maximum (MAX_ATTEMPTS); sbatch again to start a new chain")
        return EXIT_NO
    if len(own) >= 2 and best <= whole(own[-2][3]):
        print(
            f"stopping: the last two attempts saved no new step beyond {best}; their logs are in {run_dir()}/attempts/"
        )
        return EXIT_NO
    return 0


def called_off() -> int:
    """Print why SLURM sends TERM to the batch script: asked (scancel), wall, preempted or node lost.

    The job's state is COMPLETING in all four cases. SLURM writes the cause into the job's log, which is our stderr.
    """
    pattern = r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ (.*?)\*\*\*"
    said = re.findall(pattern, tail(Path("/proc/self/fd/2")))
    end = whole(setting("NEMO_ADA_JOB_END"))
    if not said:
        print(WALL if end and time.time() >= end - 2 else PREEMPTED)
    elif not said[-1]:
        print(ASKED)
    else:
        print(next((reason for words, reason in CANCELLED if words in said[-1]), PREEMPTED))
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


def why() -> int:
    """Write down why this attempt ended, and print that reason.

    Variables:
        STATE: what `verdict` said.
        CALLED_OFF: what `called-off` said, where SLURM sent TERM to the batch script.
        STALL: what the watchdog said.
        USERS_STOP: 1 where a stop file that is not ours ended the run.
    """
    reason, detail = _why(setting("STATE"))
    close_last(attempt_dir().name, reason, detail)
    print(reason)
    return 0


def _why(state: str) -> "tuple[str, str]":
    names = setting("NODE_NAMES").split() or [""]
    log = tail(attempt_dir() / f"node-{names[0]}.log")
    errors = [line for line in log.splitlines() if re.search(r"\b(error|failed|interrupted): |Error: ", line)]
    last = errors[-1] if errors else ""
    bad = bad_nodes()
    called = setting("CALLED_OFF")
    if state == "done":
        return DONE, ""
    if setting("USERS_STOP"):
        return ASKED, "a stop file that was not ours"
    if called:
        return called, "SLURM sent TERM to the batch script"
    if bad:
        return NODE_LOST, "; ".join(f"{node}: {cause}" for node, cause in bad.items())
    if state == "stopped":
        ours = tail(run_dir() / "STOP")
        return (PREEMPTED if "TERM" in ours else WALL), ours or "the run saved before the job's end"
    for reason, pattern in SAID:
        if pattern.search(log):
            return reason, last
    if state == "failed":
        return OWN, last
    if setting("STALL"):
        return OWN, setting("STALL")
    srun = tail(attempt_dir() / "srun.log")
    for reason, pattern in SRUN_SAID:
        found = pattern.search(srun)
        if found:
            return reason, next(line for line in srun.splitlines() if pattern.search(line))
    if (attempt_dir() / "term").exists():
        return PREEMPTED, "SLURM sent TERM to the step, and the run did not save in time"
    return OWN, last or "the driver was killed"


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
        LATER: seconds until the next job may start.
        LEAD: seconds before the end at which the header of the script asks for USR1.
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
    print(f"--dependency=afterany:{setting('JOB') or setting('SLURM_JOB_ID')}")
    print(f"--nodes={len(setting('NODE_NAMES').split())}")
    if setting("LATER"):
        print(f"--begin=now+{setting('LATER')}")
    for name, value in kept.items():
        if not _absent(value):
            print(f"--{name}={value}")
    task = setting("SLURM_ARRAY_TASK_ID")
    others = [word for word in given if _excluded(word) is None and not re.match(r"--array=|-a", word)]
    if task:
        print(f"--array={task}")
    lead = _lead(limit)
    if lead and not any(word.startswith("--signal") for word in others):
        print(f"--signal=B:USR1@{lead}")
    for word in others:
        print(word)
    lists = [excluded, *(_excluded(word) for word in given), *(line[2] for line in of_chain("left_out.tsv"))]
    names = [part for text in lists if text and not _absent(text) for part in split_hosts(text)]
    if names:
        print(f"--exclude={','.join(dict.fromkeys(names))}")
    return 0


def _lead(limit: str) -> int:
    """Seconds before its end at which the next job wants USR1. 0: the header of the script is right.

    squeue does not show what sbatch was told, so the signals of this chain count. Without one, the header's lead must
    leave half of the job.
    """
    seen = [re.search(SIGNALLED, line[-1]) for line in of_chain("attempts.tsv")]
    leads = [int(found.group(1)) for found in seen if found]
    if leads:
        return max(min(leads), 1)
    seconds, header = _seconds(limit), int(setting("LEAD") or 0)
    return seconds // 4 if seconds and 2 * header > seconds else 0


def _seconds(limit: str) -> int:
    """Seconds of [days-][hours:]minutes:seconds, as squeue shows a time limit. 0 for none."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())
    if found is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


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
    "space": space,
    "record": record,
    "may-continue": may_continue,
    "called-off": called_off,
    "verdict": verdict,
    "why": why,
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
