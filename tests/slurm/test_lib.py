"""slurm/lib.sh and node.sh by their functions and with stand-ins for sbatch and nemo-ada; no SLURM is needed.

1. The watchdog gives a start START_SECONDS and an attempt that has made a step STALL_SECONDS.
2. The environment wins over site.env, whatever its form, and only what it brought reaches the job.
3. sbatch's options may stand anywhere; nodes that do not fit the configuration and errors of the check are refused.
4. Attempts in a row that save no new step end a run, whatever their causes; a stop file is ours only if it says so.
5. The nodes run the checkout's code.
6. Nothing is submitted unchecked by accident; inside another job the script asks where to train.
7. An unhealthy node is named and left out of the slots that wait.
8. Where SLURM refuses the slots that are asked for, fewer are.
"""

from __future__ import annotations

import ast
import json
import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.run.job_control import JobControl
from tests.patience import PATIENCE
from tests.people import OTHER, needs_two_users
from tests.slurm.test_dry_run import HOST_PYTHON, call

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SITE = {"CONTAINER": "", "NEMO_RL_HOME": "/opt/nemo-rl", "RUN_ROOT": "/shared/runs"}
RECIPE_4N = "configs/qwen2.5-32b.yaml"


def bash(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program after lib.sh was read."""
    environment = {"PATH": os.environ["PATH"], "HOST_PYTHON": HOST_PYTHON, **variables}
    command = ["bash", "-c", f"source {ROOT}/slurm/lib.sh; {program}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def script(
    folder: Path, *arguments: str, site: str | None = None, name: str = "train_7b_ada.sh", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Start a train script outside SLURM; site: the text of site.env in place of SITE."""
    path = folder / "site.env"
    runs = {} if "DRY_RUN" in variables else {"RUN_ROOT": f"{folder}/runs"}  # a submission makes its run's folder
    path.write_text("".join(f"{key}={value}\n" for key, value in (SITE | runs).items()) if site is None else site)
    return call(name, path, *arguments, **{"DRY_RUN": "", **variables})


def programs(folder: Path, **texts: str) -> dict[str, str]:
    """A PATH with shell programs in front."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in texts.items():
        path = folder / "bin" / name.replace("_", "-")
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def tools(folder: Path, check: int) -> dict[str, str]:
    """A PATH with an sbatch that writes down its words and environment, and a nemo-ada that ends with `check`."""
    return programs(
        folder,
        sbatch=f'[ $1 = --test-only ] && exit; printf "%s\\n" "$@" >{folder}/words; env >{folder}/environment; echo 7',
        nemo_ada=f'printf "%s\\n" "$@" >{folder}/checked; exit {check}',
    )


# --- SLURM's answers ---


def decision(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """One decision of slots.py for slot 7_3 of array 7, whose folder in attempts/ is `folder` where it needs one."""
    given = {
        "PATH": os.environ["PATH"], "RUN_DIR": str(folder), "ATTEMPT_DIR": str(folder), "ARRAY": "7", "SLOT": "7_3",
        "SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "1",
        "STARTED": "1", "MAX_WITHOUT_STEP": "4", "RETRY_SECONDS": "600", "ANSWER_SECONDS": "1", "AGAIN_SECONDS": "0",
        "NODE_NAMES": "n1", "LOG_TO": "2", **variables,
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "slurm" / "slots.py"), name]
    return subprocess.run(command, env=given, capture_output=True, text=True, timeout=PATIENCE, check=False)


SLURM = """
echo "$0 $*" >>{folder}/calls
case ${{0##*/}} in
  squeue) {squeue} ;;
  scontrol) {scontrol} ;;
  *) {other} ;;
esac
"""


def slurm(folder: Path, squeue: str = "echo '7|3|R'; echo '7|4|PD'; echo '7|5|PD'", scontrol: str = "true",
          other: str = "true") -> dict[str, str]:  # fmt: skip
    """A PATH with a SLURM of these answers, whose calls are in the file `calls`."""
    text = SLURM.format(folder=folder, squeue=squeue, scontrol=scontrol, other=other)
    return programs(folder, **dict.fromkeys(("squeue", "scontrol", "scancel", "sinfo", "sacct"), text))


def asked(folder: Path, program: str, first: str = "") -> list[str]:
    """The words of the calls of a program, of those that begin with `first`."""
    if not (folder / "calls").exists():
        return []
    calls = [line.split("/")[-1].partition(" ")[::2] for line in (folder / "calls").read_text().splitlines()]
    return [words for name, words in calls if name == program and words.startswith(first)]


def test_whatever_slurm_says_it_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "attempts.tsv").write_text("7\t7_3\t1\t0\t7_3\n")
    (tmp_path / "canary").touch()
    failing = f"n=$(wc -l <{tmp_path}/calls); if [ $n -lt 5 ]; then echo 'error: Unspecified error' >&2; exit 1; fi"
    path = slurm(tmp_path, squeue=failing + "; echo '7|4|PD'", scontrol=failing)
    done = decision("ended", tmp_path, **path, ANSWER_SECONDS="60")
    assert "1 slots wait; they start in 600 s at the earliest" in done.stderr, done
    assert asked(tmp_path, "scontrol", "update") == ["update JobId=7_[4] StartTime=now+600"]


def test_a_slot_that_ends_before_its_decisions_puts_the_others_off_whatever_slurm_says(tmp_path: Path) -> None:
    """A node's names, and the slots that wait, are asked for by the batch script itself."""
    flaky = f"n=$(wc -l <{tmp_path}/calls); if [ $n -lt 3 ]; then echo 'error: Unspecified error' >&2; exit 1; fi"
    slot = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "20", "RETRY_SECONDS": "9"}
    path = slurm(tmp_path, scontrol=flaky)
    done = bash("put_off", **slot, **path)
    assert asked(tmp_path, "scontrol") == ["update JobId=7_[4-20] StartTime=now+9"] * 3
    assert "the slots that wait start in 9 s" in done.stderr
    assert "put" not in bash("put_off", **{**slot, "SLURM_ARRAY_TASK_ID": "20"}, **path).stderr, "the last one"
    down = bash("sleep() { :; }; put_off", **slot, **slurm(tmp_path, scontrol="echo no answer >&2; exit 1"))
    assert "SLURM does not put all slots off that wait: no answer" in down.stderr


def test_a_silent_slurm_is_not_taken_for_a_no(tmp_path: Path) -> None:
    """The slots that wait are put off all the same, by the array's own id."""
    (tmp_path / "attempts.tsv").write_text("7\t7_3\t1\t0\t7_3\n")
    (tmp_path / "canary").touch()
    done = decision("ended", tmp_path, **slurm(tmp_path, squeue="exit 1"))
    assert "SLURM did not take `squeue" in done.stderr and "this was the last one" not in done.stderr
    assert asked(tmp_path, "scontrol", "update") == ["update JobId=7 StartTime=now+600"]


SHOWN = 'if [ "$2" = job ]; then echo "JobId=7 EndTime={end} Deadline=N/A"; else {config}; fi'


def test_times_are_read_whatever_format_the_users_shell_asks_slurm_for(tmp_path: Path) -> None:
    when = '$(if [ "$SLURM_TIME_FORMAT" = standard ]; then echo 2026-11-26T12:00:00; else echo "26 Nov"; fi)'
    path = programs(tmp_path, scontrol=SHOWN.format(end=when, config="exit 1"))
    variables = {"SLOT": "7", "SLURM_TIME_FORMAT": "%d %b", "TZ": "UTC", "ANSWER_SECONDS": "1"}
    done = bash("decide job-end; echo $ANSWER", **variables, **path)
    assert done.stdout.splitlines()[-1] == "1795694400", done.stderr


@pytest.mark.parametrize("ahead", [0, 600, -600])
def test_the_jobs_end_is_counted_by_the_nodes_clock(tmp_path: Path, ahead: int) -> None:
    """The controller says when the job ends and what time it is. A node's clock may be minutes away from that."""
    path = programs(
        tmp_path,
        scontrol=SHOWN.format(
            end=f"$(date -d '{3600 - ahead} seconds' +%Y-%m-%dT%H:%M:%S)",
            config=f"echo Configuration data as of $(date -d '{-ahead} seconds' +%Y-%m-%dT%H:%M:%S)",
        ),
    )
    done = bash("decide job-end; echo $((ANSWER - $(date +%s)))", SLOT="7", **path)
    *said, left = done.stdout.splitlines()
    assert abs(int(left) - 3600) <= PATIENCE and ["s ahead of the controller's" in line for line in said] == [
        True
    ] * bool(ahead)
    programs(tmp_path, scontrol="echo JobId=7 EndTime=Unknown Deadline=N/A")
    assert bash("decide job-end; echo $ANSWER.", SLOT="7", **path).stdout == ".\n", "a job without a limit"


def test_a_submission_takes_its_variables_along_whatever_the_shell_says(tmp_path: Path) -> None:
    done = script(tmp_path, "configs/cpu/mini_sudoku.yaml", name="train.sh", SBATCH_EXPORT="NONE", FORCE="1",
                  **tools(tmp_path, 0))  # fmt: skip
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert [word for word in words if word.startswith("--export")] == ["--export=ALL"]
    assert "CONFIG=" in (tmp_path / "environment").read_text()


# --- the watchdog ---


@pytest.mark.parametrize(
    ("steps", "silent", "told"),
    [(0, 1500, False), (0, 4000, True), (1, 1500, True), (1, 1100, False), (300, 1400, False), (300, 1600, True)],
)
def test_a_cold_start_may_be_silent_for_longer_than_a_run_that_steps(
    tmp_path: Path, steps: float, silent: int, told: bool
) -> None:
    """steps: seconds of the attempt's only step, 0 for none; the heartbeat is the run's own."""
    now = time.time()
    (tmp_path / "canary").touch()
    os.utime(tmp_path / "canary", (now - 5000, now - 5000))
    control = JobControl(tmp_path, 9)
    if steps:
        control.observe_step(steps)
    control.heartbeat(0, "set-up")
    os.utime(tmp_path / "heartbeat", (now - silent, now - silent))
    settings = {"START_SECONDS": "3600", "STALL_SECONDS": "1200", "STARTED": str(int(now - 5000))}
    done = bash("decide stalled; echo $ANSWER", RUN_DIR=str(tmp_path), ATTEMPT_DIR=str(tmp_path), **settings)
    assert ("no heartbeat for" in done.stdout) == told, done


# --- site.env and the environment ---

FORMS = {
    "plain": "RAY_AUTH=token\nMAX_WITHOUT_STEP=50\n",
    "export": "export RAY_AUTH=token MAX_WITHOUT_STEP=50\n",
    "declare": 'declare -gx RAY_AUTH="token"\nMAX_WITHOUT_STEP=$((25 * 2))\n',
}


@pytest.mark.parametrize("form", FORMS)
def test_the_environment_wins_over_site_env(tmp_path: Path, form: str) -> None:
    text = "".join(f"{key}={value}\n" for key, value in SITE.items()) + FORMS[form] + "PATH=/site/bin:$PATH\n"
    given = {"RAY_AUTH": "disabled", "MAX_WITHOUT_STEP": "3", "RUN_ROOT": "/tmp/xyz", "DRY_RUN": "1"}
    done = script(tmp_path, site=text, **given)
    assert done.returncode == 0, done.stderr
    assert "from the environment, not from" in done.stdout and "MAX_WITHOUT_STEP RAY_AUTH RUN_ROOT" in done.stdout
    assert "attempt 1 of array" in done.stdout
    assert "run directory /tmp/xyz/qwen2.5-math-7b" in done.stdout


def test_only_what_the_environment_brought_reaches_the_job_so_that_it_reads_site_env_anew(tmp_path: Path) -> None:
    text = "".join(f"{key}={value}\n" for key, value in (SITE | {"RUN_ROOT": f"{tmp_path}/runs"}).items())
    text += "SBATCH_ACCOUNT=payer\nHF_HOME=/shared/hf\nWANDB_MODE=offline\nPATH=$PATH:/site/bin\n"
    done = script(tmp_path, site=text, **tools(tmp_path, 0), WANDB_MODE="online", PREFLIGHT="0")
    assert done.returncode == 0, done.stderr
    job = dict(line.partition("=")[::2] for line in (tmp_path / "environment").read_text().splitlines())
    assert job["WANDB_MODE"] == "online" and job["SBATCH_ACCOUNT"] == "payer"
    assert job["RUN_DIR"] == f"{tmp_path}/runs/qwen2.5-math-7b" and job["NEMO_ADA_HOME"] == str(ROOT)
    assert not job.keys() & {"HF_HOME", "RUN_ROOT", "MAX_WITHOUT_STEP", "STALL_SECONDS"}


@pytest.mark.parametrize("container", ["", "/images/nemo-ada.sqsh"], ids=["bare", "container"])
def test_a_checkout_of_the_submitting_machine_is_for_the_check_where_the_job_has_a_container(
    tmp_path: Path, container: str
) -> None:
    text = f"CONTAINER={container}\nNEMO_RL_HOME=/opt/nemo-rl\nRUN_ROOT={tmp_path}/runs\n"
    path = tools(tmp_path, 0)
    programs(tmp_path, nemo_ada=f"echo $NEMO_RL_HOME >{tmp_path}/checked")
    done = script(tmp_path, site=text, **path, NEMO_RL_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "checked").read_text().strip() == str(tmp_path)
    job = dict(line.partition("=")[::2] for line in (tmp_path / "environment").read_text().splitlines())
    assert job["NEMO_RL_HOME"] == ("/opt/nemo-rl" if container else str(tmp_path))
    inside = f'read_site x "$(<{tmp_path}/site.env)" >&2; echo $NEMO_RL_HOME'
    assert bash(inside, NEMO_RL_HOME=str(tmp_path)).stdout.strip() == job["NEMO_RL_HOME"]


@pytest.mark.parametrize("text", ["\ufeffCONTAINER=\n", "CONTAINER=\r\n", "\ufeffCONTAINER=\r\nPOLL_SECONDS=3\r\n"])
def test_what_an_editor_of_windows_adds_is_named_and_the_command_that_is_said_mends_it(
    tmp_path: Path, text: str
) -> None:
    given = {"DRY_RUN": "1", "NEMO_RL_HOME": "/opt/nemo-rl"}
    done = script(tmp_path, site=text, **given)
    assert done.returncode == 2 and "Windows" in done.stderr, done
    subprocess.run(["bash", "-c", re.findall(r"\((sed .*)\)", done.stderr)[0]], check=True)
    assert (tmp_path / "site.env").read_bytes() == text.strip("\ufeff").replace("\r", "").encode()


@pytest.mark.parametrize("text", ["CONTAINER =\n", "CONTAINER=\nif\n", "CONTAINER=\nfalse\n"])
def test_a_site_env_that_bash_cannot_read_is_named(tmp_path: Path, text: str) -> None:
    done = script(tmp_path, site=text, DRY_RUN="1", NEMO_RL_HOME="/opt/nemo-rl")
    assert done.returncode == 2 and str(tmp_path / "site.env") in done.stderr.splitlines()[-1], done


@needs_two_users
def test_a_site_env_of_somebody_else_that_was_only_found_is_refused(tmp_path: Path) -> None:
    """What NEMO_ADA_SITE names was not found, so it may be anybody's."""
    (tmp_path / "project").mkdir()
    for name in ("nemo_ada", "configs"):
        (tmp_path / "project" / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "slurm", tmp_path / "project" / "slurm")
    site = tmp_path / "project" / "slurm" / "site.env"
    site.write_text(f"touch {tmp_path}/ran\nCONTAINER=\nNEMO_RL_HOME=/opt/nemo-rl\n")
    os.chown(site, OTHER, OTHER)
    command = ["bash", str(tmp_path / "project" / "slurm" / "train_7b_ada.sh")]
    given = {"PATH": os.environ["PATH"], "DRY_RUN": "1", "NEMO_ADA_HOME": str(tmp_path / "project")}
    done = subprocess.run(command, env=given, cwd="/", capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2 and f"it belongs to user {pwd.getpwuid(OTHER).pw_name}" in done.stderr, done
    assert not (tmp_path / "ran").exists()
    named = subprocess.run(command, env=given | {"NEMO_ADA_SITE": str(site)}, cwd="/", capture_output=True, text=True)
    assert named.returncode == 0 and (tmp_path / "ran").exists(), named


# --- arguments ---


def test_options_of_sbatch_may_stand_anywhere_and_go_in_front_of_the_script(tmp_path: Path) -> None:
    done = script(tmp_path, "--qos=high", "grpo.seed=1", "--mem=0", "~a.b", "-Apayer", DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    options = "--parsable --export=ALL --qos=high --mem=0 -Apayer --array=1-20%1"
    assert f"+ sbatch {options} {ROOT}/slurm/train_7b_ada.sh grpo.seed=1 \\~a.b" in done.stdout
    assert "resume=auto grpo.seed=1 \\~a.b\n" in done.stdout


# --- nodes and the check before submission ---


def test_the_check_judges_the_nodes_gpus_and_time_that_the_job_asks_for(tmp_path: Path) -> None:
    done = script(tmp_path, DRY_RUN="1")
    assert "+ nemo-ada check --no-verifier --time=04:00:00 --nodes=1 --gpus-per-node=8 " in done.stdout
    done = script(tmp_path, "-N2", "--gpus-per-node=h100:4", "-t60", DRY_RUN="1")
    assert "+ nemo-ada check --no-verifier --time=60 --nodes=2 --gpus-per-node=h100:4 " in done.stdout
    of_shell = {"SBATCH_TIMELIMIT": "02:00:00", "SBATCH_GPUS_PER_NODE": "4"}  # sbatch takes them before the header's
    done = script(tmp_path, DRY_RUN="1", **of_shell)
    assert "+ nemo-ada check --no-verifier --time=02:00:00 --nodes=1 --gpus-per-node=4 " in done.stdout
    done = script(tmp_path, "--time=03:00:00", DRY_RUN="1", **of_shell)
    assert "+ nemo-ada check --no-verifier --time=03:00:00 " in done.stdout


def test_a_direct_sbatch_checks_its_nodes_before_the_driver(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text(f"nemo-ada() {{ echo $* >{tmp_path}/checked; return 2; }}\n")
    done = node(tmp_path, NODE_SETUP=str(tmp_path / "setup.sh"), CHECK_FIRST="1")
    assert done.returncode == 1
    assert (tmp_path / "checked").read_text().startswith("check --no-verifier --nodes=1 x.yaml run_dir=")


def test_each_slot_finds_the_same_yamls(tmp_path: Path) -> None:
    """All YAMLs are words of the script in every slot. A CONFIG of the shell does not count beside them."""
    methods = f"{ROOT}/configs/methods"
    words = ("configs/qwen2.5-math-7b.yaml", "grpo.seed=1", "configs/methods/grpo8.yaml", "configs/methods/fp8.yaml")
    site = "".join(f"{key}={value}\n" for key, value in SITE.items())
    done = script(tmp_path, *words, name="train.sh", site=site, DRY_RUN="1", PREFLIGHT="0", CONFIG="a.yaml")
    assert done.returncode == 0, done.stderr
    submitted = [line for line in done.stdout.splitlines() if line.startswith("+ sbatch")]
    first = f"{ROOT}/configs/qwen2.5-math-7b.yaml"
    layers = f"{ROOT}/slurm/train.sh {first} {methods}/grpo8.yaml {methods}/fp8.yaml grpo.seed=1"
    assert len(submitted) == 1 and submitted[0].endswith(layers)
    assert (
        f"+ nemo-ada train {ROOT}/configs/qwen2.5-math-7b.yaml run_dir=/shared/runs/qwen2.5-math-7b-grpo8-fp8 "
        f"resume=auto {methods}/grpo8.yaml {methods}/fp8.yaml grpo.seed=1" in done.stdout
    )


def test_a_job_that_cannot_be_planned_is_not_submitted(tmp_path: Path) -> None:
    done = script(tmp_path, RECIPE_4N, name="train.sh", **tools(tmp_path, 2), NEMO_RL_HOME=str(tmp_path))
    assert done.returncode == 2 and "nemo-ada plan cannot plan this job" in done.stderr
    assert not (tmp_path / "words").exists()


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_a_configuration_with_errors_is_not_submitted(tmp_path: Path, code: int) -> None:
    """0 and 3 (warnings only) are submitted. 2 is an error of the config, 1 a crash of the check."""
    done = script(tmp_path, "grpo.seed=1", **tools(tmp_path, code), NEMO_RL_HOME=str(tmp_path))
    checked = (tmp_path / "checked").read_text().split()
    assert checked[:2] == ["check", "--no-verifier"] and checked[-1] == "grpo.seed=1"
    assert done.returncode == (0 if code in (0, 3) else 2), done.stderr
    assert (tmp_path / "words").exists() == (code in (0, 3))
    if code in (1, 2):
        assert "nothing was submitted" in done.stderr
        done = script(tmp_path, PREFLIGHT="0", **{"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
        assert done.returncode == 0 and (tmp_path / "words").exists()


@pytest.mark.parametrize("hole", ["checkout", "tool", "crash"])
def test_what_cannot_be_checked_is_not_submitted_unless_forced(tmp_path: Path, hole: str) -> None:
    path = tools(tmp_path, 3 if hole != "crash" else 9)
    home = {"NEMO_RL_HOME": "/not/on/the/login/node" if hole == "checkout" else str(tmp_path)}
    if hole == "tool":
        (tmp_path / "bin" / "nemo-ada").unlink()
        path["PATH"] = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        (tmp_path / "project").mkdir()
        for name in ("slurm", "configs"):
            (tmp_path / "project" / name).symlink_to(ROOT / name)
        home["NEMO_ADA_HOME"] = str(tmp_path / "project")
    done = script(tmp_path, **path, **home)
    assert done.returncode == 2 and "nothing was submitted" in done.stderr and "--force" in done.stderr
    assert not (tmp_path / "words").exists()
    done = script(tmp_path, "--force", **path, **home)
    assert done.returncode == 0, done.stderr
    assert "--force" not in (tmp_path / "words").read_text()


@pytest.mark.parametrize(("answer", "code"), [("submit", 0), ("", 2), ("maybe", 2)])
def test_inside_another_job_nothing_is_trained_or_submitted_unasked(tmp_path: Path, answer: str, code: int) -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "NEMO_RL_HOME": str(tmp_path), "HERE": answer}
    done = script(tmp_path, **tools(tmp_path, 0), **given)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "words").exists() == (answer == "submit")
    if code:
        assert "HERE=train" in done.stderr and "HERE=submit" in done.stderr
    else:
        assert "SLURM_JOB_ID" not in (tmp_path / "environment").read_text(), (
            "the new job is none of the old one's steps"
        )


def test_a_machine_without_slurm_says_how_to_train_on_it(tmp_path: Path) -> None:
    done = script(tmp_path, "grpo.seed=1", PREFLIGHT="0")
    if shutil.which("sbatch"):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python3").symlink_to(sys.executable)  # a python3 of PATH may be a script that needs more
        for name in ("bash", "dirname", "sed", "grep", "sort", "tr", "basename", "env"):
            (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
        done = script(tmp_path, "grpo.seed=1", PREFLIGHT="0", PATH=str(tmp_path / "bin"))
    assert done.returncode == 2 and "nemo-ada train" in done.stderr and "grpo.seed=1" in done.stderr, done


def test_a_site_without_gpus_in_slurm_takes_the_number_that_plan_reads(tmp_path: Path) -> None:
    """A YAML may have it from its `defaults`, which only nemo-ada follows. The slots get what the submission read."""
    (tmp_path / "base.yaml").write_text("cluster:\n  gpus_per_node: 4\n")
    (tmp_path / "my.yaml").write_text("defaults: base.yaml\n")
    found = programs(
        tmp_path, sbatch=f"env >{tmp_path}/environment; echo 7",
        nemo_ada="if [ $1 = plan ]; then printf '%s\\n' --nodes=1 --gpus-per-node=4; fi",
    )  # fmt: skip
    given = {"GPUS_IN_SLURM": "0", "NEMO_RL_HOME": str(tmp_path), "RUN_DIR": str(tmp_path / "run"), **found}
    done = script(tmp_path, str(tmp_path / "my.yaml"), name="train.sh", **given)
    assert done.returncode == 0, done
    assert "NEMO_ADA_GPUS=4\n" in (tmp_path / "environment").read_text()
    done = script(tmp_path, str(tmp_path / "my.yaml"), name="train.sh", DRY_RUN="1", **given)
    assert "check of the node: 4 GPUs" in done.stdout, done


def test_a_site_without_gpus_in_slurm_takes_their_number_from_the_last_yaml(tmp_path: Path) -> None:
    """The overlay stands behind the model's YAML, and an override of the command line wins over both."""
    (tmp_path / "model.yaml").write_text("cluster:\n  gpus_per_node: 8\n")
    (tmp_path / "four.yaml").write_text("cluster:\n  gpus_per_node: 4\n")
    for words, gpus in (((), 4), (("cluster.gpus_per_node=2",), 2)):
        done = script(
            tmp_path, str(tmp_path / "model.yaml"), str(tmp_path / "four.yaml"), *words, name="train.sh", DRY_RUN="1",
            PREFLIGHT="0", GPUS_IN_SLURM="0",
        )  # fmt: skip
        assert f"check of the node: {gpus} GPUs" in done.stdout, done


REFUSALS = {  # slots that SLURM takes -> what the run gets
    3: ("--array=1-2%1", "SLURM refuses 20 slots for this run (see above), and takes 2"),
    1: ("--array=1", "SLURM refuses 20 slots for this run (see above), and takes 1"),
    0: ("--array=", "SLURM refuses 20 slots for this run (see above), and takes 1"),
}


@pytest.mark.parametrize("most", REFUSALS)
def test_where_slurm_refuses_so_many_slots_fewer_are_asked_for(tmp_path: Path, most: int) -> None:
    """0 stands for a site without arrays: MaxArraySize=0."""
    sbatch = f"""for word; do case $word in --array=*) array=${{word#--array=}} ;; esac; done
echo "$array" >>{tmp_path}/arrays
array=${{array%\\%1}}; [ -z "$array" ] || [ ${{array#1-}} -le {most} ] || {{ echo "sbatch: error: limit" >&2; exit 1; }}
echo 7"""
    done = script(tmp_path, PREFLIGHT="0", **programs(tmp_path, sbatch=sbatch))
    array, said = REFUSALS[most]
    assert done.returncode == 0 and said in done.stdout, done
    assert (tmp_path / "arrays").read_text().splitlines()[-1] == array.partition("=")[2]
    assert "a new submission goes on" in done.stdout and done.stderr.count("sbatch: error: limit") == 1
    assert done.stdout.endswith("Submitted batch job 7\n")


@pytest.mark.parametrize("said", ["Socket timed out on send/recv operation", "Invalid account"])
def test_a_submission_that_slurm_does_not_take_at_all_says_so(tmp_path: Path, said: str) -> None:
    """Where its answer is not clear a second submission could make a second array."""
    sbatch = f'echo x >>{tmp_path}/calls; echo "sbatch: error: {said}" >&2; exit 1'
    done = script(tmp_path, PREFLIGHT="0", **programs(tmp_path, sbatch=sbatch))
    assert done.returncode == 2 and said in done.stderr, done
    clear = "Invalid" in said
    assert ("nothing was submitted" if clear else "look at squeue --me") in done.stderr
    assert len((tmp_path / "calls").read_text().split()) == (6 if clear else 1)


def test_a_runs_slots_go_one_after_another(tmp_path: Path) -> None:
    for words, array in ((("--array=1-7",), "1-7%1"), (("--array=1",), "1"), (("-a3,5",), "3,5%1")):
        done = script(tmp_path, *words, DRY_RUN="1", PREFLIGHT="0")
        assert f" --array={array} " in done.stdout.replace("\\", "") and done.stdout.count("--array") == 1, done
    assert "write --array=1-7%1" in script(tmp_path, "--array=1-7%2", DRY_RUN="1", PREFLIGHT="0").stderr


def test_a_tool_whose_interpreter_is_closed_to_others_is_named(tmp_path: Path) -> None:
    path = tools(tmp_path, 0)
    (tmp_path / "bin" / "nemo-ada").write_text("#!/root/of/the/admin/python3\n")
    done = script(tmp_path, **path, NEMO_RL_HOME=str(tmp_path))
    assert done.returncode == 2 and "its interpreter is /root/of/the/admin/python3" in done.stderr, done


def test_a_yaml_of_the_working_folder_is_the_one_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    mine = tmp_path / "configs" / "qwen2.5-32b.yaml"
    mine.touch()
    site = tmp_path / "site.env"
    site.write_text("".join(f"{key}={value}\n" for key, value in SITE.items()))
    given = {
        "PATH": os.environ["PATH"],
        "DRY_RUN": "1",
        "NEMO_ADA_SITE": str(site),
        "PREFLIGHT": "0",
        "RUN_DIR": "here",
    }
    command = ["bash", str(ROOT / "slurm" / "train.sh"), str(mine.relative_to(tmp_path))]
    done = subprocess.run(
        command, env=given, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert f"nemo-ada train {mine} run_dir={tmp_path}/here " in done.stdout


# --- the beginning of a slot, and what ends a run ---


def begins(
    folder: Path, attempts: list[tuple[str, int]], shown: str = "exit 1", **variables: str
) -> subprocess.CompletedProcess[str]:
    """What slot 7_3 says. attempts: reason and last saved step at its start, one per attempt of this array."""
    (folder / "attempts").mkdir(exist_ok=True)
    lines = [f"7\t7_{n}\t0\t{saved}\t7_{n}\t9\t{reason}\tseen\n" for n, (reason, saved) in enumerate(attempts)]
    (folder / "attempts.tsv").write_text("".join(lines))
    return decision("begin", folder, **{"MAX_WITHOUT_STEP": "3", **slurm(folder, scontrol=shown), **variables})


def test_of_arrays_that_begin_at_the_same_time_one_trains_and_the_others_say_why_not(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    path = slurm(tmp_path, squeue="echo ${4%%,*}'|1|R'")
    with ThreadPoolExecutor(6) as pool:
        ask = [
            pool.submit(decision, "begin", tmp_path, ARRAY=n, SLOT=f"{n}_1", SLURM_ARRAY_JOB_ID=n, **path)
            for n in "123456"
        ]
    done = [one.result() for one in ask]
    assert sorted(one.returncode for one in done) == [0, 12, 12, 12, 12, 12], done
    owner = (tmp_path / "job").read_text().strip().partition("_")[0]
    assert sum(f"array {owner} has 1 slots in SLURM's queue" in one.stderr for one in done) == 5
    assert len(asked(tmp_path, "scancel")) == 5, "the arrays that cannot train take their slots back"


def test_a_slot_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    (tmp_path / "job").write_text("1_1\n")
    gone = f"n=$(grep -c squeue {tmp_path}/calls); [ $n -gt 2 ] || echo '1|1|CG'; echo '7|3|R'"
    done = decision("begin", tmp_path, **slurm(tmp_path, squeue=gone))
    assert done.returncode == 0 and "slot 1_1 has not ended yet; waiting for its end" in done.stderr
    assert (tmp_path / "job").read_text() == "7_3\n"


def test_two_slots_of_one_array_do_not_train_at_once(tmp_path: Path) -> None:
    """`--array=1-3` without %1. The slot says so to SLURM, and the others wait then."""
    (tmp_path / "attempts").mkdir()
    (tmp_path / "job").write_text("7_1\n")
    done = decision("begin", tmp_path, **slurm(tmp_path, squeue="echo '7|1|R'; echo '7|3|R'"))
    assert done.returncode == 12 and "a run has one at a time" in done.stderr
    assert asked(tmp_path, "scontrol", "update") == ["update JobId=7 ArrayTaskThrottle=1"]
    assert (tmp_path / "job").read_text() == "7_1\n" and not asked(tmp_path, "scancel")


@pytest.mark.parametrize(("saved", "goes_on"), [(0, False), (3, False), (4, True)])
def test_a_run_that_makes_steps_but_saves_no_new_one_ends(tmp_path: Path, saved: int, goes_on: bool) -> None:
    """Each attempt made more steps than the one before it."""
    control = JobControl(tmp_path, 99)
    if saved:
        control.status("running", saved)
        control.observe_save(1.0)
    control.status("running", 60)
    done = begins(tmp_path, [("own failure", min(saved, 3)), ("wall", min(saved, 3))], MAX_WITHOUT_STEP="2")
    assert (done.returncode == 0) == goes_on
    assert ("saved no step beyond" in done.stderr) != goes_on


@pytest.mark.parametrize(
    ("attempts", "goes_on"),
    [
        ([("own failure", 0), ("preempted", 0)], True),
        ([("preempted", 0), ("preempted", 0), ("preempted", 0)], False),
        ([("node lost", 0), ("", 0), ("no space", 0)], False),
        ([("wall", 0), ("wall", 0), ("wall", 0), ("wall", 5)], True),
        ([("wall", n) for n in range(60)], True),
        ([("wall", 0), ("asked", 4)], True),
    ],
)
def test_attempts_in_a_row_without_a_new_step_end_a_run_whatever_the_causes(
    tmp_path: Path, attempts: list[tuple[str, int]], goes_on: bool
) -> None:
    done = begins(tmp_path, attempts)
    assert (done.returncode == 0) == goes_on, done
    assert (tmp_path / "over").exists() != goes_on and bool(asked(tmp_path, "scancel")) != goes_on
    if not goes_on:
        again = begins(tmp_path, [], MAX_WITHOUT_STEP="50")
        assert again.returncode == 10 and "this run is over (no progress)" in again.stderr
        assert asked(tmp_path, "scancel") == ["--state=PENDING 7"] * 2, "a slot that was not cancelled in time"


def test_slots_that_are_too_short_for_a_step_say_what_to_ask_for(tmp_path: Path) -> None:
    assert "ask for more --time" in begins(tmp_path, [("wall", 0)] * 3).stderr
    (tmp_path / "over").unlink()
    assert "ask for more --time" not in begins(tmp_path, [("wall", 0), ("wall", 0), ("preempted", 0)]).stderr


def test_slots_without_a_step_start_apart_twice_as_long_each_time(tmp_path: Path) -> None:
    (tmp_path / "canary").touch()
    for count in range(1, 6):
        (tmp_path / "attempts.tsv").write_text("7\t7_1\t0\t0\t7_1\t9\tpreempted\tx\n" * count)
        decision("ended", tmp_path, MAX_WITHOUT_STEP="9", **slurm(tmp_path))
    said = re.findall(r"StartTime=now\+(\d+)", (tmp_path / "calls").read_text())
    assert said == ["600", "1200", "2400", "4800", "9600"]
    assert "JobId=7_[4,5]" in asked(tmp_path, "scontrol", "update")[0], "the slot that runs cannot be put off"


def test_a_run_whose_folder_is_gone_or_was_made_anew_does_not_begin_again(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    path = slurm(tmp_path)
    first = decision("begin", run, **path)
    assert first.returncode == 0 and first.stdout.startswith("1 "), first
    shutil.rmtree(run)
    gone = decision("begin", run, NEMO_ADA_CHECKED="1", **path)  # the submission had made it
    assert gone.returncode == 12 and "is gone: restore it" in gone.stderr and not run.exists()
    (run / "attempts").mkdir(parents=True)
    with log.open("w+") as file:  # the log of the array
        file.write("attempt 1 of array 7, slot 7_1 on 1 node(s): n1\n")
        file.flush()
        given = {"PATH": path["PATH"], "RUN_DIR": str(run), "ARRAY": "7", "SLOT": "7_3", "SLURM_ARRAY_JOB_ID": "7"}
        command = [sys.executable, str(ROOT / "slurm" / "slots.py"), "begin"]
        done = subprocess.run(command, env=given | {"LOG_TO": "1"}, stdout=file, check=False, timeout=PATIENCE)
    assert done.returncode == 12 and "is gone: restore it" in log.read_text()


@pytest.mark.parametrize(("older", "code"), [(True, 0), (False, 10)])
def test_a_stop_file_that_is_older_than_the_submission_does_not_end_it(tmp_path: Path, older: bool, code: int) -> None:
    (tmp_path / "STOP").touch()
    if older:
        os.utime(tmp_path / "STOP", (1, 1))
    when = "echo JobId=9 SubmitTime=2020-11-26T12:00:00"
    done = begins(tmp_path, [], when)
    assert done.returncode == code and not (tmp_path / "STOP").exists(), done
    assert (tmp_path / "over").exists() != older


def test_a_full_run_folder_leaves_its_slots_to_better_days(tmp_path: Path) -> None:
    """Nothing can be written down there, so the numbers of the slots say how long it has been so."""
    (tmp_path / "attempts").mkdir()
    full = "import os, runpy, sys\nfrom pathlib import Path\ndef no(*_): raise OSError(28, os.strerror(28))\n"
    full += "Path.write_bytes = no\nsys.argv = ['slots.py', 'begin']\n"
    full += f"runpy.run_path({str(ROOT / 'slurm/slots.py')!r}, run_name='__main__')"
    given = {"RUN_DIR": str(tmp_path), "ARRAY": "7", "SLOT": "7_3", "SLURM_ARRAY_JOB_ID": "7", "RETRY_SECONDS": "600",
             "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "1", **slurm(tmp_path)}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", full], env=given, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 11 and "no space" in done.stdout and "Traceback" not in done.stderr, done
    assert asked(tmp_path, "scontrol", "update") == ["update JobId=7_[4,5] StartTime=now+2400"]
    assert not asked(tmp_path, "scancel")


OUTCOMES = [
    # state in status.json, exit code of the driver, file that node.sh left -> how the attempt ended
    ("done", "0", None, "done"), ("stopped", "75", None, "stopped"), ("failed", "1", None, "failed"),
    ("running", "75", None, "stopped"), (None, "75", None, "stopped"),
    ("interrupted", "76", None, "interrupted"), ("interrupted", "77", None, "interrupted"),
    ("running", "1", None, "interrupted"), (None, "1", None, "failed"), (None, "2", None, "failed"),
    ("running", "0", None, "failed"), ("running", "137", None, "interrupted"), (None, None, None, "interrupted"),
    (None, None, "refused", "failed"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "code", "left", "outcome"), OUTCOMES)
def test_exit_75_goes_on_and_only_an_end_by_itself_is_a_failure(
    tmp_path: Path, state: str | None, code: str | None, left: str | None, outcome: str
) -> None:
    (tmp_path / "canary").touch()
    if state is not None:
        (tmp_path / "status.json").write_text(f'{{"state": "{state}", "step": 3}}')
    if code is not None:
        (tmp_path / "driver.exit").write_text(code)
    if left is not None:
        (tmp_path / left).touch()
    done = decision("ended", tmp_path, **slurm(tmp_path))
    assert f" ended: {outcome}, step" in done.stderr, done
    ends = outcome in ("done", "failed")
    assert (tmp_path / "over").exists() == ends and asked(tmp_path, "scancel") == ["--state=PENDING 7"] * ends


def test_the_state_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "done"}')
    os.utime(tmp_path / "status.json", (1, 1))
    (tmp_path / "canary").touch()
    assert "ended: interrupted" in decision("ended", tmp_path, **slurm(tmp_path)).stderr


def test_an_orphan_on_a_lost_node_ends_nothing(tmp_path: Path) -> None:
    """Its slot was given up by SLURM, and the next one trains."""
    (tmp_path / "canary").touch()
    (tmp_path / "status.json").write_text('{"state": "failed"}')
    (tmp_path / "job").write_text("7_4\n")
    done = decision("ended", tmp_path, **slurm(tmp_path))
    assert done.returncode == 1 and "slot 7_4 trains here now" in done.stderr
    assert not (tmp_path / "over").exists() and not (tmp_path / "calls").exists()


def test_the_reason_is_written_before_anything_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "canary").touch()
    (tmp_path / "status.json").write_text('{"state": "done"}')
    decision("ended", tmp_path, **slurm(tmp_path, other=f"cp {tmp_path}/over {tmp_path}/seen"))
    assert (tmp_path / "seen").read_text().split("\t")[::2] == ["7", "done"]


@pytest.mark.parametrize(
    ("content", "touched", "ours"),
    [("", False, False), ("enough\n", False, False), ("slurm: slot 7_3 is about to end\n", False, True),
     ("slurm: slot 7_3 is about to end\n", True, False)],
)  # fmt: skip
def test_a_stop_file_is_ours_only_if_it_says_so_and_nobody_has_touched_it(
    tmp_path: Path, content: str, touched: bool, ours: bool
) -> None:
    (tmp_path / "canary").touch()
    (tmp_path / "status.json").write_text('{"state": "stopped"}')
    if ours or touched:
        bash("SLOT=7_3 on_usr1", RUN_DIR=str(tmp_path))
        assert (tmp_path / "STOP").read_text() == content
    else:
        (tmp_path / "STOP").write_text(content)
    if touched:
        now = time.time() + 1
        os.utime(tmp_path / "STOP", (now, now))
    done = decision("ended", tmp_path, **slurm(tmp_path))
    assert ("a stop file that was not ours" in done.stderr) != ours, done
    assert (tmp_path / "over").exists() != ours


CAUSES = [
    # what the attempt left -> why it ended
    ({"node-n1.log": "error: run_dir=r is in use by 7 n3, and two runs must not share it; end"}, "lock"),
    ({"node-n1.log": "OSError: [Errno 28] No space left on device: 'x'"}, "no space"),
    ({"srun.log": "srun: error: Unable to create step for job 7: More processors requested"}, "own failure"),
    ({"term": ""}, "preempted"),
    ({"bad-n1": "nvidia-smi sees 7 GPUs", "srun.log": "srun: error: n1: task 0: Exited with exit code 1"}, "node lost"),
    ({"driver.exit": "1", "node-n1.log": "failed: no reward"}, "own failure"),
    ({}, "own failure"),
]


@pytest.mark.parametrize(("left", "reason"), CAUSES)
def test_each_attempt_says_why_it_ended(tmp_path: Path, left: dict[str, str], reason: str) -> None:
    path = slurm(tmp_path)
    number, folder = decision("begin", tmp_path, **path).stdout.split()
    for name, text in left.items():
        (Path(folder) / name).write_text(text)
    done = decision("ended", tmp_path, ATTEMPT_DIR=folder, **path)
    assert number == "1" and f"reason: {reason}\n" in done.stderr, done
    assert (tmp_path / "attempts.tsv").read_text().split("\t")[6] == reason


EXITED = "srun: error: n[2-3]: tasks 1-2: Exited with exit code 1"
DENIED = "slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied"


@pytest.mark.parametrize("begun", [(), ("n2",), ("n2", "n3")], ids=len)
def test_nodes_whose_step_ends_before_it_has_a_log_are_left_out(tmp_path: Path, begun: tuple[str, ...]) -> None:
    """As pyxis says it. What srun ends afterwards has no fault."""
    path = slurm(tmp_path, scontrol="if [ $2 = hostnames ]; then printf 'n2\\nn3\\n'; fi")
    folder = Path(decision("begin", tmp_path, **path).stdout.split()[1])
    killed = (
        "slurmstepd: error: *** STEP 3.0 ON n1 CANCELLED AT 2026 ***\nsrun: error: n4: task 3: Exited with exit code 15"
    )
    (folder / "srun.log").write_text(f"{DENIED}\n{EXITED}\n{killed}\n")
    for node in ("n1", *begun):
        (folder / f"node-{node}.log").touch()
    done = decision("ended", tmp_path, ATTEMPT_DIR=str(folder), NODE_NAMES="n1 n2 n3 n4", **path)
    left = {"n2", "n3"} - set(begun)
    assert set(re.findall(r"node (\S+) is unhealthy: its step did not begin: .*Permission denied", done.stderr)) == left
    assert (",".join(sorted(left)) in "".join(asked(tmp_path, "scontrol", "update"))) and ("n4" not in done.stderr)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("CANCELLED", "asked"),
        ("PREEMPTED", "preempted"),
        ("TIMEOUT", "wall"),
        ("NODE_FAIL", "node lost"),
        ("FAILED", "killed"),
        ("", "wall"),
    ],
)
def test_an_attempt_whose_script_was_killed_gets_slurms_word_from_the_next(
    tmp_path: Path, state: str, reason: str
) -> None:
    """Where SLURM has forgotten the slot, its accounts know it."""
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts.tsv").write_text("7\t7_2\t1\t0\t7_2\n")
    shown = f"echo JobId=$5 JobState={state} Reason=None" if state else "exit 1"
    done = decision("begin", tmp_path, **slurm(tmp_path, scontrol=shown, other="echo 'TIMEOUT'"))
    assert done.returncode == 0, done
    line = (tmp_path / "attempts.tsv").read_text().splitlines()[0].split("\t")
    assert line[6] == reason and f"SLURM says {state or 'TIMEOUT'}" in line[7]


# --- the node's side ---


def node(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run node.sh as the only node of a job whose driver prints where nemo_ada comes from."""
    (folder / "checkout" / "nemo_ada").mkdir(parents=True, exist_ok=True)
    (folder / "checkout" / "nemo_ada" / "__init__.py").touch()
    (folder / "checkout" / "slurm").mkdir(exist_ok=True)
    shutil.copy(ROOT / "slurm" / "health.py", folder / "checkout" / "slurm")
    (folder / "driver.py").write_text(
        "import nemo_ada, resource, os\nprint('code:', nemo_ada.__file__)\n"
        "print('files:', resource.getrlimit(resource.RLIMIT_NOFILE)[0], 'threads:', os.environ.get('OMP_NUM_THREADS'),"
        " 'uv:', os.environ.get('UV_CACHE_DIR'))\n"
        f"open({str(folder / 'driven')!r}, 'w').close()\n"
    )
    (folder / "canary").touch()
    values = {
        "PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", "NODE_NAMES": "n1",
        "ATTEMPT_DIR": str(folder), "RUN_DIR": str(folder), "NEMO_ADA_HOME": str(folder / "checkout"),
        "NODE_SETUP": "", "RAY_START": "0", "RAY_PORT": "9900", "SHARED_SECONDS": "1", "CONFIG": "x.yaml",
        "LAUNCH": f"{sys.executable} {folder / 'driver.py'}", "PYTHON": sys.executable, "HEALTH": "0",
        "HEALTH_SECONDS": str(int(PATIENCE)), "MIN_TMP_GIB": "0", **variables,
    }  # fmt: skip
    command = ["bash", str(ROOT / "slurm" / "node.sh")]
    return subprocess.run(command, env=values, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_the_nodes_run_the_checkouts_code_with_ample_open_files_and_no_foreign_cache(tmp_path: Path) -> None:
    done = node(tmp_path, OMP_NUM_THREADS="16", UV_CACHE_DIR="/of/the/login/node")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "node-n1.log").read_text()
    assert f"code: {tmp_path}/checkout/nemo_ada/__init__.py" in log
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 65535 if limit == resource.RLIM_INFINITY else min(limit, 65535)
    assert f"files: {wanted} threads: 16 uv: None" in log


NVIDIA_SMI = """
state=before
[ ! -e {folder}/driven ] || state=after
case $1 in
  -L) for gpu in 0 1 2 3 4 5 6 7; do {listed}; done ;;
  *compute_mode*) echo "{mode}" ;;
  *remapped*) {new} ;&
  *) for gpu in 0 1 2 3 4 5 6 7; do
      counters="0, 0, No, No"
      [ $gpu != 3 ] || counters=$(if [ $state = before ]; then echo "{before}"; else echo "{after}"; fi)
      echo "GPU-$gpu, {held}, $counters"
    done ;;
esac
"""
USUAL = {
    "listed": 'echo "GPU $gpu: H100"', "held": "3", "before": "0, 0, No, No", "after": "0, 0, No, No", "xid": "quiet",
    "new": "true", "tmp": "0", "mode": "Default",
}  # fmt: skip


def checked_node(folder: Path, fault: dict[str, str]) -> tuple[int, str, dict[str, Any]]:
    """Run a node with a stand-in nvidia-smi: its exit code, its cause to be left out, and what was judged."""
    text = NVIDIA_SMI.replace("{folder}", str(folder))
    for name, usual in USUAL.items():
        text = text.replace("{" + name + "}", fault.get(name, usual))
    links = f'case $2 in links) exit ;; esac; exec {sys.executable} "$@"'
    path = programs(folder, nvidia_smi=text, dmesg=f"echo '{fault.get('xid', 'quiet')}'", python=links)
    settings = {"HEALTH": "1", "GPUS_PER_NODE": "8", "STARTED": str(int(time.time())), "PYTHON": "python"}
    done = node(folder, MIN_TMP_GIB=fault.get("tmp", "0"), **settings, **path)
    bad = folder / "bad-n1"
    judged = json.loads((folder / "judged-n1").read_text())
    return done.returncode, bad.read_text() if bad.exists() else "", judged


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({}, ""),
        ({"listed": '[ $gpu = 3 ] || echo "GPU $gpu: H100"'}, "nvidia-smi sees 7 GPUs, cluster.gpus_per_node is 8"),
        ({"held": "40000"}, "GPU 0 already holds 40000 MiB"),
        ({"held": "[N/A]"}, ""),
        ({"mode": "Exclusive_Process"}, "GPUs are in Exclusive_Process, and vLLM and a learner share each"),
        ({"xid": "[99999999.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."}, "fatal GPU error"),
        ({"xid": "[    1.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, of another job, long ago"}, ""),
        ({"xid": "[99999999.5] NVRM: Xid (PCI:0000:3b:00): 94, pid=1, contained"}, ""),
        ({"xid": '[99999999.5] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU fault of a user"s program'}, ""),
        ({"tmp": "999999999"}, "MIN_TMP_GIB is 999999999"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_unhealthy_node_is_named_before_ray_starts(tmp_path: Path, fault: dict[str, str], cause: str) -> None:
    code, found, judged = checked_node(tmp_path, fault)
    assert cause in found and bool(found) == bool(cause)
    assert (code == 0) == (not cause) == (tmp_path / "driven").exists(), (tmp_path / "node-n1.log").read_text()
    assert len(judged["before"]) == 8, "the record says what was judged"


@pytest.mark.parametrize(
    ("before", "after", "cause", "said"),
    [
        ("0, 0, No, No", "0, 0, No, No", "", []),
        ("5, 2, Yes, Yes", "5, 2, Yes, Yes", "", []),
        (
            "5, 2, No, No",
            "6, 3, Yes, No",
            "",
            ["GPU 3: 1 uncorrected ECC errors in this job's time, 1 rows remapped: "],
        ),
        ("5, 2, No, No", "7, 2, No, No", "GPU 3 counted 2 uncorrected ECC errors in this job's time", []),
        ("5, 2, No, No", "6, 3, Yes, Yes", "GPU 3 could not remap a row of its memory in this job's time", []),
        ("0, 0, 0, 0", "1, 1, 1, 1", "GPU 3 could not remap", []),
        ("7, 0, No, No", "0, 0, No, No", "", []),
        ("7, 0, No, No", "2, 0, No, No", "GPU 3 counted 2 uncorrected", []),
        ("[N/A], [N/A], [N/A], [N/A]", "[N/A], [N/A], [N/A], [N/A]", "", []),
    ],
    ids=[
        "none",
        "old",
        "contained",
        "not contained",
        "no row left",
        "numbers",
        "reset",
        "after a reset",
        "not counted",
    ],
)
def test_only_errors_of_this_jobs_time_that_were_not_contained_take_a_node_out(
    tmp_path: Path, before: str, after: str, cause: str, said: list[str]
) -> None:
    code, found, judged = checked_node(tmp_path, {"before": before, "after": after})
    assert code == 0, "the run has ended before the counters are judged"
    assert found.startswith(cause) and bool(found) == bool(cause), judged
    assert [line[: len(said[0])] for line in judged["said"]] == said
    assert judged["before"].keys() == judged["after"].keys()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"new": "exit 2", "after": "2, 0, No, No"}, "GPU 3 counted 2 uncorrected ECC errors"),
        ({"listed": '[ $state$gpu = after3 ] || echo "GPU $gpu"'}, "nvidia-smi saw 8 GPUs before the run and sees 7"),
    ],
    ids=["a driver that knows no remapped rows", "a lost GPU"],
)
def test_a_gpu_that_answers_less_after_the_run_is_judged_by_what_it_answers(
    tmp_path: Path, fault: dict[str, str], cause: str
) -> None:
    _, found, judged = checked_node(tmp_path, fault)
    assert found.startswith(cause) and bool(found) == bool(cause), judged


def test_a_contained_error_is_said_and_a_finished_run_is_done_on_whatever_node(tmp_path: Path) -> None:
    (tmp_path / "canary").touch()
    (tmp_path / "status.json").write_text('{"state": "done", "step": 3, "max_steps": 3}')
    (tmp_path / "judged-n2").write_text('{"said": ["GPU 3: 1 uncorrected ECC errors: contained"]}')
    (tmp_path / "bad-n1").write_text("GPU 0 counted 2 uncorrected ECC errors")
    done = decision("ended", tmp_path, **slurm(tmp_path))
    assert "ended: done, step 3 of 3" in done.stderr and done.returncode == 0
    assert "node n2: GPU 3: 1 uncorrected ECC errors: contained" in done.stderr


@pytest.mark.slow  # each node imports torch
def test_an_all_reduce_adds_over_the_nodes_and_names_one_that_does_not_come(tmp_path: Path) -> None:
    def start(rank: int, *nodes: str, seconds: int = int(PATIENCE)) -> subprocess.Popen[str]:
        environment = {
            "GLOO_SOCKET_IFNAME": "lo", "NODE_NAMES": " ".join(nodes), "SLURM_NODE": nodes[rank],
            "ATTEMPT_DIR": str(tmp_path), "HEALTH_SECONDS": str(seconds),
        }  # fmt: skip
        command = [sys.executable, str(ROOT / "slurm" / "health.py"), "links", "127.0.0.1"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment)

    both = [start(rank, "n1", "n2") for rank in (0, 1)]
    said = [process.communicate(timeout=PATIENCE)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0] and "over 2 node(s) by gloo: right" in said[0]
    alone = start(0, "n1", "n2", seconds=3)
    assert "n2 did not come" in alone.communicate(timeout=PATIENCE)[0] and alone.returncode == 1
    assert (tmp_path / "bad-n2").exists() and not (tmp_path / "bad-n1").exists()


def left_out(folder: Path, bad: dict[str, str], nodes: str) -> tuple[str, list[str]]:
    """What is said and asked of SLURM after a slot of `nodes` in which the `bad` ones gave a cause.

    n5 is left out already. The user has left out n6, n8 and n9, and asked for n2.
    """
    for name, cause in bad.items():
        (folder / f"bad-{name}").write_text(f"{cause}\n")
    (folder / "attempts.tsv").write_text("7\t7_2\t0\t0\n7\t7_3\t0\t0\t" + folder.name + "\n")
    (folder / "left_out.tsv").write_text("7\t7_2\tn5\tsees 7 GPUs\n")
    shown = "if [ $2 = job ]; then echo JobId=9 ReqNodeList=n2 ExcNodeList=n6,n[8-9] NodeList=n1; fi"
    done = decision("ended", folder, NODE_NAMES=nodes, **slurm(folder, scontrol=shown))
    return done.stderr, asked(folder, "scontrol", "update")


def test_unhealthy_nodes_are_left_out_beside_the_users_own(tmp_path: Path) -> None:
    said, updates = left_out(tmp_path, {"n2": "nvidia-smi sees 7 GPUs"}, "n1 n2")
    assert "ended: unhealthy" in said and "node n2 is unhealthy: nvidia-smi sees 7 GPUs" in said
    assert updates == [
        *(f"update JobId=7_{slot} ReqNodeList=" for slot in (4, 5)),
        "update JobId=7_[4,5] StartTime=now+1200 ExcNodeList=n6,n[8-9],n5,n2",
    ]
    assert (tmp_path / "attempts.tsv").read_text().splitlines()[1].split("\t")[6] == "node lost"


def test_a_cause_that_every_node_of_the_job_gives_condemns_none(tmp_path: Path) -> None:
    said, updates = left_out(tmp_path, {"n1": "/tmp has 3 GiB", "n2": "/tmp has 5 GiB"}, "n1 n2")
    assert "every node of the job gives the same cause" in said
    assert updates == ["update JobId=7_[4,5] StartTime=now+1200"]


@pytest.mark.parametrize(
    ("facts", "logged", "reason"),
    [
        ("JobState=COMPLETING PreemptTime=None", "", "asked"),
        ("JobState=COMPLETING PreemptTime=2026-11-28T01:30:00", "", "preempted"),
        ("JobState=RUNNING PreemptTime=2026-11-28T01:30:00", "*** STEP 7.0 ON n1 CANCELLED AT 2026 ***", "preempted"),
        ("JobState=RUNNING PreemptTime=None", "", "preempted"),
        ("", "*** STEP 7.0 ON n1 CANCELLED AT 2026 ***", "asked"),
        ("", "*** STEP 7.0 ON n1 CANCELLED AT 2026 DUE TO PREEMPTION ***", "preempted"),
        ("JobState=COMPLETING", "*** STEP 7.0 ON n1 CANCELLED AT 2026 DUE TO NODE FAILURE ***", "node lost"),
        ("JobState=COMPLETING", "*** STEP 7.0 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***", "wall"),
    ],
)
def test_slurm_itself_says_whether_the_user_ends_the_job_wherever_its_log_goes(
    tmp_path: Path, facts: str, logged: str, reason: str
) -> None:
    (tmp_path / "srun.log").write_text(logged)
    path = slurm(tmp_path, scontrol=f"echo JobId=9 {facts}" if facts else "exit 1")
    assert decision("term", tmp_path, **path).stdout == f"{reason}\n"


@pytest.mark.parametrize(("cpus", "wanted"), [("72(x2),36", "36"), ("8", "8"), ("4,16(x3)", "4")])
def test_a_step_over_unequal_nodes_asks_for_what_the_smallest_has(cpus: str, wanted: str) -> None:
    program = "NODES=(a b); HOME_DIR=/p; INSIDE=0 RUNTIME=none; step_command; echo ${STEP[@]}"
    done = bash(program, SLURM_JOB_CPUS_PER_NODE=cpus, SLURM_CPUS_ON_NODE="72", RUN_DIR="/r")
    assert f"--cpus-per-task={wanted} " in done.stdout, done


def test_what_the_users_shell_exports_under_our_names_is_not_meant_for_us(tmp_path: Path) -> None:
    names = re.search(r"unset (ANSWER.*?TOOL)\n", (ROOT / "slurm" / "lib.sh").read_text(), re.S)
    assert names is not None
    foreign = dict.fromkeys(names[1].replace("\\\n", " ").split(), "x")
    plain = script(tmp_path, DRY_RUN="1")
    assert plain.returncode == 0 and script(tmp_path, DRY_RUN="1", **foreign).stdout == plain.stdout


def test_the_decisions_need_no_more_than_python_3_6(tmp_path: Path) -> None:
    """A batch host may have nothing newer."""
    for name in ("shared.py", "slots.py", "submission.py"):
        ast.parse((ROOT / "slurm" / name).read_text(), feature_version=(3, 6))
    command = [sys.executable, "-I", "-S", str(ROOT / "slurm" / "slots.py"), "stalled"]
    done = subprocess.run(command, env={"RUN_DIR": str(tmp_path), "ATTEMPT_DIR": str(tmp_path)}, timeout=PATIENCE)
    assert done.returncode == 0, "no package is imported"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"7\t1\n", b"[" * 200_000, b"7\t1\t0\t3\n\xff\n"])
def test_damaged_files_of_a_run_end_nothing_without_a_reason(tmp_path: Path, content: bytes) -> None:
    for name in ("attempts.tsv", "job", "left_out.tsv", "pace.json", "status.json", "STOP.ours"):
        (tmp_path / name).write_bytes(content)
    path = slurm(tmp_path, squeue="true", scontrol="exit 1")
    first = decision("begin", tmp_path, MAX_WITHOUT_STEP="50", **path)
    assert first.returncode == 0, first
    for name in ("stalled", "term", "ended"):
        done = decision(name, tmp_path, MAX_WITHOUT_STEP="50", ATTEMPT_DIR=first.stdout.split()[1], **path)
        assert "Traceback" not in done.stderr, done
    assert not asked(tmp_path, "scancel")


RAY_OF_N1 = """
import os, subprocess, sys, ray
address = ray.init(resources={"slurm_node:n1": 1}, include_dashboard=False, log_to_driver=False).address_info["address"]
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], env=os.environ | {"RAY_ADDRESS": address}).returncode)
"""


@pytest.mark.slow  # two processes start Ray
def test_the_wait_for_ray_ends_at_once_when_all_nodes_are_there_and_names_the_others() -> None:
    pytest.importorskip("ray")

    def wait(seconds: float, *nodes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", RAY_OF_N1, str(ROOT / "slurm" / "wait_for_nodes.py"), str(seconds), *nodes]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert wait(PATIENCE, "n1").returncode == 0
    absent = wait(1.0, "n1", "n2")
    assert absent.returncode == 1 and absent.stderr.splitlines()[-1].endswith("sbatch --exclude=n2")
