"""A run is private: what listens, who may read what it writes, and where its secrets go.

One tiny training on two ranks with planted secrets; its processes are looked at from outside while it runs.
"""

from __future__ import annotations

import ipaddress
import json
import multiprocessing
import os
import shutil
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest

from nemo_ada.cpu.settings import load_run
from nemo_ada.run.job_control import EXIT_DONE
from nemo_ada.run.observer import Observer
from tests.lazy import Lazy
from tests.people import as_other, needs_two_users

JSONL = Path(__file__).resolve().parents[3] / "configs" / "cpu" / "jsonl.yaml"
PLANTED = {
    "WANDB_API_KEY": "planted-secret-of-wandb",
    "HF_TOKEN": "hf_plantedplantedplanted",
    "DB_PASSWORD": "planted-password",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def temporary():
    """The folder of temporary files, open to all users, with an earlier run and a user's notes in it."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    folder.chmod(0o1777)
    for name in ("ada-first", "ada-notes"):
        (folder / name).mkdir()
        (folder / name / "lock").write_text("")
    (folder / "ada-first" / "config.yaml").write_text("grpo: {}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def looked(tmp_path_factory, temporary):
    """(listening addresses by process name, run directory, Ray's session folders, Ray's token, the intruder's work)."""
    root = tmp_path_factory.mktemp("private")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as another_process:
        seen, sessions, token, done = another_process.submit(train_and_look, root, temporary).result()
    return seen, root / "run", sessions, token, done


INTRUSIONS = {  # what another user tries in Ray's folder and in the one above it
    "look": 'ls "$1"/* "$1"/../*',
    "swap the stacks": 'for d in "$1" "$1"/..; do mv $d/stacks $d/away && mkdir $d/stacks && exit 0; done; exit 1',
    "plant a file": 'touch "$1"/planted || touch "$1"/../planted',
}


def train_and_look(root: Path, temporary: Path) -> tuple[list[tuple[str, str]], list[str], str, dict[str, bool]]:
    """One step of training in this process, with the planted secrets in its environment."""
    os.environ.update(PLANTED, TMPDIR=str(temporary))
    tempfile.tempdir = None
    lines = [json.dumps({"prompt": f"{n:03d}=", "answer": max(f"{n:03d}")}) for n in range(300)]
    (root / "digits.jsonl").write_text("\n".join(lines))
    config = load_run(
        JSONL,
        [
            f"task.path={root}/digits.jsonl",
            f"base.cache_dir={root}/cache",
            f"run_dir={root}/run",
            "base.steps=5",
            "grpo.num_prompts_per_step=4",
            "grpo.max_num_steps=1",
            "policy.model.hidden_size=64",
            "policy.model.num_attention_heads=2",
            "policy.megatron_cfg.tensor_model_parallel_size=2",
        ],
    )
    seen: list[tuple[str, str]] = []
    sessions: list[str] = []
    done: dict[str, bool] = {}

    def look(_record: object) -> None:
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    seen.append((process.name(), connection.laddr.ip))
            sessions.extend(word.partition("=")[2] for word in process.cmdline() if word.startswith("--session_dir="))
        if os.geteuid() == 0:
            for name, script in INTRUSIONS.items():
                done[name] = as_other(script, Path(sessions[0]).parent).returncode == 0

    assert Lazy("nemo_ada.cpu.trainer").train(config, Observer(on_step=look)).exit_code == EXIT_DONE
    return seen, sessions, os.environ["RAY_AUTH_TOKEN"], done


def test_everything_listens_on_the_loopback_device_only(looked):
    seen, *_ = looked
    assert {"gcs_server", "raylet"} <= {name for name, _ in seen}, "Ray was looked at"
    assert any("Rank" in name for name, _ in seen), "the learner was looked at"
    outside = [(name, ip) for name, ip in seen if not loopback(ip)]
    assert outside == []


def loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def test_no_file_of_the_run_holds_a_secret(looked):
    _, run_dir, _, token, _ = looked
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert len(files) > 10
    secrets = [value.encode() for value in PLANTED.values()] + [token.encode()]
    assert [(path, secret) for path in files for secret in secrets if secret in path.read_bytes()] == []


def test_rays_session_is_gone(looked):
    sessions = looked[2]
    assert sessions
    assert not any(Path(session).exists() for session in sessions)


def test_what_a_user_keeps_beside_the_runs_own_folder_stays(looked, temporary):
    files = {str(path.relative_to(temporary)) for path in temporary.rglob("*") if path.is_file()}
    assert files == {"ada-first/lock", "ada-first/config.yaml", "ada-notes/lock"}


@needs_two_users
def test_another_user_cannot_get_into_the_runs_files(looked):
    assert looked[4] == dict.fromkeys(INTRUSIONS, False)
