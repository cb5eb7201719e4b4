"""Commands 1 to 9 of recipes/guide/first_hour.md, in a fresh environment that has only what command 1 installs.

The page's paths and addresses are replaced: the project is this tree, /shared is a temporary folder, NeMo-RL is the
checkout that NEMO_RL_HOME names. This machine has no GPU, no image, and perhaps no internet. So prepare and check may
refuse, with their own exit code and a line that names what is missing. A traceback is never right.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "recipes" / "guide" / "first_hour.md"
COMMANDS = re.compile(r"\*\*(\d+)\. .*?```bash\n(.*?)```", re.DOTALL)
MAY_REFUSE = {"5": "error: ", "6": "ERROR ", "9": "nothing was submitted"}
"""Command -> what it prints where this machine cannot do it (exit code 2)."""


def files_of_the_project(folder: Path) -> None:
    """A copy of what git knows of this tree, as a clone would have it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@pytest.mark.slow  # pip installs into a fresh environment
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not Path(os.environ.get("NEMO_RL_HOME", ""), "nemo_rl").is_dir(), reason="NEMO_RL_HOME names no checkout of NeMo-RL"
)
def test_the_first_hours_commands_run_with_what_its_first_command_installs(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    project = shared / "nemo_ada"
    files_of_the_project(project)
    commands = dict(COMMANDS.findall(PAGE.read_text(encoding="utf-8")))
    assert set(commands) >= set("12456789")
    commands["1"] = commands["1"].replace("git clone . /shared/nemo_ada && ", "")
    commands["2"] = re.sub(
        r"git clone .* /shared/RL ", f"ln -s {os.environ['NEMO_RL_HOME']} /shared/RL ", commands["2"]
    )
    kept = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "HTTP", "http", "SSL_", "LANG"))}
    kept |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "EDITOR": "true"}
    kept["PATH"] = f"{Path(shutil.which('python3') or '/usr/bin/python3').parent}:{kept['PATH']}"
    state = tmp_path / "state"  # one shell after the other, as lines typed into one terminal
    state.write_text("")
    said = {}
    for number in "12456789":
        text = commands[number].replace("/shared", str(shared))
        if number == "5":  # what a reader types into the editor of command 4
            site = project / "slurm" / "site.env"
            site.write_text(
                site.read_text().replace("/shared", str(shared)).replace("/opt/nemo-rl", str(shared / "RL"))
            )
        program = f"source {state}\ntrap 'export -p >{state}; echo cd $PWD >>{state}' EXIT\nset -e\n{text}"
        done = subprocess.run(
            ["bash", "-c", program],
            cwd=shared,
            env=kept,
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE,
            check=False,
        )
        said[number] = done.stdout + done.stderr
        assert "Traceback" not in said[number], said[number]
        if done.returncode:
            assert done.returncode == 2 and MAY_REFUSE.get(number, "never") in said[number], (number, said[number])
    assert f"site settings: {project}/slurm/site.env" in said["5"], "the settings that the reader wrote are read"
    assert str(shared / "huggingface") in said["5"]
    assert re.search(r"\d+ errors?, \d+ warnings?", said["6"])
    assert "steps per slot" in said["7"] or "steps" in said["7"]
    assert "+ sbatch" in said["8"]
