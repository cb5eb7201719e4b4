"""The sampler's state beside NeMo-RL's: reinforce_ada.json in the step folder, there before the folder gets its name.

NeMo-RL writes a checkpoint into tmp_step_N and renames it when it finalizes it. Its own save state is no place for
us (main drops unknown keys), so the method is wrapped on the instance: the file and the rename are one event.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.errors import UserError
from nemo_ada.run.files import write_atomically

log = logging.getLogger(__name__)

FILE = "reinforce_ada.json"
VERSION = 1


FINALIZERS = ("finalize_checkpoint", "begin_finalization")  # v0.6 and v0.7; main renames in a thread that it starts


@contextmanager
def saved_with(checkpointer: Any, state: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Within the block every checkpoint of this manager also holds `state()`."""

    def writing(original: Callable[..., Any]) -> Callable[..., Any]:
        def finalize(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
            if Path(checkpoint_path).exists():
                content = {"version": VERSION, **jsonable(state())}
                write_atomically(Path(checkpoint_path) / FILE, json.dumps(content))
            return original(checkpoint_path, *args, **kwargs)

        return finalize

    found = [name for name in FINALIZERS if hasattr(checkpointer, name)]
    with methods_replaced(checkpointer, {name: writing(getattr(checkpointer, name)) for name in found}):
        yield


@contextmanager
def methods_replaced(instance: Any, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Give one object other methods for the block, on top of those that it may have been given before."""
    before = {name: vars(instance)[name] for name in methods if name in vars(instance)}
    for name, method in methods.items():
        setattr(instance, name, method)
    try:
        yield
    finally:
        for name in methods:
            if name in before:
                setattr(instance, name, before[name])
            else:
                delattr(instance, name)


def restore(checkpointer: Any) -> dict[str, Any] | None:
    """State of the newest checkpoint; None for a fresh run. Raises UserError for a file that cannot be used.

    A checkpoint without the file was made without Reinforce-Ada: the run goes on from it with its number of steps, and
    an estimator that starts anew.
    """
    newest = checkpointer.get_latest_checkpoint_path()
    if newest is None:
        return None
    path = Path(newest) / FILE
    if not path.exists():
        steps = int((checkpointer.load_training_info(newest) or {}).get("total_steps", 0))
        log.warning("%s has no %s: it was trained without Reinforce-Ada, whose estimates start anew", newest, FILE)
        return {"version": VERSION, "draws": steps, "sampler": None}
    try:
        state = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove {newest} to continue from the one before") from None
    if state.get("version") != VERSION:
        raise UserError(
            f"{path} has version {state.get('version')}, this build reads {VERSION}; use the build that wrote it"
        )
    return state


def clear_abandoned(checkpointer: Any) -> None:
    """Remove what saves that were killed left behind: NeMo-RL would write the next one of that step on top of it."""
    for path in sorted(Path(checkpointer.checkpoint_dir).glob("tmp_step_*")):
        shutil.rmtree(path)
        log.warning("removed %s: its save was never finished", path)


def jsonable(value: Any) -> Any:
    """Arrays as lists and keys as strings; floats survive JSON exactly."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value
