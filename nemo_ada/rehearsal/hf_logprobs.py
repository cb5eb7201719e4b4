"""Hugging Face's log-probabilities of the rows that a policy worker was asked for. Runs without stand-ins:

python -m nemo_ada.rehearsal.hf_logprobs FILE MODEL
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def difference(file: str, model: str) -> float:
    """Largest absolute difference in nats between the worker's log-probabilities and Hugging Face's in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    saved = torch.load(file, weights_only=True)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    reference.train(False)
    with torch.no_grad():
        logits = reference(saved["tokens"]).logits[:, :-1].float()
    expected = torch.log_softmax(logits, -1).gather(-1, saved["tokens"][:, 1:, None]).squeeze(-1)
    return float((saved["logprobs"][:, 1:] - expected).abs().max())


def main(arguments: Sequence[str]) -> None:
    """Entry point: prints the number."""
    sys.stdout.write(f"{difference(*arguments)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
