"""Every setting, from the JSON schema that pydantic makes of the sections: key, kind, default, bounds and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

Node = Mapping[str, Any]


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


def list_settings(kind: Any, prefix: str = "") -> list[Key]:
    """Return every setting of a kind of section, in the order of the YAML. `prefix` is its key with a dot."""
    found = TypeAdapter(kind).json_schema()
    return list(_walk_settings(found, found, prefix))


def list_sections_and_settings(kind: Any, prefix: str = "") -> list[str]:
    """Return the dotted keys of every setting of a kind of section, each behind those of the sections that hold it."""
    keys = (setting.key.split(".") for setting in list_settings(kind, prefix))
    return list(dict.fromkeys(".".join(parts[:depth]) for parts in keys for depth in range(1, len(parts) + 1)))


def find_fields(kind: Any, location: Iterable[str | int]) -> list[str]:
    """Return the sorted fields of the section at the location of a pydantic error, which has the tags of unions."""
    whole = TypeAdapter(kind).json_schema()
    sections = list(_walk_forms(whole, whole))
    for part in location:
        tagged = [one for one in sections if _find_choice(one).endswith(f"={part}")]
        fields = [one["properties"][part] for one in sections if part in one.get("properties", {})]
        sections = tagged or [form for field in fields for form in _walk_forms(field, whole)] or sections
    return sorted({name for section in sections for name in section.get("properties", ())})


def _walk_settings(node: Node, whole: Node, prefix: str, where: str = "") -> Iterator[Key]:
    required = node.get("required", ())
    for name, field in node.get("properties", {}).items():
        key, forms = f"{prefix}{name}", list(_walk_forms(field, whole))
        sections = [form for form in forms if "properties" in form]
        if len(sections) < len(forms):
            default = "" if name in required else _show_value(field.get("default"))
            kind = " | ".join(dict.fromkeys(map(_describe_kind, forms)))
            yield Key(key, kind, default, " ".join(field.get("description", "").split()), where)
        for section in sections:
            choice = _find_choice(section) if len(sections) > 1 else ""
            yield from _walk_settings(section, whole, f"{key}.", choice or where)


def _walk_forms(field: Node, whole: Node) -> Iterator[Node]:
    """Yield what a field may hold: sections and kinds of values, without the unions around them."""
    reference = field.get("$ref", "")
    node = whole["$defs"][reference.rpartition("/")[2]] if reference else field
    inner = node.get("anyOf") or node.get("oneOf")
    if inner is None:
        yield node
    for form in inner or ():
        yield from _walk_forms(form, whole)


def _find_choice(section: Node) -> str:
    """Return the key and the value that choose a section, such as `kind=sequential`."""
    names = [name for name in ("kind", "name") if "const" in section.get("properties", {}).get(name, {})]
    return f"{names[0]}={section['properties'][names[0]]['const']}" if names else ""


def _describe_kind(form: Node) -> str:
    """Return the values of a form in words."""
    if "properties" in form:
        return "section"
    if "const" in form or "enum" in form:
        return " | ".join(map(str, form.get("enum") or [form["const"]]))
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = [f"{sign} {form[name]:g}" for name, sign in signs.items() if name in form]
    return " ".join([form.get("type", "any"), ", ".join(bounds)]).strip()


def _show_value(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
