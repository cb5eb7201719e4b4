"""`nemo-ada model`: what it refuses. The conversion itself needs the extra, whose weights no test fetches."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from nemo_ada.cpu import smollm2
from nemo_ada.errors import UserError


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
