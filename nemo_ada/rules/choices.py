"""Names that NeMo-RL or megatron-core looks up when a job has its GPUs, looked up before.

A misspelt one ends a job within its first minute, but on a cluster that minute comes after the queue. Which names there
are is read in the source that the job will run: NeMo-RL's checkout, and megatron-core where it lies. Without the
source, or where it has another form, nothing is judged. A file that a YAML names is looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_ada.config.parsing import CLOSE, suggest_name
from nemo_ada.config.values import Values
from nemo_ada.rules.data import list_parts
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.upstream import LOOP
from nemo_ada.rules.finding import Findings, error, warning

LEARNER, GENERATION = "policy.megatron_cfg", "policy.generation"
VLLM = f"{GENERATION}.vllm_cfg"
CACHE, TEMPLATE = f"{VLLM}.kv_cache_dtype", "policy.tokenizer.chat_template"
OPTIMIZERS, SCHEDULES = "megatron.core.optimizer", "megatron.core.optimizer_param_scheduler.OptimizerParamScheduler"
VERIFIERS = "nemo_rl.environments.math_environment.HFVerifyWorker.verify"
PROCESSORS = "nemo_rl.data.processors.PROCESSOR_REGISTRY"
DATASETS = "nemo_rl.data.datasets.response_datasets.DATASET_REGISTRY"
REFUSES_CACHE = "supported with kv cache fp8 enabled"


@dataclass(frozen=True, slots=True)
class Choice:
    """A key whose value is one of the names that the source compares it with, or lists.

    Attributes:
        key: the key.
        places: where the names stand: mappings, classes with such a field, functions.
        of: in a function, the name that is compared with them, and in a class its field.
        prefix: what may stand before a name.
        more: whether another package may know more names, so that only one that is close to a known one is misspelt.
    """

    key: str
    places: tuple[str, ...]
    of: str
    prefix: str = ""
    more: bool = False


CHOICES = (
    Choice(f"{LEARNER}.optimizer.optimizer", (f"{OPTIMIZERS}._get_megatron_optimizer_based_on_param_groups",
           f"{OPTIMIZERS}.emerging_optimizers._EMERGING_OPTIMIZERS"), "optimizer", "dist_", more=True),
    Choice(f"{LEARNER}.scheduler.lr_decay_style", (f"{SCHEDULES}.get_lr",), "lr_decay_style"),
    Choice(f"{LEARNER}.scheduler.lr_wsd_decay_style", (f"{SCHEDULES}.get_lr",), "lr_wsd_decay_style"),
    Choice(f"{LEARNER}.scheduler.weight_decay_incr_style", (f"{SCHEDULES}.get_wd",), "wd_incr_style"),
    Choice(f"{LEARNER}.moe_token_dispatcher_type",
           ("megatron.core.transformer.moe.moe_layer.MoELayer.__init__",), "moe_token_dispatcher_type"),
    Choice(f"{GENERATION}.backend", (f"{LOOP}.setup",), "backend"),
    Choice(CACHE, ("nemo_rl.models.generation.vllm.config.VllmSpecificArgs",), "kv_cache_dtype"),
)  # fmt: skip


def check_choices(v: Values) -> Findings:
    """Each name of the table is one that the source knows."""
    megatron = v.get(f"{LEARNER}.enabled", False)
    vllm = v.get(f"{GENERATION}.backend", "vllm") == "vllm"
    for choice in CHOICES:
        value = v.get(choice.key)
        asked = megatron if choice.key.startswith(LEARNER) else vllm or not choice.key.startswith(VLLM)
        if not asked or not isinstance(value, str):
            continue
        known = sorted(set().union(*(version.list_names(place, choice.of) for place in choice.places)))
        if known and value.removeprefix(choice.prefix) not in known:
            say = warning if choice.more and not difflib.get_close_matches(value, known, n=1, cutoff=CLOSE) else error
            yield say(choice.key, f"{value}: {_name_source(choice)} knows no such name; "
                        f"{suggest_name(value, known, 'choices')}")  # fmt: skip


def _name_source(choice: Choice) -> str:
    """Return whose source was read. megatron-core may be another one than that of the job, so its place is said."""
    core = None if choice.places[0].startswith("nemo_rl") else version.find_megatron()
    return "NeMo-RL" if core is None else f"megatron-core in {core.root}"


def check_verifiers(v: Values) -> Findings:
    """NeMo-RL's judge exists. Its environment catches the error of a misspelt one, and every answer is wrong."""
    known = version.list_names(VERIFIERS)
    for name, section in v.section("env").items():
        value = section.get("math_verify_impl") if isinstance(section, dict) else None
        if known and value is not None and value not in known:
            yield error(
                f"env.{name}.math_verify_impl",
                f"{value}: NeMo-RL catches its own error there, and every answer would count as wrong; "
                f"{suggest_name(str(value), sorted(known), 'choices')}",
            )


def check_data_names(v: Values) -> Findings:
    """Processors and data sets exist. Of both a user may have own ones, which no list has."""
    processors, sets = sorted(version.list_names(PROCESSORS)), sorted(version.list_names(DATASETS))
    for key, value in _walk_data(v, "processor"):
        if not processors or value in processors:
            continue
        close = difflib.get_close_matches(value, processors, n=1, cutoff=CLOSE)
        say = error if close else warning
        yield say(key, f"{value} is no processor of NeMo-RL's own, so your code must call register_processor; "
                  f"{suggest_name(value, processors, 'choices')}")  # fmt: skip
    for key, value in _walk_data(v, "dataset_name"):
        if sets and value not in sets and "." not in value:
            yield error(key, f"{value}: NeMo-RL has no such data set, and no dot makes it a class of yours; "
                        f"{suggest_name(value, sets, 'choices')}")  # fmt: skip


def _walk_data(v: Values, name: str) -> Iterator[tuple[str, str]]:
    """Key and value of a setting of each data set, and of the section that stands for all."""
    for split in ("default", "train", "validation"):
        listed = isinstance(v.get(f"data.{split}"), list)
        for number, part in enumerate(list_parts(v, split)):
            if isinstance(part.get(name), str):
                yield f"data.{split}{f'.{number}' if listed else ''}.{name}", part[name]


def check_chat_template(v: Values) -> Findings:
    """A chat template that is named as a file is there."""
    template = v.get(TEMPLATE)
    if isinstance(template, str) and template.endswith(".jinja") and not Path(template).is_file():
        yield error(TEMPLATE, f"{template} is not there; give an absolute path, or default for the tokenizer's own")


def check_fp8_cache(v: Values) -> Findings:
    """What NeMo-RL's set-up refuses beside an FP8 cache, where its source says that it does."""
    refuses = version.read_source(f"{LOOP}.setup")
    if not str(v.get(CACHE, "auto")).startswith("fp8") or REFUSES_CACHE not in refuses:
        return
    for excluded, why in (
        (v.get(f"{VLLM}.precision") != "fp8", f"needs {VLLM}.precision=fp8"),
        (v.get(f"{VLLM}.async_engine", False), f"excludes {VLLM}.async_engine=true"),
        (not v.get(f"{LEARNER}.enabled", False), f"needs {LEARNER}.enabled=true"),
        (v.integer(f"{LEARNER}.pipeline_model_parallel_size", 1) > 1, "excludes a learner with pipeline stages"),
    ):
        if excluded:
            yield error(CACHE, f"{v.get(CACHE)}: an FP8 cache {why} in NeMo-RL; auto would work")


NAMES: tuple[Callable[[Values], Findings], ...] = (
    check_choices,
    check_verifiers,
    check_data_names,
    check_chat_template,
    check_fp8_cache,
)
