#!/usr/bin/env python3
"""The decisions of a slot. A run is one SLURM array whose tasks, its slots, run one after another.

Usage: slots.py begin | job-end | stalled | term | ended

lib.sh calls them, and starts, watches and ends processes itself. submission.py beside this file decides what is
submitted. Both run on the login node or on the batch host, outside the container. So they use the standard library
only, and nothing newer than Python 3.6. Settings come from environment variables. A decision prints its answer; what
it says goes to the log, by the descriptor LOG_TO.

SLURM has the slots, and starts the next one whatever has ended the last. So nothing is submitted here, and no copy is
kept of what SLURM knows. Only two things are asked of it: the slots that wait start later, or not on a bad node, and at
the end of the run they are cancelled. Where a folder cannot be written, the next slot tries again.

Files in RUN_DIR:
    attempts.tsv   one line per attempt, for the reader: array, slot, start time, last saved step at its start, folder
                   in attempts/; and after its end: end time, reason, what was seen. Times are epoch seconds.
    left_out.tsv   one line per unhealthy node: array, slot, node, cause
    job            the array of this run, and behind _ the slot that trains
    over           array, time and reason of a run that is over; written before anything is cancelled
    pace.json      saved_step: the last step that was saved
    status.json    state: how the run ended
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True  # the tree may be read-only
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared import (  # noqa: E402
    COLUMNS,
    EXIT_FAILED,
    EXIT_REFUSED,
    LEFT,
    add,
    another_users,
    attempt_dir,
    bad_nodes,
    by_itself,
    cancel_waiting,
    flat,
    in_queue,
    is_array,
    last_error,
    main,
    moment,
    of_array,
    of_job,
    of_this_attempt,
    put_off,
    read_json,
    replace,
    run_dir,
    say,
    setting,
    slurm,
    table,
    tail,
    whole,
)  # fmt: skip

ENDS = 10  # added to the exit code of a slot that does not train: Python itself ends with 1 where it crashes
SLOT, SAVED, FOLDER, REASON = 1, 3, 4, 6  # columns of attempts.tsv
STATES = ("done", "stopped", "failed")

# Why an attempt ended. One of these words stands in attempts.tsv.
DONE, ASKED, WALL, OWN, KILLED = "done", "asked", "wall", "own failure", "killed"
PREEMPTED, NODE_LOST = "preempted", "node lost"
LOCK, NO_SPACE = "lock", "no space"
OF_SLURM = {"CANCELLED": ASKED, "TIMEOUT": WALL, "PREEMPTED": PREEMPTED, "NODE_FAIL": NODE_LOST}
NO_PROGRESS = "no progress"
MOST_SECONDS = 14400  # between a slot that saved nothing and the next one
SAID = (  # what a log says -> why the attempt ended; the first that is found is taken
    (NO_SPACE, re.compile(r"No space left on device|Disk quota exceeded")),
    (LOCK, re.compile(r"is in use by .*two runs must not share it")),
)
CLOCK_SECONDS = 30  # by which a node's clock may differ from the controller's


# --- the beginning of a slot ------------------------------------------------------------------------------------------


def begin() -> int:
    """Make this slot the one that trains. Print the number of its attempt and the attempt's folder.

    Exit code: 0 where it trains. Else the slot's own exit code and ENDS.
    """
    attempts = run_dir() / "attempts"
    try:
        if another_users():
            say(f"error: {another_users()}")
            cancel_waiting()
            return ENDS + EXIT_REFUSED
        if trained_before():
            say(f"{run_dir()}, in which earlier slots trained, is gone: restore it, or submit a new run")
            cancel_waiting()
            return ENDS + EXIT_REFUSED
        attempts.mkdir(parents=True, exist_ok=True)
        probe = attempts / f".space-{setting('SLOT')}"
        try:
            probe.write_bytes(b"x" * 65536)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return _begin(attempts)
    except OSError as problem:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        say(f"{NO_SPACE if full else 'error'}: {run_dir()} cannot be written ({problem.strerror}); mend it, and the "
            "next slot goes on")  # fmt: skip
        numbers = [whole(line[SLOT].rpartition("_")[2]) for line in of_array("attempts.tsv")]
        now, first = whole(setting("SLURM_ARRAY_TASK_ID")), whole(setting("SLURM_ARRAY_TASK_MIN"))
        put_off(distance(now - max([first - 1, *numbers])))
        return ENDS + EXIT_FAILED


def trained_before() -> bool:
    """Whether earlier slots of this array trained in a folder that is no more. The log of the array has their lines."""
    if setting("NEMO_ADA_CHECKED") and not (run_dir() / "attempts").is_dir():
        return True  # the submission made it
    said = f" of array {setting('ARRAY')}, " in tail(Path(f"/proc/self/fd/{setting('LOG_TO') or 1}"))
    return is_array() and said and not of_array("attempts.tsv")


def _begin(attempts: Path) -> int:
    if not claim():
        cancel_waiting()
        return ENDS + EXIT_REFUSED
    last = tail(run_dir() / "over").split("\t")
    if is_array() and last[0] == setting("ARRAY") and len(last) >= COLUMNS:
        say(f"this run is over ({flat(last[2])}); submit again to go on")
        cancel_waiting()
        return ENDS
    close_killed()
    stop = run_dir() / "STOP"
    if users_stop():
        old = not of_array("attempts.tsv") and stop.stat().st_mtime < moment(
            of_job(setting("SLOT")).get("SubmitTime", "")
        )
        if not old:
            over(ASKED, f"{stop}, which is now removed")
        stop.unlink()
        if not old:
            return ENDS
        say("STOP was older than this submission, which goes on; the file is removed")
    if fruitless():
        return ENDS + EXIT_FAILED
    for path in (stop, run_dir() / "over"):
        if path.exists():
            path.unlink()
    name, turn = setting("SLOT"), 0
    while (attempts / name).exists():  # in an allocation, or requeued by SLURM
        turn += 1
        name = f"{setting('SLOT')}-{turn}"
    for other in attempts.iterdir():  # what is left of an older attempt, on a node that SLURM lost, ends itself
        if (other / "canary").exists() and not tail(other / "end"):
            (other / "end").write_text(f"attempt {name} goes on\n")
    (attempts / name).mkdir()
    with open(os.open(str(attempts / name / "ray-token"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as token:
        token.write(secrets.token_hex(32))  # who has not read it gets no answer from the job's Ray
    (attempts / name / "canary").write_text(f"{setting('SLOT')}\n")
    add("attempts.tsv", setting("ARRAY"), setting("SLOT"), setting("STARTED"), best_step(), name)
    print(len(of_array("attempts.tsv")), attempts / name)
    return 0


def over(reason: str, detail: str = "") -> None:
    """Write down that the run is over, then cancel the slots that wait."""
    replace(run_dir() / "over", "\t".join([setting("ARRAY"), str(int(time.time())), reason, flat(detail)[:500]]) + "\n")
    say(
        f"this run is over ({reason}{': ' * bool(detail)}{detail})"
        + ("" if reason == DONE else "; a new submission goes on")
    )
    cancel_waiting()


def claim() -> bool:
    """Make this slot the one that trains in RUN_DIR. SLURM says who else does; a slot that ends is waited for.

    On a lost node it may never end. So the wait is bounded, by more than a slot takes to save and to end.
    """
    path, began, told = run_dir() / "job", time.time(), False
    longest = sum(whole(setting(name)) for name in ("PREEMPT_SECONDS", "END_SECONDS", "RETRY_SECONDS"))
    while True:
        with (run_dir() / "attempts" / ".claim").open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            owner = tail(path).strip()
            owner = owner if re.fullmatch(r"\d+(_\d+)?", owner) else ""  # a damaged file names nobody
            array, _, number = owner.partition("_")
            ours = array == setting("ARRAY")
            rows = in_queue(array, setting("ARRAY")) if array and owner != setting("SLOT") else []
            found = [row[2] for row in rows or [] if row[0] == array and (not ours or (row[1] == number))]
            if [state for state in found if state != "CG"]:
                if ours:
                    say(f"slot {owner} runs, and a run has one at a time (--array=1-N%1); the others now wait for it")
                    slurm("scontrol", "update", f"JobId={array}", "ArrayTaskThrottle=1", seconds=8)
                    sys.exit(ENDS + EXIT_REFUSED)
                say(f"error: array {array} has {len(found)} slots in SLURM's queue that train in {run_dir()}; two must "
                    f"not share it: scancel {array}, or set RUN_DIR")  # fmt: skip
                return False
            if (rows is not None and not found) or time.time() - began > longest:
                path.write_text(f"{setting('SLOT')}\n")
                return True
        if not told:
            say("SLURM does not answer" if rows is None else f"slot {owner} has not ended yet; waiting for its end")
        time.sleep(1)
        told = True


def users_stop() -> bool:
    """Whether there is a stop file that is not ours, or that was touched after we wrote it."""
    stop, ours = run_dir() / "STOP", run_dir() / "STOP.ours"
    if not stop.exists():
        return False
    if not tail(stop).startswith("slurm:"):
        return True
    return ours.exists() and stop.stat().st_mtime_ns > ours.stat().st_mtime_ns


def best_step() -> int:
    """The furthest step that this run ever saved. A step that was made and not saved has to be made again."""
    saved = whole(read_json(run_dir() / "pace.json").get("saved_step", 0))
    return max([saved, *(whole(line[SAVED]) for line in table("attempts.tsv"))])


def without_step() -> int:
    """The number of this array's attempts since the last new step was saved."""
    best = best_step()
    return sum(whole(line[SAVED]) >= best for line in of_array("attempts.tsv"))


def distance(count: int) -> int:
    """Seconds until the next slot after so many in a row that saved nothing: twice as long each time."""
    return min(whole(setting("RETRY_SECONDS")) << max(0, min(count, 20) - 1), MOST_SECONDS)


def fruitless() -> bool:
    """Whether so many attempts in a row saved no new step that the run is over."""
    count = without_step()
    if count < max(1, whole(setting("MAX_WITHOUT_STEP"))):
        return False
    reasons = [reason_of(line) or "not written" for line in of_array("attempts.tsv")][-count:]
    longer = "; no step fits into a slot: ask for more --time" if set(reasons) == {WALL} else ""
    over(NO_PROGRESS, f"{count} attempts in a row (MAX_WITHOUT_STEP) saved no step beyond {best_step()}: "
         f"{', '.join(reasons)}{longer}; their logs are in {run_dir()}/attempts/")  # fmt: skip
    return True


def reason_of(line: "list[str]") -> str:
    """Why the attempt of a line of attempts.tsv ended; empty where that is not written down."""
    return line[REASON] if len(line) > REASON else ""


def close_last(folder: str, reason: str, detail: str) -> None:
    """Write down why the attempt in the last line of attempts.tsv ended, if it is that of `folder`."""
    lines = table("attempts.tsv")
    if not lines or (lines[-1] + [""] * COLUMNS)[FOLDER] != folder:
        return
    lines[-1] = [*lines[-1][:FOLDER], folder, str(int(time.time())), reason, flat(detail)[:500]]
    replace(run_dir() / "attempts.tsv", "".join("\t".join(line) + "\n" for line in lines))


def close_killed() -> None:
    """Give a reason to the last attempt where its batch script was killed before it could write one. SLURM knows it.

    A script sees its step end before SLURM knows that a node is lost. It writes its own failure then, which is mended.
    """
    lines = table("attempts.tsv")
    if not lines or len(lines[-1]) <= FOLDER or reason_of(lines[-1]) not in ("", OWN):
        return
    written, slot, folder = reason_of(lines[-1]), lines[-1][SLOT], lines[-1][FOLDER]
    state = of_job(slot).get("JobState", "")
    if not state:
        told = slurm("sacct", "-n", "-X", "-P", "-j", slot, "-o", "State", seconds=1) or ""
        state = flat(told).partition(" ")[0]
    if not written:
        said = state or "nothing any more"
        close_last(folder, OF_SLURM.get(state, KILLED), f"the batch script was killed, SLURM says {said}")
    elif state == "NODE_FAIL" or lost_nodes(folder):
        close_last(folder, NODE_LOST, f"SLURM says {lost_nodes(folder) or state}")


def lost_nodes(folder: str) -> str:
    """The nodes of an attempt that SLURM has lost, each with its state; empty for none, and without an answer."""
    nodes = [path.stem[len("node-") :] for path in (run_dir() / "attempts" / folder).glob("node-*.log")]
    shown = slurm("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N %t", seconds=8) if nodes else ""
    return ", ".join(sorted(set(re.findall(r"^\S+ (?:down|fail|\w+\*).*$", shown or "", re.M))))


# --- while it trains --------------------------------------------------------------------------------------------------


def job_end() -> int:
    """Print when SLURM ends this job, in epoch seconds of this node's clock; nothing for a job without a limit."""
    end = moment(of_job(setting("SLOT")).get("EndTime", ""))
    if not end:
        return 0
    now = moment((slurm("scontrol", "show", "config", seconds=8) or "").partition("\n")[0])  # data as of ...
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


def term() -> int:
    """Print and write down why SLURM sends TERM to the batch script: it may kill the script before the slot's end.

    It is asked (scancel), wall, preempted or node lost. A job that is preempted with a grace time still runs, and one
    that a user ends does not. Where SLURM does not answer, its texts in the logs of the job and of the step say it.
    """
    facts, end = of_job(setting("SLOT")), whole(setting("NEMO_ADA_JOB_END"))
    said = tail(Path("/proc/self/fd/2")) + tail(attempt_dir() / "srun.log")
    because = re.findall(r"CANCELLED AT \S+ (?:DUE TO (.*?) )?\*\*\*", said)
    called = facts.get("JobState") in ("COMPLETING", "CANCELLED") or (not facts and because)
    if (end and time.time() >= end - 2) or "TIME LIMIT" in because:
        reason = WALL
    elif any("NODE FAIL" in text for text in because):
        reason = NODE_LOST
    else:
        reason = ASKED if called and moment(facts.get("PreemptTime", "")) == 0 and not any(because) else PREEMPTED
    close_last(attempt_dir().name, reason, "SLURM sent TERM to the batch script")
    print(reason)
    return 0


# --- its end ----------------------------------------------------------------------------------------------------------


def ended() -> int:
    """Write down why this attempt ended, and end the run or put the next slot off. Return the slot's exit code.

    Variables:
        CALLED_OFF: what `term` said, where SLURM sent TERM to the batch script.
        STALL: what the watchdog said.
    """
    if tail(run_dir() / "job").strip() not in (setting("SLOT"), setting("ARRAY"), ""):
        say(f"slot {tail(run_dir() / 'job').strip()} trains here now; this one ends")  # SLURM had lost this node
        return EXIT_FAILED
    state, status, stop = _verdict(), read_json(run_dir() / "status.json"), users_stop()
    reason, detail = _why(state, stop)
    close_last(attempt_dir().name, reason, detail)
    stall = f" ({setting('STALL')})" if setting("STALL") else ""
    steps = f"step {status.get('step', 0)} of {status.get('max_steps', '?')}"
    say(f"attempt {setting('ATTEMPT')} ended: {state}{stall}, {steps}; reason: {reason}")
    tell()
    if state == "done":
        over(DONE)
    elif stop:
        with contextlib.suppress(OSError):
            (run_dir() / "STOP").unlink()
        over(ASKED, "by a stop file that was not ours, which is now removed")
    elif state == "failed" and reason == OWN and not setting("CALLED_OFF"):
        log = attempt_dir() / f"node-{setting('NODE_NAMES').partition(' ')[0]}.log"
        say("\n".join([f"not continuing: see {log}", *tail(log).splitlines()[-20:]]))
        over(OWN, detail)
        return EXIT_FAILED
    else:
        bad = leave_out() if state == "unhealthy" else ""
        if fruitless():
            return EXIT_FAILED
        put_off(distance(without_step()) if without_step() else 0, bad)
    return 143 if setting("CALLED_OFF") else 0


def tell() -> None:
    """Say what the nodes' health checks found, and how a run that was recorded offline is uploaded."""
    for path in sorted(attempt_dir().glob("judged-*")):
        for line in read_json(path).get("said", []):
            say(f"node {path.name[len('judged-') :]}: {flat(line)}")
    found = (path for depth in range(5) for path in run_dir().glob("*/" * depth + "offline-run-*"))
    offline = next(found, None)
    if offline is not None:
        say(f"W&B recorded offline; where there is internet: wandb sync {offline.parent}/offline-run-*")


def _why(state: str, stop: bool) -> "tuple[str, str]":
    head = setting("NODE_NAMES").partition(" ")[0]
    log, last, bad = tail(attempt_dir() / f"node-{head}.log"), last_error(head), bad_nodes()
    called = setting("CALLED_OFF")
    if state == "done":
        return DONE, ""
    if stop:
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
    left = next((found for found in LEFT.finditer(by_itself(srun)) if found.group(2) == "1"), None)
    if state != "failed" and not left and (attempt_dir() / "term").exists():
        return PREEMPTED, "SLURM sent TERM to the step, and the run did not save in time"
    said = [line for line in srun.splitlines() if "error" in line]
    return OWN, (left and last_error(left.group(1))) or last or (said or ["the driver was killed"])[-1]


def _verdict() -> str:
    """How the attempt ended: done, stopped, failed, interrupted or unhealthy."""
    status = run_dir() / "status.json"
    state = str(read_json(status).get("state", "")) if of_this_attempt(status) else ""
    if state != "done" and bad_nodes():
        return "unhealthy"
    code = tail(attempt_dir() / "driver.exit").strip()
    if state in STATES:
        return state
    if code == "75":
        return "stopped"
    if state == "running" and code == "1":  # Ray ends a driver that lost its head node with 1, from outside Python
        return "interrupted"
    if code in ("0", "1", "2"):  # the driver ended by itself and left no state
        return "failed"
    return "failed" if (attempt_dir() / "refused").exists() else "interrupted"


def leave_out() -> str:
    """Write down the unhealthy nodes of this attempt. Return all of this run, with commas.

    Where all nodes of a job give one cause, the config or the site is wrong, and none is left out.
    """
    found = bad_nodes()
    for node, cause in found.items():
        say(f"node {node} is unhealthy: {cause}")
    kinds = {re.sub(r"[\d.]+", "#", cause) for cause in found.values()}
    nodes = setting("NODE_NAMES").split()
    if len(nodes) > 1 and set(nodes) <= set(found) and len(kinds) == 1:
        say("every node of the job gives the same cause, so the config or the site is wrong, not a node")
        return ""
    for node, cause in found.items():
        with contextlib.suppress(OSError):
            add("left_out.tsv", setting("ARRAY"), setting("SLOT"), node, cause)
    return ",".join(dict.fromkeys([*(line[2] for line in of_array("left_out.tsv")), *found]))


DECISIONS = (begin, job_end, stalled, term, ended)


if __name__ == "__main__":
    sys.exit(main(DECISIONS, sys.argv[1:]))
