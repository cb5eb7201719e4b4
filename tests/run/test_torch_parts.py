"""CUDA builds of torchvision and friends beside a CPU build of torch look as if they were not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.run import torch_parts

ROOT = Path(__file__).resolve().parents[2]
STACK = "import importlib.util, nemo_ada.cpu; print(importlib.util.find_spec('torchvision'))"
TOKENIZER = "from nemo_ada.tasks.prompting import ModelTokenizer as M; print(M('.')._tokenizer)"
LIBRARY = """
import importlib.util
class AutoTokenizer:
    seen = importlib.util.find_spec("torchvision")
    from_pretrained = classmethod(lambda cls, folder: cls.seen)
"""  # remembers what it saw at its import, as transformers does


def installed(folder, name, version):
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (folder / f"{name}.py").write_text("raise RuntimeError('operator nms does not exist')\n")


@pytest.mark.parametrize(
    ("torch", "vision", "hidden"),
    [("9.0+cpu", "8.0", True), ("9.0+cpu", "8.0+cpu", False), ("9.0", "8.0", False), ("9.0+cu130", "8.0", False)],
)
@pytest.mark.parametrize("program", [STACK, TOKENIZER])
def test_only_a_build_for_cuda_beside_a_torch_for_cpus_is_hidden(program, torch, vision, hidden, tmp_path):
    (tmp_path / "transformers.py").write_text(LIBRARY)
    installed(tmp_path, "torch", torch)
    installed(tmp_path, "torchvision", vision)
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (done.stdout.strip() == "None") is hidden


def test_what_was_imported_before_stays(monkeypatch):
    monkeypatch.setattr(torch_parts, "find_version", lambda name: {"torch": "9+cpu", "torchvision": "8"}.get(name, ""))
    monkeypatch.setitem(sys.modules, "torchvision", importlib.util)
    assert torch_parts.hide_cuda_parts() == []
