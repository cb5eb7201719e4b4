"""Check that the folder of `nemo-ada export` is the learner's model, with transformers or with vLLM.

    python -m nemo_ada.rehearsal.exported transformers|vllm FOLDER LOGPROBS.pt
    python -m nemo_ada.rehearsal.exported peft FOLDER LOGPROBS.pt MODEL      # FOLDER has adapters of this MODEL

It prints the largest difference in nats to the learner's log-probabilities of fixed rows (probe.py), in float32. Each
library runs in its own interpreter, without stand-ins. B rows of T tokens.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CACHE_BYTES = 1 << 28  # without a size vLLM would take 92 % of the machine's memory


def compute_with_transformers(folder: Path, tokens_BT: Any, base: Path | None = None) -> Any:
    """Log-probabilities [B, T - 1] of each row's tokens after the first, by transformers.

    Args:
        folder: The model, or the adapters of `base`.
        tokens_BT: The rows.
        base: The model that PEFT adds the adapters to.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(base or folder)
    model: Any = AutoModelForCausalLM.from_pretrained(base or folder, dtype=torch.float32)
    if base is not None:
        model = importlib.import_module("peft").PeftModel.from_pretrained(model, folder)
    with torch.no_grad():
        logits = model(tokens_BT).logits[:, :-1]
    return torch.log_softmax(logits, -1).gather(-1, tokens_BT[:, 1:, None]).squeeze(-1)


def compute_with_vllm(folder: Path, tokens_BT: Any) -> Any:
    """Log-probabilities [B, T - 1] of each row's tokens after the first, by vLLM, which takes the rows as prompts."""
    import torch

    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"  # else vLLM logs a line after our number, which must be the last line
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=2 * tokens_BT.shape[1],
        kv_cache_memory_bytes=CACHE_BYTES,
    )
    rows = tokens_BT.tolist()
    prompts: Any = [{"prompt_token_ids": row} for row in rows]
    answers = engine.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=0))
    logprobs = [
        [entry[token].logprob for token, entry in zip(row[1:], answer.prompt_logprobs[1:], strict=True)]
        for row, answer in zip(rows, answers, strict=True)
    ]
    return torch.tensor(logprobs)


def main(arguments: Sequence[str]) -> None:
    """Print the difference between the named library and the learner."""
    import torch

    expected = torch.load(arguments[2], weights_only=True)
    folder, tokens_BT = Path(arguments[1]), expected["tokens"]
    if arguments[0] == "vllm":
        logprobs = compute_with_vllm(folder, tokens_BT)
    else:  # PEFT adds its adapters to a model of transformers
        logprobs = compute_with_transformers(folder, tokens_BT, *map(Path, arguments[3:]))
    difference = logprobs - expected["logprobs"]
    sys.stdout.write(f"\n{float(difference.abs().max())!r}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
