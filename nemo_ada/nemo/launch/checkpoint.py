"""Save the sampler's state beside NeMo-RL's, in reinforce_ada.json of the step folder.

NeMo-RL writes a checkpoint into tmp_step_N and renames the folder at the end. Its own save state has no place for ours,
because main drops unknown keys. So the method that finalizes a checkpoint is wrapped on the instance, and our file is
there before the folder gets its final name.

The file contains its own SHA-256, and is verified before it is used. NeMo-RL's files have no checksum.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nemo_ada.errors import UserError
from nemo_ada.run.files import read_json, remove, write_atomically

log = logging.getLogger(__name__)

FILE = "reinforce_ada.json"
VERSION = 2


@contextmanager
def save_state_with_checkpoints(checkpointer: Any, state: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Within the block every checkpoint of this manager also contains `state()`."""

    def writing(original: Callable[..., Any]) -> Callable[..., Any]:
        def finalize(checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
            if Path(checkpoint_path).exists():
                content = {"version": VERSION, **make_jsonable(state())}
                write_atomically(
                    Path(checkpoint_path) / FILE, json.dumps(content | {"sha256": _compute_checksum(content)})
                )
            return original(checkpoint_path, *args, **kwargs)

        return finalize

    with replace_methods(checkpointer, wrap_finalizers(checkpointer, writing)):
        yield


def wrap_finalizers(
    checkpointer: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Wrap the methods that end a save.

    v0.6 and v0.7 have the first one. Main calls the second one, which starts a thread that renames the folder.

    Args:
        checkpointer: NeMo-RL's checkpoint manager.
        wrap: Makes the new method from the original one.

    Returns:
        Name -> wrapped method, for the methods that the manager has.
    """
    names = ("finalize_checkpoint", "begin_finalization")
    return {name: wrap(getattr(checkpointer, name)) for name in names if hasattr(checkpointer, name)}


@contextmanager
def replace_methods(instance: Any, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace methods of one object within the block. Methods that were replaced before come back after it."""
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


def restore_state(checkpointer: Any) -> dict[str, Any] | None:
    """Read the state of the newest checkpoint.

    A checkpoint without the file was made without Reinforce-Ada. The run continues from it with its number of steps and
    a new estimator.

    Returns:
        The state, or None when there is no checkpoint.

    Raises:
        UserError: The file cannot be used.
    """
    newest = checkpointer.get_latest_checkpoint_path()
    if newest is None:
        return None
    path = Path(newest) / FILE
    if not path.exists():
        steps = int((checkpointer.load_training_info(newest) or {}).get("total_steps", 0))
        log.warning("%s has no %s: it was trained without Reinforce-Ada, whose estimates start anew", newest, FILE)
        return {"draws": steps, "sampler": None}
    advice = f"remove {newest} to continue from the checkpoint before it"
    try:
        state = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {advice}") from None
    if state.get("version") != VERSION:
        raise UserError(
            f"{path} has version {state.get('version')}, this build reads {VERSION}; use the build that wrote it"
        )
    if state.pop("sha256", None) != _compute_checksum(state):
        raise UserError(f"{path} is damaged: its content does not match its sha256; {advice}")
    return state


def remove_abandoned(checkpointer: Any) -> None:
    """Remove the folders of saves that were killed. NeMo-RL v0.7 would write the next save of that step into them."""
    for path in sorted(Path(checkpointer.checkpoint_dir).glob("tmp_step_*")):
        remove(path)
        log.warning("removed %s: its save was never finished", path)


def make_jsonable(value: Any) -> Any:
    """Return the value with lists for arrays and strings for keys. JSON keeps floats exactly."""
    if isinstance(value, Mapping):
        return {str(key): make_jsonable(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value


def _compute_checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of JSON content. It is the same before the content is written and after it is read."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
