"""slurm/lib.sh and node.sh by their functions and with stand-ins for sbatch and nemo-ada; no SLURM is needed.

1. The watchdog gives a start START_SECONDS and an attempt that has made a step STALL_SECONDS.
2. The environment wins over site.env, whatever its form, and only what it brought reaches the job.
3. sbatch's options may stand anywhere; nodes that do not fit the configuration and errors of the check are refused.
4. Attempts in a row that save no new step end a chain, whatever their causes; a stop file is ours only if it says so.
5. The nodes run the checkout's code.
6. Nothing is submitted unchecked by accident; inside another job the script asks where to train.
7. An unhealthy node is named and left out of the next job.
"""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.run.job_control import JobControl
from tests.patience import PATIENCE
from tests.slurm.test_dry_run import call

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SITE = {"CONTAINER": "", "NEMO_RL_HOME": "/opt/nemo-rl", "RUN_ROOT": "/shared/runs"}
RECIPE_4N = "configs/qwen2.5-32b.yaml"


def bash(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program after lib.sh was read."""
    environment = {"PATH": os.environ["PATH"], **variables}
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


def answers(folder: Path, *texts: str) -> dict[str, str]:
    """A PATH with a scontrol that fails with these texts, one per call, and then succeeds."""
    for number, text in enumerate(texts):
        (folder / f"answer{number}").write_text(text + "\n")
    scontrol = (
        f"printf x >>{folder}/calls\nn=$(($(wc -c <{folder}/calls) - 1))\n"
        f"if [ -e {folder}/answer$n ]; then cat {folder}/answer$n >&2; exit 1; fi"
    )
    return programs(folder, scontrol=scontrol) | {"AGAIN_SECONDS": "0"}


def test_whatever_slurm_says_it_is_asked_again(tmp_path: Path) -> None:
    texts = ("error: Unspecified error", "error: Munge encode failed", "error: Socket timed out on send/recv operation")
    done = bash("again 0 scontrol requeue 7 && echo went on", **answers(tmp_path, *texts))
    assert done.stdout.splitlines()[-1] == "went on", done.stderr
    assert (tmp_path / "calls").read_text() == "xxxx"


def test_what_need_not_succeed_is_asked_for_a_few_times(tmp_path: Path) -> None:
    done = bash("again 2 scontrol requeue 7 || echo gave up", **answers(tmp_path, *["error: I/O error"] * 9))
    assert "gave up" in done.stdout and (tmp_path / "calls").read_text() == "xx"


def test_no_answer_is_not_taken_for_a_no(tmp_path: Path) -> None:
    """A job whose state SLURM does not tell is neither evicted nor followed by a second one."""
    variables = {"SLURM_JOB_ID": "7", "RUN_DIR": str(tmp_path), "SCRIPT": "train.sh", "ANSWER_SECONDS": "1"}
    ask = "code=0; decide waiting || code=$?; echo $code"
    failing = programs(tmp_path, squeue=f"printf x >>{tmp_path}/calls; exit 1")
    assert bash(ask, **variables, **failing).stdout == "2\n" and (tmp_path / "calls").read_text() == "xx"
    assert bash(ask, **variables, **programs(tmp_path, squeue="true")).stdout == "1\n", "nobody waits"
    line = "8|afterany:7(unfulfilled)|/project/slurm/train.sh"
    assert bash(ask, **variables, **programs(tmp_path, squeue=f"echo '{line}'")).stdout == "0\n"
    (tmp_path / "jobs.tsv").unlink()
    assert bash(ask, **variables, **programs(tmp_path, squeue=f"echo '{line.replace(':7', ':77')}'")).stdout == "1\n"
    begun = programs(tmp_path, squeue=f"echo '{line.replace('afterany:7(unfulfilled)', '(null)')}'")
    assert bash(ask, **variables, **begun).stdout == "1\n"
    (tmp_path / "jobs.tsv").write_text("7\t7\t-\t1\n7\t8\t7\t1\n")
    assert bash(ask, CHAIN="7", **variables, **begun).stdout == "0\n", "on a lost node the script outlives its job"


SHOWN = 'if [ "$2" = job ]; then echo "JobId=7 EndTime={end} Deadline=N/A"; else {config}; fi'


def test_times_are_read_whatever_format_the_users_shell_asks_slurm_for(tmp_path: Path) -> None:
    when = '$(if [ "$SLURM_TIME_FORMAT" = standard ]; then echo 2026-11-26T12:00:00; else echo "26 Nov"; fi)'
    path = programs(tmp_path, scontrol=SHOWN.format(end=when, config="exit 1"))
    variables = {"SLURM_JOB_ID": "7", "SLURM_TIME_FORMAT": "%d %b", "TZ": "UTC", "ANSWER_SECONDS": "1"}
    done = bash("decide job-end; echo $ANSWER", **variables, **path)
    assert done.stdout.strip() == "1795694400", done.stderr


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
    done = bash("decide job-end; echo $((ANSWER - $(date +%s)))", SLURM_JOB_ID="7", **path)
    *said, left = done.stdout.splitlines()
    assert abs(int(left) - 3600) <= PATIENCE and ["s ahead of the controller's" in line for line in said] == [
        True
    ] * bool(ahead)
    programs(tmp_path, scontrol="echo JobId=7 EndTime=Unknown Deadline=N/A")
    assert bash("decide job-end; echo $ANSWER.", SLURM_JOB_ID="7", **path).stdout == ".\n", "a job without a limit"


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
    "plain": "REQUEUE=requeue\nMAX_WITHOUT_STEP=50\n",
    "export": "export REQUEUE=requeue MAX_WITHOUT_STEP=50\n",
    "declare": 'declare -gx REQUEUE="requeue"\nMAX_WITHOUT_STEP=$((25 * 2))\n',
}


@pytest.mark.parametrize("form", FORMS)
def test_the_environment_wins_over_site_env(tmp_path: Path, form: str) -> None:
    text = "".join(f"{key}={value}\n" for key, value in SITE.items()) + FORMS[form] + "PATH=/site/bin:$PATH\n"
    given = {"REQUEUE": "none", "MAX_WITHOUT_STEP": "3", "RUN_ROOT": "/tmp/xyz", "DRY_RUN": "1"}
    done = script(tmp_path, site=text, **given)
    assert done.returncode == 0, done.stderr
    assert "from the environment, not from" in done.stdout and "MAX_WITHOUT_STEP REQUEUE RUN_ROOT" in done.stdout
    assert "attempt 1 of this chain" in done.stdout and "REQUEUE=none: submit" in done.stdout
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
    inside = f"read_site {tmp_path}/site.env >&2; echo $NEMO_RL_HOME"
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


# --- arguments ---


def test_options_of_sbatch_may_stand_anywhere_and_go_in_front_of_the_script(tmp_path: Path) -> None:
    done = script(tmp_path, "--qos=high", "grpo.seed=1", "--mem=0", "~a.b", "-Apayer", DRY_RUN="1")
    assert done.returncode == 0, done.stderr
    output = "--output=/shared/runs/qwen2.5-math-7b/attempts/slurm-%x-%j.log"
    options = f"--parsable --export=ALL --chdir=/shared/runs/qwen2.5-math-7b {output} --qos=high --mem=0 -Apayer"
    assert f"+ sbatch {options} {ROOT}/slurm/train_7b_ada.sh grpo.seed=1 \\~a.b" in done.stdout
    assert "resume=auto grpo.seed=1 \\~a.b\n" in done.stdout


# --- nodes and the check before submission ---


def test_the_check_judges_the_nodes_gpus_and_time_that_the_job_asks_for(tmp_path: Path) -> None:
    done = script(tmp_path, DRY_RUN="1")
    assert "+ nemo-ada check --no-verifier --time=04:00:00 --nodes=1 --gpus-per-node=8 " in done.stdout
    done = script(tmp_path, "-N2", "--gpus-per-node=h100:4", "-t60", DRY_RUN="1")
    assert "+ nemo-ada check --no-verifier --time=60 --nodes=2 --gpus-per-node=h100:4 " in done.stdout


def test_a_direct_sbatch_checks_its_nodes_before_the_driver(tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text(f"nemo-ada() {{ echo $* >{tmp_path}/checked; return 2; }}\n")
    done = node(tmp_path, NODE_SETUP=str(tmp_path / "setup.sh"), CHECK_FIRST="1")
    assert done.returncode == 1
    assert (tmp_path / "checked").read_text().startswith("check --no-verifier --nodes=1 x.yaml run_dir=")


def test_a_chain_finds_the_same_yamls_again(tmp_path: Path) -> None:
    """All YAMLs are words of the script in every job. A CONFIG of the shell does not count beside them."""
    methods = f"{ROOT}/configs/methods"
    words = ("configs/qwen2.5-math-7b.yaml", "grpo.seed=1", "configs/methods/grpo8.yaml", "configs/methods/fp8.yaml")
    site = "".join(f"{key}={value}\n" for key, value in SITE.items()) + "REQUEUE=resubmit\n"
    done = script(tmp_path, *words, name="train.sh", site=site, DRY_RUN="1", PREFLIGHT="0", CONFIG="a.yaml")
    assert done.returncode == 0, done.stderr
    submitted = [line for line in done.stdout.splitlines() if line.startswith("+ sbatch")]
    first = f"{ROOT}/configs/qwen2.5-math-7b.yaml"
    layers = f"{ROOT}/slurm/train.sh {first} {methods}/grpo8.yaml {methods}/fp8.yaml grpo.seed=1"
    assert len(submitted) == 2 and all(line.endswith(layers) for line in submitted)
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


# --- what ends a chain ---


def claims(folder: Path, *jobs: str, squeue: str) -> list[subprocess.Popen[str]]:
    """Jobs that ask at the same time to train in a folder. squeue: what SLURM says about the jobs $4."""
    (folder / "attempts").mkdir(exist_ok=True)
    path = programs(folder, squeue=squeue)
    environment = {"RUN_DIR": str(folder), "RETRY_SECONDS": "600", **path}
    path["ANSWER_SECONDS"] = "1"
    command = [sys.executable, str(ROOT / "slurm" / "chain.py"), "claim"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [subprocess.Popen(command, env={**environment, "SLURM_JOB_ID": job}, **pipes) for job in jobs]


def test_of_jobs_that_start_at_the_same_time_one_trains_and_the_others_say_why_not(tmp_path: Path) -> None:
    running = claims(tmp_path, *"123456", squeue="echo ${4%,*}'|R'")
    said = [process.communicate(timeout=PATIENCE)[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 2, 2, 2, 2, 2]
    owner = (tmp_path / "job").read_text().strip()
    assert sum(f"job {owner} still runs in {tmp_path}" in text for text in said) == 5


def test_a_job_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("1\n")
    (process,) = claims(tmp_path, "2", squeue=f"[ -e {tmp_path}/gone ] || echo '1|CG'; echo '2|R'")
    assert process.stdout is not None and "waiting for its end" in process.stdout.readline()
    assert (tmp_path / "job").read_text() == "1\n"
    (tmp_path / "gone").touch()
    assert process.wait(PATIENCE) == 0 and (tmp_path / "job").read_text() == "2\n"


@pytest.mark.parametrize(("saved", "goes_on"), [(0, False), (3, False), (4, True)])
def test_a_chain_that_makes_steps_but_saves_no_new_one_ends(tmp_path: Path, saved: int, goes_on: bool) -> None:
    """Each attempt made more steps than the one before it."""
    control = JobControl(tmp_path, 99)
    if saved:
        control.status("running", saved)
        control.observe_save(1.0)
    control.status("running", 60)
    done = begins(tmp_path, [("own failure", min(saved, 3)), ("wall", min(saved, 3))], MAX_WITHOUT_STEP="2")
    assert ("trains\n" in done.stdout) == goes_on
    assert ("saved no step beyond" in done.stdout) != goes_on


def begins(folder: Path, attempts: list[tuple[str, int]], **variables: str) -> subprocess.CompletedProcess[str]:
    """What the next job of a chain says. attempts: reason and last saved step at its start, one per attempt."""
    (folder / "attempts").mkdir(exist_ok=True)
    lines = [f"c\t{n}\t0\t{saved}\t{n}-0\t9\t{reason}\tseen\n" for n, (reason, saved) in enumerate(attempts)]
    (folder / "attempts.tsv").write_text("".join(lines))
    given = {"RUN_DIR": str(folder), "CHAIN": "c", "NEMO_ADA_CHAIN": "c", "SLURM_JOB_ID": "99", "NEMO_ADA_AFTER": "98"}
    given |= programs(folder, scontrol="exit 1") | {"MAX_WITHOUT_STEP": "3", "ANSWER_SECONDS": "1"}
    return bash("decide begin && echo trains", **{**given, **variables})


@pytest.mark.parametrize(
    ("attempts", "goes_on"),
    [
        ([("own failure", 0), ("preempted", 0)], True),
        ([("preempted", 0), ("preempted", 0), ("preempted", 0)], False),
        ([("node lost", 0), ("", 0), ("no space", 0)], False),
        ([("wall", 0), ("wall", 0), ("wall", 0), ("wall", 5)], True),
        ([("wall", n) for n in range(60)], True),
        ([("wall", 0), ("asked", 4)], False),
    ],
)
def test_attempts_in_a_row_without_a_new_step_end_a_chain_whatever_the_causes(
    tmp_path: Path, attempts: list[tuple[str, int]], goes_on: bool
) -> None:
    done = begins(tmp_path, attempts)
    assert ("trains\n" in done.stdout) == goes_on, done
    lines = (tmp_path / "jobs.tsv").read_text().splitlines()
    assert ("\tover\t" in lines[-1]) != goes_on
    if not goes_on:
        again = begins(tmp_path, [], MAX_WITHOUT_STEP="50")
        assert "this chain is over" in again.stdout and "trains\n" not in again.stdout, (
            "a job that was not cancelled in time"
        )


def test_attempts_without_a_step_start_apart_twice_as_long_each_time(tmp_path: Path) -> None:
    delays = []
    for count in range(1, 6):
        begins(tmp_path, [("preempted", 0)] * count)
        done = bash("decide options; echo $ANSWER", RUN_DIR=str(tmp_path), CHAIN="c", SLURM_JOB_ID="9", DRY_RUN="1",
                    RETRY_SECONDS="600")  # fmt: skip
        delays += re.findall(r"--begin=now\+(\d+)", done.stdout)
    assert delays == ["600", "1200", "2400", "4800"]


def test_a_job_that_is_not_the_chains_or_whose_folder_is_gone_does_not_train(tmp_path: Path) -> None:
    begins(tmp_path, [])
    (tmp_path / "jobs.tsv").write_text("c\t98\t-\t1\nc\t100\t98\t2\n")
    assert "job 100 is the chain's, not this one" in begins(tmp_path, []).stdout
    (tmp_path / "jobs.tsv").write_text("d\t98\t-\t1\n")
    assert "another chain" in begins(tmp_path, []).stdout
    (tmp_path / "jobs.tsv").write_text("c\t98\t-\t1\nc\t99\t98\t2\n")
    assert begins(tmp_path, []).stdout == "trains\n"
    (tmp_path / "attempts").rmdir()
    gone = bash("decide begin || echo $?", RUN_DIR=str(tmp_path), CHAIN="c", NEMO_ADA_CHAIN="c", SLURM_JOB_ID="99")
    assert gone.stdout == "2\n" and "is gone: restore it" in gone.stderr


OUTCOMES = [
    # state in status.json, exit code of the driver, file that node.sh left -> what the chain does
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
    done = bash("decide ended", RUN_DIR=str(tmp_path), ATTEMPT_DIR=str(tmp_path))
    assert f" ended: {outcome}, step" in done.stdout, done


def test_the_state_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"state": "done"}')
    os.utime(tmp_path / "status.json", (1, 1))
    (tmp_path / "canary").touch()
    assert "ended: interrupted" in bash("decide ended", RUN_DIR=str(tmp_path), ATTEMPT_DIR=str(tmp_path)).stdout


@pytest.mark.parametrize(
    ("content", "ours"), [("", False), ("enough\n", False), ("slurm: job 3 is about to end\n", True)]
)
def test_a_stop_file_is_ours_only_if_it_says_so(tmp_path: Path, content: str, ours: bool) -> None:
    assert "user" not in bash("users_stop && echo user", RUN_DIR=str(tmp_path)).stdout
    (tmp_path / "STOP").write_text(content)
    assert ("user" in bash("users_stop && echo user", RUN_DIR=str(tmp_path)).stdout) != ours


def test_a_touch_makes_our_stop_file_the_users(tmp_path: Path) -> None:
    ask = "SLURM_JOB_ID=3 on_usr1 >&2; users_stop && echo user; sleep 0.05; "
    assert bash(ask + "on_usr1; users_stop && echo user", RUN_DIR=str(tmp_path)).stdout == ""
    (tmp_path / "STOP").unlink()
    assert bash(ask + "touch $RUN_DIR/STOP; users_stop && echo user", RUN_DIR=str(tmp_path)).stdout == "user\n"


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
    folder = tmp_path / "attempts" / "7-0"
    folder.mkdir(parents=True)
    for name, text in {"canary": "7", **left}.items():
        (folder / name).write_text(text)
    given = {"RUN_DIR": str(tmp_path), "ATTEMPT_DIR": str(folder), "CHAIN": "7", "SLURM_JOB_ID": "7", "STARTED": "1"}
    given["NEMO_ADA_OPTIONS"] = "--nodes=1"
    done = bash("NODES=(n1); decide record; echo $ANSWER; decide ended", MAX_WITHOUT_STEP="4", **given)
    assert done.stdout.startswith("1\n") and f"reason: {reason}\n" in done.stdout, done
    assert (tmp_path / "attempts.tsv").read_text().split("\t")[6] == reason


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("CANCELLED", "asked"),
        ("PREEMPTED", "preempted"),
        ("TIMEOUT", "wall"),
        ("NODE_FAIL", "node lost"),
        ("", "node lost"),
    ],
)
def test_an_attempt_whose_script_was_killed_gets_its_reason_from_the_next(
    tmp_path: Path, state: str, reason: str
) -> None:
    (tmp_path / "attempts" / "7-0").mkdir(parents=True)
    (tmp_path / "attempts.tsv").write_text("7\t7\t1\t0\t7-0\n")
    path = programs(tmp_path, scontrol=f"echo JobId=$5 JobState={state} Reason=None" if state else "exit 1")
    given = {"RUN_DIR": str(tmp_path), "CHAIN": "7", "NEMO_ADA_CHAIN": "7", "NEMO_ADA_AFTER": "7", "SLURM_JOB_ID": "8"}
    done = bash("decide begin && echo trains", **given, **path, MAX_WITHOUT_STEP="9", ANSWER_SECONDS="1")
    assert ("trains\n" in done.stdout) == (reason != "asked"), done
    assert (tmp_path / "attempts.tsv").read_text().split("\t")[6] == reason, done


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
    "new": "true", "tmp": "0",
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
    done = bash("decide ended; echo $ANSWER", RUN_DIR=str(tmp_path), ATTEMPT_DIR=str(tmp_path))
    assert "ended: done, step 3 of 3" in done.stdout and done.stdout.endswith("\nend\n")
    assert "node n2: GPU 3: 1 uncorrected ECC errors: contained" in done.stdout


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


def left_out(folder: Path, bad: dict[str, str], nodes: str, options: str = "") -> subprocess.CompletedProcess[str]:
    """What the chain does after an attempt of `nodes` in which the `bad` ones gave a cause; n5 is left out already.

    options: those of the first submission, one per line.
    """
    for name, cause in bad.items():
        (folder / f"bad-{name}").write_text(f"{cause}\n")
    (folder / "attempts.tsv").write_text("c\t1\t0\t0\nc\t2\t0\t0\n")
    (folder / "left_out.tsv").write_text("c\t1\tn5\tsees 7 GPUs\n")
    variables = {
        "ATTEMPT_DIR": str(folder), "RUN_DIR": str(folder), "REQUEUE": "resubmit", "SLURM_JOB_ID": "2", "CHAIN": "c",
        "NEMO_ADA_OPTIONS": options, "MAX_WITHOUT_STEP": "4",
    }  # fmt: skip
    return bash(f"NODES=({nodes}); decide ended && echo $ANSWER && decide options && echo $ANSWER", **variables)


def test_the_next_job_leaves_unhealthy_nodes_out(tmp_path: Path) -> None:
    done = left_out(tmp_path, {"n2": "nvidia-smi sees 7 GPUs"}, "n1 n2", options="--qos=x\n--exclude=n6,n[8-9]")
    assert "ended: unhealthy" in done.stdout and "\nwithout\n" in done.stdout
    assert "node n2 is unhealthy: nvidia-smi sees 7 GPUs" in done.stdout
    assert done.stdout.endswith("--qos=x --exclude=n6,n[8-9],n5,n2\n"), "one list, the user's and ours"
    assert (tmp_path / "attempts.tsv").read_text().splitlines()[1].split("\t")[6] == "node lost"


def test_a_cause_that_every_node_of_the_job_gives_condemns_none(tmp_path: Path) -> None:
    done = left_out(tmp_path, {"n1": "/tmp has 3 GiB", "n2": "/tmp has 5 GiB"}, "n1 n2", options="--nodes=2")
    assert "every node of the job gives the same cause" in done.stdout and "\nagain\n" in done.stdout, done
    assert done.stdout.endswith("--exclude=n5\n")


JOB = (
    "JobId=41 JobName=my job Account=(null) QOS=normal TimeLimit={limit} Partition=gpu ExcNodeList=n7 Features=a|b "
    "MinMemoryNode=0 Nice=0 Comment=two words TresPerNode=gres:gpu:h100:2 StdOut=/logs/41/my-41.log Reservation=(null)"
)


@pytest.mark.parametrize(
    ("limit", "settings", "signal"),
    [
        ("00:02:00", {}, ["--signal=B:USR1@30"]),  # the header's 900 s are longer than the job
        ("00:02:00", {"SBATCH_SIGNAL": "B:USR1@20"}, []),
        ("04:00:00", {}, []),
        ("UNLIMITED", {}, []),
    ],
)
def test_a_direct_sbatch_is_replayed_from_what_slurm_shows_of_its_job(
    tmp_path: Path, limit: str, settings: dict[str, str], signal: list[str]
) -> None:
    path = programs(tmp_path, scontrol=f"echo '{JOB.format(limit=limit)}'")
    given = {"RUN_DIR": str(tmp_path), "CHAIN": "41", "SLURM_JOB_ID": "41", "LEAD": "900", **path, **settings}
    done = bash("NODES=(n1 n2); ATTEMPT_DIR=x/41-0; decide record; decide options; printf '%s' \"$ANSWER\"", **given)
    words = [
        "--dependency=afterany:41", "--no-requeue", "--nodes=2", "--job-name=my job", "--qos=normal", "--partition=gpu",
        f"--time={limit}", "--constraint=a|b", "--mem=0", "--comment=two words", "--gpus-per-node=h100:2",
        "--output=/logs/41/my-%j.log", *signal, "--exclude=n7",
    ]  # fmt: skip
    said, printed = [], done.stdout.splitlines()
    if not settings:
        said = [line for line in printed if "SLURM does not show --signal" in line]
        assert len(said) == 1, done
    assert sorted(printed) == sorted([*said, *words]), done
    assert (tmp_path / "submission").read_text().splitlines()[0] == "41"


def test_the_first_submission_is_replayed_without_what_was_meant_for_its_first_job(tmp_path: Path) -> None:
    told = ["--begin=22:00", "--gpus-per-node=2", "--dependency=afterok:3", "--array=1-4", "-d", "--nodelist=n1", "-H",
            "--signal=B:USR1@40", "--time=04:00:00", "--wait", "--waitfor=3"]  # fmt: skip
    given = {"RUN_DIR": str(tmp_path), "CHAIN": "5", "SLURM_JOB_ID": "5", "NEMO_ADA_OPTIONS": "\n".join(told)}
    done = bash('ATTEMPT_DIR=x/5-0; decide record; NEMO_ADA_OPTIONS=; decide options; echo "$ANSWER"', **given)
    kept = ["--gpus-per-node=2", "--signal=B:USR1@40", "--time=04:00:00", "--waitfor=3"]
    assert done.stdout.splitlines() == ["--dependency=afterany:5", "--no-requeue", *kept], done


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
    path = programs(tmp_path, scontrol=f"echo JobId=7 {facts}" if facts else "exit 1")
    given = {"SLURM_JOB_ID": "7", "ATTEMPT_DIR": str(tmp_path), "RUN_DIR": str(tmp_path), "ANSWER_SECONDS": "1", **path}
    assert bash("decide called-off; echo $ANSWER", **given).stdout == f"{reason}\n"


@pytest.mark.parametrize(("cpus", "wanted"), [("72(x2),36", "36"), ("8", "8"), ("4,16(x3)", "4")])
def test_a_step_over_unequal_nodes_asks_for_what_the_smallest_has(cpus: str, wanted: str) -> None:
    program = "NODES=(a b); HOME_DIR=/p; INSIDE=0 RUNTIME=none; step_command; echo ${STEP[@]}"
    done = bash(program, SLURM_JOB_CPUS_PER_NODE=cpus, SLURM_CPUS_ON_NODE="72", RUN_DIR="/r")
    assert f"--cpus-per-task={wanted} " in done.stdout, done


def test_what_the_users_shell_exports_under_our_names_is_not_meant_for_us(tmp_path: Path) -> None:
    names = re.search(r"unset (ANSWER.*?USERS_STOP)", (ROOT / "slurm" / "lib.sh").read_text(), re.S)
    assert names is not None
    foreign = dict.fromkeys(names[1].replace("\\\n", " ").split(), "x")
    plain = script(tmp_path, DRY_RUN="1")
    assert plain.returncode == 0 and script(tmp_path, DRY_RUN="1", **foreign).stdout == plain.stdout


def test_the_decisions_need_no_more_than_python_3_6(tmp_path: Path) -> None:
    """A batch host may have nothing newer."""
    for name in ("chain.py", "submission.py"):
        ast.parse((ROOT / "slurm" / name).read_text(), feature_version=(3, 6))
    command = [sys.executable, "-I", "-S", str(ROOT / "slurm" / "chain.py"), "space"]
    done = subprocess.run(command, env={"RUN_DIR": str(tmp_path)}, check=False, timeout=PATIENCE)
    assert done.returncode == 0, "no package is imported"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"c\t1\n", b"[" * 200_000, b"c\t1\t0\t3\n\xff\n"])
def test_damaged_files_of_a_run_end_no_chain_without_a_reason(tmp_path: Path, content: bytes) -> None:
    for name in ("attempts.tsv", "jobs.tsv", "submission", "left_out.tsv", "pace.json", "status.json"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "canary").touch()
    variables = {"RUN_DIR": str(tmp_path), "ATTEMPT_DIR": str(tmp_path), "CHAIN": "c", "MAX_WITHOUT_STEP": "50"}
    variables |= programs(tmp_path, squeue="exit 1", scontrol="exit 1") | {"ANSWER_SECONDS": "1"}
    variables["NEMO_ADA_OPTIONS"] = "--nodes=1"
    done = bash("decide begin && decide stalled && decide record && decide ended && decide options", **variables)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done


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
