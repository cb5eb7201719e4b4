"""Named settings of Reinforce-Ada (presets.yaml) and how a user's own keys override them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from omegaconf import OmegaConf

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.parsing import parse, suggest_name
from nemo_ada.errors import UserError

SECTION = "reinforce_ada"


@cache
def load_presets() -> Mapping[str, Mapping[str, Any]]:
    """Return all presets by name."""
    text = files("nemo_ada.config").joinpath("presets.yaml").read_text(encoding="utf-8")
    loaded = OmegaConf.to_container(OmegaConf.create(text))
    return {str(name): values for name, values in dict(loaded).items()}  # type: ignore[arg-type]


def parse_ada_settings(section: Mapping[str, Any]) -> AdaSettings:
    """Parse the section `reinforce_ada:` of a YAML over the values of its preset. Raises UserError."""
    if not isinstance(section, Mapping):
        raise UserError(f"{SECTION}={str(section)[:80]}: it must be a mapping, such as {{preset: ada_seq_balance}}")
    name = section.get("preset")
    if name is None:
        return parse(AdaSettings, section, SECTION)
    if not isinstance(name, str) or name not in load_presets():
        hint = suggest_name(str(name)[:80], list(load_presets()), "presets")
        raise UserError(f"{SECTION}.preset={str(name)[:80]}: no such preset; {hint}")
    return parse(AdaSettings, merge_sections(load_presets()[name], section), SECTION)


def merge_sections(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge one mapping over another, section by section.

    Args:
        base: the values of a preset.
        own: the user's values. A section with another `kind` replaces the whole section of `base`.
    """
    merged = dict(base)
    for key, value in own.items():
        below: Any = base.get(key)
        merged[key] = value
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        if both and value.get("kind", below.get("kind")) == below.get("kind"):
            merged[key] = merge_sections(below, value)
    return merged


def write_table() -> str:
    """Return the table of all presets for the head of presets.yaml, from their settings.

    Waves and caps follow from the group size, so each row shows one for example: 4 as in the paper's runs, 8 where the
    responses of a step are divided, and 1 where a prediction takes the place of the group.
    """
    rows = [("preset", "n", "a prompt has enough with", "wave", "N_max", "rows", "baseline", "weight")]
    for name in load_presets():
        ada = parse_ada_settings({"preset": name})
        advantage, sampling = ada.advantage, ada.sampling
        weight = f"objective: {advantage.objective.kind}"
        # With `reference` the weight is f'. Only Est declares another f than the linear one: log, of whose 1/p the
        # allocation realises one half by more responses (p^-1/2), and the advantages the other (objectives.py).
        if advantage.weighting == "reference":
            weight = "1" if advantage.objective.kind == "linear" else f"half of {advantage.objective.kind}'s"
        if sampling.kind == "estimation":
            n, (low, high) = 8, sampling.bounds(8)  # a prompt gets all its responses in one draw, so it has no waves
            rows.append((name, "8", f"its share of the draw, {low} to {high}", "-", str(high), "all", "pool", weight))
            continue
        n = 1 if advantage.baseline == "shrunk" else 4
        rule = repr(sampling.stop(n).exit).replace("Exit", "")
        kept = "all" if sampling.fixed_pool(n) == n else f"{n} of the pool"
        waves = ", ".join(map(str, sampling.waves(n)))
        rows.append((name, str(n), rule, waves, str(sampling.cap(n)), kept, advantage.baseline, weight))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("# " + "  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


if __name__ == "__main__":
    print(write_table(), end="")  # noqa: T201
