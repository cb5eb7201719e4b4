"""The slices of a rehearsal on GPUs: each is a driver's process, and they follow each other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_ada.rehearsal.command import Rehearsal, failure_of
from nemo_ada.rehearsal.report import Events
from nemo_ada.rehearsal.runs import RESUMED
from nemo_ada.run.files import remove, text_of, write_atomically
from nemo_ada.run.job_control import EXIT_DONE, EXIT_STOPPED, STOP_FILE, JobControl

LEAST_SECONDS = 20.0  # a slice that has less time is left out
ENDING_SECONDS = 5.0  # kept back for the report


@dataclass
class Slices:
    """The folder, the runs and the results of one rehearsal on GPUs.

    Attributes:
        rehearsal: Starts the processes.
        control: Files that the batch script watches.
        deadline: When the last slice must have ended, by time.monotonic(). None leaves the limit of `rehearsal`.
        ended: Called after each slice.
        full: Whether each run takes all GPUs of the config. Then no slice follows a failure, and runs that an earlier
            attempt ended well in this folder are not repeated.
        code: Exit code of the first slice that failed, or 0.
        events: Slice -> its events.
        failures: Slice or run -> what failed, or why it was left out.
        running: Folders of the runs of the slice that runs.
        beat: When a run last showed progress, epoch seconds.
    """

    rehearsal: Rehearsal
    control: JobControl
    deadline: float | None
    ended: Callable[[Slices], None]
    full: bool = False
    code: int = EXIT_DONE
    events: dict[str, Events] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    running: list[Path] = field(default_factory=list)
    beat: float = 0.0

    def run(self, name: str, work: Callable[[], tuple[int, Events]]) -> None:
        """Run a slice, unless it must be left out, and note how it failed."""
        if why := self._why_left_out():
            self.failures[name] = f"left out: {why}"
            return
        if self.deadline is not None:
            self.rehearsal.limit = self.deadline - time.monotonic() - ENDING_SECONDS
        self.control.heartbeat(len(self.events), name)
        code, self.events[name] = work()
        self.code = self.code or code
        failure = failure_of(code, self.events[name], self.rehearsal.folder / f"{name}.log")
        if failure is not None:
            self.failures[name] = f"{failure[1]} (in {failure[0]})"
        self.ended(self)

    def train(self, name: str, configs: Mapping[str, Mapping[str, Any]], *arguments: str) -> None:
        """Make the runs of a driver as a slice.

        Args:
            name: Name of the slice.
            configs: Run -> its config, in the order of the runs.
            arguments: More arguments of the driver.
        """
        earlier = Events.read(self.rehearsal.events_of(name))
        if self.full and len(earlier.of("done")) == len(configs) and all(map(self._is_kept, configs, configs.values())):
            self.rehearsal.say(f"{name}: an earlier attempt has run it")
            self.events[name] = earlier
            return
        self.running = [Path(config["run_dir"]) for config in configs.values()]
        for folder in self.running:
            if name != RESUMED:  # its folder has the checkpoint that it continues
                remove(folder)
        self.run(name, lambda: self.rehearsal.run(name, configs, *arguments))

    def runs(self) -> dict[str, Events]:
        """The training runs by name, in order."""
        return {run: events for of_slice in self.events.values() for run, events in of_slice.runs().items()}

    def tick(self, name: str) -> None:
        """Pass the batch script's request to stop on to the runs, and show the script that they make progress."""
        stop = (self.control.run_dir / STOP_FILE).exists()
        for folder in self.running:
            if stop and folder.is_dir() and not (folder / STOP_FILE).exists():
                write_atomically(folder / STOP_FILE, "rehearse\n")
        signs = [self.rehearsal.events_of(name), *(folder / "heartbeat" for folder in self.running)]
        if (newest := max(map(_modified, signs))) > self.beat:
            self.beat = newest
            self.control.heartbeat(len(self.events), name)

    def _why_left_out(self) -> str:
        """Say why no slice may start now. Empty where one may."""
        if self.code == EXIT_STOPPED:
            return "the batch script stopped the rehearsal"
        if self.full and self.failures:
            return f"{next(iter(self.failures))} failed"
        if self.deadline is not None and self.deadline - time.monotonic() - ENDING_SECONDS < LEAST_SECONDS:
            return "no time was left"
        return ""

    def _is_kept(self, run: str, config: Mapping[str, Any]) -> bool:
        """Return whether the folder has this run's config from before."""
        path = self.rehearsal.folder / f"{run}.json"
        return path.is_file() and text_of(path) == json.dumps(config, indent=1, default=str)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
