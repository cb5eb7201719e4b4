"""A copy of the project in which a mutant can be tried without touching the checkout."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# pytest's exit codes; 2: collection fails; -6: the process aborts, as with threads that outlive a failed test
OUTCOMES = {0: "survived", 1: "killed", 2: "killed", 5: "no test", -6: "killed"}


class Place:
    """A copy below .cache/mutation. One mutant at a time; several places can work beside each other."""

    def __init__(self, name: str) -> None:
        self.folder = ROOT / ".cache" / "mutation" / name
        shutil.rmtree(self.folder, ignore_errors=True)
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        for file in listed.stdout.splitlines():
            if (ROOT / file).is_file():
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, self.folder / file)

    def run(self, tests: Sequence[str], seconds: float) -> str:
        """Run pytest on the tests until one fails: 'survived', 'killed', 'timeout', or what pytest's exit code says."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        command += ["-m", "not slow and not slurm and not statistics"]
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [*command, *tests], cwd=self.folder, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a killed test has left running
            process.wait()
        return OUTCOMES.get(code, f"exit code {code}")

    def outcome(self, file: str, mutated: str, tests: Sequence[str], seconds: float) -> str:
        """What the tests say of `file` with the text `mutated`; the file is put back afterwards."""
        path = self.folder / file
        original = path.read_text(encoding="utf-8")
        path.write_text(mutated, encoding="utf-8")
        try:
            return self.run(tests, seconds)
        finally:
            path.write_text(original, encoding="utf-8")
