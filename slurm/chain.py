#!/usr/bin/env python3
"""The decisions of a chain of jobs. lib.sh calls them; it starts, watches and ends processes itself.

Usage: chain.py space | begin | claim | record | job-end | options | waiting | queued JOB | over REASON | stalled |
    called-off | why | ended | excluded

submission.py beside it decides what is submitted. Both run on the login node or on the batch host, outside the
container. So they use the standard library only, and nothing newer than Python 3.6. Settings come from environment
variables. A decision prints its answer, if it has one. What it says goes to the log, by the descriptor LOG_TO.

A chain has at most two jobs: one that trains, and one that waits for its end. It is bounded by progress alone: after
MAX_WITHOUT_STEP attempts in a row that saved no new step it is over, whatever the causes. Reasons are for the reader.

Files in RUN_DIR:
    jobs.tsv       one line per job: chain, job, the job that it follows, time; and one where the chain is over: chain,
                   "over", reason, time
    attempts.tsv   one line per attempt: chain, job, start time, last saved step at its start, folder in attempts/; and
                   after its end: end time, reason, what was seen. Times are epoch seconds.
    left_out.tsv   one line per unhealthy node: chain, job, node, cause
    submission     options of sbatch that every job of the chain gets: the chain in the first line, then one per line
    job            the job that trains here
    pace.json      saved_step: the last step that was saved
    status.json    state: how the run ended
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

EXIT_NO = 1  # the chain ends
EXIT_REFUSED = 2  # nothing is submitted or trained
COLUMNS = 4  # that a line of both tables has at least
FOLDER, REASON = 4, 6  # columns of attempts.tsv
STATES = ("done", "stopped", "failed")

# Why an attempt ended. One of these words stands in attempts.tsv.
DONE, ASKED, WALL, OWN = "done", "asked", "wall", "own failure"
PREEMPTED, NODE_LOST = "preempted", "node lost"
LOCK, NO_SPACE = "lock", "no space"
JOBS, OVER = "jobs.tsv", "over"
MOST_SECONDS = 14400  # between the starts of two attempts that saved nothing
ONCE = re.compile(  # options of sbatch that are meant for the first job alone
    r"--(array|begin|deadline|dependency|hold|immediate|nodelist|no-requeue|parsable|quiet|requeue|test-only|wait)(=|$)"
    r"|-[abdHIwWQ]"
)
OF_SLURM = {  # what SLURM shows of a job by a direct sbatch -> the option that asks for it
    "JobName": "job-name", "Account": "account", "Partition": "partition", "QOS": "qos", "TimeLimit": "time",
    "Reservation": "reservation", "Features": "constraint", "MinMemoryNode": "mem", "MinMemoryCPU": "mem-per-cpu",
    "Comment": "comment", "Licenses": "licenses", "ExcNodeList": "exclude", "CPUs/Task": "cpus-per-task",
    "Nice": "nice", "MailType": "mail-type", "MailUser": "mail-user", "Network": "network", "Switches": "switches",
    "TresPerNode": "gpus-per-node", "TresPerJob": "gpus", "TresPerTask": "gpus-per-task", "CpusPerTres": "cpus-per-gpu",
    "MemPerTres": "mem-per-gpu", "StdOut": "output",
}  # fmt: skip
TAIL_BYTES = 20000  # of a log, in which a cause is looked for
SAID = (  # what a log says -> why the attempt ended; the first that is found is taken
    (NO_SPACE, re.compile(r"No space left on device|Disk quota exceeded")),
    (LOCK, re.compile(r"is in use by .*two runs must not share it")),
)
LEFT = re.compile(r"error: (\S+): tasks? \S+: Exited with exit code 1$", re.M)  # a node ended by itself
CLOCK_SECONDS = 30  # by which a node's clock may differ from the controller's


def refuse(text: str) -> "NoReturn":
    """Say what is wrong and what would work, and end."""
    sys.stderr.write(f"error: {text}\n")
    sys.exit(EXIT_REFUSED)


def setting(name: str) -> str:
    """The value of an environment variable; empty where it is not set."""
    return os.environ.get(name, "")


def say(text: str) -> None:
    """Write one line into the log."""
    mark = "# " if setting("DRY_RUN") == "1" else time.strftime("[%Y-%m-%d %H:%M:%S] ")
    os.write(int(setting("LOG_TO") or 1), (mark + text + "\n").encode(errors="replace"))


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
        say(f"no space: {run_dir()} cannot be written ({problem.strerror}); make room, and the chain goes on")
        return EXIT_NO
    return 0


def begin() -> int:
    """Whether this job may make an attempt. Exit code 1: its chain is over. It runs before anything is written."""
    follows = setting("NEMO_ADA_CHAIN") or whole(setting("SLURM_RESTART_COUNT"))
    if follows and not (run_dir() / "attempts").is_dir():
        refuse(f"{run_dir()}, in which earlier jobs of this chain trained, is gone: restore it, or submit a new run")
    close_killed()
    lines = table(JOBS)
    last = lines[-1] if lines else [setting("CHAIN"), job_id(), "-"]
    if follows and last[0] != setting("CHAIN"):
        say(f"another chain, that of job {last[0]}, has begun in {run_dir()}; this one ends")
        return EXIT_NO
    if follows and last[1] == OVER:
        say(f"this chain is over ({last[2]}); submit again to go on")
        return EXIT_NO
    if follows and job_id() not in last[1:3] and last[1] != setting("NEMO_ADA_AFTER"):
        say(f"job {last[1]} is the chain's, not this one; this job ends")
        return EXIT_NO
    if job_id() not in [line[1] for line in of_chain(JOBS)]:
        add(JOBS, setting("CHAIN"), job_id(), setting("NEMO_ADA_AFTER") or "-", int(time.time()))
    attempts = of_chain("attempts.tsv")
    if attempts and reason_of(attempts[-1]) == ASKED:
        return _end(ASKED)
    return _end("no progress") if fruitless() else 0


def _end(reason: str) -> int:
    """Write down that the chain is over. Exit code 1."""
    add(JOBS, setting("CHAIN"), OVER, reason, int(time.time()))
    say(f"this chain is over ({reason}); submit again to go on")
    return EXIT_NO


def over(*reason: str) -> int:
    """Write down that the chain is over."""
    _end(" ".join(reason))
    return 0


def without_step() -> int:
    """The number of attempts since the last new step was saved, this one included. A full disk is one, too."""
    best = best_step()
    return sum(whole(line[3]) >= best for line in of_chain("attempts.tsv")) + whole(setting("NEMO_ADA_FULL"))


def fruitless() -> bool:
    """Whether so many attempts in a row saved no new step that the chain is over."""
    count = without_step()
    if count < whole(setting("MAX_WITHOUT_STEP")):
        return False
    reasons = [reason_of(line) or "not written" for line in of_chain("attempts.tsv")][-count:]
    say(
        f"stopping: {count} attempts in a row (MAX_WITHOUT_STEP) saved no step beyond {best_step()}: "
        f"{', '.join(reasons) or NO_SPACE}; their logs are in {run_dir()}/attempts/"
    )
    return True


def claim() -> int:
    """Make this job the one that trains in RUN_DIR. Two jobs may ask at the same time; one that ends is waited for."""
    job, path, waited = job_id(), run_dir() / "job", 0.0
    while True:
        with (run_dir() / "attempts" / ".claim").open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            owner, state = tail(path).strip(), ""
            if owner not in ("", job):  # with two ids squeue does not fail for one that has ended
                said = ask_slurm("squeue", "-h", "-r", "-j", f"{owner},{job}", "-o", "%i|%t")
                found = dict(line.split("|", 1) for line in (said or "").splitlines() if "|" in line)
                state = "no answer" if said is None else found.get(owner, "")
            if state in ("R", "S"):
                refuse(f"job {owner} still runs in {run_dir()}; two must not share it: scancel {owner} or set RUN_DIR")
            if state in ("", "PD") or waited > whole(setting("RETRY_SECONDS")):  # one on a lost node may never end
                path.write_text(f"{job}\n")
                return 0
        if not waited:
            say(f"job {owner} has not ended yet; waiting for its end" if state == "CG" else "SLURM does not answer")
        time.sleep(1)
        waited += 1


def job_id() -> str:
    """SLURM's id of this job. A task of an array has its own."""
    return setting("JOB") or setting("SLURM_JOB_ID")


def ask_slurm(*command: str) -> "str | None":
    """What SLURM answers, with times as `moment` reads them. None: it gave no answer, which is no "no"."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    told["SLURM_TIME_FORMAT"], wait = "standard", 1
    while True:
        try:
            done = subprocess.run(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        except OSError:
            return None
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
        if wait > whole(setting("ANSWER_SECONDS") or 8):
            return None
        time.sleep(wait)
        wait *= 2


def of_job(job: str) -> "dict[str, str]":
    """What SLURM shows of a job, by its names; empty where it gives no answer."""
    shown = ask_slurm("scontrol", "show", "job", "-o", job) or ""
    return {name: value.strip() for name, value in re.findall(r"(?:^| )([\w/:]+)=(.*?)(?= [\w/:]+=|$)", shown, re.M)}


def moment(text: str) -> int:
    """Epoch seconds of a time of SLURM; 0 where there is none."""
    found = re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text)
    return int(time.mktime(time.strptime(found.group(), "%Y-%m-%dT%H:%M:%S"))) if found else 0


def job_end() -> int:
    """Print when SLURM ends this job, in epoch seconds of this node's clock; nothing for a job without a limit."""
    end = moment(of_job(job_id()).get("EndTime", ""))
    if not end:
        return 0
    now = moment((ask_slurm("scontrol", "show", "config") or "").partition("\n")[0])  # Configuration data as of ...
    ahead = int(time.time()) - now if now else 0
    if abs(ahead) < CLOCK_SECONDS:
        ahead = 0
    elif not setting("NEMO_ADA_JOB_END"):
        host = socket.gethostname()
        say(f"the clock of {host} is {ahead} s ahead of the controller's; the job's end is counted by it all the same")
    print(end + ahead)
    return 0


def stalled() -> int:
    """Print why there is no progress; nothing where there is some. Before the first step set-up's limit holds."""
    ended, beat = attempt_dir() / "ended", run_dir() / "heartbeat"
    start, limit = whole(setting("START_SECONDS")), whole(setting("STALL_SECONDS"))
    if ended.exists():
        if _age(ended) > whole(setting("END_SECONDS")):
            print("the driver ended, its step did not")
    elif not of_this_attempt(beat):
        if time.time() - max(whole(setting("STARTED")), whole(setting("RESUMED"))) > start:
            print(f"no first heartbeat within START_SECONDS={start}")
    else:
        told, age = read_json(beat), _age(beat)
        median = told.get("median_step_seconds")  # of this attempt's steps
        limit = max(limit, start if median is None else 5 * (whole(median) + 1))
        if age > limit:
            print(f"no heartbeat for {age} s (limit {limit} s, step {told.get('step', '')})")
    return 0


def _age(path: Path) -> int:
    """Seconds since a file was written. Time in which SLURM had suspended the job does not count."""
    return int(time.time() - max(path.stat().st_mtime, whole(setting("RESUMED"))))


def record() -> int:
    """Write down this attempt, and what was asked for its first job. Print its number in the chain."""
    if recorded() is None:
        lines = [setting("CHAIN"), *asked_options()]
        try:
            (run_dir() / "submission").write_text("".join(flat(line) + "\n" for line in lines))
        except OSError as problem:
            say(f"warning: {run_dir()}/submission was not written: {problem}")
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
    if reason == OWN and reason_of(lines[-1]) == NODE_LOST:  # the next attempt knows better
        return
    lines[-1] = [*lines[-1][:COLUMNS], folder, str(int(time.time())), reason, flat(detail)[:500]]
    scratch = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        scratch.write_text("".join("\t".join(line) + "\n" for line in lines))
        scratch.replace(path)
    except OSError as problem:
        sys.stderr.write(f"warning: the reason ({reason}) was not written: {problem}\n")


def close_killed() -> None:
    """Give a reason to an earlier attempt whose batch script was killed before it could write one.

    A script sees its step end before SLURM knows that a node is lost. It writes its own failure then, which is mended.
    """
    lines = table("attempts.tsv")
    if not lines or len(lines[-1]) <= FOLDER or lines[-1][FOLDER] == Path(setting("ATTEMPT_DIR")).name:
        return
    written, folder = reason_of(lines[-1]), lines[-1][FOLDER]
    if written not in ("", OWN):
        return
    state, lost = of_job(lines[-1][1]).get("JobState", ""), lost_nodes(folder)
    if not written:
        reason = {"CANCELLED": ASKED, "TIMEOUT": WALL, "PREEMPTED": PREEMPTED}.get(state, NODE_LOST)
        close_last(folder, reason, f"the batch script was killed, SLURM says {state or 'nothing'}")
    elif state == "NODE_FAIL" or lost:
        close_last(folder, NODE_LOST, f"SLURM says {lost or state}")


def lost_nodes(folder: str) -> str:
    """The nodes of an attempt that SLURM has lost, each with its state; empty for none, and without an answer."""
    nodes = [path.stem[len("node-") :] for path in (run_dir() / "attempts" / folder).glob("node-*.log")]
    shown = ask_slurm("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N %t") if nodes else ""
    return ", ".join(sorted(set(re.findall(r"^\S+ (?:down|fail|\w+\*).*$", shown or "", re.M))))


def called_off() -> int:
    """Print why SLURM sends TERM to the batch script: asked (scancel), wall, preempted or node lost.

    A job that is preempted with a grace time still runs, and one that a user ends does not. Where SLURM does not
    answer, its texts in the logs of the job and of the step say it.
    """
    facts, end = of_job(job_id()), whole(setting("NEMO_ADA_JOB_END"))
    said = tail(Path("/proc/self/fd/2")) + tail(attempt_dir() / "srun.log")
    because = re.findall(r"CANCELLED AT \S+ (?:DUE TO (.*?) )?\*\*\*", said)
    if (end and time.time() >= end - 2) or "TIME LIMIT" in because:
        print(WALL)
    elif any("NODE FAIL" in text for text in because):
        print(NODE_LOST)
    elif facts:
        called = facts.get("JobState") in ("COMPLETING", "CANCELLED")
        print(ASKED if called and moment(facts.get("PreemptTime", "")) == 0 and not any(because) else PREEMPTED)
    else:
        print(ASKED if because and not any(because) else PREEMPTED)
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
    """Write down why this attempt is about to end: SLURM may kill the batch script as soon as the step has ended."""
    close_last(attempt_dir().name, *_why("interrupted"))
    return 0


def ended() -> int:
    """Write down why this attempt ended, and print what the chain does now.

    The answers: end (with the exit code), called-off (SLURM or the user ended the job), again, without (the next job
    leaves out the unhealthy nodes).

    Variables:
        CALLED_OFF: what `called-off` said, where SLURM sent TERM to the batch script.
        STALL: what the watchdog said.
        USERS_STOP: 1 where a stop file that is not ours ended the run.
    """
    state, status = _verdict(), read_json(run_dir() / "status.json")
    reason, detail = _why(state)
    close_last(attempt_dir().name, reason, detail)
    stall = f" ({setting('STALL')})" if setting("STALL") else ""
    steps = f"step {status.get('step', 0)} of {status.get('max_steps', '?')}"
    say(f"attempt {setting('ATTEMPT')} ended: {state}{stall}, {steps}; reason: {reason}")
    for path in sorted(attempt_dir().glob("judged-*")):
        for line in read_json(path).get("said", []):
            say(f"node {path.name[len('judged-') :]}: {flat(line)}")
    found = (path for depth in range(5) for path in run_dir().glob("*/" * depth + "offline-run-*"))
    offline = next(found, None)
    if offline is not None:
        say(f"W&B recorded offline; where there is internet: wandb sync {offline.parent}/offline-run-*")
    code = 0
    if state == "done":
        answer = "end"
    elif setting("CALLED_OFF"):
        answer = "called-off"
    elif state == "failed" and reason == OWN:
        log = attempt_dir() / f"node-{setting('NODE_NAMES').partition(' ')[0]}.log"
        say("\n".join([f"not continuing: see {log}", *tail(log).splitlines()[-20:]]))
        answer, code = "end", EXIT_NO
    elif setting("USERS_STOP"):
        say("ended by a stop file that was not ours: not continuing (the file is removed; a new submission goes on)")
        answer = "end"
    else:
        answer = "without" if state == "unhealthy" and leave_out() else "again"
        if fruitless():
            answer, code = "end", EXIT_NO
    if answer == "end":
        add(JOBS, setting("CHAIN"), OVER, reason, int(time.time()))
    print(answer)
    return code


def _why(state: str) -> "tuple[str, str]":
    head = setting("NODE_NAMES").partition(" ")[0]
    log, last, bad = tail(attempt_dir() / f"node-{head}.log"), last_error(head), bad_nodes()
    called = setting("CALLED_OFF")
    if state == "done":
        return DONE, ""
    if setting("USERS_STOP"):
        return ASKED, "a stop file that was not ours"
    if called:
        return called, "SLURM sent TERM to the batch script"
    if bad:
        return NODE_LOST, "; ".join(f"{node}: {cause}" for node, cause in bad.items())
    for reason, pattern in SAID:
        if state != "stopped" and pattern.search(log):
            return reason, last
    if state == "stopped":
        ours = tail(run_dir() / "STOP")
        return (PREEMPTED if "TERM" in ours else WALL), ours or "the run saved before the job's end"
    if setting("STALL"):
        return OWN, setting("STALL")
    srun = tail(attempt_dir() / "srun.log")
    left = LEFT.search(re.split("CANCELLED AT|Job step aborted", srun)[0])  # srun then ends the other nodes
    if state != "failed" and not left and (attempt_dir() / "term").exists():
        return PREEMPTED, "SLURM sent TERM to the step, and the run did not save in time"
    said = [line for line in srun.splitlines() if "error" in line]
    return OWN, (left and last_error(left.group(1))) or last or (said or ["the driver was killed"])[-1]


def last_error(node: str) -> str:
    """The last line of a node's log that names an error; empty for none."""
    log = tail(attempt_dir() / f"node-{node}.log").splitlines()
    return ([""] + [line for line in log if re.search(r"\b(error|failed|interrupted): |Error: ", line)])[-1]


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


def _verdict() -> str:
    """How the attempt ended: done, stopped, failed, interrupted or unhealthy."""
    status = run_dir() / "status.json"
    state = str(read_json(status).get("state", "")) if of_this_attempt(status) else ""
    if state != "done" and bad_nodes():
        return "unhealthy"
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


def leave_out() -> bool:
    """Write down the unhealthy nodes of this attempt, which the next job leaves out. False: all gave one cause."""
    found = bad_nodes()
    for node, cause in found.items():
        say(f"node {node} is unhealthy: {cause}")
    kinds = {re.sub(r"[\d.]+", "#", cause) for cause in found.values()}
    nodes = setting("NODE_NAMES").split()
    if len(nodes) > 1 and set(nodes) <= set(found) and len(kinds) == 1:
        say("every node of the job gives the same cause, so the config or the site is wrong, not a node")
        return False
    for node, cause in found.items():
        add("left_out.tsv", setting("CHAIN"), setting("SLURM_JOB_ID"), node, cause)
    if setting("REQUEUE") == "none":
        say(f"REQUEUE=none: submit {setting('SCRIPT')} again with --exclude={excluded_hosts()}")
    return True


def recorded() -> "list[str] | None":
    """The options that every job of this chain gets; None where they are not written down yet."""
    lines = tail(run_dir() / "submission").splitlines()
    return lines[1:] if lines[:1] == [setting("CHAIN")] else None


def asked_options() -> "list[str]":
    """The options of the chain's first job: as recorded, as its script was told, or as SLURM shows them."""
    found = recorded()
    return (setting("NEMO_ADA_OPTIONS").splitlines() or shown_options()) if found is None else found


def shown_options() -> "list[str]":
    """The options of a direct sbatch, by what SLURM shows of its job. It does not show --signal."""
    facts = {} if setting("DRY_RUN") == "1" else of_job(job_id())
    while not facts and setting("DRY_RUN") != "1" and shutil.which("scontrol"):
        say("SLURM does not say with which options this job was submitted; asking again")
        time.sleep(10)
        facts = of_job(job_id())
    found = [f"--nodes={len(setting('NODE_NAMES').split())}"]
    for name, option in OF_SLURM.items():
        value = facts.get(name, "")
        if "Tres" in name:  # gres:gpu:h100:2,gres:x:1
            value = ",".join(re.findall(r"gres[:/]gpu[:=]([^,]+)", value))
        if name == "MinMemoryNode" and "." in value:
            value = setting("SLURM_MEM_PER_NODE")
        if name == "StdOut":  # SLURM has put in the ids; a file's name has them again
            for key, mark in (("ArrayJobId", "%A"), ("JobId", "%j")):
                value = re.sub(rf"(?<![^\W_]){facts.get(key, 'none')}(?![^\W_])(?=[^/]*$)", mark, value)
        if not _absent(value) and (name, value) not in (("Nice", "0"), ("TimeLimit", "Partition_Limit")):
            found.append(f"--{option}={value}")
    if not setting("SBATCH_SIGNAL"):
        say("SLURM does not show --signal of a direct sbatch: the next job has the header's, or that of SBATCH_SIGNAL")
    limit, header = _seconds(facts.get("TimeLimit", "")), whole(setting("LEAD"))
    if limit and 2 * header > limit and not setting("SBATCH_SIGNAL"):
        found.append(f"--signal=B:USR1@{limit // 4}")
    return found


def options() -> int:
    """Print sbatch's options for the next job, one per line: those of the first submission, for the next job.

    It starts after this job. After an attempt that saved no step, attempts start apart, twice as long each time.
    """
    print(f"--dependency=afterany:{job_id()}")
    print("--no-requeue")
    count = without_step()
    if count > 1:
        print(f"--begin=now+{min(whole(setting('RETRY_SECONDS')) << (count - 2), MOST_SECONDS)}")
    for word in asked_options():
        if not ONCE.match(word) and _excluded(word) is None:
            print(word)
    if setting("SLURM_ARRAY_TASK_ID"):
        print(f"--array={setting('SLURM_ARRAY_TASK_ID')}")
    if excluded_hosts():
        print(f"--exclude={excluded_hosts()}")
    return 0


def excluded_hosts() -> str:
    """The hosts that the next job leaves out: the user's and the unhealthy ones, with commas."""
    lists = [*(_excluded(word) for word in asked_options()), *(line[2] for line in of_chain("left_out.tsv"))]
    names = [part for text in lists if text and not _absent(text) for part in split_hosts(text)]
    return ",".join(dict.fromkeys(names))


def excluded() -> int:
    """Print `excluded_hosts`."""
    print(excluded_hosts())
    return 0


def waiting() -> int:
    """Print the job of the chain that waits for this one. Exit code 1: there is none. 2: SLURM does not answer.

    It has begun where SLURM has lost this job's node, and this script lives on there. Then nobody has cancelled it.
    """
    said = ask_slurm("squeue", "-h", "-r", "-u", str(os.getuid()), "-o", "%i|%E|%o")
    if said is None:
        return EXIT_REFUSED
    known = [line[1] for line in of_chain(JOBS) if line[2] == job_id()]
    for line in said.splitlines():
        job, after, script = [*line.split("|", 2), "", ""][:3]
        ours = os.path.basename(script.split(" ")[0]) == setting("SCRIPT")
        if ours and (job in known or re.search(rf"after\w+:{job_id()}(?![\d_])", after)):
            print(job)
            return queued(job)
    return EXIT_NO


def queued(job: str) -> int:
    """Write down the job that follows this one, once."""
    job = job.partition(";")[0]  # sbatch --parsable names the cluster behind it
    if setting("SLURM_ARRAY_TASK_ID") and "_" not in job:
        job += "_" + setting("SLURM_ARRAY_TASK_ID")
    if job not in [line[1] for line in of_chain(JOBS)]:
        add(JOBS, setting("CHAIN"), job, job_id(), int(time.time()))
    return 0


def _seconds(limit: str) -> int:
    """Seconds of [days-][hours:]minutes:seconds, as SLURM shows a time limit. 0 for none."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())
    if found is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _absent(value: str) -> bool:
    return value.strip() in ("", "(null)", "N/A", "None")


def _excluded(word: str) -> "str | None":
    """The list of hosts of an --exclude option; None for another option."""
    found = re.match(r"(?:--exclude=|-x)(.*)", word)
    return found[1] if found else None


def split_hosts(text: str) -> "list[str]":
    """ "n1,n[2-3,5]" as ["n1", "n[2-3,5]"]: commas in brackets do not separate."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


DECISIONS = (
    space, begin, claim, record, job_end, options, waiting, queued, over, stalled, called_off, why, ended, excluded,
)  # fmt: skip


def main(decisions: "tuple[Callable[..., int], ...]", words: "list[str]") -> int:
    """Run one decision; its exit code."""
    known = {decision.__name__.replace("_", "-"): decision for decision in decisions}
    if not words or words[0] not in known:
        sys.stderr.write(f"choose one of {', '.join(known)}\n")
        return 64
    return known[words[0]](*words[1:])


if __name__ == "__main__":
    sys.exit(main(DECISIONS, sys.argv[1:]))
