"""Configs that cannot work, and what `nemo-ada check` says of each: python recipes/benchmarks/config_rules.py

Each entry breaks one shipped config in a way that an assert, a raise or a silent default of NeMo-RL v0.7.0,
megatron-core or vLLM would meet after the job has its GPUs. NEMO_RL_HOME must name a checkout. It writes
recipes/results/config_rules.csv; without a GPU, in a minute. tests/rules/check/test_config_rules.py walks this list.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import measure

from nemo_ada.rules.check.command import examine_nemo_rl
from nemo_ada.rules.facts.config_file import load_config
from nemo_ada.rules.finding import Finding

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs/qwen2.5-math-7b.yaml"
TABLE = ROOT / "recipes/results/config_rules.csv"
LEARNER, VLLM, KWARGS = "policy.megatron_cfg", "policy.generation.vllm_cfg", "policy.generation.vllm_kwargs"
OPTIMIZER, SCHEDULER, LOSS = f"{LEARNER}.optimizer", f"{LEARNER}.scheduler", "loss_fn"
FILES = {
    "few.jsonl": '{"problem": "1 + 1?", "gt": "2"}\n' * 20,
    "holes.jsonl": '{"problem": "1 + 1?", "gt": "2"}\n' * 600 + '{"problem": "2 + 2?"}\n',
}
LOCAL = {"data.train.input_key": "problem", "data.train.output_key": "gt"}


@dataclass(frozen=True, slots=True)
class Broken:
    """A config that cannot work.

    Attributes:
        key: the key that check must name.
        value: its value.
        ends: where the job would have ended, or what it would have done wrong.
        others: more keys that the fault needs. {tmp} in a value is a folder with FILES.
        level: what check must say at least.
    """

    key: str
    value: Any
    ends: str
    others: Mapping[str, Any] = field(default_factory=dict)
    level: str = "error"

    def changes(self, folder: Path) -> dict[str, Any]:
        """All changed keys."""
        changed = {**self.others, self.key: self.value}
        return {k: v.replace("{tmp}", str(folder)) if isinstance(v, str) else v for k, v in changed.items()}


SETUP, BUILD, UPDATE, SILENT = "NeMo-RL's set-up", "the workers' start", "the first update", "nowhere: a wrong run"
BROKEN = (
    Broken(f"{OPTIMIZER}.optimizer_offload_fraction", 0.0, BUILD, {f"{OPTIMIZER}.optimizer_cpu_offload": True}),
    Broken(f"{OPTIMIZER}.min_lr", 1e-4, BUILD),
    Broken(f"{OPTIMIZER}.fp16", True, BUILD),
    Broken(f"{OPTIMIZER}.lr", 0.5, SILENT),
    Broken(f"{SCHEDULER}.lr_warmup_init", 1e-3, BUILD),
    Broken(f"{SCHEDULER}.lr_warmup_iters", 2000, BUILD, {f"{SCHEDULER}.lr_decay_iters": 1000}),
    Broken(f"{LEARNER}.tensor_model_parallel_size", 3, BUILD),
    Broken(f"{LEARNER}.pipeline_model_parallel_size", 16, BUILD),
    Broken("policy.sequence_packing.enabled", False, BUILD, {f"{LEARNER}.context_parallel_size": 2}),
    Broken(f"{LEARNER}.sequence_parallel", False, UPDATE,
           {"policy.model_name": "Qwen/Qwen3-30B-A3B", f"{LEARNER}.expert_model_parallel_size": 2}),
    Broken("policy.sequence_packing.algorithm", "first_fit_increasing", BUILD),
    Broken("policy.sequence_packing.train_mb_tokens", 2048, "the first step with a long row"),
    Broken("policy.sequence_packing.logprob_mb_tokens", 1024, "the first step with a long row"),
    Broken("policy.sequence_packing.logprob_mb_tokens", 262144, "out of memory in step 1"),
    Broken("policy.logprob_chunk_size", 1024, BUILD),
    Broken("policy.logprob_batch_size", 4, SETUP,
           {f"{LEARNER}.tensor_model_parallel_size": 4, "policy.make_sequence_length_divisible_by": 4}),
    Broken("policy.make_sequence_length_divisible_by", 1, UPDATE, {f"{LEARNER}.sequence_parallel": True}),
    Broken("policy.train_global_batch_size", 600, UPDATE),
    Broken("policy.max_total_sequence_length", 8192, BUILD),
    Broken("policy.tokenizer.name", "meta-llama/Llama-3.1-8B-Instruct", SILENT),
    Broken("policy.dtensor_cfg.lora_cfg.enabled", True, SILENT),
    Broken("policy.generation.backend", "sglng", SETUP),
    Broken(f"{OPTIMIZER}.optimizer", "adamw", BUILD),
    Broken(f"{SCHEDULER}.lr_decay_style", "cosin", BUILD),
    Broken(f"{SCHEDULER}.weight_decay_incr_style", "const", BUILD),
    Broken(f"{VLLM}.kv_cache_dtype", "fp9", BUILD),
    Broken(f"{VLLM}.kv_cache_dtype", "fp8", SETUP),
    Broken("policy.tokenizer.chat_template", "no/such.jinja", SETUP),
    Broken("data.train.processor", "math_hf_data_procesor", SETUP),
    Broken("data.validation.dataset_name", "AIME2042", SETUP, {"grpo.val_period": 10}),
    Broken("policy.generation.top_p", 0.0, SETUP),
    Broken("policy.generation.max_new_tokens", 4096, "nowhere: responses are cut earlier", level="warning"),
    Broken(f"{VLLM}.max_model_len", 65536, BUILD),
    Broken(f"{VLLM}.tensor_parallel_size", 3, SETUP),
    Broken(f"{VLLM}.gpu_memory_utilization", 1.5, BUILD),
    Broken(f"{KWARGS}.max_num_seqs", 32768, BUILD),
    Broken(f"{LOSS}.force_on_policy_ratio", True, SETUP),
    Broken(f"{LOSS}.ratio_clip_c", 0.5, UPDATE),
    Broken("grpo.val_batch_size", 960, "nowhere: each validation is 0.0 of 0 samples"),
    Broken("reinforce_ada", None, "nowhere: an answer without a verdict counts as wrong"),
    Broken("checkpointing.metric_name", "val:acuracy", "the first save"),
    Broken("checkpointing.metric_name", "accuracy", "the first save"),
    Broken("checkpointing.metric_name", "train:turns", "the first save", level="warning"),
    Broken("checkpointing.checkpoint_must_save_by", "04:00:00", "the loop's start"),
    Broken("checkpointing.save_period", 5000, "nowhere: a failure loses the run", level="warning"),
    Broken("data.use_multiple_dataloader", True, SETUP),
    Broken("env.ada_math.class", "my_rewards.Missing", SETUP),
    Broken("env.math.math_verify_impl", "hf_math_verfy", "nowhere: every answer counts as wrong"),
    Broken("data.train.data_path", "{tmp}/few.jsonl", "at once, as if all was done", LOCAL),
    Broken("data.train.data_path", "{tmp}/holes.jsonl", "the step that draws the line", LOCAL),
    Broken("policy.generation.colocated.resources.gpus_per_node", 8, SETUP,
           {"policy.generation.colocated.enabled": False}),
    Broken("reinforce_ada.budget", {"max_samples": 100}, SETUP),
)  # fmt: skip


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the config with dotted keys set; None removes a key."""
    made: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in config.items()
    }
    for key, value in changes.items():
        section = made
        *parents, last = key.split(".")
        for part in parents:
            section[part] = dict(section.get(part) or {})
            section = section[part]
        section[last] = value
    return made


def write_files(folder: Path) -> None:
    """The data files of the list."""
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def found(config: Mapping[str, Any], broken: Broken, folder: Path) -> Finding | None:
    """What check says of the key: its first error there, else its first warning, else None."""
    said = [
        one
        for one in examine_nemo_rl(changed(config, broken.changes(folder)))
        if broken.key.startswith(one.key) or one.key.startswith(broken.key)
    ]
    return next((one for level in ("error", "warning") for one in said if one.level == level), None)


def table(config: Mapping[str, Any]) -> tuple[list[tuple[str, str, str]], int]:
    """A row per config (the setting, where its job would end, what check says), and on how many check is silent."""
    rows, silent = [("setting", "where the job would end without the check", "check")], 0
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        for broken in BROKEN:
            said = found(config, broken, Path(name))
            silent += said is None
            value = str(broken.value).replace(name, "").replace("{tmp}/", "")
            rows.append((f"{broken.key}={value}", broken.ends, "silent" if said is None else said.level))
    return rows, silent


def main() -> None:
    """Write the table; exit code 1 where a config passes in silence."""
    rows, silent = table(load_config(CONFIG))
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print(f"{TABLE}: {silent} of {len(BROKEN)} silent")
    sys.exit(1 if silent else 0)


if __name__ == "__main__":
    measure(main)
