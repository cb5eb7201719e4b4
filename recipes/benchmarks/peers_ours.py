"""`nemo-ada train` with the processor seconds of its steps, in run_dir/processor.jsonl; peers.py starts it.

python recipes/benchmarks/peers_ours.py CONFIG [KEY=VALUE ...]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure import measure
from process_tree import processor_seconds

from nemo_ada.cpu.settings import load_run
from nemo_ada.cpu.trainer import train
from nemo_ada.run.observer import Observer


def main() -> int:
    config = load_run(Path(sys.argv[1]), sys.argv[2:])
    at: dict[str, float] = {}

    def on_phase(_step: int, phase: str) -> None:
        at[phase] = processor_seconds(os.getpid())

    def on_step(record: Mapping[str, Any]) -> None:
        spent = {
            "cpu/step": processor_seconds(os.getpid()) - at["sampling"],
            "cpu/sampling": at["update"] - at["sampling"],
        }
        with (config.folder / "processor.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": record["step"], **spent}) + "\n")

    return train(config, Observer(on_phase=on_phase, on_step=on_step)).exit_code


if __name__ == "__main__":
    measure(main)
