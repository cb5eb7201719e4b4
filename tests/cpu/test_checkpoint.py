"""Step folders: how many are kept, and what happens when the disk refuses one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.folder import RunDir
from tests.lazy import Lazy

checkpoint = Lazy("nemo_ada.cpu.checkpoint")
embedded, training = Lazy("nemo_ada.cpu.stack"), Lazy("nemo_ada.cpu.trainer")


class FilesOnly:
    """The calls that a save and a resume make of a learner."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")

    def export_hf(self, folder: Path, extra: dict[str, Any]) -> None:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")

    def load(self, folder: Path) -> None:
        assert (folder / "model.safetensors").read_bytes() == b"weights"


class FullDisk(FilesOnly):
    def export_hf(self, folder: Path, extra: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")


def save(config, task, step: int, learner: FilesOnly) -> None:
    state = checkpoint.SavedState(step, 0, dict.fromkeys(checkpoint.TOTALS, 0), {}, {})
    checkpoint.save(RunDir(config.folder), state, config, learner, task.tokenizer)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_are_kept_as_many_as_keep_says(make, task, keep):
    config = make(f"keep-{keep}", f"checkpointing.keep={keep}")
    for step in (2, 4, 6, 8):
        save(config, task, step, FilesOnly())
    kept = [path.name for path in RunDir(config.folder).list_checkpoints()]
    assert kept == [f"step_{step:06d}" for step in (2, 4, 6, 8)][-keep:]
    assert [path.name for path in (config.folder / "checkpoints").iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_leaves_the_checkpoints_before_it(make, task):
    config = make("full-disk")
    save(config, task, 2, FilesOnly())
    with pytest.raises(InvariantError, match="No space left on device; those before it stay"):
        save(config, task, 4, FullDisk())
    assert [path.name for path in RunDir(config.folder).list_checkpoints()] == ["step_000002"]


@pytest.mark.long
def test_a_run_whose_data_has_changed_does_not_go_on_in_silence(make, stack, tmp_path):
    data = tmp_path / "own.jsonl"
    config = make("inputs", f"task.path={data}", "grpo.max_num_steps=2", "grpo.val_period=0")
    data.write_text((Path(make("x").task.path)).read_text())
    training.Trainer(config, stack, embedded.build_run_task(config)).run()
    newest = RunDir(config.folder).find_newest_checkpoint()
    assert newest is not None
    assert (newest / "inputs.json").read_text() == (config.folder / "inputs.json").read_text()
    data.write_text(data.read_text() + '\n{"prompt": "999a", "answer": "1"}')
    again = config.model_copy(update={"resume": "auto"})
    with pytest.raises(UserError, match=r"data \(task.path\) changed"):
        training.Trainer(again, stack, embedded.build_run_task(again)).run()
