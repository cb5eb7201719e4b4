"""A run that is struck by one fault after another and goes on, watched from outside.

`Drill` starts victims (victim.py) in a folder of its own; after each it looks at what is left: processes (found by a
variable that every descendant inherits), metrics, the newest checkpoint. In the end the whole is compared with a run
that nothing happened to.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.numpy import load_file

from nemo_ada.run.files import PRIVATE
from nemo_ada.run.folder import RunDir, read_lines
from tests.faults.processes import MARK, ROOT, marked
from tests.patience import PATIENCE

VOLATILE = ("time", "second", "util")  # metrics that hold a clock's reading


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, in which phase, how long after that began; not before `after` seconds of the attempt."""

    kind: str
    phase: str = ""
    delay: float = 0.0
    after: float = 0.0

    @property
    def name(self):
        """For tables."""
        return self.kind + (f", {self.phase}" if self.phase else "") + (f" +{self.delay:g} s" if self.delay else "")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of a run that a fault struck.

    exit_code: negative = the signal that ended it. steps: complete steps recorded when it ended. resumed_at: the step
    of the newest intact checkpoint, where the next attempt goes on. noticed_s: from the fault to the process's end.
    clean_s: from there until no process of the run was left. ready_s: from the start to the first step.
    """

    fault: Fault
    exit_code: int
    status: str
    steps: int
    resumed_at: int
    noticed_s: float
    clean_s: float
    ready_s: float
    output: str

    @property
    def steps_lost(self):
        """Steps that were complete, or in flight when the fault struck, and must be made again."""
        return self.steps - self.resumed_at


class Drill:
    """A folder with a run, a reference run and everything temporary. A context manager: leaves nothing behind."""

    def __init__(self, *overrides):
        self.folder = Path(tempfile.mkdtemp(prefix="f", dir="/tmp"))  # short: Ray puts sockets below it
        self.temporary = self.folder / "t"
        self.temporary.mkdir()
        self.run_dir = self.folder / "run"
        lines = [json.dumps({"prompt": f"{n:03d}=", "answer": max(f"{n:03d}")}) for n in range(1000)]
        (self.folder / "digits.jsonl").write_text("\n".join(lines))
        self.overrides = [
            f"task.path={self.folder}/digits.jsonl",
            f"base.cache_dir={self.folder}/cache",
            "base.steps=40",
            "grpo.num_prompts_per_step=16",
            "grpo.val_period=1",
            "validation.max_prompts=16",
            "policy.model.hidden_size=64",
            "policy.model.ffn_hidden_size=128",
            "policy.model.num_attention_heads=2",
            "checkpointing.save_period=1",
            "reinforce_ada.preset=ada_seq_balance",
            *overrides,
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        shutil.rmtree(self.folder, ignore_errors=True)

    def attempt(self, fault, *overrides, run_dir=None, watch=lambda mark: None):
        """Start or continue the run, let the fault strike, wait for the end, look at what is left.

        watch: called every now and then with the mark of the run's processes.
        """
        run_dir = run_dir or self.run_dir
        for name in ("STOP", "struck.json"):
            (run_dir / name).unlink(missing_ok=True)
        mark = uuid.uuid4().hex
        variables = {**os.environ, "TMPDIR": str(self.temporary), MARK: mark, "PYTHONPATH": str(ROOT)}
        settings = [*self.overrides, *overrides, f"run_dir={run_dir}", "resume=auto"]
        log = self.folder / "victim.log"
        before = len(read_lines(run_dir / "metrics.jsonl"))
        started = time.time()
        with log.open("w") as output:
            victim = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.victim", json.dumps(asdict(fault)), *settings],
                cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            ready = None
            try:
                while victim.poll() is None:
                    time.sleep(0.05)
                    watch(mark)
                    if ready is None and len(read_lines(run_dir / "metrics.jsonl")) > before:
                        ready = time.time()
                    if time.time() - started > PATIENCE + fault.after:
                        raise AssertionError(f"{fault.name}: still running after {PATIENCE + fault.after:g} s")
            finally:
                if victim.poll() is None:
                    victim.kill()
                    victim.wait()
        ended = time.time()
        struck = _json(run_dir / "struck.json")
        if victim.returncode == -signal.SIGALRM and not struck:  # Ray never answered: the next slot tries again, too
            return self.attempt(fault, *overrides, run_dir=run_dir, watch=watch)
        assert struck or fault.kind == "none", f"{fault.name} never struck: {log.read_text()[-2000:]}"
        while left := [f"{process.pid} {process.name()}" for process in marked(mark)]:
            if time.time() - ended > PATIENCE:
                raise AssertionError(f"{fault.name}: processes left behind: {left}")
            time.sleep(0.1)
        if victim.returncode == -signal.SIGKILL:  # nobody was left to remove its private folders
            for folder in self.temporary.glob(f"{PRIVATE}*"):
                shutil.rmtree(folder)
        newest = RunDir(run_dir).find_newest_checkpoint()
        records = read_lines(run_dir / "metrics.jsonl")
        steps = [record["step"] for record in records]
        assert steps == list(range(1, len(steps) + 1)), f"{fault.name}: steps {steps}"
        return Attempt(
            fault=fault,
            exit_code=victim.returncode,
            status=str(_json(run_dir / "status.json").get("state", "")),
            steps=len(steps),
            resumed_at=0 if newest is None else int(newest.name.removeprefix("step_")),
            noticed_s=ended - struck.get("time", ended),
            clean_s=time.time() - ended,
            ready_s=(ready or ended) - started,
            output=log.read_text(),
        )

    def finish(self, steps):
        """Let the run end at `steps` steps, make the same run without faults, and compare the two to the bit."""
        last = self.attempt(Fault("none"), f"grpo.max_num_steps={steps}")
        assert (last.exit_code, last.status) == (0, "done"), last.output[-2000:]
        whole = self.folder / "whole"
        undisturbed = self.attempt(Fault("none"), f"grpo.max_num_steps={steps}", run_dir=whole)
        assert undisturbed.exit_code == 0, undisturbed.output[-2000:]
        self.compare(whole, steps)
        self.check_nothing_is_left()
        return last

    def compare(self, whole, steps):
        """Raise AssertionError unless the run and another have the same records, and the same bits after `steps`.

        A model without gradients would be the same after any loss, so some steps must have one.
        """
        norms = [record["train/grad_norm"] for record in read_lines(whole / "metrics.jsonl")]
        assert any(norm > 0 for norm in norms), "nothing was learned"
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            assert _timeless(self.run_dir / name) == _timeless(whole / name), (
                f"{name} differs from the undisturbed run's"
            )
        for name in ("model.safetensors", "optimizer.safetensors"):
            ours, theirs = (load_file(run / "checkpoints" / f"step_{steps:06d}" / "learner" / name)
                            for run in (self.run_dir, whole))  # fmt: skip
            assert ours.keys() == theirs.keys()
            assert all((ours[key] == theirs[key]).all() for key in ours), f"{name} differs from the undisturbed run's"

    def check_nothing_is_left(self):
        """No temporary file or folder, in the run's folders or beside them."""
        left = [str(path) for path in self.temporary.iterdir()]
        left += [str(path) for path in self.run_dir.rglob(".*")]
        assert not left, f"left behind: {left}"


def _json(path):
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _timeless(path):
    return [
        {key: value for key, value in record.items() if not any(word in key for word in VOLATILE)}
        for record in read_lines(path)
    ]
