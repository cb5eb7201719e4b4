"""Messages between a run and its batch script (slurm/lib.sh): files and one variable.

    <run_dir>/STOP         written by the batch script: save and end
    NEMO_ADA_JOB_END       epoch seconds at which the allocation ends: save before. Where the job's limit was extended,
                           the file job-end in the attempt's folder (ATTEMPT_DIR) has the new end
    <run_dir>/heartbeat    {step, phase, median_step_seconds}, written at each phase and touched at each wave
    <run_dir>/status.json  {state, step, max_steps, pid, time}; state: running | stopped | done | failed |
                           interrupted (a process was lost or stalled: another attempt may succeed)
    <run_dir>/pace.json    {saved_step, save_seconds, validation_seconds}: last saved step and recent durations, kept
                           over attempts; the script ends a run after several that saved nothing new

Exit codes: 0 done, 1 failed, 2 user error, 75 stopped with everything saved, 76 a process stalled, 77 one was lost.
A run that is stopped without a checkpoint has failed.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from nemo_ada.errors import UserError
from nemo_ada.run.files import json_of, text_of, write_atomically
from nemo_ada.run.folder import PACE

STOP_FILE = "STOP"
JOB_END = "NEMO_ADA_JOB_END"
EXIT_DONE, EXIT_FAILED, EXIT_USER_ERROR, EXIT_STOPPED, EXIT_STALLED, EXIT_LOST = 0, 1, 2, 75, 76, 77
MARGIN_SECONDS = 30.0
RECENT_STEPS = 20
OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|can't allocate memory|MemoryError")
RECENT_PAUSES = 10  # saves and validations: an exceptionally slow one is forgotten after this many

State = Literal["running", "stopped", "done", "failed", "interrupted"]


def read_job_end() -> float | None:
    """Return the end of the allocation in epoch seconds. Raises UserError where JOB_END is not a number."""
    text = os.environ.get(JOB_END, "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{JOB_END}={text!r} must be epoch seconds, e.g. $(( $(date +%s) + 14400 ))") from None


@contextmanager
def handle_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP call `stop` with a reason such as "signal SIGTERM".

    The kernel sends SIGHUP when the terminal is closed. nohup ignores it, and so does the run then. Only the main
    thread can do this.
    """
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            previous[number] = signal.signal(number, lambda n, _frame: stop(f"signal {signal.Signals(n).name}"))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class StoppedEarly(BaseException):
    """A signal arrived before there was anything to save. It passes every `except Exception`."""


def stop_early(reason: str) -> None:
    """Raise StoppedEarly: what `handle_signals` calls while a run is being set up."""
    raise StoppedEarly(reason)


def find_key_to_lower(error: BaseException | None, keys: Mapping[str, str]) -> str | None:
    """Say which setting to lower after an error that tells that memory ran out. None for any other error.

    Args:
        error: the error. Those that caused it count as well.
        keys: a part of the error's text -> the setting. The first one that is found is taken.
    """
    texts = []
    while error is not None:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    text = "\n".join(texts)
    if not OUT_OF_MEMORY.search(text):
        return None
    key = next((key for part, key in keys.items() if part in text), None)
    return None if key is None else f"memory ran out; lower {key}, and resume=auto continues from the last save"


class JobControl:
    """Writes the run's messages, and decides whether to stop before the next step.

    The run folder keeps the durations of saves and validations. So an attempt reserves time for its first ones too.

    Attributes:
        run_dir: the run's folder.
        max_steps: steps of the run.
        saved_step: the last saved step, of earlier attempts too.
    """

    def __init__(self, run_dir: Path, max_steps: int) -> None:
        self.run_dir, self.max_steps = run_dir, max_steps
        self._first_end = read_job_end()
        self._new_end = Path(os.environ.get("ATTEMPT_DIR") or os.devnull) / "job-end"
        self._steps: list[float] = []
        self._step = 0
        self.saved_step, self._saves, self._validations = _read_pace(run_dir / PACE)
        self._requested: str | None = None

    @property
    def end(self) -> float | None:
        """The end of the allocation in epoch seconds, which the site may move while the job runs. None: no end."""
        if self._first_end is not None:
            with suppress(OSError, ValueError):
                return float(text_of(self._new_end))
        return self._first_end

    def request(self, reason: str) -> None:
        """Ask for a stop from inside the process, such as for a signal."""
        self._requested = reason

    def observe_step(self, seconds: float) -> None:
        """Record the duration of a step."""
        self._steps = [*self._steps, seconds][-RECENT_STEPS:]

    def observe_save(self, seconds: float) -> None:
        """Record the duration of a save of the step in the last `status`."""
        self._saves = [*self._saves, seconds][-RECENT_PAUSES:]
        self.saved_step = self._step
        self._keep_pace()

    def observe_validation(self, seconds: float) -> None:
        """Record the duration of a validation."""
        self._validations = [*self._validations, seconds][-RECENT_PAUSES:]
        self._keep_pace()

    def _keep_pace(self) -> None:
        content = {
            "saved_step": self.saved_step,
            "save_seconds": self._saves,
            "validation_seconds": self._validations,
        }
        write_atomically(self.run_dir / PACE, json.dumps(content))

    @property
    def closing(self) -> float:
        """The seconds from a step's update to the end of its save.

        They are the longest recent validation and save, and a margin. The sum assumes a validation in every step. Both
        back ends validate before they save.
        """
        return max(self._validations, default=0.0) + max(self._saves, default=0.0) + MARGIN_SECONDS

    @property
    def reserve(self) -> float:
        """The seconds for one more step, its validation and a save: the longest recent step and `closing`."""
        return max(self._steps, default=0.0) + self.closing

    def report_early_end(self, reason: str) -> tuple[int, str]:
        """Write the status of a run that was stopped and could not save. Returns exit code and message."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.status("stopped", self.saved_step)
        return EXIT_STOPPED, f"stopped before a save: {reason}; resume=auto continues from the last one"

    def find_stop_reason(self) -> str | None:
        """Return the reason to save and end now, or None."""
        if self._requested is not None:
            return self._requested
        if (self.run_dir / STOP_FILE).exists():
            return f"the stop file {self.run_dir / STOP_FILE} exists"
        end = self.end
        if end is not None and time.time() + self.reserve >= end:
            return f"{end - time.time():.0f} s are left of the job and {self.reserve:.0f} s are needed"
        return None

    def report_end(self, step: int, reason: str | None, *, saved: bool) -> tuple[int, str]:
        """Report the end of a run, and return its exit code and a sentence about an early end.

        Args:
            step: The number of finished steps.
            reason: Why the run ends early, None where it is complete.
            saved: Whether the state was saved.
        """
        if reason is None:
            self.status("done", step)
            return EXIT_DONE, ""
        self.status("stopped" if saved else "failed", step)
        then = "resume=auto continues" if saved else "nothing was saved (checkpointing.enabled=false)"
        return EXIT_STOPPED if saved else EXIT_FAILED, f"stopped after step {step}: {reason}; {then}"

    def heartbeat(self, step: int, phase: str = "start") -> None:
        """Report the number of finished steps and the phase that begins."""
        steps = sorted(self._steps)
        median = steps[len(steps) // 2] if steps else None
        content = {"step": step, "phase": phase, "median_step_seconds": median}
        write_atomically(self.run_dir / "heartbeat", json.dumps(content))

    def status(self, state: State, step: int) -> None:
        """Report the state of the run to the batch script."""
        self._step = step
        content = {"state": state, "step": step, "max_steps": self.max_steps, "pid": os.getpid(), "time": time.time()}
        write_atomically(self.run_dir / "status.json", json.dumps(content))


def _read_pace(path: Path) -> tuple[int, list[float], list[float]]:
    """Return the last saved step and the durations of saves and validations of earlier attempts.

    The durations are empty where the file is damaged or missing.
    """
    try:
        content = json_of(path)
        step = int(content["saved_step"])
        durations = ([float(seconds) for seconds in content[key]] for key in ("save_seconds", "validation_seconds"))
        saves, validations = ([s for s in seconds if 0 <= s < math.inf][-RECENT_PAUSES:] for seconds in durations)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0, [], []
    return step, saves, validations
