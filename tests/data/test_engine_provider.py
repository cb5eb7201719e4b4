"""Where the engine of this process cannot be imported, the message names the way that needs none."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vllm":
            raise ModuleNotFoundError("No module named 'vllm'")

sys.meta_path.insert(0, Missing())
from nemo_ada.cli.main import guarded
from nemo_ada.data.providers import EngineProvider, Limits, Request
from nemo_ada.data.prompting import ModelTokenizer

folder = Path(sys.argv[1])
provider = EngineProvider(folder, ModelTokenizer(folder), Limits(8, 6))
sys.exit(guarded(lambda: provider.respond([Request([1], 1)])))
"""


def test_without_vllm_the_server_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2, done.stderr
    assert "cannot be imported here (No module named 'vllm')" in done.stderr
    assert f"`vllm serve {tmp_path}`" in done.stderr and "--server http://HOST:8000" in done.stderr
