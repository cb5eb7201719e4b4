"""What a run's folder and SLURM say about a run: `nemo-ada status`. Both back ends write the same files.

    status.json    state, step of steps          pace.json      last saved step
    heartbeat      phase, median step seconds    attempts.tsv   one line per attempt, with the reason of its end
    job            SLURM's id of the job         left_out.tsv   unhealthy nodes
    jobs.tsv       the chain's jobs, and its end config.yaml    how many GPUs an attempt holds

slurm/chain.py writes the tables and says what their columns are.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import in_use, json_of, text_of
from nemo_ada.run.redaction import hide, printable
from nemo_ada.run.start import SubprocessError, run

LEAST = 4  # columns of a line of both tables
STARTED, SAVED, FOLDER, ENDED, REASON, DETAIL = 2, 3, 4, 5, 6, 7  # columns of attempts.tsv
OVER = "over"  # in place of a job in jobs.tsv
SQUEUE = ("squeue", "-h", "-r", "-o", "%i|%T|%S|%r|%E")  # of all users: a group shares its runs
SQUEUE_SECONDS = 5.0
GONE = "gone"
SILENT_SECONDS = 3600.0  # after which a run of another machine counts as gone
MAX_BYTES = 4 << 20  # of a file of a run's folder, which anybody may have made
MOST_LINES, MOST_LETTERS = 1000, 500  # of a table, and of a text in it
MARKS = ("status.json", "attempts.tsv", "heartbeat", "jobs.tsv")  # one of them is in every folder of a run
REMEDIES = {
    "own failure": "mend what its log says; a new submission goes on from the last save",
    "no space": "make room; the chain tries again, a few times",
    "lock": "end the other process that trains in this folder; the chain tries again, a few times",
}
WAITS = {  # a part of SLURM's reason -> what to do
    "requeued held": "SLURM could not start it on a node, and holds it: look at the node, then scontrol release {}",
    "JobHeld": "it is held: scontrol release {} lets it start",
    "DependencyNeverSatisfied": "it waits for a job that failed: scancel {} and submit again",
    "BadConstraints": "no node fits what it asks for: scancel {} and submit with other options",
    "Limit": "a limit of the site or the account holds it; it starts when other jobs end",
}
KEYS = (
    "run", "state", "step", "max_steps", "saved_step", "phase", "silent_seconds", "median_step_seconds", "job", "slurm",
    "gpu_hours", "queue", "attempts", "reasons", "last_reason", "slots_left", "left_out", "error", "remedy", "log",
)  # fmt: skip
QUIET = ("done", "asked", "wall", "preempted", "")


def read_status(folder: Path, jobs: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what is known about a run. None stands for what its files do not say.

    Args:
        folder: the run's folder.
        jobs: the lines of `queue`; None where there is no SLURM.

    Raises:
        UserError: the folder holds no run.
    """
    if not any((folder / name).exists() for name in MARKS):
        raise UserError(f"{folder} holds no run: name the run_dir of a `nemo-ada train`, or `all`")
    status, pace, beat = (_mapping(folder / name) for name in ("status.json", "pace.json", "heartbeat"))
    saved, steps = (_whole(mapping.get(key)) for mapping, key in ((pace, "saved_step"), (status, "max_steps")))
    attempts, left_out, chain = (_table(folder / name) for name in ("attempts.tsv", "left_out.tsv", "jobs.tsv"))
    last = attempts[-1] if attempts else []
    job = _text(folder / "job").strip()[:MOST_LETTERS] or _cell(last, 1) or None
    queued = None if jobs is None else _job_of(job, jobs)
    reason, detail = _cell(last, REASON), _cell(last, DETAIL)
    failed = reason not in QUIET
    return {
        "run": str(folder),
        "state": _state(folder, status, queued, chain, answered=job is not None and jobs is not None),
        "gpu_hours": _gpu_hours(folder, attempts),
        "step": _whole(status.get("step")),
        "max_steps": steps,
        "saved_step": saved,
        "phase": str(beat.get("phase"))[:MOST_LETTERS],
        "silent_seconds": _age(folder / "heartbeat"),
        "median_step_seconds": beat.get("median_step_seconds"),
        "job": job,
        "slurm": jobs is not None,
        "queue": queued,
        "attempts": len(attempts),
        "reasons": [_cell(line, REASON) or "not ended" for line in attempts],
        "last_reason": reason or None,
        "slots_left": _slots_left(attempts, saved, steps),
        "left_out": {line[2]: line[3] for line in left_out},
        "error": detail if failed and detail else None,
        "remedy": _remedy(queued) or REMEDIES.get(reason),
        "log": str(folder / "attempts" / _cell(last, FOLDER)) if _cell(last, FOLDER) else None,
    }


def state_of(folder: Path) -> str:
    """Return the state that a run has written, or GONE where it says that it runs and its process does not.

    The lock shows it for a run of this machine. A run of another machine has to give a sign of life now and then.
    """
    status = _mapping(folder / "status.json")
    state = status.get("state")
    if state != "running":
        return str(state)[:MOST_LETTERS] if isinstance(state, str) else "unknown"
    held = in_use(folder / "lock")
    if held is False and not os.path.exists(folder / "lock"):
        pid = _whole(status.get("pid"))
        held = None if pid is None else Path(f"/proc/{pid}").exists()
    ages = [age for name in ("heartbeat", "status.json") if (age := _age(folder / name)) is not None]
    silent = held is None and min(ages, default=math.inf) > SILENT_SECONDS
    return GONE if held is False or silent else state


def look(folders: Sequence[Path], jobs: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return `read_status` of several folders. One that cannot be read hides no other."""
    found = []
    for folder in folders:
        try:
            found.append(read_status(folder, jobs))
        except (OSError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as problem:
            if len(folders) == 1:
                raise
            found.append({**dict.fromkeys(KEYS), "run": str(folder), "state": "cannot be read", "error": str(problem)})
    return found


def goes_on(status: Mapping[str, Any]) -> bool:
    """Return whether a run has a process or a job that could change its status."""
    return bool(status["queue"]) or status["state"] == "running"


def queue() -> list[str] | None:
    """Return all jobs as SQUEUE prints them; None where SLURM is missing or does not answer."""
    if shutil.which(SQUEUE[0]) is None:
        return None
    try:
        done = run(SQUEUE, capture_output=True, text=True, timeout=SQUEUE_SECONDS, check=True)
    except (OSError, SubprocessError):
        return None
    return done.stdout.splitlines()


def render(status: Mapping[str, Any]) -> str:
    """Return the status of one run as lines for people."""
    lines = [f"{status['run']}: {status['state']}"]
    if status["state"] == GONE:
        lines.append("  its process has ended without a word; the same command with resume=auto goes on")
    if status["step"] is not None:
        lines.append(f"  step {status['step']} of {status['max_steps']}; last save: step {status['saved_step'] or 0}")
    if status["silent_seconds"] is not None and status["state"] == "running":
        lines.append(f"  last sign of life {status['silent_seconds']:.0f} s ago ({status['phase']})")
    if status["job"] is not None:
        said = _queue_said(status["queue"]) if status["slurm"] else "SLURM is not here or does not answer"
        lines.append(f"  job {status['job']}: {said}")
    if status["attempts"]:
        lines.append(f"  attempts: {', '.join(status['reasons'])}")
    if status["gpu_hours"] is not None:
        lines.append(f"  GPU hours so far: {status['gpu_hours']:.1f}")
    if status["slots_left"] is not None:
        lines.append(f"  job slots left: {status['slots_left']}, at the pace of the slots so far")
    lines += [f"  left out: {node}, {cause}" for node, cause in (status["left_out"] or {}).items()]
    if status["error"]:
        lines.append(f"  last error: {status['error']}")
    if status["remedy"]:
        lines.append(f"  {status['remedy']}" + (f"; log: {status['log']}" if status["log"] else ""))
    return printable(hide("\n".join(lines)))


def runs_below(root: Path) -> list[Path]:
    """Return the folders of runs in `root` and in its users' folders, the newest sign of life first."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: name a run's folder, or set RUN_ROOT")
    found = []
    for place in root.iterdir():
        with suppress(OSError):  # a file, or a folder that is closed to us
            found += [one for one in ([place] if _is_run(place) else place.iterdir()) if _is_run(one)]
    return sorted(found, key=lambda folder: _age(folder / "heartbeat") or math.inf)


def _is_run(folder: Path) -> bool:
    return any(map(os.path.exists, (folder / name for name in MARKS)))


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = json_of(path, MAX_BYTES)
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError, UserError):
        return {}


def _text(path: Path) -> str:
    try:
        return text_of(path, MAX_BYTES, errors="replace")
    except (OSError, ValueError):
        return ""


def _table(path: Path) -> list[list[str]]:
    lines = [[cell[:MOST_LETTERS] for cell in line.split("\t")] for line in _text(path).splitlines()[-MOST_LINES:]]
    return [line for line in lines if len(line) >= LEAST]


def _whole(value: object) -> int | None:
    """Return a count, None for everything else that a damaged file may hold."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        return int(value)
    number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15
    return int(value) if number else None  # type: ignore[call-overload]


def _cell(line: Sequence[str], column: int) -> str:
    return line[column] if len(line) > column else ""


def _age(path: Path) -> float | None:
    """Return the seconds since a file was written, None where it is missing."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _state(
    folder: Path,
    status: Mapping[str, Any],
    queued: Mapping[str, str] | None,
    chain: Sequence[Sequence[str]],
    *,
    answered: bool,
) -> str:
    """Return what the run wrote, corrected by what SLURM says: waiting, asked, GONE.

    Args:
        folder: the run's folder.
        status: its status.json.
        queued: the run's job in SLURM's queue.
        chain: the lines of jobs.tsv.
        answered: SLURM has said which jobs there are, and the run has one.
    """
    state = state_of(folder) if status else "not started"
    if state == "done":
        return state
    if queued is not None and queued["state"] == "PENDING":
        return "waiting"
    if chain and chain[-1][1:3] == [OVER, "asked"]:
        return "asked"
    return GONE if state == "running" and answered and queued is None else state


def _gpu_hours(folder: Path, attempts: Sequence[Sequence[str]]) -> float | None:
    """Return the GPU hours of all attempts; None where config.yaml does not say how many GPUs they held."""
    cluster = re.search(r"^cluster:\n((?: .*\n)+)", _text(folder / "config.yaml"), re.M)
    found = dict(re.findall(r"^  (gpus_per_node|num_nodes): (\d{1,6})$", cluster[1] if cluster else "", re.M))
    if "gpus_per_node" not in found or not attempts:
        return None
    last = time.time() - (_age(folder / "heartbeat") or 0.0)  # of an attempt that has written no end
    spans = [(_whole(_cell(line, ENDED)) or last) - (_whole(line[STARTED]) or last) for line in attempts]
    return sum(max(0.0, span) for span in spans) / 3600 * int(found["gpus_per_node"]) * int(found.get("num_nodes", 1))


def _remedy(queued: Mapping[str, str] | None) -> str | None:
    """Return what to do about a job that waits, by the reason that SLURM gives."""
    if queued is None or queued["state"] != "PENDING":
        return None
    return next((text.format(queued["job"]) for part, text in WAITS.items() if part in queued["reason"]), None)


def _job_of(job: str | None, jobs: Sequence[str]) -> dict[str, str] | None:
    """Return the job of a run or the one that follows it, None where neither is in the queue."""
    rows = [line.split("|", 4) for line in jobs]
    for own in (True, False):
        for row in rows:
            if len(row) == 5 and job and (row[0] == job if own else f":{job}(" in f"{row[4]}("):
                return {"job": row[0], "state": row[1], "start": row[2], "reason": row[3]}
    return None


def _queue_said(job: Mapping[str, str] | None) -> str:
    if job is None:
        return "not in SLURM's queue"
    if job["state"] == "PENDING":
        return f"job {job['job']} waits ({job['reason']}), next start {job['start']}"
    return f"{job['state']} since {job['start']}"


def _slots_left(attempts: Sequence[Sequence[str]], saved: int | None, steps: int | None) -> int | None:
    """Return how many slots the rest takes at the mean gain of those that met the wall; None before the first."""
    if saved is None or steps is None:
        return None
    marks = [_whole(line[SAVED]) or 0 for line in attempts] + [saved]
    gains = [
        after - before
        for line, before, after in zip(attempts, marks, marks[1:], strict=False)
        if _cell(line, REASON) == "wall"
    ]
    if sum(gains) <= 0:
        return None
    return math.ceil(max(0, steps - saved) * len(gains) / sum(gains))
