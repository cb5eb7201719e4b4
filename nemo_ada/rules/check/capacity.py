"""Checks of capacity: GPU memory of both phases, the key-value cache of the first wave, disk for checkpoints."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from nemo_ada.rules.check.site import SAVES, find_job_folders
from nemo_ada.rules.facts.memory import (
    GIB,
    compute_checkpoint_bytes,
    count_saved_parameters,
    estimate_learner_phase,
    estimate_logprob_phase,
    estimate_optimizer_bytes,
    estimate_refit_phase,
    estimate_vllm_cache,
)
from nemo_ada.rules.facts.models import ModelShape
from nemo_ada.rules.facts.nemo_config import CAPTURED, CAPTURED_BY_DEFAULT, OFFLOAD, OFFLOADS, VLLM_KWARGS, NemoConfig
from nemo_ada.rules.finding import Findings, error, ok, warning
from nemo_ada.rules.layout import LEARNER, VLLM
from nemo_ada.standing import get_whole_path, show_path

SEQS = "policy.generation.vllm_kwargs.max_num_seqs"
TIGHT = 0.9  # share of the GPU above which it may not fit, because the estimate leaves out fragmentation


def check_learner_memory(config: NemoConfig, shape: ModelShape, gpu_gib: float) -> Findings:
    """Memory of the learner's phases on the fullest GPU."""
    phases = {
        "policy.train_micro_batch_size": estimate_learner_phase(config, shape),
        f"{VLLM}.tensor_parallel_size": estimate_refit_phase(config, shape),
        _find_logprob_key(config): estimate_logprob_phase(config, shape),
    }
    for key, phase in phases.items():
        text = f"{phase.name}: {phase.gib:.1f} of {gpu_gib:.1f} GiB per GPU = {phase.describe()}"
        if phase.gib > TIGHT * gpu_gib:
            finding = error if phase.gib > gpu_gib else warning
            yield finding(key, f"{text}; {_advise_what_helps(config, phase.name)} would lower it")
        else:
            yield ok(key, text)


def _find_logprob_key(config: NemoConfig) -> str:
    """Return the key that sets the micro-batch of the pass for log-probabilities."""
    batch = config.batch
    if batch.packing:
        return "policy.sequence_packing.logprob_mb_tokens"
    return "policy.dynamic_batching.logprob_mb_tokens" if batch.dynamic else "policy.logprob_batch_size"


def _advise_what_helps(config: NemoConfig, phase: str) -> str:
    learner, batch = config.learner, config.batch
    if phase == "log-probs":
        return (
            f"{_find_logprob_key(config)} of {max(batch.length, config.logprob_tokens // 8)} tokens, a larger TP or PP"
        )
    if phase == "refit":
        return f"a larger {LEARNER}.tensor_model_parallel_size or {VLLM}.tensor_parallel_size"
    v = config.values
    helps = []
    if not v.get(f"{LEARNER}.activation_checkpointing", False):
        helps.append(f"{LEARNER}.activation_checkpointing=true")
    if batch.micro_rows > 1:
        helps.append(f"policy.train_micro_batch_size={batch.micro_rows // 2}")
    if not v.get(f"{LEARNER}.defer_fp32_logits", False):
        helps.append(f"{LEARNER}.defer_fp32_logits=true")
    if learner.tp > 1 and not learner.sequence_parallel:
        helps.append(f"{LEARNER}.sequence_parallel=true")
    return ", ".join([*helps, "a larger TP or PP, or more nodes"])


def check_host_memory(config: NemoConfig, shape: ModelShape) -> Findings:
    """Memory of a node's CPUs that stays pinned for the optimizer's way off GPUs that learner and engine share."""
    if not config.colocated or config.optimizer_offload != OFFLOADS[0]:
        return
    each = estimate_optimizer_bytes(config, shape) / GIB
    if each:
        yield ok(
            OFFLOAD,
            f"pinned: {config.gpus_per_node * each:.0f} GiB of a node's memory = {config.gpus_per_node} GPUs x "
            f"{each:.1f} GiB of optimizer, up to twice that where tensors are a little above a power of two",
        )


def check_rollout_memory(config: NemoConfig, shape: ModelShape, first_wave: int, gpu_gib: float) -> Findings:
    """Memory of the sampling phase. The first wave is the moment with the most responses at once."""
    engine, rollout = config.engine, config.rollout
    key = f"{VLLM}.gpu_memory_utilization"
    cache = estimate_vllm_cache(config, shape, first_wave, gpu_gib)
    longest = rollout.max_prompt + rollout.max_new
    text = f"vLLM: {cache.arithmetic}; a first wave of {cache.responses:.0f} responses per replica"
    each = f"{cache.tokens_each:.0f} tokens each (half of prompt {rollout.max_prompt} + response {rollout.max_new})"
    seqs, room = engine.max_num_seqs, min(cache.responses, cache.concurrency)
    if cache.tokens >= longest and seqs < room:
        yield warning(
            SEQS,
            f"an engine decodes {seqs} responses at once, its cache has room for {room:.0f} of the first wave's "
            f"{cache.responses:.0f}: the others wait, and nothing is lost; {SEQS}={2 ** math.ceil(math.log2(room))} "
            "would work",
        )
    running = min(room, seqs)
    if engine.kind == "sync" and running > CAPTURED_BY_DEFAULT:
        yield warning(
            f"{VLLM}.async_engine",
            f"false: up to {running:.0f} responses run at once in an engine, and NeMo-RL's default engine made 13,317 "
            "tokens/s at 1,024 where the asynchronous one with few messages and CUDA graphs made 28,460 "
            "(recipes/guide/faster.md has the keys)",
        )
    elif running > engine.captured > 0:
        yield warning(
            f"{VLLM_KWARGS}.{CAPTURED}",
            f"up to {running:.0f} responses run at once in an engine, and vLLM has CUDA graphs for {engine.captured}: "
            f"above that a token took twice the time (recipes/results/gpu.md); {2 ** math.ceil(math.log2(running))} "
            "would work, with some 2 GiB more for graphs",
        )
    if cache.tokens < longest:
        yield error(
            key,
            f"{text}, and not even one response of {longest} tokens fits; a larger share (now "
            f"{config.values.get(key, 0.9)}) or a larger {VLLM}.tensor_parallel_size (now {engine.tp}) would help",
        )
    elif cache.concurrency < 0.25 * cache.responses:
        yield warning(
            key,
            f"{text}, room for {cache.concurrency:.0f} at {each}: the others wait in vLLM's queue and the phase gets "
            "longer, nothing is lost; a larger share, a larger vLLM TP or smaller first waves would shorten it",
        )
    else:
        waits = "" if cache.concurrency >= cache.responses else "; the rest waits in vLLM's queue"
        yield ok(key, f"{text}, room for {cache.concurrency:.0f} at {each}{waits}")


def check_checkpoint_disk(config: NemoConfig, shape: ModelShape, *, site: bool = False) -> Findings:
    """Room on the disk for the checkpoints that are kept and for the one that is being written.

    Args:
        config: the config.
        shape: the shape of its model.
        site: whether a full folder of a job is an error.
    """
    v, key = config.values, SAVES
    if not v.get("checkpointing.enabled", False):
        yield warning("checkpointing.enabled", "false: a run that is stopped starts anew; set it to true")
        return
    keep = v.integer("checkpointing.keep_top_k", 1)
    parameters = count_saved_parameters(config, shape)
    if not parameters:  # adapters of no layer that exists, which a rule of LoRA names
        return
    each = compute_checkpoint_bytes(config, shape) if v.get("checkpointing.save_optimizer", True) else 2.0 * parameters
    need = (keep + 1) * each
    folder = find_job_folders(v)[SAVES]
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    text = (
        f"{need / GIB:.0f} GiB = (keep_top_k {keep} + 1 being written) x {each / GIB:.0f} GiB "
        f"({parameters / 1e9:.1f} B x {each / parameters:g})"
    )
    free = shutil.disk_usage(existing).free
    name = str(v.get(key, folder))
    elsewhere = folder != get_whole_path(Path(name))
    place = f"{existing}" + (" (RUN_ROOT)" if elsewhere else "")
    if free < need:
        yield (error if site and (elsewhere or show_path(Path(name)).is_absolute()) else warning)(
            key,
            f"{text}, {free / GIB:.0f} GiB are free at {place} as seen from here; name another folder (RUN_ROOT in "
            "slurm/site.env is where jobs keep runs) or keep fewer",
        )
    else:
        yield ok(key, f"{text}, {free / GIB:.0f} GiB are free at {place}")
