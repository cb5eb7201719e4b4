"""What a run's folder and SLURM say about a run: `nemo-ada status`. Both back ends write the same files.

    status.json    state, step of steps          pace.json      last saved step
    heartbeat      phase, median step seconds    attempts.tsv   one line per attempt, with the reason of its end
    job            array, and the slot that runs left_out.tsv   unhealthy nodes
    over           why the run is over           config.yaml    how many GPUs an attempt holds

slurm/slots.py writes the tables and says what their columns are. Which slots there are, how each stands and how it
ended is SLURM's to say, in its own words: nothing of that is inferred from a file.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_ada.errors import UserError
from nemo_ada.run.files import is_in_use, text_of
from nemo_ada.run.redaction import hide, make_printable
from nemo_ada.run.start import SubprocessError, run
from nemo_ada.run.yaml_file import read_mapping

LEAST = 4  # columns of a line of either table; a shorter line is left out
STARTED, SAVED, FOLDER, ENDED, REASON, DETAIL = 2, 3, 4, 5, 6, 7  # columns of attempts.tsv
SQUEUE = ("squeue", "-h", "-r", "-o", "%F|%i|%T|%S|%N|%r", "-j")
SACCT = ("sacct", "-n", "-X", "-P", "-o", "JobID,State", "-j")
ANSWER_SECONDS = 15.0
NO_SLOT = "no slot is left: submit again"
GONE = "gone"
MOST_ENDED = 12  # slots of which the end is shown
SILENT_SECONDS = 3600.0  # after which a run of another machine counts as gone
MAX_BYTES = 4 << 20  # of a file of a run's folder, which anybody may have made
MOST_LINES, MOST_LETTERS = 1000, 500  # of a table, and of a text in it
MARKS = ("status.json", "attempts.tsv", "heartbeat", "job", "over")  # one is in every folder of a run
REMEDIES = {
    "own failure": "mend what its log says; a new submission goes on from the last save",
    "no space": "make room; the next slot tries again",
    "lock": "end the other process that trains in this folder; the next slot tries again",
}
WAITS = {  # a part of SLURM's reason -> what to do
    "requeued held": "SLURM could not start it on a node, and holds it: look at the node, then scontrol release {}",
    "JobHeld": "it is held: scontrol release {} lets it start",
    "DependencyNeverSatisfied": "it waits for a job that failed: scancel {} and submit again",
    "RESV_DEL": "its reservation is gone: scontrol update JobId={} ReservationName= and scontrol release {}",
    "BadConstraints": "no node fits what it asks for: scancel {} and submit with other options",
    "Limit": "a limit of the site or the account holds it; it starts when other jobs end",
}
# What a status has, so that one that cannot be read has it, too.
KEYS = (
    "run", "state", "step", "max_steps", "saved_step", "phase", "silent_seconds", "median_step_seconds", "job", "slurm",
    "gpu_hours", "queue", "waiting", "ended", "attempts", "reasons", "last_reason", "slots_left", "left_out", "error",
    "remedy", "log",
)  # fmt: skip
QUIET = ("done", "asked", "wall", "preempted", "")  # reasons of an end that are no failure


@dataclass(frozen=True, slots=True)
class Queue:
    """What SLURM says about the slots of some arrays.

    Attributes:
        rows: the slots that it has not ended, as SQUEUE prints them.
        ended: slot -> state of those that it has.
    """

    rows: Sequence[str] = ()
    ended: Mapping[str, str] = field(default_factory=dict)

    def of(self, array: str | None) -> list[dict[str, str]]:
        """Return the slots of an array, one that has nodes first."""
        names = ("array", "job", "state", "start", "nodes", "reason")
        found = [dict(zip(names, row.split("|", 5), strict=False)) for row in self.rows if row.count("|") >= 5]
        return sorted((row for row in found if row["array"] == array), key=lambda row: not row["nodes"])


def read_status(folder: Path, slurm: Queue | None = None) -> dict[str, Any]:
    """Return what is known about a run. None stands for what its files do not say.

    Args:
        folder: the run's folder.
        slurm: what `ask_slurm` says; None where there is no answer.

    Raises:
        UserError: the folder holds no run.
    """
    if not any((folder / name).exists() for name in MARKS):
        raise UserError(f"{folder} holds no run: name the run_dir of a `nemo-ada train`, or `all`")
    status, pace, beat = (read_mapping(folder / name) for name in ("status.json", "pace.json", "heartbeat"))
    saved, steps = (_read_count(mapping.get(key)) for mapping, key in ((pace, "saved_step"), (status, "max_steps")))
    attempts, left_out = (_read_table(folder / name) for name in ("attempts.tsv", "left_out.tsv"))
    last = attempts[-1] if attempts else []
    array = find_array(folder)
    slots = [] if slurm is None else slurm.of(array)
    reason, detail = _read_cell(last, REASON), _read_cell(last, DETAIL)
    failed = reason not in QUIET
    return {
        "run": str(folder),
        "state": _describe_state(folder, status, array, None if slurm is None else slots),
        "gpu_hours": _count_gpu_hours(folder, attempts),
        "step": _read_count(status.get("step")),
        "max_steps": steps,
        "saved_step": saved,
        "phase": str(beat.get("phase"))[:MOST_LETTERS],
        "silent_seconds": _measure_age(folder / "heartbeat"),
        "median_step_seconds": beat.get("median_step_seconds"),
        "job": array,
        "slurm": slurm is not None,
        "queue": slots[0] if slots else None,
        "waiting": sum(not slot["nodes"] for slot in slots),
        "ended": {slot: said for slot, said in slurm.ended.items() if slot.split("_")[0] == array} if slurm else {},
        "attempts": len(attempts),
        "reasons": [_read_cell(line, REASON) or "not ended" for line in attempts],
        "last_reason": reason or None,
        "slots_left": _count_slots_left(attempts, saved, steps),
        "left_out": {line[2]: line[3] for line in left_out},
        "error": detail if failed and detail else None,
        "remedy": _find_remedy(slots) or REMEDIES.get(reason),
        "log": str(folder / "attempts" / _read_cell(last, FOLDER)) if _read_cell(last, FOLDER) else None,
    }


def find_array(folder: Path) -> str | None:
    """Return SLURM's id of a run's array, or of the job in whose allocation it trains. None where it has none."""
    found = re.match(r"[0-9]+", _read_text(folder / "job"))
    return found[0][:MOST_LETTERS] if found else None


def read_state(folder: Path) -> str:
    """Return the state that a run has written, or GONE where it says that it runs and its process does not.

    The lock shows it for a run of this machine, and where there is no lock file, the number of its process. A run of
    another machine has to give a sign of life now and then.
    """
    status = read_mapping(folder / "status.json")
    state = status.get("state")
    if state != "running":
        return str(state)[:MOST_LETTERS] if isinstance(state, str) else "unknown"
    held = is_in_use(folder / "lock")
    if held is False and not os.path.exists(folder / "lock"):
        pid = _read_count(status.get("pid"))
        held = None if pid is None else Path(f"/proc/{pid}").exists()
    ages = [age for name in ("heartbeat", "status.json") if (age := _measure_age(folder / name)) is not None]
    silent = held is None and min(ages, default=math.inf) > SILENT_SECONDS
    return GONE if held is False or silent else state


def read_statuses(folders: Sequence[Path], slurm: Queue | None) -> list[dict[str, Any]]:
    """Return `read_status` of several folders. One that cannot be read hides no other."""
    found = []
    for folder in folders:
        try:
            found.append(read_status(folder, slurm))
        except (OSError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as problem:
            if len(folders) == 1:
                raise
            found.append({**dict.fromkeys(KEYS), "run": str(folder), "state": "cannot be read", "error": str(problem)})
    return found


def can_change(status: Mapping[str, Any]) -> bool:
    """Return whether a run has a process or a job that could change its status."""
    return bool(status["queue"]) or status["state"] == "running"


def ask_slurm(folders: Sequence[Path]) -> Queue | None:
    """Return what SLURM says about the arrays of these runs; None where SLURM is missing or does not answer."""
    arrays = sorted({array for folder in folders if (array := find_array(folder))})
    if shutil.which(SQUEUE[0]) is None:
        return None
    if not arrays:
        return Queue()
    asked = ",".join([*arrays, arrays[0]])  # with one id squeue fails for one that it does not know any more
    rows = _read_lines(*SQUEUE, asked)
    if rows is None:
        return None
    ended = _read_lines(*SACCT, asked)  # it fails where the site keeps no accounts: SLURM itself knows for some minutes
    if ended is None:
        ended = _read_lines(*SQUEUE[:3], "-o", "%i|%T", "-t", "all", "-j", asked) or []
    there = {row.split("|")[1] for row in rows if "|" in row}
    pairs = (line.split("|", 1) for line in ended if re.match(r"[0-9]+(_[0-9]+)?[|]", line))
    return Queue(rows, {slot: state.split(" ")[0] for slot, state in pairs if slot not in there})


def _read_lines(*command: str) -> list[str] | None:
    """Return the lines that a command prints, None where it fails."""
    try:
        done = run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, SubprocessError):
        return None
    return list(done.stdout.splitlines())


def render_status(status: Mapping[str, Any]) -> str:
    """Return the status of one run as lines for people."""
    lines = [f"{status['run']}: {status['state']}"]
    if status["state"] == GONE:
        lines.append("  its process has ended without a word; the same command with resume=auto goes on")
    if status["step"] is not None:
        lines.append(f"  step {status['step']} of {status['max_steps']}; last save: step {status['saved_step'] or 0}")
    if status["silent_seconds"] is not None and status["state"] == "running":
        lines.append(f"  last sign of life {status['silent_seconds']:.0f} s ago ({status['phase']})")
    if status["job"] is not None:
        said = _describe_queue(status["queue"], status["waiting"]) if status["slurm"] else "SLURM gives no answer here"
        lines.append(f"  array {status['job']}: {said}")
    if status["ended"]:
        words = ", ".join(f"{slot} {state}" for slot, state in list(status["ended"].items())[-MOST_ENDED:])
        lines.append(f"  ended, as SLURM says: {words}")
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
    return make_printable(hide("\n".join(lines)))


def find_runs(root: Path) -> list[Path]:
    """Return the folders of runs in `root` and in its users' folders, the newest sign of life first."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: name a run's folder, or set RUN_ROOT")
    found = []
    for place in root.iterdir():
        with suppress(OSError):  # a file, or a folder that is closed to us
            found += [folder for folder in ([place] if _is_run(place) else place.iterdir()) if _is_run(folder)]
    return sorted(found, key=lambda folder: _measure_age(folder / "heartbeat") or math.inf)


def _is_run(folder: Path) -> bool:
    return any(map(os.path.exists, (folder / name for name in MARKS)))


def _read_text(path: Path) -> str:
    try:
        return text_of(path, MAX_BYTES, errors="replace")
    except (OSError, ValueError):
        return ""


def _read_table(path: Path) -> list[list[str]]:
    lines = [[cell[:MOST_LETTERS] for cell in line.split("\t")] for line in _read_text(path).splitlines()[-MOST_LINES:]]
    return [line for line in lines if len(line) >= LEAST]


def _read_count(value: object) -> int | None:
    """Return a count, None for everything else that a damaged file may hold."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        return int(value)
    number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15
    return int(value) if number else None  # type: ignore[call-overload]


def _read_cell(line: Sequence[str], column: int) -> str:
    return line[column] if len(line) > column else ""


def _measure_age(path: Path) -> float | None:
    """Return the seconds since a file was written, None where it is missing."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _describe_state(
    folder: Path, status: Mapping[str, Any], array: str | None, slots: Sequence[Mapping[str, str]] | None
) -> str:
    """Return how a run stands: what SLURM says where it answers, else what the run wrote.

    Args:
        folder: the run's folder.
        status: its status.json.
        array: SLURM's id of its array, None for none.
        slots: those of its slots that SLURM has not ended; None without an answer.
    """
    state = read_state(folder) if status else "not started"
    if state == "done" or slots is None or array is None:
        return state
    if slots:
        return slots[0]["state"].lower() if slots[0]["nodes"] else "waiting"
    over = _read_text(folder / "over").rstrip("\n").split("\t")
    if over[0] == array and len(over) > 2:
        return f"over: {over[2][:MOST_LETTERS]}"
    return NO_SLOT


def _count_gpu_hours(folder: Path, attempts: Sequence[Sequence[str]]) -> float | None:
    """Return the GPU hours of all attempts; None where config.yaml does not say how many GPUs a node has.

    Each attempt held the nodes whose logs are in its folder: a resumed run may take more or fewer than before.
    """
    cluster = re.search(r"^cluster:\n((?: .*\n)+)", _read_text(folder / "config.yaml"), re.M)
    found = dict(re.findall(r"^  (gpus_per_node|num_nodes): (\d{1,6})$", cluster[1] if cluster else "", re.M))
    if "gpus_per_node" not in found or not attempts:
        return None
    last = time.time() - (_measure_age(folder / "heartbeat") or 0.0)  # of an attempt that has written no end
    hours = 0.0
    for line in attempts:
        span = (_read_count(_read_cell(line, ENDED)) or last) - (_read_count(line[STARTED]) or last)
        name = _read_cell(line, FOLDER)  # of a table that anybody may have written
        logs = len(list((folder / "attempts" / name).glob("node-*.log"))) if re.fullmatch(r"[\w-]+", name) else 0
        hours += max(0.0, span) / 3600 * (logs or int(found.get("num_nodes", 1)))
    return hours * int(found["gpus_per_node"])


def _find_remedy(slots: Sequence[Mapping[str, str]]) -> str | None:
    """Return what to do about slots that wait, by the reason that SLURM gives."""
    if not slots or slots[0]["nodes"]:
        return None
    said = f"{slots[0]['state']} {slots[0]['reason']}"
    return next((text.replace("{}", slots[0]["array"]) for part, text in WAITS.items() if part in said), None)


def _describe_queue(slot: Mapping[str, str] | None, waiting: int) -> str:
    if slot is None:
        return "SLURM has no slot of it in its queue"
    if slot["nodes"]:
        return f"{slot['job']} is {slot['state']} since {slot['start']} on {slot['nodes']}; {waiting} slots wait"
    return f"{waiting} slots wait: {slot['job']} is {slot['state']} ({slot['reason']}), next start {slot['start']}"


def _count_slots_left(attempts: Sequence[Sequence[str]], saved: int | None, steps: int | None) -> int | None:
    """Return how many slots the rest takes at the mean gain of those that met the wall; None before the first."""
    if saved is None or steps is None:
        return None
    marks = [_read_count(line[SAVED]) or 0 for line in attempts] + [saved]
    gains = [
        after - before
        for line, before, after in zip(attempts, marks, marks[1:], strict=False)
        if _read_cell(line, REASON) == "wall"
    ]
    if sum(gains) <= 0:
        return None
    return math.ceil(max(0, steps - saved) * len(gains) / sum(gains))
