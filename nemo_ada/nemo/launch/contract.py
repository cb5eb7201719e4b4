"""What the prompts of a NeMo-RL run are made of, in a file of its folder and of its exports."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_ada.config.values import Values
from nemo_ada.run.files import text_of, write_atomically
from nemo_ada.run.folder import CONTRACT


def write_contract(folder: Path, values: Values) -> None:
    """Write what the prompts of a NeMo-RL run are made of. The tokenizer's part is in its own files."""
    contract: dict[str, object] = {"chat_template_kwargs": values.get("policy.tokenizer.chat_template_kwargs") or {}}
    for name, key in (("system", "system_prompt_file"), ("prompt_file", "prompt_file")):
        file = values.get(f"data.default.{key}")
        if file is None or Path(str(file)).is_file():
            contract[name] = None if file is None else text_of(Path(str(file))).strip()
    write_atomically(folder / CONTRACT, json.dumps(contract, indent=1, ensure_ascii=False) + "\n")
