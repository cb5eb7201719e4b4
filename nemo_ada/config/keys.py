"""Every setting, from the JSON schema that pydantic makes of the sections: key, kind, default, bounds and meaning."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from nemo_ada.config.parsing import CLOSE
from nemo_ada.config.presets import SECTION
from nemo_ada.config.run import RunConfig

Node = Mapping[str, Any]
MEANT = {
    "learning_rate": "lr", "num_generations": "num_generations_per_prompt", "n": "num_generations_per_prompt",
    "group_size": "num_generations_per_prompt", "steps": "max_num_steps", "max_steps": "max_num_steps",
    "num_steps": "max_num_steps", "batch_size": "num_prompts_per_step", "train_batch_size": "num_prompts_per_step",
    "cap": "max_responses", "method": "preset", "output_dir": "run_dir", "model": "model_name",
    "max_tokens": "max_new_tokens", "max_completion_length": "max_new_tokens", "save_steps": "save_period",
    "eval_steps": "val_period",
}  # fmt: skip
"""A name that other frameworks use -> ours."""
BELOW = (SECTION,)  # sections that have the same keys under NeMo-RL
FIRST = ("grpo", "reinforce_ada", "policy", "task", "validation")  # sections in the order of what people mean
MOST = 2  # keys that a suggestion names


@dataclass(frozen=True, slots=True)
class Key:
    """A setting of the YAML.

    Attributes:
        key: Its dotted key.
        kind: What its values are, such as `integer > 0`.
        default: Its default as JSON would show it. Empty where it must be set.
        meaning: What it means, with its unit.
        where: The choice that has it, such as `kind=sequential`. Empty where every choice has it.
    """

    key: str
    kind: str
    default: str
    meaning: str
    where: str = ""


def schema() -> dict[str, Any]:
    """Return the JSON schema of a YAML of the CPU back end, for editors. Its section `reinforce_ada` is everybody's."""
    found = TypeAdapter(RunConfig).json_schema()
    found["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    found["properties"]["defaults"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Other YAMLs, relative to this one, over which it is merged.",
    }
    return found


def settings() -> list[Key]:
    """Return every setting of the CPU back end, in the order of the YAML."""
    found = TypeAdapter(RunConfig).json_schema()
    return list(_settings(found, found, ""))


def _settings(node: Node, whole: Node, prefix: str, where: str = "") -> Iterator[Key]:
    required = node.get("required", ())
    for name, field in node.get("properties", {}).items():
        key, forms = f"{prefix}{name}", list(_forms(field, whole))
        sections = [form for form in forms if "properties" in form]
        if len(sections) < len(forms):
            default = "" if name in required else _shown(field.get("default"))
            kind = " | ".join(dict.fromkeys(map(_kind, forms)))
            yield Key(key, kind, default, " ".join(field.get("description", "").split()), where)
        for section in sections:
            choice = _choice(section) if len(sections) > 1 else ""
            yield from _settings(section, whole, f"{key}.", choice or where)


def _forms(field: Node, whole: Node) -> Iterator[Node]:
    """Yield what a field may hold: sections and kinds of values, without the unions around them."""
    reference = field.get("$ref", "")
    node = whole["$defs"][reference.rpartition("/")[2]] if reference else field
    inner = node.get("anyOf") or node.get("oneOf")
    if inner is None:
        yield node
    for form in inner or ():
        yield from _forms(form, whole)


def _choice(section: Node) -> str:
    """Return the key and the value that choose a section, such as `kind=sequential`."""
    names = [name for name in ("kind", "name") if "const" in section["properties"].get(name, {})]
    return f"{names[0]}={section['properties'][names[0]]['const']}" if names else ""


def _kind(form: Node) -> str:
    """Return the values of a form in words."""
    if "properties" in form:
        return "section"
    if "const" in form or "enum" in form:
        return " | ".join(map(str, form.get("enum") or [form["const"]]))
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = [f"{sign} {form[name]:g}" for name, sign in signs.items() if name in form]
    return " ".join([form.get("type", "any"), ", ".join(bounds)]).strip()


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _likely(key: str) -> tuple[int, int]:
    """Sort what people mean first: settings of the training, high in the tree."""
    section = key.partition(".")[0]
    return FIRST.index(section) if section in FIRST else len(FIRST), key.count(".")


def meant(name: str, keys: Iterable[str]) -> list[str]:
    """Return the dotted keys whose last part is a name, or the name that we have for it, or one like it."""
    known = list(dict.fromkeys(keys))
    found = [key for key in known if key.rpartition(".")[2] in (name, MEANT.get(name))]
    if found:
        return sorted(found, key=_likely)[:MOST]
    close = difflib.get_close_matches(name, {key.rpartition(".")[2] for key in known}, n=1, cutoff=CLOSE)
    return [key for key in known if key.rpartition(".")[2] in close][:MOST]
