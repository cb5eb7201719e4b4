"""Step folders of the CPU back end. A folder appears when it is complete, and has all that the next step needs.

step_000050/ learner/ (model, optimizer, schedule, generator)   hf/ (the model for transformers)
             state.json (step, data position, totals, sampler)  manifest.json (checksums)
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from nemo_ada.config.parsing import parse
from nemo_ada.cpu.learner.group import LearnerGroup
from nemo_ada.cpu.model_folder import choose_kept_config
from nemo_ada.cpu.settings import RunConfig
from nemo_ada.errors import InvariantError, ProcessLostError, StallError, UserError
from nemo_ada.run.files import read_json, remove_slowly, write_atomically, write_folder
from nemo_ada.run.folder import STATE, RunDir, compute_fingerprint
from nemo_ada.tasks.protocol import Tokenizer

TOTALS = ("responses", "tokens", "rows", "live_rows", "engine_steps", "seconds")


def _read_numbers(totals: dict[str, Any]) -> dict[str, Any]:
    """Return the totals. Raises ValueError unless there is a number that is not negative for each name in TOTALS."""
    wrong = [name for name in TOTALS if type(totals.get(name)) not in (int, float) or not 0 <= totals[name] < math.inf]
    if wrong or len(totals) != len(TOTALS):
        raise ValueError(f"must hold a number that is not negative for each of {', '.join(TOTALS)}")
    return totals


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class SavedState:
    """The state of a run outside the learner.

    Attributes:
        step: Completed training steps.
        position: Position of the next prompt in the data.
        totals: The run's totals, with the names in TOTALS.
        sampler: State of the sampler.
        evaluated: Results of the last evaluation.
    """

    step: Annotated[int, Field(ge=0)]
    position: Annotated[int, Field(ge=0)]
    totals: Annotated[dict[str, Any], AfterValidator(_read_numbers)]
    sampler: dict[Any, Any]
    evaluated: dict[str, Any]


def save(run_dir: RunDir, state: SavedState, config: RunConfig, learner: LearnerGroup, tokenizer: Tokenizer) -> None:
    """Write the folder of `state.step`, and then delete all but the newest `checkpointing.keep` folders.

    Raises:
        InvariantError: The folder could not be written.
    """

    def fill(folder: Path) -> None:
        learner.save(folder / "learner")
        stops = list(tokenizer.stop_ids)
        ends = {"eos_token_id": stops if len(stops) > 1 else stops[0], "pad_token_id": tokenizer.pad_id}
        learner.export_hf(folder / "hf", choose_kept_config(config.policy.model_name) | ends)
        tokenizer.write_hf(folder / "hf")
        settings = config.model_dump(mode="json")
        content = asdict(state) | {"fingerprint": compute_fingerprint(settings)}
        write_atomically(folder / STATE, json.dumps(content, default=np.ndarray.tolist))
        run_dir.copy_inputs(folder)

    folder = run_dir.checkpoint_folder(state.step)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, fill)
        for old in run_dir.list_checkpoints()[: -config.checkpointing.keep]:
            remove_slowly(old)
    except (ProcessLostError, StallError):
        raise
    except (OSError, InvariantError) as error:
        raise InvariantError(
            f"the checkpoint {folder} could not be written: {error}; those before it stay, resume=auto continues"
        ) from error


def load(folder: Path, config: RunConfig, learner: LearnerGroup) -> SavedState:
    """Restore the learner and return the other state. Raises UserError for a checkpoint that this run cannot use."""
    state = read_state(folder, compute_fingerprint(config.model_dump(mode="json")), config.folder)
    learner.load(folder / "learner")
    return state


def read_state(folder: Path, wanted: str, run_dir: Path) -> SavedState:
    """Read state.json of a step folder.

    Args:
        folder: The step folder.
        wanted: Fingerprint of the run's configuration.
        run_dir: The run's folder, for the error message.

    Raises:
        UserError: The file is damaged or belongs to another configuration.
    """
    path = folder / STATE
    content = read_json(path)
    if content.pop("fingerprint", None) != wanted:
        raise UserError(f"{folder} belongs to another configuration than {run_dir / 'config.yaml'}")
    return parse(SavedState, content, str(path))
