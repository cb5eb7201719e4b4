"""Rules for LoRA. Those on Megatron follow Megatron-Bridge's `peft/lora.py`.

A wrong name of a layer ends in a warning in a worker's log there, and a wrong size ends the job after the model was
loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nemo_ada.config.parsing import suggestion
from nemo_ada.config.values import Values
from nemo_ada.rules.facts.lora import LAYERS, OUTPUT
from nemo_ada.rules.facts.models import find_shape
from nemo_ada.rules.facts.nemo_config import other_learner
from nemo_ada.rules.finding import Findings, error

LEARNER = "policy.megatron_cfg"
PEFT = f"{LEARNER}.peft"
ADAPTED = (*LAYERS, "router", OUTPUT)
"""Layers of a decoder that Megatron-Bridge can give an adapter."""


def other_adapters(v: Values) -> Findings:
    """LoRA keys of the learner that is off have no effect, and the run would train all weights."""
    megatron = bool(v.get(f"{LEARNER}.enabled", False))
    used, other = PEFT, f"{other_learner(v)}.lora_cfg"
    if not megatron:
        used, other = other, used
    if v.get(f"{other}.enabled", False) and not v.get(f"{used}.enabled", False):
        yield error(
            f"{other}.enabled",
            f"the learner is {'Megatron' if megatron else 'DTensor'}, which does not read this section: all weights "
            f"would be trained; set {used}.enabled=true, or this one to false",
        )


def megatron_adapters(v: Values) -> Findings:
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
    yield from _targets(v, section)


def _targets(v: Values, section: Mapping[str, Any]) -> Findings:
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
                f"{suggestion(last, ADAPTED, 'layers')}",
            )
    shape = find_shape(str(v.get("policy.model_name", "")))
    output = OUTPUT in targets or (not targets and OUTPUT not in excluded)
    if output and shape is not None and shape[0].tied:
        yield error(
            key,
            f"an empty list adapts the output layer, too, and this model's output layer is its embedding: the adapter "
            f"would train and never reach vLLM or the export; [{', '.join(LAYERS)}] would work",
        )


LORA: tuple[Callable[[Values], Findings], ...] = (other_adapters, megatron_adapters)
