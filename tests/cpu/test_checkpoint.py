"""Step folders: how many are kept, and what happens when the disk refuses one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_ada.config.load import load_run
from nemo_ada.errors import InvariantError, UserError
from nemo_ada.run.folder import LAYOUT, VOLATILE, RunDir, flatten, of_class
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


def test_a_run_of_before_settings_left_goes_on_unless_it_used_them(make, task):
    config = make("before")
    save(config, task, 2, FilesOnly())
    old, unused = config.model_dump(mode="json"), {"candidate_prompts": 0, "retry_probability": 0.0}
    old["reinforce_ada"] |= unused
    for free in (LAYOUT, ()):  # as that version hashed its settings
        kept = {key: value for key, value in flatten(old).items() if not of_class(key, (*VOLATILE, *free))}
        state = config.folder / "checkpoints" / "step_000002" / "state.json"
        mark = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
        state.write_text(json.dumps(json.loads(state.read_text()) | {"fingerprint": mark, "retries": []}))
        assert checkpoint.load(state.parent, config, FilesOnly()).step == 2
    (config.folder / "config.yaml").write_text(yaml.safe_dump(old))
    RunDir(config.folder).check(config.model_dump(mode="json"), resume=True)
    assert load_run(config.folder / "config.yaml") == config
    old["reinforce_ada"]["retry_probability"] = 0.8
    (config.folder / "config.yaml").write_text(yaml.safe_dump(old))
    with pytest.raises(UserError, match=r"retry_probability: 0.8 -> None"):
        RunDir(config.folder).check(config.model_dump(mode="json"), resume=True)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_are_kept_as_many_as_keep_says(make, task, keep):
    config = make(f"keep-{keep}", f"checkpointing.keep={keep}")
    for step in (2, 4, 6, 8):
        save(config, task, step, FilesOnly())
    kept = [path.name for path in RunDir(config.folder).checkpoints()]
    assert kept == [f"step_{step:06d}" for step in (2, 4, 6, 8)][-keep:]
    assert [path.name for path in (config.folder / "checkpoints").iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_leaves_the_checkpoints_before_it(make, task):
    config = make("full-disk")
    save(config, task, 2, FilesOnly())
    with pytest.raises(InvariantError, match="No space left on device; those before it stay"):
        save(config, task, 4, FullDisk())
    assert [path.name for path in RunDir(config.folder).checkpoints()] == ["step_000002"]


def test_a_run_whose_data_has_changed_does_not_go_on_in_silence(make, stack, tmp_path):
    data = tmp_path / "own.jsonl"
    config = make("inputs", f"task.path={data}", "grpo.max_num_steps=2", "grpo.val_period=0")
    data.write_text((Path(make("x").task.path)).read_text())
    training.Trainer(config, stack, embedded.run_task(config)).run()
    newest = RunDir(config.folder).newest_checkpoint()
    assert newest is not None
    assert (newest / "inputs.json").read_text() == (config.folder / "inputs.json").read_text()
    data.write_text(data.read_text() + '\n{"prompt": "999a", "answer": "1"}')
    again = config.model_copy(update={"resume": "auto"})
    with pytest.raises(UserError, match=r"data \(task.path\) changed"):
        training.Trainer(again, stack, embedded.run_task(again)).run()
