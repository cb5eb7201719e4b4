"""The held-out problems of a run, in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_ada.tasks.heldout import HELDOUT, write_heldout
from nemo_ada.tasks.registry import build_task
from nemo_ada.tasks.settings import JsonlSettings


def test_problems_are_written_once_and_a_file_of_the_user_stays(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"problem": f"{n} + 1 =", "answer": str(n + 1)}) + "\n" for n in range(40)))
    settings = JsonlSettings(path=str(data))
    task = build_task(settings)
    own, run = tmp_path / "own", tmp_path / "run"
    for folder in (own, run):
        folder.mkdir()
    (own / "heldout.jsonl").write_text("mine")
    for folder in (own, run, run):
        write_heldout(folder, task, settings, 4)
    assert (own / "heldout.jsonl").read_text() == "mine" and not (own / HELDOUT).exists()
    written = [json.loads(line)["problem"] for line in (run / "heldout.jsonl").read_text().splitlines()]
    assert written == [prompt.text for prompt in task.splits().heldout]
