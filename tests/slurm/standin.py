"""A driver that trains nothing: it keeps the run-side contract (nemo_ada/run/job_control.py) and fails as it is told.

standin.py CONFIG run_dir=DIR resume=auto [steps=N] [step_seconds=S] [fail_at=STEP] [kill_at=STEP] [quit_at=STEP]
    [lose_at=STEP] [hang_at=STEP] [full_at=STEP] [wait_at=STEP]
A fault happens in the first attempt, with `always=1` in every one. `wait_at` is no fault: a run that began at step 0
waits there until a stop is asked for or the file `go` is there, so that a test has the time it needs.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

from nemo_ada.run.files import write_atomically
from nemo_ada.run.job_control import EXIT_DONE, EXIT_FAILED, EXIT_LOST, EXIT_STOPPED, JobControl

FAULTS = ("fail", "kill", "quit", "lose", "hang", "full")


def main(arguments: list[str]) -> int:
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    folder, steps = Path(options["run_dir"]), int(options.get("steps", "5"))
    seconds = float(options.get("step_seconds", "0.5"))
    control = JobControl(folder, steps)
    reached = options.get("term") != "node"  # where SLURM tracks by cgroup, its TERM reaches node.sh alone
    signal.signal(signal.SIGTERM, (lambda *_: sys.exit(143)) if reached else signal.SIG_IGN)
    saved = folder / "saved.json"
    step = json.loads(saved.read_text())["step"] if saved.exists() else 0
    (folder / "job_end").write_text(os.environ.get("NEMO_ADA_JOB_END", ""))
    control.status("running", step)

    def save() -> None:
        write_atomically(saved, json.dumps({"step": step}))
        control.observe_save(0.0)

    pause = int(options.get("wait_at", "-1")) if step == 0 else -1
    while step < steps:
        control.heartbeat(step)
        while step == pause and control.find_stop_reason() is None and not (folder / "go").exists():
            control.heartbeat(step)
            time.sleep(0.1)
        if control.find_stop_reason() is not None:
            save()
            control.status("stopped", step)
            return EXIT_STOPPED
        fault = next((kind for kind in FAULTS if options.get(f"{kind}_at") == str(step)), None)
        first = not (folder / "fault").exists()
        if fault is not None and (first or options.get("always")):
            (folder / "fault").touch()
            if fault == "fail":
                control.status("failed", step)
                return EXIT_FAILED
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "quit":  # as Ray ends a driver that lost its head
                os._exit(1)
            if fault == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(saved))
            if fault == "lose":
                control.status("interrupted", step)
                return EXIT_LOST
            time.sleep(600)
        time.sleep(seconds)
        step += 1
        control.observe_step(seconds)
        with (folder / "steps.txt").open("a") as log:
            log.write(f"{step}\n")
        control.status("running", step)
        if "save_each" in options:
            save()
    save()
    control.status("done", step)
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
