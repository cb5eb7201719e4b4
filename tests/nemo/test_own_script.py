"""The patch of recipes/guide/extend.md, applied to NeMo-RL's own example, which then trains.

1. The patched script trains with Reinforce-Ada: metrics, sampler state in the checkpoint, and the page's record files.
2. What cannot work is refused before set-up.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from nemo_support.lab import changes, upstream

from nemo_ada.lab.report.run import Run
from tests.faults.processes import ROOT

pytestmark = [pytest.mark.nemo_rl, pytest.mark.slow]

PAGE = (ROOT / "recipes" / "guide" / "extend.md").read_text(encoding="utf-8")
SCRIPT = Path("examples") / "run_grpo.py"


def blocks(language: str) -> list[str]:
    """The page's code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def apply(home: Path, patch: str, *options: str) -> None:
    """Apply a patch to the files below a folder."""
    subprocess.run(["git", "apply", "--unidiff-zero", *options, "-"], input=patch, text=True, cwd=home, check=True)


def tiny(lab: Any) -> dict[str, Any]:
    """The patch's YAML with tiny sizes and our data."""
    small = changes(lab.folder) | {"defaults": "grpo_math_1B_ada.yaml"}
    del small["resume"]
    small["grpo"] |= {"num_generations_per_prompt": 4, "max_num_epochs": 9, "max_num_steps": 2}
    small["data"]["train"] |= {"dataset_name": "ResponseDataset", "input_key": "problem", "output_key": "gt",
                               "split_validation_size": 0}  # fmt: skip
    small["data"]["default"] = {"env_name": "ada_math", "prompt_file": None}
    small["checkpointing"] |= {"checkpoint_dir": "checkpoints"}
    small["logger"] |= {"log_dir": "logs"}
    return small


@pytest.fixture(scope="module")
def example(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of NeMo-RL's example with the patch and the page's lines for records."""
    home = tmp_path_factory.mktemp("RL")
    for name in (SCRIPT, Path("examples") / "configs" / "grpo_math_1B.yaml"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(upstream()) / name, home / name)
    of_release, of_main = blocks("diff")
    apply(home, of_release, "--include=examples/configs/*")
    apply(home, of_main if "Timer" in (home / SCRIPT).read_text() else of_release, f"--include={SCRIPT}")
    script, last = (home / SCRIPT).read_text(), "checkpointer=checkpointer))\n"
    assert script.count(last) == 1
    (records,) = [block for block in blocks("python") if "Records(" in block]
    (home / SCRIPT).write_text(script.replace(last, last + textwrap.indent(records, "    ")))
    (home / "examples" / "configs" / "tiny.yaml").write_text(yaml.safe_dump(tiny(lab), sort_keys=False))
    return home


def run(home: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "nemo"), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "nemo_support.script_driver",
        str(SCRIPT),
        "--config",
        "examples/configs/tiny.yaml",
    ]
    return subprocess.run(
        [*command, *overrides], cwd=home, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_patched_example_trains(example: Path) -> None:
    done = run(example)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (example / "checkpoints" / "step_2" / "reinforce_ada.json").is_file()
    steps = Run.read(example / "runs" / "mine").steps
    assert len(steps) == 2


def test_what_cannot_work_is_refused_before_set_up(example: Path) -> None:
    done = run(example, "reinforce_ada.preset=ada_sek", "policy.model_name=nowhere")
    assert done.returncode == 1 and "UserError" in done.stderr and "ada_sek" in done.stderr
    assert "nowhere" not in done.stderr
