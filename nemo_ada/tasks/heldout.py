"""Write the held-out problems of a run of the CPU back end to the run's folder, for `nemo-ada eval --data`.

`heldout.jsonl` has {"problem": what the model reads, "answer": the reference} per line. `heldout.yaml` says how they
are asked and judged, in the keys of configs/eval.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from nemo_ada.run.files import write_atomically
from nemo_ada.tasks.prompting import ModelTokenizer
from nemo_ada.tasks.protocol import Task
from nemo_ada.tasks.settings import AnyTaskSettings, JsonlSettings, PuzzleSettings

HELDOUT = "heldout.yaml"
ASKED = ("template", "system", "suffix", "chat_template_kwargs")
"""What of a tokenizer's format is a key of configs/eval, too."""


def write_heldout(folder: Path, task: Task, settings: AnyTaskSettings, max_new_tokens: int) -> None:
    """Write both files, unless one is there: it is an earlier attempt's, or the user's.

    Nothing is written where only the task itself can judge its answers.

    Args:
        folder: the run's folder.
        task: the run's task.
        settings: its settings.
        max_new_tokens: longest response of the run, tokens.
    """
    if any((folder / name).exists() for name in (HELDOUT, "heldout.jsonl")):
        return
    if isinstance(settings, JsonlSettings):
        judged = {"verifier": settings.verifier, **({"reward": settings.reward} if settings.reward else {})}
    elif isinstance(settings, PuzzleSettings) and settings.drafts == 1:
        judged = {"verifier": "exact"}  # a board and a word have one solution
    else:
        return
    problems = [{"problem": prompt.text, "answer": prompt.answer} for prompt in task.splits().heldout]
    asked: dict[str, Any] = {"name": "heldout", "source": "heldout.jsonl"}
    if isinstance(task.tokenizer, ModelTokenizer):
        asked |= {name: value for name, value in asdict(task.tokenizer.format).items() if name in ASKED}
    limits = {"max_prompt_tokens": task.max_prompt_tokens, "max_new_tokens": max_new_tokens}
    write_atomically(folder / "heldout.jsonl", "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in problems))
    write_atomically(folder / HELDOUT, yaml.safe_dump(asked | judged | limits, sort_keys=False))
