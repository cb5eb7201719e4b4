"""CUDA builds of torchvision and friends beside a CPU build of torch look as if they were not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.cpu import torch_parts

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import importlib.util, nemo_ada.cpu; print(importlib.util.find_spec('torchvision'))"


def installed(folder, name, version):
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (folder / f"{name}.py").write_text("raise RuntimeError('operator nms does not exist')\n")


@pytest.mark.parametrize(
    ("torch", "vision", "hidden"),
    [("9.0+cpu", "8.0", True), ("9.0+cpu", "8.0+cpu", False), ("9.0", "8.0", False), ("9.0+cu130", "8.0", False)],
)
def test_only_a_build_for_cuda_beside_a_torch_for_cpus_is_hidden(torch, vision, hidden, tmp_path):
    installed(tmp_path, "torch", torch)
    installed(tmp_path, "torchvision", vision)
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
    done = subprocess.run([sys.executable, "-c", path + PROGRAM], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.strip() == "None") is hidden


def test_what_was_imported_before_stays(monkeypatch):
    monkeypatch.setattr(torch_parts, "_version", lambda name: {"torch": "9+cpu", "torchvision": "8"}.get(name, ""))
    monkeypatch.setitem(sys.modules, "torchvision", importlib.util)
    assert torch_parts.hide_cuda_parts() == []
