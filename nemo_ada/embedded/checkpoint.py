"""Step folders of the embedded back end: everything that the next step depends on, in one atomic folder.

step_000050/ learner/ (model, optimizer, schedule, generator)   hf/ (the model for transformers)
             state.json (step, data position, totals, sampler)  manifest.json (checksums)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.config.run import RunConfig
from nemo_ada.embedded.group import LearnerGroup
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.files import write_folder
from nemo_ada.rundir import RunDir, fingerprint
from nemo_ada.tasks.tokenizer import CharTokenizer


@dataclass(frozen=True, slots=True)
class SavedState:
    """What is not the learner's: step, next prompt, totals, the sampler's state, the last evaluation."""

    step: int
    position: int
    totals: Mapping[str, Any]
    sampler: Mapping[str, Any]
    evaluated: Mapping[str, Any]


def save(
    run_dir: RunDir, state: SavedState, config: RunConfig, learner: LearnerGroup, tokenizer: CharTokenizer
) -> None:
    """Write the folder of state.step and drop the oldest ones; raises InvariantError when the disk refuses."""

    def fill(folder: Path) -> None:
        learner.save(folder / "learner")
        learner.export_hf(folder / "hf", {"eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id})
        tokenizer.write_hf(folder / "hf")
        content = _jsonable(asdict(state)) | {"fingerprint": fingerprint(config.model_dump(mode="json"))}
        (folder / "state.json").write_text(json.dumps(content), encoding="utf-8")

    folder = run_dir.checkpoint_folder(state.step)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, fill)
        for old in run_dir.checkpoints()[: -config.checkpointing.keep]:
            _remove(old)
    except OSError as error:
        raise InvariantError(f"the checkpoint {folder} could not be written: {error}") from error


def load(folder: Path, config: RunConfig, learner: LearnerGroup) -> SavedState:
    """Restore the learner and return the rest; raises UserError for a checkpoint of another configuration."""
    content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    if content.pop("fingerprint") != fingerprint(config.model_dump(mode="json")):
        raise UserError(f"{folder} belongs to another configuration than {config.folder / 'config.yaml'}")
    learner.load(folder / "learner")
    return SavedState(**content)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _remove(folder: Path) -> None:
    """Delete a step folder so that a kill in between leaves no folder that looks complete."""
    doomed = folder.with_name(f".{folder.name}.old")
    folder.replace(doomed)
    shutil.rmtree(doomed)
