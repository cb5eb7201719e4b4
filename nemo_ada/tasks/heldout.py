"""Write the held-out problems of a run of the CPU back end to the run's folder, for `nemo-ada eval --data`.

`heldout.jsonl` has {"problem": what the model reads, "answer": the reference} per line. `heldout.yaml` says how they
are asked and judged, in the keys of configs/eval.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from nemo_ada.run.files import write_atomically
from nemo_ada.tasks.protocol import Task
from nemo_ada.tasks.settings import AnyTaskSettings, JsonlSettings, MiniSudokuSettings, SpellBackwardSettings

HELDOUT = "heldout.yaml"


def write_heldout(folder: Path, task: Task, settings: AnyTaskSettings, max_new_tokens: int) -> None:
    """Write both files. Nothing is written where only the task itself can judge its answers.

    Args:
        folder: the run's folder.
        task: the run's task.
        settings: its settings.
        max_new_tokens: longest response of the run, tokens.
    """
    if isinstance(settings, JsonlSettings):
        judged = {"verifier": settings.verifier, **({"reward": settings.reward} if settings.reward else {})}
    elif isinstance(settings, MiniSudokuSettings | SpellBackwardSettings) and settings.drafts == 1:
        judged = {"verifier": "exact"}  # a board and a word have one solution
    else:
        return
    problems = [{"problem": prompt.text, "answer": prompt.answer} for prompt in task.splits().heldout]
    asked = {"name": "heldout", "source": "heldout.jsonl", "prompt_fields": ["problem"], "answer_fields": ["answer"]}
    limits = {"max_prompt_tokens": task.max_prompt_tokens, "max_new_tokens": max_new_tokens}
    write_atomically(folder / "heldout.jsonl", "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in problems))
    write_atomically(folder / HELDOUT, yaml.safe_dump(asked | judged | limits, sort_keys=False))
