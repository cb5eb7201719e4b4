"""Measurements that need the real workers: log-probabilities and gradient norms.

The learner's log-probabilities are measured before the first step and after the last, and gradient norms after the
last. In asynchronous training the engine's log-probabilities are measured after the last refit, too. Responses of a
step may come from older weights there, so the step's own metrics cannot show whether a refit worked.

All probes run inside the driver, around NeMo-RL's loop, with the policy that the loop trains. B rows of T tokens.

The rows are in a file of torch, `reference`: `tokens`, and `logprobs` where somebody has computed them. Before the
first step that is Hugging Face (model.py), for a small model only. After the last it is the learner (`keep_logprobs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemo_ada.rehearsal.observe import NEWEST_UPDATE, note

ROWS_PER_REPLICA, ROW_TOKENS = 8, 24
PROBE_PROMPT = 8
"""Number of tokens of a row that the engine gets as its prompt."""


def compare_logprobs(policy: Any, reference: Path) -> None:
    """Note how far the learner's log-probabilities are from Hugging Face's, in nats at most.

    Args:
        policy: NeMo-RL's policy.
        reference: File of the rows. Both sides compute in float32.
    """
    import torch

    expected = torch.load(reference, weights_only=True)
    if "logprobs" not in expected:  # Hugging Face did not compute them: the model has its full size
        return
    with _sample_plainly(policy):
        difference = _compute_logprobs(policy, expected["tokens"]) - expected["logprobs"]
    note(event="log-probs", difference=float(difference.abs().max()))


def write_rows(policy: Any, tokenizer: Any, reference: Path) -> None:
    """Write rows of random tokens into `reference`, as many as the learner's replicas can share."""
    import torch

    ranks = int(policy.sharding_annotations.get_axis_size("data_parallel"))
    shape, words = (ROWS_PER_REPLICA * ranks, ROW_TOKENS), int(tokenizer.vocab_size)
    torch.save({"tokens": torch.randint(words, shape, generator=torch.Generator().manual_seed(1))}, reference)


def note_memory(policy: Any) -> None:
    """Note the largest memory of torch's allocator over the learner's workers, in bytes, and the card's name."""
    import ray

    def read_peak(worker: Any) -> tuple[int, int, str]:
        import torch

        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), str(name)

    peaks = ray.get([worker.__ray_call__.remote(read_peak) for worker in policy.worker_group.workers])
    allocated, reserved, names = zip(*peaks, strict=True)
    note(event="memory", allocated=max(allocated), reserved=max(reserved), card=names[0])


def keep_logprobs(policy: Any, reference: Path) -> None:
    """Replace the log-probabilities in `reference` by the learner's current ones. exported.py compares with them."""
    import torch

    tokens = torch.load(reference, weights_only=True)["tokens"]
    with _sample_plainly(policy):
        torch.save({"tokens": tokens, "logprobs": _compute_logprobs(policy, tokens).clone()}, reference)


def compare_engine(policy: Any, generation: Any, reference: Path) -> None:
    """Note how far engine and learner are apart on fresh greedy responses, in nats at most."""
    import torch
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    tokens_BT = torch.load(reference, weights_only=True)["tokens"].clone()

    async def answer(prompt: Any) -> Any:
        data: Any = BatchedDataDict(
            input_ids=prompt[None], input_lengths=torch.tensor([len(prompt)]), stop_strings=[None]
        )
        async for _, output in generation.generate_async(data, greedy=True):
            return output

    logprobs = []
    for row in tokens_BT:
        output = asyncio.run(answer(row[:PROBE_PROMPT]))
        end = min(int(output["unpadded_sequence_lengths"][0]), len(row))
        row[:end] = output["output_ids"][0, :end]
        logprobs.append(output["logprobs"][0, PROBE_PROMPT:end])
    with _sample_plainly(policy):  # vLLM reports a greedy token's log-probability before temperature and top_k
        logprobs_BT = _compute_logprobs(policy, tokens_BT)
    rows = zip(logprobs_BT[:, PROBE_PROMPT - 1 :], logprobs, strict=True)
    differences = [(learner[: len(engine)] - engine).abs().max() for learner, engine in rows]
    note(event="engine log-probs", difference=float(max(differences)))


@contextmanager
def _sample_plainly(policy: Any) -> Iterator[None]:
    """Within the block the learner knows neither temperature nor top_p nor top_k.

    NeMo-RL divides the learner's logits by the temperature and leaves out the tokens that the engine could not draw.
    Those with whom it is compared do neither: Hugging Face, and vLLM for a prompt and for greedy responses.
    """
    import ray

    def forget_sampling(worker: Any) -> None:
        worker.kept_sampling_params = worker.sampling_params
        if worker.sampling_params is not None:
            worker.sampling_params = type(worker.sampling_params)()

    def restore_sampling(worker: Any) -> None:
        worker.sampling_params = worker.kept_sampling_params

    workers = policy.worker_group.workers
    ray.get([worker.__ray_call__.remote(forget_sampling) for worker in workers])
    try:
        yield
    finally:
        ray.get([worker.__ray_call__.remote(restore_sampling) for worker in workers])


def _compute_logprobs(policy: Any, tokens_BT: Any) -> Any:
    """Return the learner's log-probabilities [B, T - 1] of each row's tokens after the first."""
    import torch
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    lengths = torch.full((len(tokens_BT),), tokens_BT.shape[1])
    policy.prepare_for_lp_inference()
    masks = {"token_mask": torch.ones_like(tokens_BT), "sample_mask": torch.ones(len(tokens_BT))}
    data: Any = BatchedDataDict(input_ids=tokens_BT, input_lengths=lengths, **masks)  # top_p and top_k need the masks
    return policy.get_logprobs(data)["logprobs"][:, 1:]


def compare_gradient_norms(policy: Any) -> None:
    """Note the gradient norm of the newest update that had something to learn, unpacked and, where it can be, packed.

    The weights stay, because the learning rate is 0. The rows' log-probabilities become the learner's current ones,
    because the update has moved the weights since: a ratio beyond the clip range has no gradient.
    """
    if not NEWEST_UPDATE:
        return
    data, norms, parts = NEWEST_UPDATE["data"], {}, {}
    policy.prepare_for_lp_inference()
    logprobs_BT = policy.get_logprobs(data)["logprobs"]
    for name in ("prev_logprobs", "generation_logprobs"):
        if name in data:
            data[name] = logprobs_BT
    packs = bool(getattr(policy, "use_sequence_packing", False))
    policy.prepare_for_training()
    for packed in (True, False) if packs else (False,):
        _freeze_weights(policy, packed if packs else None)
        answer = policy.train(data, NEWEST_UPDATE["loss_fn"])
        name = "packed" if packed else "unpacked"
        norms[name] = float(answer["grad_norm"].flatten()[0])
        parts[name] = len(answer["all_mb_metrics"]["loss"])
    if packs:  # as before; the rates stay 0, because this is the last thing that the run does
        _freeze_weights(policy, True)
    note(event="gradient norms", microbatches=parts, **norms)


def _freeze_weights(policy: Any, packed: bool | None) -> None:
    """Set learning rate and weight decay of all workers to 0, and pack their sequences or not. None changes nothing."""
    import ray

    def change(worker: Any) -> None:
        if packed is not None:
            worker.cfg["sequence_packing"]["enabled"] = packed
        for group in worker.optimizer.param_groups:
            group["lr"] = 0.0
            group["weight_decay"] = 0.0

    if packed is not None:
        policy.use_sequence_packing = packed
    ray.get([worker.__ray_call__.remote(change) for worker in policy.worker_group.workers])
