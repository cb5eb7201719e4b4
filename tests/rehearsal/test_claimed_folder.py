"""`rehearse --keep` and `accept --out` change nothing in a folder that they did not make."""

from __future__ import annotations

import pytest

from nemo_ada.errors import UserError
from nemo_ada.rehearsal import command
from nemo_ada.rules.finding import error


@pytest.mark.parametrize("findings", [[], [error("policy.model_name", "no such model")]], ids=["fine", "refused"])
def test_a_folder_with_somebodys_data_stays_as_it_is(tmp_path, monkeypatch, findings):
    kept = {"report.md": "my report", "data/train.jsonl": "{}", "model/config.json": "{}"}
    for name, text in kept.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    monkeypatch.setattr(command, "load_config", lambda path, overrides: {"policy": {}})
    monkeypatch.setattr(command, "check_full_config", lambda path, overrides, config: findings)
    monkeypatch.setattr(command.installation, "find", lambda **options: None)
    with pytest.raises(UserError, match=r"--keep=.*mine holds data, model, report\.md"):
        command.rehearse(tmp_path / "x.yaml", [], steps=3, resume=True, keep=tmp_path / "mine", say=print)
    found = {
        str(p.relative_to(tmp_path / "mine")): p.read_text() for p in (tmp_path / "mine").rglob("*") if p.is_file()
    }
    assert found == kept
