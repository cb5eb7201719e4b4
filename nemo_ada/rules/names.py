"""Rules for the names of keys. NeMo-RL does not check them: it loads a config with `gpro:` without an error.

The names come from the checkout that NEMO_RL_HOME names: from its configuration classes and its examples. So each
version of NeMo-RL is judged by its own names. Without a checkout they come from `nemo_rl_keys.yaml`, which lists those
of v0.7.0. vLLM's arguments always come from there: those of 0.20.0, and for a checkout that pins another vLLM those of
0.29.0, too. A section that neither has takes any name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nemo_ada.config.ada import AdaSettings
from nemo_ada.config.keys import settings
from nemo_ada.config.parsing import CLOSE, meant
from nemo_ada.config.presets import SECTION
from nemo_ada.errors import UserError
from nemo_ada.rules.facts.checkout import PACKAGE, Checkout, is_theirs
from nemo_ada.rules.facts.nemo_config import HOME
from nemo_ada.rules.facts.site import site_setting
from nemo_ada.rules.facts.upstream import CONTROLLER_CONFIG, MASTER_CONFIG
from nemo_ada.rules.finding import Findings, error, ok
from nemo_ada.rules.single_controller import CONTROLLER, SAVE_PLANE
from nemo_ada.run.files import text_of
from nemo_ada.run.yaml_file import read_yaml

KNOWN = Path(__file__).with_name("nemo_rl_keys.yaml")
TOP = "top"  # the file's name for the level above all sections
OURS = ("backend", "run_dir", "resume", "changed_inputs", "reinforce_ada", "optimizer_offload", "card", "defaults")
VLLM_ARGUMENTS, VLLM_LATER = "policy.generation.vllm_kwargs", "vllm_0.29.0"  # sections of the list
LISTED_VLLM = "vllm==0.20.0"
VLLM_CONFIG = ("policy.generation.vllm_cfg.", "nemo_rl.models.generation.vllm.config.VllmSpecificArgs")
EXAMPLES = ("grpo", "dapo", "prorl")  # parts of the names of NeMo-RL's example configs whose keys count


def known_names() -> Mapping[str, frozenset[str]]:
    """Dotted section -> names of its keys, in the checkout that NEMO_RL_HOME names or else in v0.7.0."""
    home = Path(site_setting(HOME) or ".missing")
    return _names(home if (home / PACKAGE).is_dir() else None)


@cache
def _names(home: Path | None) -> Mapping[str, frozenset[str]]:
    listed = read_yaml(KNOWN)
    later = listed.pop(VLLM_LATER)
    of_checkout = {} if home is None else names_in(Checkout(home))
    if home is not None and not _pins_listed_vllm(home):
        listed[VLLM_ARGUMENTS] += later
    sections = of_checkout | {VLLM_ARGUMENTS: listed[VLLM_ARGUMENTS]} if of_checkout else listed
    if home is not None and not (home / "examples/configs").is_dir():  # an installed package has no examples
        sections = {name: {*sections.get(name, ()), *listed.get(name, ())} for name in sections | listed}
    return {section: frozenset(names) for section, names in sections.items()}


def _pins_listed_vllm(home: Path) -> bool:
    """Return whether a checkout asks for the vLLM whose arguments are listed first."""
    pins = home / "pyproject.toml"
    return not pins.is_file() or LISTED_VLLM in text_of(pins, errors="replace")


def names_in(checkout: Checkout) -> dict[str, set[str]]:
    """Dotted section -> names of its keys, from the classes and examples of a checkout.

    Sections inside lists, and those under names that the user chooses, are left out.
    """
    prefix, vllm = VLLM_CONFIG
    sections: dict[str, set[str]] = {}
    of_controller = checkout.keys(f"{CONTROLLER_CONFIG}.MasterConfig", containers=False)
    known = checkout.keys(MASTER_CONFIG, containers=False) | checkout.keys(vllm, prefix, containers=False)
    for key in of_controller | known:
        section, _, name = key.rpartition(".")
        sections.setdefault(section or TOP, set()).add(name)
    for path in sorted((checkout.root / "examples/configs").rglob("*.yaml")):
        if any(word in path.name for word in EXAMPLES) and is_theirs(path, checkout.root):
            example = _mapping(path)
            _collect({key: value for key, value in example.items() if key != "defaults"}, "", sections)
    return sections


def _mapping(path: Path) -> Mapping[str, Any]:
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


def key_names(config: Mapping[str, Any], base: Mapping[str, Any]) -> Findings:
    """Misspelled and unknown keys. `base`: the part of the config from NeMo-RL's own files, whose names are right."""
    names = list(unknown(config, base))
    for key in names:
        if key in (CONTROLLER, SAVE_PLANE):  # `check` says which checkout has a single controller; main has no such key
            continue
        yield error(key, f"NeMo-RL has no such key and would ignore it; {_meant(key)}")
    if not names:
        yield ok("configuration", "all keys are NeMo-RL's or ours")


def unknown(config: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    """Dotted keys that neither the list nor `base` has."""
    theirs = {key: value for key, value in config.items() if key not in OURS}
    yield from _unknown(theirs, base, "")


def _unknown(section: Mapping[str, Any], base: Any, where: str) -> Iterator[str]:
    names = known_names().get(where or TOP)
    if names is None:
        return
    for key, value in section.items():
        dotted = f"{where}.{key}" if where else str(key)
        in_base = isinstance(base, Mapping) and key in base
        if key not in names and not in_base:
            yield dotted
        elif isinstance(value, Mapping):
            yield from _unknown(value, base[key] if in_base else {}, dotted)


def _meant(key: str) -> str:
    """Return what the user may have meant: a name of the same section, or the same name in another one."""
    section, _, name = key.rpartition(".")
    known = known_names()
    close = difflib.get_close_matches(name, sorted(known[section or TOP]), n=1, cutoff=CLOSE)
    if close:
        return f"did you mean {f'{section}.' if section else ''}{close[0]}?"
    theirs = [f"{other}.{name}" for other, names in known.items() for name in names if other != TOP]
    ours = [setting.key for setting in settings(AdaSettings, f"{SECTION}.")]
    elsewhere = meant(name, [*theirs, *ours])
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return "remove it, or look it up in NeMo-RL's examples/configs"
