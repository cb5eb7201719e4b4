"""Secrets of the environment, of configurations and of command lines reach nothing that is written or shown.

Every test plants secrets and looks for them in whatever came out: streams, files (as bytes), logs, pages.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_ada.cli import main as cli
from nemo_ada.errors import UserError
from nemo_ada.run.folder import RunDir
from nemo_ada.run.redaction import (
    Redacted,
    drop_secrets,
    find_secret_keys,
    hide,
    hide_in,
    is_secret_name,
    is_secret_variable,
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
        code: Any = cli.run_guarded(lambda: cli.app(list(arguments)))
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


def test_the_batch_script_knows_the_same_names(capfd, monkeypatch):
    """Its Python part is asked for every name, and through bash for one of each kind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    submission = runpy.run_path(str(ROOT / "slurm" / "submission.py"))

    def refused(name: str) -> bool:
        with contextlib.suppress(SystemExit):
            submission["arguments"](f"{name}=x", "configs/a.yaml")
        return "is a secret" in capfd.readouterr().err

    assert {name: refused(name) for name in NAMES} == NAMES
    ask = '[[ $(decide arguments "$word" 2>&1) == *"is a secret"* ]] || echo "$word"'
    script = f"source {ROOT}/slurm/lib.sh; for word; do {ask}; done"
    words = ["HF_TOKEN=x", "max_tokens=x"]
    done = subprocess.run(["bash", "-c", script, "_", *words], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == words[1:], done.stderr


def test_variables_that_hold_secrets_are_left_out():
    names = [*PLANTED, *VARIABLES, *(f"MY_{name}" for name in VARIABLES)]
    others = {"PATH": "/bin", "OMP_NUM_THREADS": "1", "KEYBOARD": "us"}
    assert all(map(is_secret_variable, names))
    assert drop_secrets(dict.fromkeys(names, "x") | others) == others


@pytest.mark.parametrize(("value", "hidden"), [("12345678", True), ("1234567", False)])
def test_the_value_of_a_variable_is_hidden_from_eight_characters_on(monkeypatch, value, hidden):
    monkeypatch.setenv("MY_TOKEN", value)
    assert (value not in hide(f"it is {value}.")) == hidden


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
        "++logger.wandb.api_key='typed-secret-1 typed-secret-2'",
    ],
)
def test_texts_lose_their_secrets(text):
    shown = hide(text)
    assert not found_in(shown)
    assert "[hidden]" in shown
    assert hide(shown) == shown


@pytest.mark.parametrize(
    "text", ["max_tokens=100", "no such token: x", "policy.max_tokens: 7", "input_key=problem", "a\nb [x]", ""]
)
def test_other_texts_are_left_alone(text):
    assert hide(text) == text


V = "Zq7v9XkT2mLp4RwB8nYc"
SHAPES = [
    f"--api-key {V}",
    f"--api-key={V}",
    f"-api-key {V}",
    f"--hf-token {V}",
    f"--db-pass {V}",
    f"--password {V}",
    f"--secret-access-key {V}",
    f"X-Api-Key: {V}",
    f"x-api-key:{V}",
    f"'X-Auth-Token': '{V}'",
    f"Authorization: Basic {V}==",
    f"Authorization: Token {V}",
    f"Proxy-Authorization: Basic {V}=",
    f"authorization={V}",
    f'"Authorization": "Bearer {V}"',
    f"Cookie: session={V}; theme=dark",
    f"Set-Cookie: id={V}; HttpOnly",
    f"{{'Cookie': 'a={V}'}}",
    f"DB_PASS={V}",
    f"MYSQL_PWD={V}",
    f"export STRIPE_KEY='{V}'",
    f"MY_APIKEY={V}",
    f"PGPASSWORD={V}",
    f"dbpassword: {V}",
    f"userPassword={V}",
    f"smtp_pass: {V}",
    f"openaiApiKey: {V}",
    f"accessToken: {V}",
    f"clientSecret={V}",
    f"AccountKey={V}",
    f"encryption_key: {V}",
    f"ssh-key: {V}",
    f"sentry_dsn={V}",
    f"passphrase: {V}",
    f"aws_session_token={V}",
    f"https://me:{V}@h/x",
    f"https://{V}@h/x",
    f"postgresql://u:{V}@h:5/db",
    f"https://h/x?access_token={V}&a=1",
    f'{{\\"api_key\\": \\"{V}\\"}}',
    f'api_key = "{V}"',
    f"password='{V} and more {V}'",
]
V_SHAPES = [  # what addresses, shells and tables say
    f"HF_TOKEN%3D{V}", f"https://h/?q=api_key%3D{V}", f"redis://:{V}@h:6379/0", f"DATABASE_URL=postgres://u:{V}@h/db",
    f"mongodb+srv://u:{V}@c.example.net/db?w=1", f"http://a:b http://me:{V}@h/x",
    f"setenv HF_TOKEN {V}", f"setenv MY_PAT {V}", f"set -gx HF_TOKEN {V}", f"setx HF_TOKEN {V}", f"ENV HF_TOKEN {V}",
    f"| password | {V} |", f"│ password │ {V} │", f"| HF_TOKEN | {V} |", f"password\t{V}\n",
    f"|api_key|{V}|", f"token : {V}", f"token: {V}", f"Token :{V}",
]  # fmt: skip
INNOCENT = [
    "http://host:8080/a@b",
    "dapitools",
    "a xai-model",
    "SKIPPED 12",
    "http://[::1]:8000/v1",
    "https://h/a:b/c",
    "key: 0123456789abcdef",
    "pul-request",
    "ops-team",
    "fw-12",
    "max_tokens: 512",
    "max_tokens=100",
    "tokens_per_second: 1234.5",
    "ada/tokens_trained 1200",
    "val/pass@1: 0.5",
    "forward_pass: 2",
    "first_pass=12",
    "num_pass: 3",
    "pass: true",
    "PWD=/home/me",
    "OLDPWD=/tmp/x",
    "eos_token: </s>",
    "pad_token=<pad>",
    "input_key=problem",
    "no such token: x",
    "git 1497d5b0c8ff1e2aa3c1f2b7b6fd8d6c7f1e9a02",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "uuid 123e4567-e89b-12d3-a456-426614174000",
    "https://host/path?x=1#y",
    "http://127.0.0.1:8000/v1",
    "user@host.example",
    "tokenizer=Qwen/Qwen2.5-1.5B",
    "token_level_loss: true",
    "stop_token_ids: [1, 2]",
    "token_mult_prob_error: 1.02",
    "policy.max_total_sequence_length: 4096",
    "key: value",
    "monkey=12345678901234567890",
    "keyboard: us",
    "lr 1.2e-4 step 12/80",
    "torch==2.13.0+cpu",
    "basic training goes on",
    "the bearer of bad news",
    "passed 412 tests",
    "password is wrong",
    "the secret of the trick",
    "checkpoint step_000100/policy/model-00001-of-00002.safetensors",
    "--user me",
    "-u me",
    "-v --max-tokens 12",
    "train_data_step12.jsonl",
    "sk-learn",
    "hf_home=/data/hf",
    "HF_HOME=/data/hf",
    "a\nb [x]",
    "",
    "compass: north",
    "unexpected token : in JSON",
    "| token | 12 |",
    "| max_tokens | 512 |",
    "| password |\n|---|",
    "set -e",
    "setenv PATH /bin",
    "mkdir -p /data/x",
    "docker run -p 8080:80 image",
    "runs/first/checkpoints/step_000100/policy/weights/model/consolidated",
    "/lustre/projects/team/users/someone/models/checkpoints/first/step/12/Abc",
    "bypass=yes",
]


def test_usual_shapes_of_secrets_are_hidden():
    assert [text for text in [*SHAPES, *V_SHAPES] if V in hide(text)] == []
    assert [text for text in SHAPES if hide(hide(text)) != hide(text)] == []


def test_texts_without_secrets_stay_as_they_are():
    assert [text for text in INNOCENT if hide(text) != text] == []


@pytest.mark.parametrize("form", ["postgres://u:{}@h:5/db", "me:{}@proxy:3128", "http://me:{}@proxy"])
def test_the_password_of_an_address_in_a_variable_is_hidden_wherever_it_stands(monkeypatch, form):
    monkeypatch.setenv("MY_ADDRESS", form.format("pa%24word"))
    assert [text for text in ("pa%24word", "pa$word") if text in hide(f"refused: {text}")] == []


PIECES = [
    "://", "a", ":", "@", "/", " ", "  ", "=", "-", "--", ".", "_", "\n", "\t", "|", "'", '"', "\\", "token", "pass",
    "-u", "password", "_key", "_KEY", "api_", "sk-", "hf_", "x.", "authorization", "cookie:", "Basic ", "setenv ",
    "ENV ",
    "set -x ", "A1b2C3d4" * 8, "%3A", "%3D", "_url=", "https_proxy=a:b", "token: ", '"api_key": "', "| password |",
    "--password ", "[hidden", "\xa0", "\u2028",
]  # fmt: skip


def cpu_seconds(text: str) -> float:
    """CPU seconds of one redaction, the smaller one of two."""
    taken = []
    for _ in range(2):
        begin = time.process_time()
        hide(text)
        taken.append(time.process_time() - begin)
    return min(taken)


def grows(unit: str) -> bool:
    """Whether a text of four times as many units takes far more than four times as long: quadratic is 16."""
    few = max(1, 6_000 // len(unit))
    return cpu_seconds(unit * (4 * few)) > 9 * cpu_seconds(unit * few) + 0.02


@pytest.mark.parametrize("unit", PIECES)
def test_redaction_is_linear_in_repeated_units(unit):
    assert not grows(unit)


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), min_size=2, max_size=5))
def test_redaction_is_linear_in_repeated_mixtures(pieces):
    unit = "".join(pieces)
    assert not grows(unit) or not grows(unit)  # another process may have disturbed the first measurement


@settings(max_examples=60, derandomize=True)
@given(st.text(st.sampled_from("ab_-.=:|@/ \n\t'\"\\[]{}%,"), min_size=1, max_size=12))
def test_redaction_is_linear_in_repeated_letters(unit):
    assert not grows(unit) or not grows(unit)


@pytest.mark.parametrize(
    "name", ["MY_APIKEY", "DB_PASS", "MYSQL_PWD", "REGISTRY_AUTH", "SENTRY_DSN", "SLACK_WEBHOOK_URL"]
)
def test_the_value_of_a_secret_variable_is_hidden_wherever_it_stands(monkeypatch, name):
    monkeypatch.setenv(name, V)
    assert V not in hide(f"connecting with {V}: refused")
    assert name not in drop_secrets(os.environ)


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "SSH_ASKPASS", "GIT_ASKPASS", "SSH_AUTH_SOCK", "XAUTHORITY", "HF_HOME"]
)
def test_the_values_of_usual_variables_stay(name):
    assert not is_secret_variable(name)


SECRET_KEYS = ["smtp_pass", "db_pwd", "dbpassword", "api-key", "openaiApiKey", "clientSecret", "accessToken",
               "Authorization", "Cookie", "encryption_key", "sentry_dsn", "connection_string",
               "webhook_url", "ssh_key"]  # fmt: skip


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_a_configuration_key_of_a_secret_is_known(key):
    assert hide_in({"a": {key: V}}) == {"a": {key: "[hidden]"}}
    assert list(find_secret_keys({"a": {key: V}})) == [f"a.{key}"]


def test_a_number_under_a_name_that_counts_passes_stays():
    config = {"forward_pass": 2, "first_pass": 1.5, "smtp_pass": True}
    assert hide_in(config) == config and list(find_secret_keys(config)) == []


def test_the_projects_configurations_hold_no_secret():
    files = sorted((ROOT / "configs").rglob("*.yaml"))
    assert files
    assert [key for file in files for key in find_secret_keys(yaml.safe_load(file.read_text()) or {})] == []


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

    assert cli.run_guarded(fail) == (2 if kind is UserError else 1)
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


def test_logs_hold_nothing_that_steers_a_terminal():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(Redacted())
    log = logging.getLogger("test_escapes")
    log.addHandler(handler)
    log.propagate = False
    try:
        log.warning("left out: %s", "a\x1b]0;owned\x07b\r\x9b2J.jsonl")
    finally:
        log.removeHandler(handler)
    assert {letter for letter in stream.getvalue() if not letter.isprintable()} == {"\n"}


def test_a_secret_is_no_name_of_a_folder(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, shown = run(capsys, "train", str(CPU / "mini_sudoku.yaml"), "run_dir=runs/${oc.env:HF_TOKEN}")
    assert code == 2 and "run_dir" in shown and not found_in(shown)
    assert list(tmp_path.iterdir()) == []
