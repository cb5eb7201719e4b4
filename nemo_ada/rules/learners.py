"""Rules for LoRA, and for keys of the learner that is off.

LoRA on Megatron follows Megatron-Bridge's `peft/lora.py`. A wrong name of a layer ends in a warning in a worker's log
there, and a wrong size ends the job after the model was loaded.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nemo_ada.config.parsing import suggest_name
from nemo_ada.config.values import Values
from nemo_ada.rules.facts.lora import LAYERS, OUTPUT
from nemo_ada.rules.facts.models import find_shape
from nemo_ada.rules.facts.nemo_config import name_other_learner
from nemo_ada.rules.finding import Findings, error, warning

LEARNER = "policy.megatron_cfg"
PEFT = f"{LEARNER}.peft"
HEAD = "lm_head"
ADAPTED = (*LAYERS, "router", OUTPUT)
"""Layers of a decoder that Megatron-Bridge can give an adapter."""


def check_other_adapters(v: Values) -> Findings:
    """LoRA keys of the learner that is off have no effect, and the run would train all weights."""
    megatron = bool(v.get(f"{LEARNER}.enabled", False))
    used, other = PEFT, f"{name_other_learner(v)}.lora_cfg"
    if not megatron:
        used, other = other, used
    if v.get(f"{other}.enabled", False) and not v.get(f"{used}.enabled", False):
        yield error(
            f"{other}.enabled",
            f"the learner is {'Megatron' if megatron else 'DTensor'}, which does not read this section: all weights "
            f"would be trained; set {used}.enabled=true, or this one to false",
        )


def check_megatron_adapters(v: Values) -> Findings:
    """What Megatron-Bridge needs of `peft`."""
    if not v.get(f"{LEARNER}.enabled", False) or v.section(PEFT).get("enabled", False) is not True:
        return
    tp, section = v.integer(f"{LEARNER}.tensor_model_parallel_size", 1), v.section(PEFT)
    for key in ("dim", "alpha"):
        value = section.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield error(f"{PEFT}.{key}", f"{key}={value}: LoRA needs a whole number above 0; 32 would work")
        elif key == "dim" and value % tp:
            yield error(
                f"{PEFT}.dim", f"rank {value} does not divide by TP {tp}, which splits it; {-(-value // tp) * tp} would"
            )
    if section.get("lora_B_init_method", "zero") != "zero" and section.get("lora_A_init_method", "xavier") != "zero":
        yield error(
            f"{PEFT}.lora_B_init_method",
            f"{section.get('lora_B_init_method')}: the run would not start from the model, because both matrices of an "
            "adapter would be random; zero would work",
        )
    dropout = v.number(f"{PEFT}.dropout")
    if dropout:
        yield error(
            f"{PEFT}.dropout",
            f"dropout={dropout:g} acts in the update and not in the rollout, so the ratio of the loss would be random; "
            "0.0 would work",
        )
    yield from _check_targets(v, section)


def _check_targets(v: Values, section: Mapping[str, Any]) -> Findings:
    """The names of layers exist, and the output layer gets no adapter that a refit would lose."""
    key = f"{PEFT}.target_modules"
    targets, excluded = (section.get(name) or [] for name in ("target_modules", "exclude_modules"))
    if not isinstance(targets, list) or not isinstance(excluded, list):
        return  # the rule of types says it
    for target in map(str, targets):
        last = target.rpartition(".")[2]
        if "*" not in last and last not in ADAPTED:
            yield error(
                key,
                f"{target}: Megatron has no such layer, and it would stay frozen without a message; "
                f"{suggest_name(last, ADAPTED, 'layers')}",
            )
    shape = find_shape(str(v.get("policy.model_name", "")))
    output = OUTPUT in targets or (not targets and OUTPUT not in excluded)
    if output and shape is not None and shape[0].tied:
        yield error(
            key,
            f"an empty list adapts the output layer, too, and this model's output layer is its embedding: the adapter "
            f"would train and never reach vLLM or the export; [{', '.join(LAYERS)}] would work",
        )


def check_dtensor_adapters(v: Values) -> Findings:
    """A model whose output layer is its embedding gets no adapter there, because a refit would lose it.

    NeMo-RL's default is every linear layer (`match_all_linear`), which NeMo Automodel says to include `lm_head`
    (nemo_automodel/components/_peft/module_matcher.py). vLLM takes such a layer from the embedding.
    """
    here = f"{name_other_learner(v)}.lora_cfg"
    section = v.section(here)
    if v.get(f"{LEARNER}.enabled", False) or section.get("enabled", False) is not True:
        return
    names = {key: list(map(str, section.get(f"{key}_modules") or ())) for key in ("target", "exclude")}
    named = {key: any(fnmatch.fnmatch(HEAD, name.rpartition(".")[2]) for name in names[key]) for key in names}
    every = section.get("match_all_linear", False) or (names["exclude"] and not names["target"])
    shape = find_shape(str(v.get("policy.model_name", "")))
    if (named["target"] or (every and not named["exclude"])) and shape is not None and shape[0].tied:
        yield error(
            f"{here}.match_all_linear",
            f"{HEAD} gets an adapter, too, and this model's output layer is its embedding: the adapter would train and "
            f"never reach vLLM; set it to false, and {here}.target_modules=['*_proj']",
        )
    if section.get("use_dora", False):
        yield error(
            f"{here}.use_dora",
            "use_dora=true: NeMo-RL's refit sends the model plus B A, without DoRA's magnitudes; set it to false",
        )


LORA: tuple[Callable[[Values], Findings], ...] = (check_other_adapters, check_megatron_adapters, check_dtensor_adapters)


def check_idle_keys(v: Values, upstream: Mapping[str, Any]) -> Findings:
    """Keys that the user changed in a section that the chosen learner does not read.

    Args:
        v: the resolved config.
        upstream: the part of it that comes from NeMo-RL's own files. What it says is nobody's wish.
    """
    sections: tuple[str, ...] = (name_other_learner(v), "policy.optimizer", "policy.scheduler")
    learner = "Megatron"
    if not v.get(f"{LEARNER}.enabled", False):
        learner, sections = "DTensor", (LEARNER,)
    theirs = Values(upstream)
    for section in sections:
        before, now = theirs.get(section), v.get(section)
        if not isinstance(before, Mapping) or not isinstance(now, Mapping):
            continue
        keys = [key for key in _find_changed(now, before) if key not in ("enabled", "lora_cfg.enabled", "peft.enabled")]
        if keys:
            yield warning(
                f"{section}.{keys[0]}",
                f"the learner is {learner}, which does not read {section}: {', '.join(keys)} "
                f"{'has' if len(keys) == 1 else 'have'} no effect",
            )


def _find_changed(now: Mapping[str, Any], before: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys whose values differ from those before. Interpolations of NeMo-RL's files are left out."""
    for name, value in now.items():
        old = before.get(name) if isinstance(before, Mapping) else None
        if isinstance(value, Mapping):
            yield from _find_changed(value, old, f"{prefix}{name}.")
        elif value is not None and value != old and not (isinstance(old, str) and "${" in old):
            yield f"{prefix}{name}"
