"""Secrets of the environment, of configurations and of command lines reach nothing that is written or shown.

Every test plants secrets and looks for them in whatever came out: streams, files (as bytes), logs, pages.
"""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_ada.cli import main as cli
from nemo_ada.errors import UserError
from nemo_ada.run.folder import RunDir
from nemo_ada.run.redaction import (
    Redacted,
    hide,
    hide_in,
    is_secret_name,
    is_secret_variable,
    without_secrets,
)
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
CPU = ROOT / "configs" / "cpu"
WANDB, HUB = "0123456789abcdef0123456789abcdef01234567", "hf_" + "Q" * 34
AWS, PASSWORD = "wJalrXUtnFEMI/K7M", "hunter2!hunter2"
PLANTED = {"WANDB_API_KEY": WANDB, "HF_TOKEN": HUB, "HUGGING_FACE_HUB_TOKEN": HUB + "x", "AWS_SECRET_ACCESS_KEY": AWS,
           "AWS_SESSION_TOKEN": AWS + "y", "NGC_API_KEY": WANDB[::-1], "DB_PASSWORD": PASSWORD}  # fmt: skip
SECRETS = sorted({*PLANTED.values(), "typed-secret-1", "typed-secret-2"}, key=len)


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)


def found_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def found_below(folder: Path) -> list[tuple[str, str]]:
    return [
        (str(path), secret)
        for path in folder.rglob("*")
        if path.is_file()
        for secret in SECRETS
        if secret.encode() in path.read_bytes()
    ]


def run(capsys, *arguments: str) -> tuple[int, str]:
    try:
        code: Any = cli.guarded(lambda: cli.app(list(arguments)))
    except SystemExit as ended:
        code = ended.code or 0
    captured = capsys.readouterr()
    return code, captured.out + captured.err


NAMES = {
    "api_key": True, "logger.wandb.api_key": True, "HF_TOKEN": True, "hf_token": True, "a.password": True,
    "token": True, "aws_secret_access_key": True, "env_vars.WANDB_API_KEY": True, "db-password": True,
    "private_key": True, "max_tokens": False, "tokenizer": False, "eos_token": False, "stop_token": False,
    "input_key": False, "key": False, "policy.max_total_sequence_length": False, "token_level_loss": False,
    "keep_top_k": False, "stop_token_ids": False,
}  # fmt: skip
KEYS = ["api", "access", "secret", "private", "auth", "wandb"]
WORDS = ["token", "secret", "password", "passwd", "passphrase", "credential", "credentials",
         *(f"{kind}_key" for kind in KEYS), *(f"{kind}key" for kind in KEYS),
         *(f"{kind}_key_id" for kind in KEYS)]  # fmt: skip
SYMBOLS = ["pad", "bos", "eos", "unk", "sep", "cls", "mask", "stop", "think", "image", "audio", "video"]
NAMES |= {f"logger.x_{word}": True for word in WORDS} | {word.upper(): True for word in WORDS}
NAMES |= {f"data.{symbol}_token": False for symbol in SYMBOLS}
VARIABLES = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "X_KEY", "KEY_ID"]


def test_every_usual_name_of_a_secret_is_known_and_no_name_of_a_special_token():
    assert {name: is_secret_name(name) for name in NAMES} == NAMES


def test_the_batch_script_knows_the_same_names():
    script = f'source {ROOT}/slurm/lib.sh; for word; do (refuse_secrets "$word") && echo "$word"; done; true'
    words = [f"{name}=x" for name in NAMES]
    done = subprocess.run(["bash", "-c", script, "_", *words], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == [f"{name}=x" for name, secret in NAMES.items() if not secret], done.stderr


def test_variables_that_hold_secrets_are_left_out():
    names = [*PLANTED, *VARIABLES, *(f"MY_{name}" for name in VARIABLES)]
    others = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "KEYBOARD": "us"}
    assert all(map(is_secret_variable, names))
    assert without_secrets(dict.fromkeys(names, "x") | others) == others


@pytest.mark.parametrize(("value", "hidden"), [("12345678", True), ("1234567", False)])
def test_the_value_of_a_variable_is_hidden_from_eight_characters_on(monkeypatch, value, hidden):
    monkeypatch.setenv("MY_TOKEN", value)
    assert (value not in hide(f"it is {value}.")) == hidden


FORMS = [f"{start}_{'x' * 16}" for start in ("hf", "sk", "ghp", "gho", "glpat", "wandb", "nvapi", "github_pat")]
FORMS += [f"xox{kind}-{'1' * 16}" for kind in "abp"] + ["AKIA" + "Z9" * 8, f"eyJ{'a' * 8}.{'b' * 8}.c"]


def test_tokens_of_the_usual_hubs_are_hidden_by_their_form():
    assert [form for form in FORMS if form in hide(f"took {form} from there")] == []


@pytest.mark.parametrize(
    "text",
    [
        f"login with {WANDB} failed",
        "api_key=typed-secret-1 and more",
        "{'api_key': 'typed-secret-1', 'password': \"typed-secret-2\"}",
        'secret: "typed-secret-1"',
        "train --hf-token typed-secret-1",
        "https://user:typed-secret-1@example.org/x",
        f"Authorization: Bearer {HUB}",
        "unset here: hf_abcdefghijklmnopqrstuvwxyz, AKIAIOSFODNN7EXAMPLE",
        "++logger.wandb.api_key='typed-secret-1 typed-secret-2'",
    ],
)
def test_texts_lose_their_secrets(text):
    shown = hide(text)
    assert not found_in(shown)
    assert "abcdefghijklmnopqrstuvwxyz" not in shown
    assert "AKIAIOSFODNN7EXAMPLE" not in shown
    assert "[hidden]" in shown
    assert hide(shown) == shown


@pytest.mark.parametrize(
    "text", ["max_tokens=100", "no such token: x", "policy.max_tokens: 7", "input_key=problem", "a\nb [x]", ""]
)
def test_other_texts_are_left_alone(text):
    assert hide(text) == text


def test_configurations_lose_their_secrets_and_keep_the_rest():
    config = {
        "logger": {"wandb": {"api_key": "typed-secret-1", "name": "run"}, "url": "https://u:typed-secret-2@h/"},
        "tokens": [1, {"hf_token": "typed-secret-1"}],
        "data": {"input_key": "problem", "eos_token": "</s>", "token": None},
    }
    shown = hide_in(config)
    assert not found_in(repr(shown))
    assert shown["logger"]["wandb"] == {"api_key": "[hidden]", "name": "run"}
    assert shown["data"] == config["data"]
    deep: dict[str, Any] = {"api_key": "typed-secret-1"}
    for _ in range(500):
        deep = {"x": deep}
    assert not found_in(repr(hide_in(deep)))


@pytest.mark.parametrize("command", [["train"], ["check", "--no-verifier"], ["plan"]])
@pytest.mark.parametrize("key", ["logger.wandb.api_key", "policy.env_vars.HF_TOKEN"])
def test_a_secret_in_a_configuration_is_refused_by_its_key(capsys, monkeypatch, tmp_path, command, key):
    monkeypatch.chdir(tmp_path)
    override = f"+{key}=typed-secret-1"
    code, shown = run(capsys, *command, str(CPU / "mini_sudoku.yaml"), override)
    assert code == 2
    assert "is a secret" in shown
    assert "WANDB_API_KEY" in shown, "what would work"
    assert not found_in(shown)
    assert list(tmp_path.iterdir()) == []


def test_messages_about_broken_input_hide_what_it_held(capsys, tmp_path):
    broken = tmp_path / "broken.yaml"
    for text in ("api_key: typed-secret-1\n  x: [", "api_key: typed-secret-1\n\tx: 1", f"a: {{password: {HUB}"):
        broken.write_text(text)
        assert not found_in(run(capsys, "train", str(broken))[1])
    for override in ("api_key=typed-secret-1[", f"grpo.seed={HUB}", f"run_dir=[{WANDB}", f"policy={{a: {AWS}}}"):
        code, shown = run(capsys, "train", str(CPU / "mini_sudoku.yaml"), override)
        assert code == 2 and not found_in(shown), shown


def test_a_run_directory_holds_no_secret(monkeypatch, tmp_path):
    typed = "logger.wandb.api_key=typed-secret-1"
    monkeypatch.setattr(
        sys, "argv", ["nemo-ada", "train", "x.yaml", typed, "--hf-token", "typed-secret-2", f"note={WANDB}"]
    )
    config = {
        "logger": {"wandb": {"api_key": "typed-secret-1"}},
        "note": f"mine is {HUB}",
        "policy": {"password": PASSWORD},
    }
    run_dir = RunDir(tmp_path / "run")
    run_dir.open(config, resume=False)
    run_dir.close()
    assert found_below(tmp_path) == []
    command = json.loads((tmp_path / "run" / "environment.json").read_text())["command"]
    assert command == "nemo-ada train x.yaml 'logger.wandb.api_key=[hidden]' --hf-token [hidden] 'note=[hidden]'"
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["logger"]["wandb"]["api_key"] == "[hidden]"
    again = RunDir(tmp_path / "run")
    again.check(config, resume=True)
    with pytest.raises(UserError, match="another configuration") as refusal:
        again.check({**config, "note": f"other {WANDB}"}, resume=True)
    assert not found_in(str(refusal.value))


def test_logs_lose_their_secrets_in_messages_arguments_and_tracebacks():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(Redacted())
    log = logging.getLogger("test_secrets")
    log.addHandler(handler)
    log.propagate = False
    try:
        log.warning("key %s of %s", WANDB, {"password": "typed-secret-1"})
        try:
            raise RuntimeError(f"{HUB} was refused")
        except RuntimeError:
            log.exception("api_key=typed-secret-2")
    finally:
        log.removeHandler(handler)
    assert not found_in(stream.getvalue())
    assert "RuntimeError: [hidden] was refused" in stream.getvalue()


@pytest.mark.parametrize("kind", [UserError, RuntimeError, OSError, KeyError])
def test_errors_of_every_kind_lose_their_secrets(capsys, kind):
    def fail() -> None:
        raise kind(f"cannot log in with {WANDB}, api_key=typed-secret-1")

    assert cli.guarded(fail) == (2 if kind is UserError else 1)
    shown = capsys.readouterr()
    assert not found_in(shown.out + shown.err)
    assert "cannot log in with" in shown.err


def shell(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / script), *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("override", "code", "said"),
    [
        ("grpo.max_num_steps=10", 0, "grpo.max_num_steps=10"),
        ("++logger.wandb.api_key=typed-secret-1", 2, "logger.wandb.api_key"),
    ],
)
def test_a_job_shows_no_secret_and_refuses_one_on_its_command_line(tmp_path, override, code, said):
    site = tmp_path / "site.env"
    site.write_text(f"CONTAINER=/x.sqsh\nNEMO_RL_HOME=/opt/nemo-rl\nRUN_ROOT=/shared\nWANDB_API_KEY={WANDB}\n")
    done = shell("slurm/train_7b_ada.sh", "grpo.seed=1", override, DRY_RUN="1", NEMO_ADA_SITE=str(site))
    shown = done.stdout + done.stderr
    assert done.returncode == code and said in shown, shown
    assert not found_in(shown)


def test_containers_get_secrets_by_name_and_not_by_value():
    done = shell("docker/run.sh", "cpu", "nemo-ada", "--help", DOCKER="echo")
    assert done.returncode == 0 and "--env WANDB_API_KEY" in done.stdout
    assert not found_in(done.stdout + done.stderr)
