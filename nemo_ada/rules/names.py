"""Rules for the names of keys. NeMo-RL does not check them: it loads a config with `gpro:` without an error.

The names come from the NeMo-RL that is there: from its configuration classes and its examples. So each version is
judged by its own names. Nothing is judged without a checkout, nor in a section that it does not declare, such as vLLM's
own arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.keys import list_settings
from nemo_ada.config.parsing import CLOSE, find_meant
from nemo_ada.config.presets import SECTION
from nemo_ada.errors import UserError
from nemo_ada.rules.facts import version
from nemo_ada.rules.facts.checkout import Checkout, belongs_to_nemo_rl
from nemo_ada.rules.facts.config_file import EXAMPLES
from nemo_ada.rules.facts.upstream import CONTROLLER_CONFIG, MASTER_CONFIG
from nemo_ada.rules.finding import Findings, error, ok, skipped
from nemo_ada.rules.single_controller import CONTROLLER, SAVE_PLANE
from nemo_ada.run.yaml_file import read_yaml

TOP = "top"  # stands for the level above all sections
OURS = ("backend", "run_dir", "resume", "changed_inputs", "reinforce_ada", "optimizer_offload", "card", "defaults")
VLLM_CONFIG = ("policy.generation.vllm_cfg.", "nemo_rl.models.generation.vllm.config.VllmSpecificArgs")
ALGORITHMS = ("grpo", "dapo", "prorl")  # parts of the names of NeMo-RL's example configs whose keys count


@cache
def list_known_names(checkout: Checkout) -> Mapping[str, frozenset[str]]:
    """Dotted section -> names of its keys in a checkout."""
    return {section: frozenset(names) for section, names in collect_names(checkout).items()}


def collect_names(checkout: Checkout) -> dict[str, set[str]]:
    """Dotted section -> names of its keys, from the classes and examples of a checkout.

    Sections inside lists, and those under names that the user chooses, are left out.
    """
    prefix, vllm = VLLM_CONFIG
    sections: dict[str, set[str]] = {}
    of_controller = checkout.list_keys(f"{CONTROLLER_CONFIG}.MasterConfig")
    known = checkout.list_keys(MASTER_CONFIG) | checkout.list_keys(vllm, prefix)
    for key in of_controller | known:
        section, _, name = key.rpartition(".")
        sections.setdefault(section or TOP, set()).add(name)
    for path in sorted((checkout.root / EXAMPLES).rglob("*.yaml")):
        if any(word in path.name for word in ALGORITHMS) and belongs_to_nemo_rl(path, checkout.root):
            example = _read_mapping(path)
            _collect({key: value for key, value in example.items() if key != "defaults"}, "", sections)
    return sections


def _read_mapping(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a YAML. It is empty where the file cannot be read or holds something else."""
    try:
        content = read_yaml(path)
    except UserError:
        return {}
    return content if isinstance(content, dict) else {}


def _collect(values: Any, where: str, sections: dict[str, set[str]]) -> None:
    if isinstance(values, Mapping) and (where or TOP) in sections:
        for key, value in values.items():
            sections[where or TOP].add(str(key))
            _collect(value, f"{where}.{key}" if where else str(key), sections)


def check_key_names(config: Mapping[str, Any], base: Mapping[str, Any]) -> Findings:
    """Misspelled and unknown keys. `base`: the part of the config from NeMo-RL's own files, whose names are right."""
    checkout = version.find_checkout()
    if checkout is None or not (checkout.root / EXAMPLES).is_dir():  # an installed package has no examples
        yield skipped("configuration", "no checkout of NeMo-RL here, so the names of keys were not looked up")
        return
    known = list_known_names(checkout)
    theirs = {key: value for key, value in config.items() if key not in OURS}
    names = list(_find_unknown(known, theirs, base, ""))
    for key in names:
        if key in (CONTROLLER, SAVE_PLANE):  # `check` says which checkout has a single controller; main has no such key
            continue
        yield error(key, f"NeMo-RL has no such key and would ignore it; {_guess_meant(known, key)}")
    if not names:
        yield ok("configuration", "all keys are NeMo-RL's or ours")


def _find_unknown(
    known: Mapping[str, frozenset[str]], section: Mapping[str, Any], base: Any, where: str
) -> Iterator[str]:
    """Dotted keys that neither NeMo-RL nor `base` has."""
    names = known.get(where or TOP)
    if names is None:
        return
    for key, value in section.items():
        dotted = f"{where}.{key}" if where else str(key)
        in_base = isinstance(base, Mapping) and key in base
        if key not in names and not in_base:
            yield dotted
        elif isinstance(value, Mapping):
            yield from _find_unknown(known, value, base[key] if in_base else {}, dotted)


def _guess_meant(known: Mapping[str, frozenset[str]], key: str) -> str:
    """Return what the user may have meant: a name of the same section, or the same name in another one."""
    section, _, name = key.rpartition(".")
    close = difflib.get_close_matches(name, sorted(known[section or TOP]), n=1, cutoff=CLOSE)
    if close:
        return f"did you mean {f'{section}.' if section else ''}{close[0]}?"
    theirs = [f"{other}.{name}" for other, names in known.items() for name in names if other != TOP]
    ours = [setting.key for setting in list_settings(AdaSettings, f"{SECTION}.")]
    elsewhere = find_meant(name, [*theirs, *ours])
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return "remove it, or look it up in NeMo-RL's examples/configs"
