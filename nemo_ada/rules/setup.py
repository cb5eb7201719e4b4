"""Rules for what NeMo-RL's set-up, megatron-core and vLLM refuse, or ignore with a wrong result, minutes into a job.

The rules follow NeMo-RL v0.7.0 and the megatron-core and vLLM that it pins. recipes/results/config_rules.csv has a row
per setting that was tried. It says where a job would end without the rule, and what `check` says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from nemo_ada.by_name import file_of, find
from nemo_ada.config.parsing import suggest_name
from nemo_ada.config.values import Values
from nemo_ada.errors import UserError
from nemo_ada.rules.data import lies_here, uses_media
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.models import find_shape
from nemo_ada.rules.facts.nemo_config import Loop
from nemo_ada.rules.facts.upstream import LOOP
from nemo_ada.rules.finding import Findings, error, warning
from nemo_ada.rules.gym import COLUMNS, uses_gym
from nemo_ada.rules.references import check_references
from nemo_ada.rules.rewards import (
    OUR_ENVIRONMENT,
    check_threshold,
    check_verdicts,
    list_environments,
)
from nemo_ada.run.data_files import read_records
from nemo_ada.run.files import text_of
from nemo_ada.run.json_lines import DamagedLine, refuse_line

LEARNER, GENERATION = "policy.megatron_cfg", "policy.generation"
OPTIMIZER, SCHEDULER = f"{LEARNER}.optimizer", f"{LEARNER}.scheduler"
ENVIRONMENTS = "nemo_rl.environments.utils.ENV_REGISTRY"
"""Where NeMo-RL lists its names. They are read in the checkout. Without one nothing is judged by them."""
VALIDATES = "nemo_rl.models.megatron.setup._validate_optimizer_config"
TAKES_PARTS = "0 < optimizer_offload_fraction <= 1"
"""In its source where NeMo-RL moves a share of the optimizer (pull request 3628)."""
DTENSOR = "policy.dtensor_cfg"  # it has no version 1 in v0.8.0, where its section has another name
EXAMPLES = ("dapo",)  # an environment that a script of NeMo-RL's examples makes
PADDING = 1024  # embeddings that a model may have beyond its tokenizer, because each size of a family is padded
MAX_LINES = 200_000  # lines of a training set that are read


def check_schedule(v: Values) -> Findings:
    """Learning rates and lengths that megatron-core's scheduler compares when it starts."""
    lr, low = v.number(f"{OPTIMIZER}.lr"), v.number(f"{OPTIMIZER}.min_lr")
    start, warm = v.number(f"{SCHEDULER}.lr_warmup_init"), v.number(f"{SCHEDULER}.lr_warmup_iters")
    decay = v.number(f"{SCHEDULER}.lr_decay_iters")
    if lr is not None and low is not None and low > lr:
        yield error(f"{OPTIMIZER}.min_lr", f"min_lr={low:g} is above lr={lr:g}; {lr:g} would work")
    if lr is not None and start is not None and start > lr:
        yield error(
            f"{SCHEDULER}.lr_warmup_init", f"lr_warmup_init={start:g} is above lr={lr:g}; {lr / 10:g} would work"
        )
    steps = v.number("grpo.max_num_steps")
    end, name = (
        (decay, "lr_decay_iters") if decay is not None else (steps, "grpo.max_num_steps, which lr_decay_iters is")
    )
    if warm is not None and end is not None and warm >= end:
        yield error(
            f"{SCHEDULER}.lr_warmup_iters",
            f"lr_warmup_iters={warm:g} must be below {name}={end:g}; set lr_warmup_iters to {max(int(end) - 1, 0)} or "
            f"less, or {SCHEDULER}.lr_decay_iters above it",
        )


def check_optimizer(v: Values) -> Findings:
    """Combinations that the learner's workers refuse after the model was built."""
    share = v.number(f"{OPTIMIZER}.optimizer_offload_fraction")
    parts = TAKES_PARTS in version.read_source(VALIDATES)
    fits = share is not None and (0 < share <= 1 if parts else share == 1.0)
    if v.get(f"{OPTIMIZER}.optimizer_cpu_offload", False) and not fits:
        yield error(
            f"{OPTIMIZER}.optimizer_offload_fraction",
            f"optimizer_cpu_offload=true with fraction {v.get(f'{OPTIMIZER}.optimizer_offload_fraction')}: NeMo-RL "
            f"moves {'a share above 0' if parts else 'all of the optimizer or nothing'}; 1.0 would work",
        )
    if v.get(f"{OPTIMIZER}.bf16", False) and v.get(f"{OPTIMIZER}.fp16", False):
        yield error(f"{OPTIMIZER}.fp16", "bf16 and fp16 exclude each other; set fp16 to false")


def check_experts_parallel(v: Values) -> Findings:
    """Experts and tensor parallelism need sequence parallelism. megatron-core says so in the first update only."""
    if v.get(f"{LEARNER}.sequence_parallel", False):
        return
    experts = v.integer(f"{LEARNER}.expert_model_parallel_size", 1)
    if experts > 1 and v.integer(f"{LEARNER}.tensor_model_parallel_size", 1) > 1:
        yield error(
            f"{LEARNER}.sequence_parallel",
            "experts with a tensor-parallel size above 1 train only with sequence parallelism; set it to true",
        )


def check_packs(v: Values) -> Findings:
    """A pack, or a dynamic micro-batch, must have room for the longest row. The first such row may come late."""
    multiple = v.integer("policy.make_sequence_length_divisible_by", 1)
    total = v.integer("policy.max_total_sequence_length")
    row = v.integer("data.max_input_seq_length", total) + v.integer("policy.generation.max_new_tokens", total)
    longest = -(-min(total, row) // multiple) * multiple
    for section in ("sequence_packing", "dynamic_batching"):
        for name in ("train_mb_tokens", "logprob_mb_tokens"):
            key = f"policy.{section}.{name}"
            tokens = v.number(key)
            if v.get(f"policy.{section}.enabled", False) and tokens is not None and tokens < longest:
                yield error(
                    key,
                    f"{tokens:g} tokens do not hold the longest row, {longest} tokens of prompt and response (a "
                    f"multiple of {multiple}): the first such row ends the run; {longest} would work",
                )


def check_validation(v: Values) -> Findings:
    """NeMo-RL validates max_val_samples // val_batch_size batches, so a batch must not be larger than the samples."""
    if not v.validates:
        return
    samples, batch = v.number("grpo.max_val_samples"), v.number("grpo.val_batch_size")
    if samples is not None and batch is not None and samples < batch:
        yield error(
            "grpo.val_batch_size",
            f"val_batch_size={batch:g} is above max_val_samples={samples:g}: validation would be 0.0 of 0 samples; "
            f"{samples:g} would work",
        )


def check_saves(v: Values) -> Findings:
    """What the first save needs: the metric that ranks checkpoints, a deadline that can be parsed, a format."""
    if not v.get("checkpointing.enabled", False):
        return
    save_format = v.get("checkpointing.model_save_format")
    if v.get(f"{DTENSOR}.enabled", False) and not v.get(f"{DTENSOR}._v2", False) and save_format is not None:
        yield error(
            "checkpointing.model_save_format",
            f"checkpointing.model_save_format={save_format} is for {DTENSOR}._v2=true; DTensor v1 would fail at its "
            f"first save; set checkpointing.model_save_format=null or {DTENSOR}._v2=true",
        )
    key = "checkpointing.metric_name"
    metric = v.get(key)
    if metric is not None:
        prefix, _, name = str(metric).partition(":")
        if prefix not in ("train", "val") or not name:
            yield error(key, f"{metric}: NeMo-RL wants train:NAME or val:NAME, or null; val:accuracy would work")
        elif prefix == "val" and not uses_gym(v):
            found = version.find_checkout()
            logged = set() if found is None else found.list_metrics(LOOP, ("validate",))
            if logged and name not in logged:
                yield error(key, f"{metric}: {suggest_name(name, sorted(logged), 'validation metrics')}")
        elif prefix == "train":
            yield warning(
                key,
                f"{metric}: where a step logs no such metric, the run ends at its first save; val:accuracy is safe",
            )
    period, steps = v.number("checkpointing.save_period"), v.number("grpo.max_num_steps")
    if period is not None and steps is not None and period > steps:
        yield warning(
            "checkpointing.save_period",
            f"save_period={period:g} is above grpo.max_num_steps={steps:g}: only the end is saved, and a failure loses "
            "the whole run",
        )
    deadline = v.get("checkpointing.checkpoint_must_save_by")
    if deadline is not None and not re.fullmatch(r"\d+:\d+:\d+:\d+", str(deadline)):
        yield error(
            "checkpointing.checkpoint_must_save_by",
            f"{deadline!r}: NeMo-RL wants days:hours:minutes:seconds, such as 00:03:45:00; null would work, because a "
            "slot saves before it ends",
        )


def check_tokenizer(v: Values) -> Findings:
    """The tokenizer is the model's."""
    model, name = str(v.get("policy.model_name", "")), str(v.get("policy.tokenizer.name", ""))
    if not name or not model or name == model:
        return
    shapes = [find_shape(repository) for repository in (model, name)]
    ours, theirs = (None if known is None else known[0].vocab for known in shapes)
    if ours is None or theirs is None:
        yield warning("policy.tokenizer", f"{name} is not the model {model}: its tokens must be the model's")
    elif abs(ours - theirs) > PADDING:
        yield error(
            "policy.tokenizer.name",
            f"{name} has {theirs} tokens and {model} {ours}: a number is another token in the other; {model} would "
            "work",
        )


def check_prompt_batches(v: Values) -> Findings:
    """How NeMo-RL's loader hands out the prompts of a step."""
    if v.get("data.use_multiple_dataloader", False):
        yield error(
            "data.use_multiple_dataloader",
            "data.use_multiple_dataloader=true has no end of an epoch and no state that a stop between steps could "
            "save; set it to false and list the data sets under data.train, which merges them",
        )


def check_training_set(v: Values) -> Findings:
    """A local training set has enough records for the steps, and each has a text in both columns."""
    path = v.get("data.train.data_path")
    if path is None or not lies_here(Path(str(path))):
        return
    keys = [
        str(v.get(f"data.train.{key}", default)) for key, default in (("input_key", "input"), ("output_key", "output"))
    ]
    if uses_gym(v):
        keys = list(COLUMNS)
    count = 0
    try:
        for number, record in read_records(Path(str(path)), refuse_line, str(v.get("data.train.split", "train"))):
            if number > MAX_LINES:
                break
            if count == 0 and not set(keys) <= set(record):
                return  # the rule of its columns says it
            absent = [key for key in keys if record.get(key) in (None, "")]
            if absent:
                raise DamagedLine(f"line {number}: has no {' and no '.join(map(repr, absent))}")
            count += 1
    except DamagedLine as damage:
        yield error("data.train.data_path", f"{path}, {damage}; mend the line or leave it out")
        return
    except UserError:  # the rule of its columns says it
        return
    validation = v.number("data.train.split_validation_size") or 0
    left = int(count * (1 - validation)) if validation < 1 else count - int(validation)
    wanted = v.number("grpo.num_prompts_per_step") or 1
    if v.get("grpo.use_dynamic_sampling", False):
        wanted = int(wanted * (v.number("grpo.batch_multiplier") or 1))
    steps, epochs = v.number("grpo.max_num_steps") or 0, v.number("grpo.max_num_epochs") or 1
    if count >= MAX_LINES:
        return
    if left < wanted:
        yield error(
            "data.train.data_path",
            f"{path} has {left} records for training, a step draws {wanted:g}: NeMo-RL drops an incomplete batch, "
            f"and would end at once as if all was done; set grpo.num_prompts_per_step to {left} or less",
        )
    elif not Loop.of(v).draws_ahead and epochs * (left // wanted) < steps:
        yield warning(
            "grpo.max_num_epochs",
            f"{path} has {left} records for training: {epochs:g} epochs of them make {epochs * (left // wanted):g} "
            f"steps, and the run ends there, before grpo.max_num_steps={steps:g}; set max_num_epochs to "
            f"{math.ceil(steps / (left // wanted))} or more",
        )


def check_environments(v: Values) -> Findings:
    """The class of a user's own environment exists where the job looks for it. Each environment has its section."""
    for split, name in list_environments(v):
        if v.get(f"env.{name}") is None:
            yield error(
                f"data.{split}.env_name", f"{name} has no section env.{name}; add it, such as `env: {{{name}: {{}}}}`"
            )
    named, known = {name for _, name in list_environments(v)}, version.list_names(ENVIRONMENTS)
    for name, section in v.section("env").items():
        # For images NeMo-RL makes one of any name, and over NeMo-Gym it makes Gym's only.
        made = not known or name in (*known, *EXAMPLES, *named, OUR_ENVIRONMENT) or uses_media(v) or uses_gym(v)
        if isinstance(section, Mapping) and not made and section.get("class") is None:
            yield error(
                f"env.{name}",
                f"no data set names the environment {name}, and NeMo-RL makes none of this name: the run would train "
                f"with {', '.join(sorted(named)) or 'no environment'}. NeMo-RL has a script of its own for some, "
                f"such as run_grpo_sliding_puzzle.py; name a class (env.{name}.class=MODULE.CLASS) and set "
                f"data.train.env_name={name}, or remove the section",
            )
        dotted = section.get("class") if isinstance(section, dict) else None
        if dotted is None:
            continue
        key, text = f"env.{name}.class", str(dotted)
        form = text if ":" in text else ":".join(text.rsplit(".", 1))
        try:
            file = file_of(find(key, form))
        except UserError as problem:
            yield error(key, str(problem))
            continue
        attribute = form.rpartition(":")[2]
        defined = rf"^(?:class|def)\s+{attribute}\b|^{attribute}\s*=|import .*\b{attribute}\b"
        if file is not None and not re.search(defined, text_of(file, errors="replace"), re.M):
            yield error(key, f"{text}: {file} defines no {attribute}")


SETUP: tuple[Callable[[Values], Findings], ...] = (
    check_schedule, check_optimizer, check_experts_parallel, check_packs, check_validation, check_saves,
    check_tokenizer, check_prompt_batches, check_training_set, check_environments, check_threshold, check_verdicts,
    check_references,
)  # fmt: skip
