"""Nothing in these tests reaches the network, and the cases are counted."""

from __future__ import annotations

import os

from tests.fuzz.harness import COUNTED

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[_name] = "1"


def pytest_terminal_summary(terminalreporter):
    if COUNTED:
        parts = ", ".join(f"{name} {number}" for name, number in sorted(COUNTED.items()))
        terminalreporter.write_line(f"fuzzing: {COUNTED.total()} cases ({parts})")
