"""Numbers that need the real workers: log-probabilities before the first step and after the last, and gradient norms
after the last. In asynchronous training also the engine's log-probabilities after the last refit: within a step
responses may come from older weights, so the step's own metrics cannot tell whether a refit worked.

Both run inside the driver, around NeMo-RL's loop, with the policy that the loop trains.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from nemo_ada.rehearsal.observe import LAST_BATCH, note

PROBE_PROMPT = 8
"""Tokens of a prompt for the engine."""


def logprobs(policy: Any, reference: Path) -> None:
    """Note the largest difference in nats of the learner's log-probabilities to Hugging Face's (model.py), both in
    float32."""
    import torch

    expected = torch.load(reference, weights_only=True)
    difference = _of_learner(policy, expected["tokens"]) - expected["logprobs"]
    note(event="log-probs", difference=float(difference.abs().max()))


def last_logprobs(policy: Any, reference: Path) -> None:
    """Replace the log-probabilities in `reference` by the learner's of now, for what is exported (exported.py)."""
    import torch

    tokens = torch.load(reference, weights_only=True)["tokens"]
    torch.save({"tokens": tokens, "logprobs": _of_learner(policy, tokens).clone()}, reference)


def engine_logprobs(policy: Any, generation: Any, reference: Path) -> None:
    """Note the largest difference in nats between engine and learner, on fresh greedy responses."""
    import torch
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    tokens_BT = torch.load(reference, weights_only=True)["tokens"].clone()

    async def answer(prompt: Any) -> Any:
        data: Any = BatchedDataDict(
            input_ids=prompt[None], input_lengths=torch.tensor([len(prompt)]), stop_strings=[None]
        )
        async for _, output in generation.generate_async(data, greedy=True):
            return output

    told = []
    for row in tokens_BT:
        output = asyncio.run(answer(row[:PROBE_PROMPT]))
        end = min(int(output["unpadded_sequence_lengths"][0]), len(row))
        row[:end] = output["output_ids"][0, :end]
        told.append(output["logprobs"][0, PROBE_PROMPT:end])
    learner = _of_learner(policy, tokens_BT)[:, PROBE_PROMPT - 1 :]
    differences = [(own[: len(engine)] - engine).abs().max() for own, engine in zip(learner, told, strict=True)]
    note(event="engine log-probs", difference=float(max(differences)))


def _of_learner(policy: Any, tokens_BT: Any) -> Any:
    """Log-probabilities (B, T - 1) of each row's tokens after the first."""
    import torch
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    lengths = torch.full((len(tokens_BT),), tokens_BT.shape[1])
    policy.prepare_for_lp_inference()
    data: Any = BatchedDataDict(input_ids=tokens_BT, input_lengths=lengths)
    return policy.get_logprobs(data)["logprobs"][:, 1:]


def gradient_norms(policy: Any) -> None:
    """Note the gradient norm of the newest batch, packed and unpacked, at the same weights (learning rate 0)."""
    if not getattr(policy, "use_sequence_packing", False) or not LAST_BATCH:
        return
    norms, parts = {}, {}
    policy.prepare_for_training()
    for packed in (True, False):
        _set_packing(policy, packed)
        answer = policy.train(LAST_BATCH["data"], LAST_BATCH["loss_fn"])
        name = "packed" if packed else "unpacked"
        norms[name] = float(answer["grad_norm"].flatten()[0])
        parts[name] = len(answer["all_mb_metrics"]["loss"])
    _set_packing(policy, True)
    note(event="gradient norms", microbatches=parts, **norms)


def _set_packing(policy: Any, packed: bool) -> None:
    import ray

    def change(worker: Any) -> None:
        worker.cfg["sequence_packing"]["enabled"] = packed
        for group in worker.optimizer.param_groups:
            group["lr"] = 0.0
            group["weight_decay"] = 0.0

    policy.use_sequence_packing = packed
    ray.get([worker.__ray_call__.remote(change) for worker in policy.worker_group.workers])
