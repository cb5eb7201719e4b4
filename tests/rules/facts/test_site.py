"""slurm/site.env has one reader: bash. What `check` sees is what the batch scripts see."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rules.facts.site import read_site_setting
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
VALUES = {
    "expansion": ("HF_HOME=$SCRATCH/hf", "/scratch/me/hf"),
    "home": ("HF_HOME=~/hf", "/home/me/hf"),
    "blanks": ('HF_HOME="/shared/my models"', "/shared/my models"),
    "own": ("ROOT=/shared\nHF_HOME=${ROOT}/hf  # ours", "/shared/hf"),
    "single": ("HF_HOME='/shared/$x'", "/shared/$x"),
    "last": ("HF_HOME=/a\nexport HF_HOME=/b", "/b"),
    "talks": ("echo loading modules\nHF_HOME=/c", "/c"),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user whose site.env is named, without settings of its own."""
    monkeypatch.setenv("NEMO_ADA_SITE", str(tmp_path / "site.env"))
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("HF_HOME", "NEMO_ADA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "site.env"


@pytest.mark.parametrize("form", VALUES)
def test_a_setting_has_the_value_that_the_batch_scripts_give_it(environment: Path, form: str) -> None:
    text, value = VALUES[form]
    environment.write_text(f"CONTAINER=\n{text}\n")
    program = f'source {ROOT}/slurm/lib.sh; read_site "$NEMO_ADA_SITE" "$(<"$NEMO_ADA_SITE")" >&2; echo "$HF_HOME" >&3'
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&1 >&2; {program}"], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert read_site_setting("HF_HOME") == value == done.stdout.rstrip("\n"), done.stderr


def test_the_environment_wins(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.write_text("HF_HOME=/a\n")
    monkeypatch.setenv("HF_HOME", "/mine")
    assert read_site_setting("HF_HOME") == "/mine"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("A=1\nHF_HOME=$NOT_SET/x\n", "NOT_SET"),
        ("HF_HOME=/a\r\n", "line 1"),
        ("\ufeffHF_HOME=/a\n", "line 1"),
        ("if\n", "site.env"),
        ("exit 3\n", "3"),
    ],
)
def test_a_file_that_bash_cannot_read_is_an_error_that_names_it(environment: Path, text: str, named: str) -> None:
    environment.write_bytes(text.encode())
    with pytest.raises(UserError, match=r"site\.env") as error:
        read_site_setting("HF_HOME")
    assert named in str(error.value)
