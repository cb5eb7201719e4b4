"""Every overlay of configs/methods is rehearsed once over a config that takes it, on NeMo-RL's own workers.

Those that draw ahead are resumed, too, because a checkpoint of theirs holds groups. Each takes minutes, so CI runs as
many as start in time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_ada.config.values import Values
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.version import read_version

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "qwen2.5-math-1.5b.yaml"
HOME = os.environ.get("NEMO_RL_HOME", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not HOME, reason="NEMO_RL_HOME names no checkout of NeMo-RL"),
]
AHEAD = ("single-controller", "async")


def overlays() -> list[Path]:
    """Paths of the overlays, those that draw ahead first."""
    paths = sorted(ROOT.glob("configs/methods/*.yaml"))
    return sorted(paths, key=lambda path: path.stem not in AHEAD)


@pytest.mark.parametrize("overlay", overlays(), ids=lambda path: path.stem)
def test_an_overlay_trains_saves_and_exports_and_what_draws_ahead_resumes(overlay: Path, tmp_path: Path) -> None:
    loop = Loop.of(Values(load_config(CONFIG, [str(overlay)])))
    if loop is Loop.CONTROLLER and not read_version(Path(HOME)).masks_rows:
        pytest.skip("this NeMo-RL's single controller masks no rows: v0.8.0 has one that does")
    command = [sys.executable, "-P", "-m", "nemo_ada.cli", "rehearse", str(CONFIG), str(overlay), "--steps", "2"]
    command += ["--keep", str(tmp_path / "rehearsal")] + ([] if loop.draws_ahead else ["--no-resume"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
