"""The cached base model: a damaged one is refused with what to do, before anything is trained on it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nemo_ada.cpu.settings import load_run
from nemo_ada.errors import UserError
from nemo_ada.run.files import write_folder
from nemo_ada.tasks.registry import build_task
from tests.lazy import Lazy
from tests.people import OTHER, needs_two_users

base = Lazy("nemo_ada.cpu.base")

JSONL = Path(__file__).resolve().parents[2] / "configs" / "cpu" / "jsonl.yaml"
NO_STACK = None  # a cached model needs no process


def test_a_damaged_base_model_is_refused_and_a_whole_one_is_used(tmp_path):
    lines = [json.dumps({"prompt": f"{n}=", "answer": f"{n}"}) for n in range(30)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    config = load_run(JSONL, [f"task.path={tmp_path}/data.jsonl", f"base.cache_dir={tmp_path}/cache"])
    task = build_task(config.task, tmp_path)
    folder = base.choose_base_folder(config, task)

    def fill(partial: Path) -> None:
        (partial / "model.safetensors").write_bytes(bytes(range(100)))
        (partial / "base.json").write_text(json.dumps({"mean": 0.5}))

    write_folder(folder, fill)
    assert base.prepare_base(config, task, NO_STACK) == folder

    damage: dict[str, Any] = {"model.safetensors": b"x", "base.json": b"{}"}
    for name, data in damage.items():
        write_folder(folder, fill)
        (folder / name).write_bytes(data)
        with pytest.raises(UserError, match=rf"{name}.*remove the folder to train it again"):
            base.prepare_base(config, task, NO_STACK)


@needs_two_users
def test_a_base_model_of_another_user_is_not_used(tmp_path: Path) -> None:
    """.cache/base is found in the working folder, where another user may have put a model of this name."""
    (tmp_path / "data.jsonl").write_text(
        "\n".join(json.dumps({"prompt": f"{n}=", "answer": f"{n}"}) for n in range(30))
    )
    config = load_run(JSONL, [f"task.path={tmp_path}/data.jsonl", f"base.cache_dir={tmp_path}/cache"])
    task = build_task(config.task, tmp_path)

    def fill(partial: Path) -> None:
        (partial / "base.json").write_text(json.dumps({"mean": 0.5}))

    write_folder(base.choose_base_folder(config, task), fill)
    os.chown(base.choose_base_folder(config, task) / "base.json", OTHER, OTHER)
    with pytest.raises(UserError, match=r"base\.json is not used: it belongs to .*base\.cache_dir"):
        base.prepare_base(config, task, NO_STACK)


def test_a_file_with_other_problems_at_the_same_path_gets_a_base_model_of_its_own(tmp_path):
    path = tmp_path / "data.jsonl"
    config = load_run(JSONL, [f"task.path={path}", f"base.cache_dir={tmp_path}/cache"])

    def folder(answers: list[int]) -> Path:
        path.write_text("\n".join(json.dumps({"prompt": f"{n}=", "answer": f"{answers[n]}"}) for n in range(30)))
        return base.choose_base_folder(config, build_task(config.task, tmp_path))

    before = folder([10 + n for n in range(30)])
    assert folder([10 + n for n in range(30)]) == before
    assert folder([39 - n for n in range(30)]) != before, "vocabulary and lengths are the same"
