"""`nemo-ada prepare` with a YAML of configs/cpu. No test fetches the weights that the conversion itself needs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
from typer.testing import CliRunner

from nemo_ada.cli.main import app
from nemo_ada.cpu import smollm2
from nemo_ada.errors import UserError
from nemo_ada.standing import stand_in


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(smollm2, "version", missing)
    with pytest.raises(UserError, match=r"needs the package gguf; .*\.\[smollm2\]"):
        smollm2.write_smollm2(tmp_path / "model", print)
    assert not (tmp_path / "model").exists()


def test_a_package_with_other_bytes_is_refused(tmp_path, monkeypatch):
    class File:
        suffix = ".gguf"

        def locate(self):
            (tmp_path / "other.gguf").write_bytes(b"other")
            return tmp_path / "other.gguf"

    monkeypatch.setattr(smollm2, "version", lambda name: smollm2.VERSION)
    monkeypatch.setattr(smollm2, "files", lambda name: [File()])
    with pytest.raises(UserError, match="has the sha256"):
        smollm2.write_smollm2(tmp_path / "model", print)
    with pytest.raises(UserError, match="is there already"):
        smollm2.write_smollm2(tmp_path, print)


def test_prepare_writes_the_model_of_a_cpu_yaml_where_it_is_not_there(tmp_path, monkeypatch):
    def prepared(*words):
        return CliRunner().invoke(app, ["prepare", "configs/cpu/smollm2.yaml", *words], catch_exceptions=False).stdout

    monkeypatch.setattr(smollm2, "write_smollm2", lambda out, say: say(f"written to {out}"))
    assert prepared(f"policy.model_name={tmp_path}/smollm2") == f"written to {tmp_path}/smollm2\n"
    assert f"{tmp_path} is there" in prepared(f"policy.model_name={tmp_path}")
    assert "trains its base model" in prepared("policy.model_name=null")
    with pytest.raises(UserError, match=r"no such folder; .* policy\.model_name=\.cache/smollm2"):
        prepared(f"policy.model_name={tmp_path}/llama")


def test_the_folder_is_written_where_the_user_stands(tmp_path, monkeypatch):
    """A command stands in a private folder that is removed, and nothing has made the path of a new folder whole."""
    (tmp_path / "private").mkdir()
    monkeypatch.chdir(tmp_path)
    written = []
    monkeypatch.setattr(smollm2, "write_smollm2", lambda out, say: written.append(out))
    with stand_in(tmp_path / "private"):
        smollm2.prepare_model(".cache/smollm2", print)
    assert written == [tmp_path / ".cache/smollm2"]
